"""What tokens were, and how fast: each test is a case in which a report said something untrue.

- vLLM counts the end of an answer (EOS) and sends no text with it: 10 tokens of 20 ms printed a TPOT of
  18.0 ms, and short answers were called merged. The last gap now ends at the finish reason: 20.0 ms, and
  they came one by one.
- An answer in one event printed a TPOT of 0 ms, which holds every limit. It now has none, and is not
  judged by that limit.
- Usage of zeros beside text was taken for a count: 0 output tokens. It is none: the events are counted.
- Reasoning that the server counts and does not stream made 100 tokens in 0.2 s of 10 that took as long. The
  pace is now that of the tokens that could arrive.
- A server that counted 10 times too many tokens, or 1 for 40 events, held a limit on TPOT at twice its pace.
  A count that events or bytes contradict is not used, and that is said first.
- A first event of 20 tokens made a TPOT of 3.6 ms of 10. Where the server counts in each event, TPOT is
  that of the tokens after the first event.
- Tokens whose text was held back began when the text came. Their own count dates them.
- Reasoning in a field that was not read was a buffer on the way. The field is named.
- An answer that the server aborted was ok. It is a failure of the server.
- Two choices in one stream were one answer of twice the speed. Such a stream is invalid.
- A tool call without arguments was an empty answer. It is an answer, and its name is its first token.
- A new connection was in no latency that a limit could be set on. TTFT from the start of connecting has one.
- A failure counted as one gap among the hundreds of an answer in the adjusted ITL. It has as many as one.
"""

from typing import Any

import numpy as np
import pytest
from calls import Caller
from metrics_cases import batch, columns, failed, manifest, request
from scripted import Step, chat_chunk, chunk, last_chunk, response_head, sse, write
from scripted.raw import best_of
from summaries import summarise, typed

from llm_locust.core.record import Outcome, RequestRecord, TokenSource
from llm_locust.figures.compat import vllm_values
from llm_locust.figures.tokens import show as tokens_section
from llm_locust.metrics.catalogue import FORMULAS
from llm_locust.metrics.columns import Part
from llm_locust.metrics.question import Question
from llm_locust.metrics.requests.rates import tokens_per_event
from llm_locust.report.headline import findings

NOTHING_MISSING = {"abandoned": 0, "lost": 0, "unsent": 0, "stuck": 0}


def usage(completion: int, prompt: int = 7, **made: int) -> dict[str, Any]:
    counts: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": completion}
    return counts | ({"completion_tokens_details": made} if made else {})


def script(events: list[tuple[float, dict[str, Any]]], counts: dict[str, Any] | None) -> list[Step]:
    """Each event at its time in milliseconds, then usage and the end."""
    tail = b"" if counts is None else sse(chat_chunk(usage=counts))
    return [
        write(0, response_head() + chunk(sse(chat_chunk("", role="assistant")))),
        *(write(at_ms, chunk(sse(event))) for at_ms, event in events),
        write(None, chunk(tail + sse("[DONE]")) + last_chunk()),
    ]


def says(count: int, gap_ms: float = 20, **of: Any) -> list[tuple[float, dict[str, Any]]]:
    return [(50 + gap_ms * i, chat_chunk("t", **of)) for i in range(count)]


def tpot_ms(record: RequestRecord) -> float:
    return float(FORMULAS["tpot"](part_of(record))[0]) * 1e3


def part_of(record: RequestRecord) -> Part:
    return Part.from_batch(batch(record), record.scheduled_ns)


def summary(*records: RequestRecord, slo: str | None = None) -> dict[str, Any]:
    return summarise(batch(*records), manifest(), Question(slo=slo))


# The end of an answer


def test_an_end_that_usage_counts_came_with_the_finish_reason(ask: Caller) -> None:
    end, records = (50 + 9 * 20, chat_chunk("", finish_reason="stop")), list[RequestRecord]()

    def late_ms() -> float:
        records.append(ask.ask(script([*says(9), end], usage(10))).record)
        return abs(float(vllm_values(part_of(records[-1]))["e2el"][0]) * 1e3 - 230)

    # vLLM's clock begins with the role, and ends with the finish reason.
    assert best_of(3, late_ms, 10) < 10
    record = records[-1]
    assert (record.outcome, record.output_tokens, len(record.arrivals_ns)) == (Outcome.OK, 10, 9)
    assert tpot_ms(record) == pytest.approx(20.0, abs=1.0)  # printed 18.0
    assert tokens_per_event(part_of(record), np.arange(1)) == 1.0  # printed 1.11: merged
    assert vllm_values(part_of(record))["ttft"][0] * 1e3 == pytest.approx(0, abs=20)


