"""Usage wherever it stands, counts that add up, and counts that cannot be true."""

import json
import random
from typing import Any

import pytest
from hypothesis import given, strategies as st
from payloads import DONE, ROLE, STOP, body, chunk, events, read, says

from llm_locust.wire.dialects.chat import CHAT, COMPLETIONS
from llm_locust.wire.dialects.dialect import ReplyReader, read_body
from llm_locust.wire.dialects.messages import MESSAGES
from llm_locust.wire.draft import Reply
from llm_locust.wire.usage import CountFault, OutputCount, Usage, gather, most_tokens, usage_of

FULL = {"prompt_tokens": 19, "completion_tokens": 15, "total_tokens": 34}
COHERE = {"input_tokens": 19, "output_tokens": 15}
WORDS = [says(" a b c") for _ in range(5)]

#: Places of usage in a chunk, from public reports and others of their kind.
PLACES: dict[str, Any] = {
    "top": lambda u: {**STOP, "usage": u},
    "no choices": lambda u: {"choices": [], "usage": u},
    "choice": lambda u: chunk({}, "stop") | {"choices": [{"index": 0, "delta": {}, "usage": u}]},
    "delta": lambda u: chunk({"usage": u}, "stop"),
    "message": lambda u: {"choices": [{"index": 0, "delta": {}, "message": {"usage": u}}]},
    "x_groq": lambda u: {**STOP, "x_groq": {"id": "r", "usage": u}},
    "beside": lambda u: {**STOP, "token_usage": u},
    "deep": lambda u: {**STOP, "x_vendor": {"meta": {"llmUsage": u}}},
    "its own": lambda u: {"id": "x", "choices": None, "usage": u},
    "beside choices": lambda u: {**STOP, **u},
    "alone": lambda u: u,
    "SGLang": lambda u: {**STOP, "meta_info": u},
    "statistics": lambda u: {**STOP, "stats": {"usage": u}},
    "as a text": lambda u: {**STOP, "usage": json.dumps(u)},
    "a count of tokens": lambda u: {**STOP, "usage": {"token_count": u}},
}

