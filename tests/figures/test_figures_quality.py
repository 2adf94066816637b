"""Quality over a window: accuracy, rejections, consistency and lengths, by hand-computed numbers."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from metrics_cases import batch, columns, failed, manifest, plain, request
from report_cases import summary
from summaries import summarise, typed

from llm_locust.core.arrow import SCHEMA
from llm_locust.core.batch import RecordBatch
from llm_locust.core.record import Doubt, Outcome, RequestRecord
from llm_locust.figures.quality import MOST_KINDS, concurrency_at_sent, doubtful, show as quality_section
from llm_locust.figures.section import Section, Tone
from llm_locust.metrics.answers import Answers, ByPrompt
from llm_locust.metrics.question import Question
from llm_locust.report.contents import sections
from llm_locust.report.headline import findings


def quality(*records: RequestRecord, **facts: Any) -> dict[str, Any]:
    found = plain(summarise(batch(*records), manifest(**facts))["quality"])
    assert isinstance(found, dict)
    return found


def graded(*correct: bool | None, every: float = 1.0, **fields: Any) -> list[RequestRecord]:
    """One answer a second after another, each right, wrong or not compared."""
    return [request(i * every, correct=c, **fields) for i, c in enumerate(correct)]


def refused(at: float, by: str, **fields: Any) -> RequestRecord:
    return request(at, outcome=Outcome.REJECTED, rejected_by=by, error=f"{by}: no", **fields)


def said(prompt: str, *answers: int | None, **fields: Any) -> list[RequestRecord]:
    """A prompt that was asked as often as there are answers, told by their hashes."""
    return [request(i / 10, prompt_id=prompt, answer_hash=h, **fields) for i, h in enumerate(answers)]


def test_accuracy_is_the_share_of_compared_answers_with_wilsons_interval() -> None:
    found = quality(*graded(True, True, True, False, None))["accuracy"]
    assert (found["n"], found["correct"], found["ratio"]) == (4, 3, 0.75)
    assert found["ci95"] == pytest.approx([0.3006, 0.9544], abs=5e-5)


def test_without_an_expected_answer_there_is_no_accuracy() -> None:
    found = quality(request(), failed(1.0))
    assert found["accuracy"] == {"n": 0, "correct": 0, "ratio": None, "ci95": None}
    assert found["over_time"] == found["by_load"] == []
    assert found["load_effect"] is None
    assert found["baseline"] is None
    assert found["length"] == {"n": 0, "at_limit": None, "over": None, "mean_relative": None}
    assert found["consistency"] == {"prompts": 0, "answers": 0, "prompts_equal": None, "pairs_equal": None}


def test_a_rejected_answer_counts_as_answered_and_keeps_its_place_in_the_accuracy() -> None:
    wrong = refused(0.5, "regex 'x'", correct=False)
    found = quality(
        *graded(True), wrong, refused(0.6, "json_schema"), refused(0.7, "json_schema"), failed(0.8)
    )
    assert found["answers"] == 4
    assert found["rejected"] == {"n": 3, "ratio": 0.75, "by": {"json_schema": 2, "regex 'x'": 1}}
    assert found["accuracy"]["ratio"] == 0.5


def test_a_rejected_answer_is_a_failure_and_not_good() -> None:
    summary = summarise(batch(request(), refused(0.5, "json_schema")), manifest(slo="ttft=1s"))
    assert summary["requests"]["by_outcome"]["rejected"] == summary["requests"]["failed"] == 1
    assert summary["goodput"]["ratio"] == 0.5
    assert summary["errors"][0]["message"] == "json_schema: no"


def test_only_answers_scheduled_in_the_window_count() -> None:
    found = quality(*graded(True, False, True, False), warmup_s=1.5)
    assert (found["accuracy"]["n"], found["accuracy"]["ratio"]) == (2, 0.5)


def test_accuracy_over_time_is_told_of_ten_parts_of_the_window() -> None:
    parts = quality(*graded(*[True] * 5, *[False] * 5), stopped=10.0)["over_time"]
    assert [part["ratio"] for part in parts] == [1.0] * 5 + [0.0] * 5
    assert [part["n"] for part in parts] == [1] * 10
    assert [part["start_s"] for part in parts] == pytest.approx(list(range(10)))
    assert parts[-1]["end_s"] == pytest.approx(10)


def test_a_part_of_the_window_without_answers_has_no_accuracy() -> None:
    parts = quality(request(0.0, correct=True), stopped=10.0)["over_time"]
    assert parts[0]["ratio"] == 1.0
    assert all(part["n"] == 0 and part["ratio"] is None for part in parts[1:])


def test_concurrency_when_sent_counts_the_request_itself_and_none_that_just_ended() -> None:
    c = columns(
        request(0.0, ended=1.0),
        request(0.5, ended=2.0),
        request(1.0, ended=3.0),
        request(0.1, (), sent=False, ended=0.1, outcome=Outcome.CONNECT_ERROR),
    )
    assert concurrency_at_sent(c).tolist() == [1, 2, 2, 0]


def crowd(at: float, size: int, right: int) -> list[RequestRecord]:
    """Requests 1 ms after another, under way together: the first ``right`` of them right."""
    return [request(at + i / 1000, ended=at + 0.9, correct=i < right) for i in range(size)]


def test_accuracy_against_load_is_told_by_thirds_of_the_concurrency() -> None:
    found = quality(*crowd(0, 9, 6))
    assert [third["load"] for third in found["by_load"]] == ["low", "middle", "high"]
    assert [third["concurrency"] for third in found["by_load"]] == [[1, 3], [4, 6], [7, 9]]
    assert [third["ratio"] for third in found["by_load"]] == [1.0, 1.0, 0.0]
    assert found["load_effect"]["difference"] == -1.0
    # Newcombe by hand: Wilson of 0/3 is [0, 0.5615], of 3/3 [0.4385, 1]; √2 · 0.5615 = 0.7941.
    assert found["load_effect"]["ci95"] == pytest.approx([-1.0, -0.2059], abs=5e-5)


def test_where_all_loads_are_one_there_is_no_effect_of_the_load() -> None:
    found = quality(*graded(True, False, True))
    assert [third["concurrency"] for third in found["by_load"]] == [[1, 1]]
    assert found["load_effect"] is None


def test_the_baseline_is_of_the_same_prompts_before_the_window_alone_at_the_server() -> None:
    alone = [request(i, prompt_id=f"p{i}", correct=True) for i in range(4)]
    together = [request(4.0, ended=4.9, prompt_id="p0", correct=False) for _ in range(3)]
    measured = [request(5.0 + i / 10, prompt_id=f"p{i}", correct=i == 0) for i in (0, 1, 9)]
    found = quality(*alone, *together, *measured, warmup_s=5.0)["baseline"]
    assert found["prompts"] == 2
    assert (found["accuracy"]["n"], found["accuracy"]["ratio"]) == (2, 0.5)
    assert (found["baseline"]["n"], found["baseline"]["ratio"]) == (2, 1.0)
    assert found["difference"] == -0.5


def test_the_baseline_of_another_run_counts_the_prompts_that_both_have() -> None:
    other = batch(
        request(0, prompt_id="a", correct=True),
        request(1, prompt_id="b", correct=True),
        request(2, prompt_id="only there", correct=False),
    )
    answers = Answers.of(other)
    now = batch(
        request(0, prompt_id="b", correct=False),
        request(1, prompt_id="a", correct=False),
        request(2, prompt_id="only here", correct=True),
        request(3, correct=True),
    )
    baseline = ByPrompt.of(answers, np.arange(len(other)))
    found = summarise(now, manifest(), Question(quality_baseline=baseline))["quality"]["baseline"]
    assert (found["prompts"], found["difference"]) == (2, -1.0)
    # Wilson of 0/2 is [0, 0.6576]: √2 · 0.6576 = 0.9300.
    assert found["ci95"] == pytest.approx([-1.0, -0.0700], abs=5e-5)


def test_consistency_is_the_share_of_repeated_prompts_whose_answers_are_all_equal() -> None:
    found = quality(
        *said("same", 7, 7, 7),
        *said("other", 1, 1, 2),
        *said("once", 5),
        *said("unknown", None, None),
        request(answer_hash=7),
    )["consistency"]
    # Of 3 + 3 pairs 3 + 1 are equal.
    assert found == {"prompts": 2, "answers": 6, "prompts_equal": 0.5, "pairs_equal": pytest.approx(4 / 6)}


def test_one_id_in_two_classes_is_two_prompts() -> None:
    found = quality(*said("1", 7, 7, slo_class="a"), *said("1", 8, 8, slo_class="b"))["consistency"]
    assert (found["prompts"], found["prompts_equal"]) == (2, 1.0)


def test_hashes_are_compared_to_the_last_bit() -> None:
    found = quality(*said("p", 2**62, 2**62 + 1), *said("q", -(2**63), -(2**63)))["consistency"]
    assert (found["prompts"], found["prompts_equal"]) == (2, 0.5)


def test_length_fidelity_holds_generated_against_asked_tokens() -> None:
    lengths = [(100, 100), (100, 50), (100, 120), (100, 100), (None, 7)]
    records = [request(i, asked_output_tokens=a, output_tokens=n) for i, (a, n) in enumerate(lengths)]
    found = quality(*records, failed(5.0, asked_output_tokens=100))["length"]
    assert (found["n"], found["at_limit"], found["over"]) == (4, 0.5, 0.25)
    assert found["mean_relative"] == pytest.approx(-0.075)


def test_finish_reasons_are_counted_most_frequent_first() -> None:
    reasons = ["stop", "length", "stop", None, "content_filter"]
    records = [request(i, finish_reason=reason) for i, reason in enumerate(reasons)]
    found = quality(*records)["finish_reasons"]
    assert found == {"stop": 2, "content_filter": 1, "length": 1}
    assert next(iter(found)) == "stop"


def test_a_server_that_invents_finish_reasons_does_not_fill_the_summary() -> None:
    records = [request(i / 100, finish_reason=f"reason {i}") for i in range(100)]
    found = quality(*records)["finish_reasons"]
    assert len(found) == MOST_KINDS + 1
    assert sum(found.values()) == 100


def test_each_name_and_class_has_its_own_accuracy_and_rejections() -> None:
    easy = [request(i, name="easy", slo_class="a", correct=True) for i in range(2)]
    summary = summarise(
        batch(*easy, refused(3.0, "own", name="hard", slo_class="b", correct=False)), manifest()
    )
    for part in (summary["by_name"]["easy"], summary["by_class"]["a"]):
        assert part["quality"]["accuracy"]["ratio"] == 1.0
        assert part["quality"]["rejected"]["n"] == 0
    for part in (summary["by_name"]["hard"], summary["by_class"]["b"]):
        assert part["quality"]["accuracy"]["ratio"] == 0.0
        assert part["quality"]["rejected"] == {"n": 1, "ratio": 1.0, "by": {"own": 1}}


@st.composite
def _answers(draw: st.DrawFn) -> RequestRecord:
    return request(
        draw(st.integers(0, 9)) / 2,
        outcome=draw(st.sampled_from([Outcome.OK, Outcome.REJECTED, Outcome.TIMEOUT])),
        correct=draw(st.sampled_from([None, True, False])),
        rejected_by=draw(st.sampled_from([None, "x", "y"])),
        prompt_id=draw(st.sampled_from([None, "1", "2"])),
        answer_hash=draw(st.none() | st.integers(-2, 2)),
        finish_reason=draw(st.sampled_from([None, "stop", "odd"])),
        asked_output_tokens=draw(st.none() | st.integers(1, 5)),
    )


class InParts:
    """The same requests in parts that each have dictionaries of their own."""

    def __init__(self, parts: list[RecordBatch]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def parts(self, columns: Sequence[str] = SCHEMA.names) -> Iterator[RecordBatch]:
        for part in self._parts:
            yield RecordBatch(part.table.select(columns))


@settings(max_examples=settings().max_examples // 2)  # of two whole summaries each
@given(st.lists(st.lists(_answers(), max_size=6), min_size=1, max_size=4))
def test_in_what_parts_the_records_came_changes_nothing(parts: list[list[RequestRecord]]) -> None:
    whole = quality(*[record for part in parts for record in part])
    assert plain(summarise(InParts([batch(*part) for part in parts]), manifest())["quality"]) == whole
    assert json.loads(json.dumps(whole, allow_nan=False)) == whole


def shown(*records: RequestRecord, **facts: Any) -> list[str]:
    section = quality_section(typed(summarise(batch(*records), manifest(**facts))))
    return [] if section is None else [line.text for line in (*section.lines, *section.notes)]


def test_a_run_that_asked_nothing_of_its_answers_has_no_section() -> None:
    assert shown(request(finish_reason="stop", asked_output_tokens=3), failed(1.0)) == []


def test_the_section_says_accuracy_rejections_and_consistency() -> None:
    lines = shown(
        *graded(True, False, finish_reason="stop"),
        refused(2.0, "json_schema", finish_reason="length"),
        *said("p", 1, 1),
    )
    assert lines[0] == "50.0 % correct of 2 answers compared (95 %: 9.5 % .. 90.5 %)"
    assert "1 answer rejected (20.0 % of the complete answers)" in lines
    assert "1 by json_schema" in lines
    assert "same prompt, same answer: 100 % of 1 repeated prompt, 100 % of the pairs of 2 answers" in lines
    assert lines[-1] == "ended by: stop 2 · length 1"


def test_an_unusual_finish_reason_is_a_section_of_its_own() -> None:
    assert shown(request(finish_reason="content_filter")) == ["ended by: content_filter 1"]


def test_a_drop_below_the_baseline_that_is_no_chance_is_said_loud() -> None:
    alone = [request(i / 10, prompt_id=f"p{i}", correct=True) for i in range(30)]
    busy = [request(5 + i / 10, prompt_id=f"p{i}", correct=i < 10) for i in range(30)]
    section = quality_section(typed(summarise(batch(*alone, *busy), manifest(warmup_s=5.0))))
    assert section is not None
    (line,) = [line for line in section.lines if line.text.startswith("baseline")]
    assert line.tone is Tone.BAD
    assert "baseline, the same 30 prompts: 100 % correct; WORSE: -66.7 points" in line.text


def answers(n: int, doubt: Doubt | None = None, reason: str = "stop") -> list[RequestRecord]:
    return [request(i / 10, (0.05, 0.1), doubt=doubt, finish_reason=reason) for i in range(n)]


def told(*records: RequestRecord, gates: str = "") -> Section | None:
    return doubtful(typed(summary(list(records), gates=gates)))


def test_without_a_doubt_nothing_is_said() -> None:
    assert told(*answers(5), failed(1.0)) is None


@pytest.mark.parametrize(
    ("doubt", "words"),
    [
        (Doubt.CONTENT_FILTER, "3 answers (30.0 %) cut by a content filter, or refused: not good in goodput"),
        (Doubt.NO_ANSWER, "3 answers (30.0 %) with reasoning and no answer: not good in goodput"),
        (Doubt.NO_FINISH_REASON, "3 answers (30.0 %) ended without a finish reason"),
        (Doubt.UNKNOWN_FINISH_REASON, "3 answers (30.0 %) with a finish reason that the API does not have"),
    ],
)
def test_each_kind_is_named_with_its_share_before_any_number(doubt: Doubt, words: str) -> None:
    records = [*answers(3, doubt, "eagle"), *answers(6), failed(1.0)]
    found = told(*records)
    assert found is not None
    assert found.alarm
    assert found.lines[0].text.startswith(words)
    assert [line.text for line in found.notes] == ['--gate "doubtful_rate<1%" limits their share']
    if doubt is Doubt.UNKNOWN_FINISH_REASON:
        assert found.lines[1].text == "ended by: eagle 3"
    (cause,) = [each for each in findings(typed(summary(records))) if each.key == "doubtful"]
    assert found.lines[0].text.startswith(cause.text)


def test_a_few_of_many_are_told_without_an_alarm_and_a_gate_that_limits_them_is_not_advised() -> None:
    found = told(*answers(1, Doubt.CONTENT_FILTER), *answers(199), gates="doubtful_rate<1%")
    assert found is not None
    assert (found.alarm, found.notes) == (False, ())
    assert found.lines[0].text.startswith("1 answer (0.99 %) cut by")
    shown = typed(summary([*answers(1, Doubt.CONTENT_FILTER), *answers(199)]))
    assert "doubtful" in [section.key for section in sections(shown)]
    assert "doubtful" not in [each.key for each in findings(shown)]


@pytest.mark.parametrize(
    ("limit", "passed"), [("<50%", True), ("<=30%", True), ("<30%", False), ("<1%", False)]
)
def test_a_gate_limits_the_share_of_all_kinds(limit: str, passed: bool) -> None:
    kinds = [answers(1, doubt)[0] for doubt in (Doubt.NO_ANSWER, *Doubt)][:3]
    (result,) = summary([*kinds, *answers(6), failed(1.0)], gates=f"doubtful_rate{limit}")["gates"]
    assert result["passed"] is passed