def ended(
    n: int, events: int, reason: str, finish: float | None, source: TokenSource = TokenSource.USAGE
) -> RequestRecord:
    """Tokens each 20 ms, and an event with the finish reason at ``finish`` seconds."""
    return request(
        arrivals=tuple(0.1 + 0.02 * i for i in range(events)),
        output_tokens=n,
        finish_reason=reason,
        finish_ns=None if finish is None else round(finish * 1e9),
        token_source=source,
    )


@pytest.mark.parametrize(
    ("record", "tpot"),
    [
        (ended(10, 9, "stop", 0.28), 20.0),
        (ended(10, 9, "end_turn", 0.28), 20.0),
        (ended(10, 9, "completed", 0.28), 20.0),
        (ended(2, 1, "stop", 0.12), 20.0),
        (ended(10, 9, "length", 0.28), 160 / 9),  # stopped at its bound: no end was generated
        (ended(10, 10, "stop", 0.30), 20.0),  # an end that is not counted
        (ended(18, 9, "stop", 0.28), 160 / 17),  # two tokens per event: who the last ones were is not known
        (ended(10, 9, "stop", None), 160 / 9),  # with the last token
        (ended(10, 9, "stop", 0.28, TokenSource.TOKENIZER), 160 / 9),  # a tokenizer sees the text alone
    ],
)
def test_the_last_gap_ends_at_the_finish_reason_only_where_usage_says_so(
    record: RequestRecord, tpot: float
) -> None:
    assert tpot_ms(record) == pytest.approx(tpot)


def test_short_answers_one_by_one_are_not_called_merged() -> None:
    found = summary(*(ended(5, 4, "stop", 0.18) for _ in range(10)))
    assert (found["tokens"]["delivery"], found["tokens"]["tokens_per_event"]) == ("tokens", 1.0)
    assert found["latency_ms"]["tpot"]["p50"] == pytest.approx(20.0)


# An answer in one event


def test_an_answer_in_one_event_has_no_pace_and_its_limit_is_not_judged() -> None:
    found = summary(*(request(arrivals=(0.5,), output_tokens=50) for _ in range(10)), slo="tpot=20ms")
    assert found["latency_ms"]["tpot"]["n"] == 0
    assert found["latency_ms"]["tpot"]["p50"] is None  # printed 0
    # The only limit cannot be judged, and so is not held; printed 1.0.
    assert found["goodput"]["ratio"] == 0
    assert found["goodput"]["not_judged"] == {"tpot": 10}
    assert found["goodput"]["attainment"] == {"tpot": None}
    assert found["goodput"]["first_failed"] == {
        "tpot": 10,
        "outcome": 0,
        "abandoned": 0,
        "lost": 0,
        "unsent": 0,
        "stuck": 0,
    }


def test_another_limit_decides_where_the_pace_is_not_known() -> None:
    records = [request(arrivals=(0.5,), output_tokens=50), request(arrivals=(2.0,), output_tokens=50)]
    goodput = summary(*records, request(arrivals=(0.1, 0.2)), slo="ttft=1s tpot=20ms")["goodput"]
    assert goodput["not_judged"] == {"ttft": 0, "tpot": 2}
    assert goodput["attainment"] == {"ttft": pytest.approx(2 / 3), "tpot": 0.0}
    assert (goodput["ratio"], goodput["first_failed"]) == (
        pytest.approx(1 / 3),
        {"ttft": 1, "tpot": 1, "outcome": 0, **NOTHING_MISSING},
    )


def test_an_answer_of_one_token_has_no_pace_to_break() -> None:
    goodput = summary(request(arrivals=(0.5,), output_tokens=1), slo="tpot=20ms")["goodput"]
    assert (goodput["ratio"], goodput["not_judged"]) == (1.0, {"tpot": 0})


# Counts