#: The same counts in other spellings.
SPELLINGS = [
    FULL,
    {"promptTokenCount": 19, "candidatesTokenCount": 15, "totalTokenCount": 34},
    {"inputTokens": 19, "outputTokens": 15, "totalTokens": 34},
    {"input_tokens": 19, "output_tokens": 15, "total_tokens": 34},
    {"input_token_count": 19, "generated_token_count": 15, "total_token_count": 34},
    {"prompt_tokens": "19", "completion_tokens": "15", "total_tokens": "34"},
    {"prompt_tokens": 19.0, "completion_tokens": 15.0, "total_tokens": 34.0},
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("spelled", SPELLINGS)
@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_usage_is_found_wherever_it_stands_and_however_it_is_spelled(
    place: str, spelled: dict[str, Any], endpoint: Any
) -> None:
    words = [{"choices": [{"index": 0, "delta": {"content": " a b"}, "text": " a b"}]} for _ in range(8)]
    reply = read(*words, PLACES[place](spelled), DONE, endpoint=endpoint)
    assert reply.usage == Usage(input_tokens=19, output_tokens=15, total_tokens=34)
    assert (reply.count.tokens, reply.invalid, reply.error) == (15, None, None)


@pytest.mark.parametrize("place", ["top", "choice", "x_groq", "message"])
def test_an_answer_that_was_not_streamed_has_usage_at_the_same_places(place: str) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": " a b c" * 5}, "finish_reason": "stop"}
    whole: dict[str, Any] = {"choices": [choice]}
    match place:
        case "top":
            whole["usage"] = FULL
        case "choice":
            choice["usage"] = FULL
        case "message":
            choice["message"] = {"content": " a b c" * 5, "usage": FULL}
        case "x_groq":
            whole["x_groq"] = {"usage": FULL}
    reply = read_body(CHAT, body(whole))
    assert reply.usage == Usage(input_tokens=19, output_tokens=15, total_tokens=34)


#: What may come after a full usage, or before it, and changes nothing.
EMPTY: list[Any] = [
    None,
    {},
    {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    {"prompt_tokens": None, "completion_tokens": None},
    {"prompt_tokens": 19},
    {"completion_tokens": 7},
    {"total_tokens": 34},
    {"completion_tokens": -5},
    {"completion_tokens": 1.5},
    {"completion_tokens": True},
    "many",
    [FULL["total_tokens"]],
]


@given(st.lists(st.sampled_from(EMPTY), max_size=4), st.lists(st.sampled_from(EMPTY), max_size=4), st.data())
def test_no_zero_null_or_part_of_usage_wipes_a_count(
    before: list[Any], after: list[Any], data: st.DataObject
) -> None:
    def placed(usage: Any) -> Any:
        return PLACES[data.draw(st.sampled_from(["top", "no choices", "x_groq"]))](usage)

    reply = read(ROLE, *WORDS, *map(placed, before), placed(FULL), *map(placed, after), DONE)
    assert reply.usage == Usage(input_tokens=19, output_tokens=15, total_tokens=34)


@pytest.mark.parametrize("place", ["top", "no choices", "x_groq", "deep", "its own"])
@pytest.mark.parametrize("at_once", [True, False])
def test_usage_that_comes_after_the_end_counts_if_none_came_before_and_nothing_else_does(
    place: str, at_once: bool
) -> None:
    late = PLACES[place](FULL) | {"error": {"message": "too late"}}
    for before, output in ([], 15), ([{"choices": [], "usage": {"completion_tokens": 6}}], 6):
        stream = events([ROLE, *WORDS, STOP, *before, DONE, says("more"), late])
        reader = ReplyReader(CHAT)
        for part in [stream] if at_once else [[each] for each in stream]:
            reader.feed(part)
        reply = reader.finish()
        assert (reply.count.tokens, reply.text, reply.error) == (output, " a b c" * 5, None)


def test_of_what_follows_the_end_four_events_are_looked_at() -> None:
    for more, ended in (3, False), (4, True):
        reader = ReplyReader(CHAT)
        stream = events([*WORDS, STOP, DONE, *[b"{}"] * more, {"usage": FULL}])
        reader.feed(stream[:-1])
        assert reader.ended is ended
        reader.feed(stream[-1:])
        assert (reader.finish().usage is None) is ended


@pytest.mark.parametrize(
    "sent",
    [
        {"usage": {"billed_units": {"input_tokens": 9, "output_tokens": 11}, "tokens": COHERE}},
        {"meta": {"tokens": COHERE, "billed_units": {"input_tokens": 9.0, "output_tokens": 11.0}}},
        {"meta": {"billed_units": COHERE}},
        {"delta": {"usage": {"tokens": COHERE}}},
    ],
)
def test_coheres_counts_are_those_of_its_model_where_it_sends_them(sent: dict[str, Any]) -> None:
    assert read(ROLE, *WORDS, STOP | sent, DONE).usage == Usage(input_tokens=19, output_tokens=15)


@given(st.permutations(list(FULL.items())))
def test_fields_of_usage_may_come_in_several_events(fields: list[tuple[str, int]]) -> None:
    parts = [{"choices": [], "usage": dict([field])} for field in fields]
    assert read(ROLE, *WORDS, STOP, *parts, DONE).usage == Usage(
        input_tokens=19, output_tokens=15, total_tokens=34
    )


@pytest.mark.parametrize("begun", [{"prompt_tokens": 19, "completion_tokens": 0, "total_tokens": 19}])
def test_totals_of_parts_are_none_of_the_whole(begun: dict[str, int]) -> None:
    ended = {"prompt_tokens": 0, "completion_tokens": 15, "total_tokens": 15}
    parts = [{"choices": [], "usage": part} for part in (begun, ended)]
    reply = read(parts[0], *WORDS, STOP, parts[1], DONE)
    assert reply.usage == Usage(input_tokens=19, output_tokens=15, total_tokens=34)
    assert reply.count == OutputCount(tokens=15)


def test_a_cache_that_is_counted_apart_is_part_of_the_prompt_also_where_its_counts_come_apart() -> None:
    events = [
        {"type": "message_start", "message": {"usage": {"input_tokens": 10, "output_tokens": 1}}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Yes"}},
        {"type": "message_delta", "delta": {}, "usage": {"cache_read_input_tokens": 20, "output_tokens": 1}},
    ]
    assert read(*events, endpoint=MESSAGES).usage == Usage(input_tokens=30, output_tokens=1, cached_tokens=20)


def nested(value: dict[str, Any], depth: int) -> dict[str, Any]:
    for _ in range(depth):
        value = {"meta": value}
    return value


@pytest.mark.parametrize(
    ("payload", "found"),
    [
        (nested({"usage": FULL}, 3), True),
        (nested({"usage": FULL}, 4), False),
        ({"usage": {**{f"x{i}": i for i in range(250)}, **FULL}}, True),
        ({"usage": {**{f"x{i}": i for i in range(256)}, **FULL}}, False),
        ({"usage": FULL, "parts": [{}] * 300}, True),
        ({"usage": FULL, **{f"x{i}": {} for i in range(256)}}, False),
    ],
    ids=["4 deep", "5 deep", "250 fields before it", "256", "a long list", "256 objects"],
)
def test_usage_is_not_looked_for_deeper_or_among_more_than_an_event_can_have(
    payload: dict[str, Any], found: bool
) -> None:
    counts: dict[str, int] = {}
    gather(counts, payload)
    assert usage_of(counts) == (Usage(input_tokens=19, output_tokens=15, total_tokens=34) if found else None)


def test_what_only_looks_like_usage_is_none() -> None:
    counts: dict[str, int] = {}
    gather(
        counts, {"choices": [{"delta": {"tool_calls": [{"function": {"usage": FULL}}]}}], "x": {"n": FULL}}
    )
    gather(counts, {"error": {"usage": FULL}, "rates": {"total_tokens": 5}})
    gather(counts, [[[[FULL]]]])
    gather(counts, None)
    assert usage_of(counts) is None


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=4),
        lambda v: (
            st.dictionaries(st.sampled_from(["usage", "x_usage", "completion_tokens", "details", "a"]), v)
            | st.lists(v)
        ),
    )
)
def test_no_payload_of_any_form_raises(payload: Any) -> None:
    counts: dict[str, int] = {}
    gather(counts, payload)
    assert all(0 <= count <= 100_000_000 for count in counts.values())


def counted(n: int, *, events: list[str], reasoning: int = 0, prompt: int = 100, **usage: Any) -> OutputCount:
    """The count of an answer of these texts, the first ``reasoning`` of which are reasoning."""
    parts = [
        chunk({"reasoning_content" if i < reasoning else "content": text}) for i, text in enumerate(events)
    ]
    sent = {"prompt_tokens": prompt, "completion_tokens": n, **usage}
    return read(ROLE, *parts, STOP, {"choices": [], "usage": sent}, DONE).count


def details(reasoning: int) -> dict[str, Any]:
    return {"completion_tokens_details": {"reasoning_tokens": reasoning}}


@pytest.mark.parametrize(
    ("n", "events", "more", "tokens", "fault"),
    [
        # What is true of some server, and is believed.
        (40, ["tok "] * 40, {}, 40, None),
        (41, ["tok "] * 40, {}, 41, None),  # the end
        (44, ["tok "] * 40, {}, 44, None),  # and marks
        (60, [" twenty one", " words"] * 15, {}, 60, None),  # speculative decoding
        (400, [" some ten tokens of text in one event of a server that merges"] * 40, {}, 400, None),
        (120, ["漢字"] * 40, {}, 120, None),  # three bytes each, a token a byte
        (90, ["123"] * 30, {}, 90, None),  # a token a digit
        (90, ["{};"] * 30, {}, 90, None),
        (120, ["xkqzjw"] * 40, {}, 120, None),  # no words at all
        (1, ["tok "], {}, 1, None),
        (300, ["tok "] * 40, details(260), 300, None),  # hidden reasoning, told
        # What cannot be.
        (1, ["tok "] * 40, {}, None, CountFault.FEWER),
        (39, ["tok "] * 40, {}, None, CountFault.FEWER),
        (400, ["tok "] * 40, {}, None, CountFault.BYTES),
        (10**15, ["tok "] * 40, {}, None, CountFault.BEYOND),
        (2**53, ["a"], {}, None, CountFault.BEYOND),
        (100_000_000, ["a"], {}, None, CountFault.BYTES),
        (110, ["tok "] * 60, {}, None, CountFault.TEXT),
        (100, ["tok "] * 40, {}, None, CountFault.TEXT),
        (400, ["tok "] * 40, details(20), None, CountFault.BYTES),
        # What the total tells.
        (110, ["tok "] * 60, {"total_tokens": 160}, 60, CountFault.TEXT),
        (400, ["tok "] * 40, {"total_tokens": 140}, 40, CountFault.BYTES),
        (1, ["tok "] * 40, {"total_tokens": 140}, 40, CountFault.FEWER),
        (50, ["tok "] * 40, {"total_tokens": 140}, 40, CountFault.TOTAL),
        (40, ["tok "] * 40, {"total_tokens": 900}, 40, CountFault.TOTAL),
        (40, ["tok "] * 40, {"total_tokens": 120}, 40, CountFault.TOTAL),
        (40, ["tok "] * 40, {"total_tokens": 140}, 40, None),
        (40, ["tok "] * 40, {"total_tokens": 99}, 40, CountFault.TOTAL),
        (0, ["tok "] * 40, {"total_tokens": 140}, 40, None),
        (0, ["tok "] * 40, {}, None, None),
        (0, [], {}, 0, None),
    ],
)
def test_a_count_is_held_against_events_bytes_words_and_total(
    n: int, events: list[str], more: dict[str, Any], tokens: int | None, fault: CountFault | None
) -> None:
    count = counted(n, events=events, **more)
    assert (count.tokens, count.fault) == (tokens, fault)