def test_usage_of_zeros_beside_text_is_no_count(ask: Caller) -> None:
    answer = script([*says(4), (150, chat_chunk(finish_reason="stop"))], usage(0, prompt=0))
    record = ask.ask(answer, counted_input_tokens=12).record
    assert (record.output_tokens, record.token_source) == (4, TokenSource.EVENTS)  # printed 0, usage
    assert record.input_tokens == 12


def test_usage_of_zeros_without_text_is_one(ask: Caller) -> None:
    record = ask.ask(script([(5, chat_chunk(finish_reason="stop"))], usage(0))).record
    assert (record.outcome, record.output_tokens) == (Outcome.EMPTY, 0)


def test_requests_that_were_cut_have_as_many_tokens_an_event_as_the_others() -> None:
    """Four tokens per event: 10 answers of 10 s, and 10 that were cut in the middle of theirs."""
    whole = [request(arrivals=tuple(np.arange(1, 9) / 10), output_tokens=32) for _ in range(10)]
    cut: dict[str, Any] = {
        "outcome": Outcome.CANCELLED,
        "output_tokens": 4,
        "token_source": TokenSource.EVENTS,
    }
    found = summary(*whole, *(request(arrivals=tuple(np.arange(1, 5) / 10), **cut) for _ in range(10)))
    # 320 tokens that were counted, and 160 that were not; printed 360 in 10 s, all of it by usage.
    assert found["throughput"]["output_tokens_per_s"] == pytest.approx(48)
    assert found["tokens"]["source"] == pytest.approx(
        {"usage": 2 / 3, "tokenizer": 0, "events": 0, "estimate": 1 / 3}
    )


def test_without_any_counted_answer_events_are_all_that_is_known() -> None:
    cut: dict[str, Any] = {
        "outcome": Outcome.TRUNCATED,
        "output_tokens": None,
        "token_source": TokenSource.EVENTS,
    }
    found = summary(*(request(**cut) for _ in range(10)))
    assert found["throughput"]["output_tokens_per_s"] == pytest.approx(3)
    assert found["tokens"]["source"] == {"usage": 0, "tokenizer": 0, "events": 1, "estimate": 0}


# Reasoning


def test_reasoning_that_is_not_streamed_is_not_part_of_the_pace(ask: Caller) -> None:
    answer = script([*says(10), (240, chat_chunk(finish_reason="stop"))], usage(100, reasoning_tokens=90))
    record = ask.ask(answer).record
    assert (record.output_tokens, record.hidden_tokens) == (100, 90)
    assert tpot_ms(record) == pytest.approx(np.diff(record.arrivals_ns).mean() * 1e-6)  # printed 1.8 for 20
    assert tokens_per_event(part_of(record), np.arange(1)) == 1.0  # printed 10: buffered


def test_how_much_of_the_output_never_came_is_said() -> None:
    record = request(output_tokens=30, reasoning_tokens=27, hidden_tokens=27)
    found = summary(record, record, request(output_tokens=3), request(output_tokens=3))
    assert found["tokens"]["hidden"] == {"requests": 2, "tokens": 54, "share": pytest.approx(54 / 66)}
    assert found["throughput"]["output_tokens_per_s"] == pytest.approx(6.6)  # what the server counts
    said = " ".join(line.text for line in tokens_section(typed(found)).notes)
    assert "81.8 % of the output tokens are reasoning that was counted and not streamed (2 answers)" in said


def test_reasoning_that_is_streamed_or_counted_apart_is_not_hidden(ask: Caller) -> None:
    thinks = [(10 + i, chat_chunk(reasoning="h")) for i in range(5)]
    streamed = script(
        [*thinks, *says(5, 5), (90, chat_chunk(finish_reason="stop"))], usage(10, reasoning_tokens=5)
    )
    assert ask.ask(streamed).record.hidden_tokens == 0
    # More events than would be left of the count: reasoning is in the text, or not in the count.
    in_text = script([*says(10, 5), (110, chat_chunk(finish_reason="stop"))], usage(10, reasoning_tokens=5))
    assert ask.ask(in_text).record.hidden_tokens == 0


# What is an answer