@pytest.mark.parametrize(
    ("n", "more", "tokens", "fault"),
    [
        (30, details(10), 30, None),
        (20, details(10), 30, CountFault.REASONING),
        (20, {**details(10), "total_tokens": 130}, 30, CountFault.REASONING),
        (20, {}, None, CountFault.REASONING),  # of 10 events of reasoning and 20 of the answer
        (15, {}, None, CountFault.FEWER),
        (5, details(10), None, CountFault.FEWER),
    ],
)
def test_reasoning_that_came_and_was_left_out_of_the_count_is_added_or_the_count_is_none(
    n: int, more: dict[str, Any], tokens: int | None, fault: CountFault | None
) -> None:
    count = counted(n, events=["tok "] * 30, reasoning=10, **more)
    assert (count.tokens, count.fault, count.hidden) == (tokens, fault, 0)


def test_hidden_reasoning_that_was_left_out_is_hidden_all_the_same() -> None:
    count = counted(20, events=["tok "] * 20, **details(70), total_tokens=190)
    assert count == OutputCount(tokens=90, hidden=70, fault=CountFault.REASONING)


@given(st.integers(1, 80), st.integers(0, 10**6), st.sampled_from(["tok ", "a", "漢", "1", " Wort", "{"]))
def test_a_count_that_is_taken_has_a_token_for_each_event_and_a_byte_for_each_token(
    events: int, n: int, text: str
) -> None:
    count = counted(n, events=[text] * events)
    if count.tokens is None:
        assert count.fault is not None or n == 0
    else:
        assert events <= count.tokens <= len((text * events).encode()) + 4


@given(st.text(max_size=300))
def test_no_text_has_more_tokens_than_bytes_nor_fewer_than_words(text: str) -> None:
    most = most_tokens(text)
    words = sum(word.isascii() and word.isalpha() for word in text.split(" "))
    assert words <= most <= len(text.encode("utf-8", "replace"))


def test_a_long_text_is_judged_by_its_start() -> None:
    assert most_tokens("tok " * 100_000) == pytest.approx(100_000, rel=0.01)


# Counts in each event.