def test_an_answer_that_the_server_aborted_is_its_failure(ask: Caller) -> None:
    record = ask.ask(script([*says(3, 5), (80, chat_chunk("", finish_reason="abort"))], usage(3))).record
    assert record.outcome is Outcome.API_ERROR  # was ok
    assert record.error == "the server ended the answer with finish reason 'abort'"
    assert len(record.arrivals_ns) == 3


def test_several_choices_in_one_stream_are_refused(ask: Caller) -> None:
    def choice(index: int, **of: Any) -> dict[str, Any]:
        event = chat_chunk("t", **of)
        return event | {"choices": [event["choices"][0] | {"index": index}]}

    events = [(10.0 + i, choice(i % 2)) for i in range(6)]
    events += [(20.0, choice(0, finish_reason="stop")), (20.0, choice(1, finish_reason="stop"))]
    record = ask.ask(script(events, usage(8))).record
    assert record.outcome is Outcome.INVALID  # was ok
    assert record.error is not None
    assert "2 choices" in record.error
    assert "n=1" in record.error


def test_a_tool_call_without_arguments_is_an_answer(ask: Caller) -> None:
    event = chat_chunk("")
    call = {"index": 0, "id": "x", "type": "function", "function": {"name": "now", "arguments": ""}}
    event["choices"][0]["delta"] = {"tool_calls": [call]}
    record = ask.ask(script([(10, event), (20, chat_chunk("", finish_reason="tool_calls"))], usage(6))).record
    assert (record.outcome, len(record.arrivals_ns)) == (Outcome.OK, 1)  # was empty


# Connecting, and failures among gaps


def test_connecting_is_told_beside_ttft_and_has_a_limit() -> None:
    record = request(at=0.0, late=1.2, arrivals=(0.05, 0.07))  # started at 0; the connection took 1.2 s
    found = summary(record, slo="ttft=100ms ttft_started=500ms")
    assert found["latency_ms"]["ttft"]["p50"] == pytest.approx(50)
    assert found["latency_ms"]["ttft_started"]["p50"] == pytest.approx(1250)
    assert found["goodput"]["first_failed"] == {
        "ttft": 0,
        "ttft_started": 1,
        "outcome": 0,
        "abandoned": 0,
        "lost": 0,
        "unsent": 0,
        "stuck": 0,
    }
    assert FORMULAS["ttft_started"](columns(record))[0] == pytest.approx(1.25)


def test_a_failed_request_has_as_many_gaps_as_an_answer() -> None:
    answers = [request(arrivals=tuple(0.05 + 0.02 * i for i in range(101))) for _ in range(5)]
    found = summary(*answers, *(failed() for _ in range(5)))["latency_ms_adjusted"]["itl"]
    assert found["n"] == 1000  # was 505
    assert "p75" in found["beyond"]  # half of all gaps never came; printed 20 ms


# Counts that cannot be true, and counts in each event


@pytest.mark.parametrize("counted", [1, 10, 39, 400, 10**15, 2**53])
def test_a_limit_on_the_pace_is_held_against_what_came_whatever_the_server_counts(
    ask: Caller, counted: int
) -> None:
    answer = script([*says(40, 2), (140, chat_chunk(finish_reason="stop"))], usage(counted))
    record = ask.ask(answer).record
    assert (record.output_tokens, record.token_source) == (40, TokenSource.EVENTS)
    assert tpot_ms(record) == pytest.approx(np.diff(record.arrivals_ns).mean() * 1e-6)
    found = typed(summarise(batch(record), manifest(), Question(gates="p50_tpot<1s")))
    assert found.tokens.faults.not_used == 1
    (box,) = [each for each in findings(found) if each.key == "counts"]
    assert box.box is not None
    assert "are not used for 100 % of the answers" in box.box.lines[0].text
    assert "the server's counts contradict them" in (found.gates[0].note or "")


def running(texts: list[tuple[float, str, int]], end: int) -> list[Step]:
    """Events at their times with their texts, and the tokens so far."""
    events = [(at_ms, chat_chunk(text) | {"usage": usage(n)}) for at_ms, text, n in texts]
    last = texts[-1][0] + 20
    return script([*events, (last, chat_chunk(finish_reason="stop") | {"usage": usage(end)})], None)