def running(*steps: tuple[str, int | None], end: int, finish: dict[str, Any] | None = None) -> Reply:
    """A stream whose events have these texts, and so many tokens so far; None: without a count."""

    def at(n: int | None) -> dict[str, Any]:
        return {} if n is None else {"usage": {"prompt_tokens": 9, "completion_tokens": n}}

    events = [says(text, **at(n)) for text, n in steps]
    return read(ROLE, *events, chunk(finish or {}, "stop", **at(end)), DONE)


def test_a_first_event_of_many_tokens_is_known_for_that() -> None:
    reply = running(("w " * 20, 20), *((" w", 21 + i) for i in range(10)), end=30)
    assert (reply.count.tokens, reply.count.opening, reply.count.came) == (30, 20, 30)
    assert len(reply.token_ends) == 11


@pytest.mark.parametrize("place", ["choice", "delta", "x_groq", "deep"])
@pytest.mark.parametrize("at_once", [True, False])
def test_counts_in_each_event_may_stand_anywhere(place: str, at_once: bool) -> None:
    def event(text: str, n: int) -> dict[str, Any]:
        sent = PLACES[place]({"prompt_tokens": 9, "completion_tokens": n})
        choice = sent["choices"][0] | {"finish_reason": None}
        choice["delta"] = {**choice["delta"], "content": text}
        return {**sent, "choices": [choice]}

    stream = [*(event("", n) for n in range(3)), event(" a b c", 3), event(" d", 4), event(" e", 5)]
    reader = ReplyReader(CHAT)
    for part in [events(stream)] if at_once else [[each] for each in events(stream)]:
        reader.feed(part)
    reply = reader.finish()
    assert tuple(reply.token_ends) == (20, 30, 40, 50, 60)
    assert (reply.count.opening, reply.count.came) == (1, 5)


def test_an_end_without_text_is_what_the_last_token_event_did_not_bring() -> None:
    reply = running(("two tok", 2), (" more", 4), end=5)
    assert (reply.count.tokens, reply.count.opening, reply.count.came) == (5, 2, 4)


def test_tokens_whose_text_is_held_back_are_dated_by_their_count() -> None:
    """The role has a count of 0; two empty events count 1 and 2, the text comes with the third token."""
    reply = running(("", 0), ("", 1), ("", 2), ("all of it", 3), (" more", 4), end=4)
    assert tuple(reply.token_ends) == (30, 40, 50, 60)
    assert (reply.first_answer, reply.count.opening, reply.count.came) == (2, 1, 4)


def test_a_count_that_precedes_its_text_is_not_a_token_of_its_own() -> None:
    """SGLang's role has the count of the text that follows it."""
    reply = running(("", 1), ("tok", 1), (" tok", 2), end=2)
    assert tuple(reply.token_ends) == (30, 40)
    assert (reply.first_answer, reply.count.tokens, reply.count.fault) == (0, 2, None)


def test_an_empty_event_whose_count_has_not_grown_is_no_token() -> None:
    reply = running(("a", 1), ("", 1), (" b", 2), ("", 2), (" c", 3), end=3)
    assert tuple(reply.token_ends) == (20, 40, 60)


def test_half_a_character_is_a_token_without_text() -> None:
    reply = running(("a", 1), ("", 2), ("é", 3), (" c", 4), end=4)
    assert tuple(reply.token_ends) == (20, 30, 40, 50)
    assert reply.count.came == 4


@pytest.mark.parametrize(
    "steps",
    [
        [("a", 9), (" b", 9), (" c", 9)],  # the end's count in each
        [("a", 1), (" b", None), (" c", None)],
        [("a", None), (" b", 2), (" c", 3)],
        [("a", 3), (" b", 2), (" c", 1)],
        [("a", 0), (" b", 0), (" c", 0)],
    ],
)
def test_counts_that_do_not_grow_with_the_events_tell_nothing_of_them(steps: list[Any]) -> None:
    reply = running(*steps, end=9)
    assert (reply.count.opening, reply.count.came) == (None, None)
    assert tuple(reply.token_ends) == (20, 30, 40)


def test_a_complete_answer_without_text_has_no_token_whatever_was_counted() -> None:
    reply = running(("", 1), ("", 2), ("", 3), end=3)
    assert (tuple(reply.token_ends), reply.done) == ((), True)


def test_an_answer_that_was_cut_before_its_text_has_the_tokens_that_were_counted() -> None:
    at = [{"prompt_tokens": 9, "completion_tokens": n} for n in range(4)]
    reply = read(*(says("", usage=each) for each in at))
    assert (tuple(reply.token_ends), reply.first_answer, reply.count.tokens) == ((20, 30, 40), None, 3)


def test_an_answer_that_was_cut_before_its_first_token_has_none() -> None:
    reply = read(*(says("", usage={"prompt_tokens": 9, "completion_tokens": 0}) for _ in range(3)))
    assert (tuple(reply.token_ends), reply.first_answer, reply.count.opening) == ((), None, None)


@given(st.lists(st.integers(1, 9), min_size=2, max_size=30), st.integers(0, 3), st.booleans())
def test_what_each_event_brought_adds_up(brought: list[int], end: int, split: bool) -> None:
    """However many tokens an event has: those of the first, those to the last, and the rest at the end."""
    so_far, steps = 0, []
    for n in brought:
        so_far += n
        steps.append((" w" * n, so_far))
    if split:  # an event of its own for each count that has text
        steps = [step for text, n in steps for step in ((text, n), ("", n))]
    count = running(*steps, end=so_far + end).count
    assert (count.opening, count.came, count.tokens) == (brought[0], so_far, so_far + end)


# Reasoning and other texts.

NAMES = [
    *("thinking", "reasoning_text", "thought", "thoughts", "thinking_content", "reasoning_details", "cot"),
    *("chain_of_thought_reasoning", "Reasoning", "think", "thinking_blocks"),
]
FORMS: list[Any] = [
    lambda text: text,
    lambda text: [{"type": "reasoning.text", "text": text}],
    lambda text: [{"type": "thinking", "thinking": text}],
    lambda text: {"type": "text", "text": text},
    lambda text: {"content": [{"text": text}]},
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("extra", [{}, {"content": ""}, {"content": None, "role": "assistant"}])
def test_reasoning_is_read_under_any_name_of_its_kind(name: str, form: Any, extra: dict[str, Any]) -> None:
    thinks = [chunk({**extra, name: form(" hm")}) for _ in range(3)]
    reply = read(ROLE, *thinks, says("Yes"), STOP, DONE)
    assert (reply.reasoning, reply.text, reply.unread) == (" hm" * 3, "Yes", None)
    assert (tuple(reply.token_ends), reply.first_answer) == ((20, 30, 40, 50), 3)


def test_the_same_reasoning_under_two_names_counts_once() -> None:
    both = chunk({"reasoning": " hm", "reasoning_details": [{"text": " hm"}]})
    other = chunk({"thinking": " hm", "thoughts": " hm"})
    reply = read(ROLE, both, other, says("Yes"), STOP, DONE)
    assert (reply.reasoning, len(reply.token_ends)) == (" hm hm", 3)


def test_a_summary_of_reasoning_hides_what_it_is_a_summary_of() -> None:
    summary = chunk({"reasoning_details": [{"type": "reasoning.summary", "summary": "So."}]})
    usage = {"completion_tokens": 60, **details(50)}
    reply = read(ROLE, summary, *(says(" word") for _ in range(9)), STOP, {"choices": [], "usage": usage})
    assert (reply.count.hidden, reply.first_answer) == (50, 1)


NAMED = {"reasoning_details": [{"type": "reasoning.summary", "summary": " So it"}]}


@pytest.mark.parametrize(
    ("delta", "events", "reasoning", "hidden"),
    [
        (NAMED, 60, 500, 500),
        (NAMED, 60, 30, 30),  # fewer than the summary has events
        ({"reasoning": " So it", **NAMED}, 60, 64, 64),
        ({"reasoning_content": " So it"}, 60, 500, 500),  # of which usage alone tells
        ({"reasoning_content": " So it"}, 60, 64, 0),
        ({"reasoning_content": " and so it goes on" * 3}, 60, 500, 0),
    ],
)
def test_a_summary_has_none_of_the_tokens_that_it_stands_for(
    delta: dict[str, Any], events: int, reasoning: int, hidden: int
) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 200 + reasoning, **details(reasoning)}
    answer = [says(" answer")] * 200
    reply = read(ROLE, *[chunk(delta)] * events, *answer, STOP, {"choices": [], "usage": usage}, DONE)
    assert reply.count == OutputCount(tokens=200 + reasoning, hidden=hidden)
    assert reply.first_answer == events