def test_a_first_event_of_many_tokens_is_not_a_part_of_the_pace(ask: Caller) -> None:
    first = (50.0, " w" * 20, 20)
    record = ask.ask(running([first, *((70.0 + 20 * i, " w", 21 + i) for i in range(10))], 30)).record
    assert (record.opening_tokens, record.came_tokens, len(record.arrivals_ns)) == (20, 30, 11)
    assert tpot_ms(record) == pytest.approx(np.diff(record.arrivals_ns).mean() * 1e-6)  # printed a third
    assert tokens_per_event(part_of(record), np.arange(1)) == 1.0  # printed 2.7: buffered
    notes = " ".join(line.text for line in tokens_section(typed(summary(record))).notes)
    assert "the first event of an answer brings 20.0 tokens" in notes


def test_an_end_without_text_is_known_also_where_events_have_several_tokens(ask: Caller) -> None:
    record = ask.ask(running([(50.0, "two tokens", 2), (90.0, " two more", 4)], 5)).record
    assert record.finish_ns is not None
    after_first = (record.finish_ns - int(record.arrivals_ns[0])) * 1e-6
    assert tpot_ms(record) == pytest.approx(after_first / 3)


def test_tokens_whose_text_is_held_back_are_dated_by_their_count(ask: Caller) -> None:
    held = [(50.0 + 10 * i, "", 1 + i) for i in range(5)]
    record = ask.ask(running([*held, (100.0, "all six at once", 6), (110.0, " more", 7)], 7)).record
    first, answer = int(record.arrivals_ns[0]), record.first_answer_ns
    assert len(record.arrivals_ns) == 7
    assert answer is not None
    assert answer - first >= 30_000_000
    assert answer == record.arrivals_ns[5]


def test_an_answer_that_was_cut_has_as_many_tokens_as_were_counted_until_then() -> None:
    record = request(opening_tokens=5, came_tokens=9, output_tokens=9)
    part = part_of(record)
    assert FORMULAS["tpot"](part)[0] == pytest.approx(0.04 / 4)
    assert part.event_tokens[0] == 9


@pytest.mark.parametrize(
    ("tokens", "opening", "came", "finish", "tpot_s"),
    [
        (3, None, None, None, 0.02),
        (30, 20, 30, None, 0.04 / 10),
        (31, 20, 30, 110_000_000, 0.06 / 11),  # the end came by itself
        (31, 20, 30, None, 0.04 / 10),  # it has no time: it is not a part of the pace
        (20, 20, 20, None, np.nan),  # all came with the first event
        (1, 1, 1, None, np.nan),
    ],
)
def test_the_pace_is_that_of_the_tokens_after_the_first_event(
    tokens: int, opening: int | None, came: int | None, finish: int | None, tpot_s: float
) -> None:
    made: dict[str, Any] = {
        "output_tokens": tokens,
        "opening_tokens": opening,
        "came_tokens": came,
        "finish_ns": finish,
    }
    record = request(finish_reason="length", **made)
    assert FORMULAS["tpot"](part_of(record))[0] == pytest.approx(tpot_s, nan_ok=True)


def test_a_text_that_is_not_read_is_named_and_no_buffer_is_blamed(ask: Caller) -> None:
    unread = [
        (50 + 10 * i, chat_chunk() | {"choices": [{"index": 0, "delta": {"musings": " hm"}}]})
        for i in range(10)
    ]
    read = [(160 + 10 * i, chat_chunk(" tok")) for i in range(4)]
    answer = script([*unread, *read, (200, chat_chunk(finish_reason="stop"))], usage(14))
    record = ask.ask(answer).record
    assert (record.unread, record.hidden_tokens, len(record.arrivals_ns)) == ("musings", 10, 4)
    found = typed(summary(*[record] * 3))
    assert found.tokens.unread.share == 1.0
    (box,) = [each.box for each in findings(found) if each.key in ("unread", "buffered")]
    assert box is not None
    assert 'text in "musings", which is not read' in box.lines[0].text


@pytest.mark.parametrize(("chars", "said"), [(51, True), (18, True), (15, False)])
def test_events_that_were_counted_as_tokens_and_seem_to_have_several_are_said(chars: int, said: bool) -> None:
    record = request(output_tokens=3, token_source=TokenSource.EVENTS, output_chars=chars)
    notes = " ".join(line.text for line in tokens_section(typed(summary(record))).notes)
    assert ("characters each, more than tokens have" in notes) is said