@pytest.mark.parametrize(
    "choice",
    [
        {"delta": {}, "reasoning": " hm"},
        {"delta": None, "reasoning_content": " hm"},
        {"delta": {"message": {"reasoning": " hm"}}},
        {"delta": {}, "message": {"thinking": " hm"}},
        {"delta": {"provider_specific_fields": {"reasoning_content": " hm", "citations": ["x"]}}},
        {"delta": {"extra": {"thought": " hm", "thought_signature": "x"}}},
        {"delta": {"content": {"type": "thinking", "thinking": " hm"}}},
        {"delta": {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": " hm"}]}]}},
        {"delta": {"content": [{"type": "reasoning", "text": " hm"}]}},
        {"delta": {"content": [{"type": "reasoning", "reasoning": " hm"}]}},
        {"delta": {"content": [{"type": "x", "thought": {"text": " hm"}}]}},
    ],
)
def test_reasoning_is_read_wherever_a_choice_has_it(choice: dict[str, Any]) -> None:
    thinks = [{"choices": [{"index": 0, **choice}]}] * 3
    reply = read(ROLE, *thinks, says("Yes"), STOP, DONE)
    assert (reply.reasoning, reply.text, reply.unread, reply.invalid) == (" hm" * 3, "Yes", None, None)
    assert (tuple(reply.token_ends), reply.first_answer) == ((20, 30, 40, 50), 3)


def test_parts_of_a_content_are_the_answers_and_of_reasoning() -> None:
    parts = ["a", {"type": "text", "text": "b"}, {"type": "thinking", "thinking": "hm"}, 7]
    for content in (parts, parts[:3]):
        reply = read(chunk({"content": content}), chunk({"content": {"text": "c"}}), STOP, DONE)
        assert (reply.text, reply.reasoning, reply.first_answer) == ("abc", "hm", 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("reasoning_signature", "abc"), ("thinking_tokens", "5"), ("thought_id", "t1"), ("role", "tool")),
        *(("stop_reason", "x"), ("id", "abc"), ("annotations", [{"text": "x"}]), ("provider", "p")),
        *(("finish_reason", "x"), ("reasoning_effort", "high"), ("index", "0"), ("type", "text")),
        *(("channel", "analysis"), ("recipient", "all"), ("modality", "text")),
    ],
)
def test_what_is_said_about_an_event_is_no_text(name: str, value: Any) -> None:
    about = [chunk({"content": "", name: value}) for _ in range(5)]
    reply = read(ROLE, *about, says("Yes"), STOP, DONE)
    assert (reply.reasoning, reply.unread, len(reply.token_ends)) == ("", None, 1)


@pytest.mark.parametrize("name", ["musings", "output", "parsed_content", "answer", "inner_voice"])
@pytest.mark.parametrize("form", FORMS[:4])
def test_a_text_that_is_not_read_is_named(name: str, form: Any) -> None:
    unread = [chunk({"content": "", name: form(" hm")}) for _ in range(10)]
    usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 14}}
    reply = read(ROLE, *unread, *(says(" a") for _ in range(4)), STOP, usage, DONE)
    assert (reply.unread, reply.text, len(reply.token_ends)) == (name, " a" * 4, 4)
    assert reply.count == OutputCount(tokens=14, hidden=10)  # of which no time is known


@pytest.mark.parametrize(("depth", "is_read"), [(0, True), (2, True), (3, False), (50, False)])
def test_reasoning_stands_no_deeper_than_three_lists_or_objects(depth: int, is_read: bool) -> None:
    value: Any = " hm"
    for _ in range(depth):
        value = {"content": value}
    assert read(ROLE, chunk({"thinking": [value]}), STOP, DONE).reasoning == (" hm" if is_read else "")


def test_an_answer_of_ever_other_fields_has_no_more_than_1024_of_their_names() -> None:
    texts = [chunk({"musings": " hm"})] * 5 + [chunk({f"field_{i}": " hm"}) for i in range(2_000)]
    usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 5_000}}
    reply = read(ROLE, *texts, says(" a"), STOP, usage, DONE)
    assert reply.unread == "musings"
    assert reply.count == OutputCount(tokens=5_000, hidden=5 + 1_023)


def test_reasoning_of_an_answer_that_was_not_streamed_is_read_under_any_name_of_its_kind() -> None:
    message = {"content": "Yes", "thinking": [{"text": "hm"}]}
    whole = read_body(CHAT, body({"choices": [{"message": message, "finish_reason": "stop"}]}))
    assert (whole.reasoning, whole.text, whole.done) == ("hm", "Yes", True)
    many = {"choices": [{"message": message}], "x": [[]] * 25_000}  # too much for a second look
    again = read_body(CHAT, body(many))
    assert (again.reasoning, again.text, again.invalid) == ("", "Yes", None)
    for odd in (5, [5], None):  # no choices: nothing is looked for
        assert read_body(CHAT, body({"choices": odd, "x": "think"})).reasoning == ""


def test_no_more_text_that_is_not_read_is_hidden_than_was_counted() -> None:
    unread = [chunk({"musings": " hm"}) for _ in range(10)]
    usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 5}}
    reply = read(ROLE, *unread, *(says(" a") for _ in range(4)), STOP, usage, DONE)
    assert reply.count == OutputCount(tokens=5, hidden=1)


def test_a_text_beside_the_delta_is_not_read_and_named() -> None:
    beside = [{"choices": [{"index": 0, "message": {"content": " hm"}, "delta": {}}]} for _ in range(3)]
    assert read(ROLE, *beside, STOP, DONE).unread == "message"
    own = [{"choices": [{"index": 0, "note": " hm", "delta": {}}]} for _ in range(3)]
    assert read(ROLE, *own, STOP, DONE).unread is None  # a server's own, and no part of an answer
    legacy = [{"choices": [{"index": 0, "text": "", "delta": {"content": " hm"}}]} for _ in range(3)]
    assert read(*legacy, STOP, DONE, endpoint=COMPLETIONS).unread == "delta"
    assert read({"choices": [{"message": {"content": " hm"}, "finish_reason": "stop"}]}).unread == "message"


@pytest.mark.parametrize("name", ["audio", "images", "tool_calls"])
def test_what_has_no_text_and_is_all_that_came_is_named(name: str) -> None:
    assert read(ROLE, chunk({"content": "", name: {"data": "AAAA"}}), STOP, DONE).beside == f'"{name}"'


def test_an_unknown_text_beside_a_known_one_and_a_single_one_are_not_named() -> None:
    known = [chunk({"content": " a", "musings": "x"}) for _ in range(5)]
    assert read(ROLE, *known, chunk({"musings": "once"}), STOP, DONE).unread is None


@pytest.mark.parametrize("part", [b"", b"\xff", b"null"])
def test_random_bytes_of_events_never_raise(part: bytes) -> None:
    draw = random.Random(5)
    payload = body(chunk({"thinking": [{"text": "hm"}], "usage": FULL}))
    for _ in range(300):
        cut = draw.randrange(len(payload))
        spoiled = payload[:cut] + part + payload[cut + draw.randrange(4) :]
        assert isinstance(read(ROLE, spoiled, says("a"), DONE), Reply)


@pytest.mark.parametrize(
    ("sent", "counted"),
    [
        (7, 7),
        ("7", 7),
        (7.0, 7),
        (7.5, None),
        ("7.0", 7),
        ("7.5", None),
        ("seven", None),
        (-1, None),
        (True, None),
        (1e300, None),
    ],
)
def test_a_count_is_a_whole_number_also_as_a_text(sent: Any, counted: int | None) -> None:
    counts: dict[str, int] = {}
    gather(counts, {"usage": {"prompt_tokens": sent}})
    usage = usage_of(counts)
    assert (usage and usage.input_tokens) == counted
