"""Quality over a window: accuracy, rejections, consistency and lengths, by hand-computed numbers."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from metrics_cases import batch, failed, manifest, plain, request
from report_cases import summary
from summaries import summarise, typed

from llm_locust.core.arrow import SCHEMA
from llm_locust.core.batch import RecordBatch
from llm_locust.core.record import Doubt, Outcome, RequestRecord
from llm_locust.figures.quality import MOST_KINDS, doubtful, show as quality_section
from llm_locust.figures.text import Section, Tone
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


def test_without_an_expected_answer_there_is_no_accuracy() -> None:
    found = quality(request(), failed(1.0))
    assert found["accuracy"] == {"n": 0, "correct": 0, "ratio": None, "ci95": None}
    assert found["over_time"] == found["by_load"] == []
    assert found["load_effect"] is None
    assert found["baseline"] is None
    assert found["length"] == {"n": 0, "at_limit": None, "over": None, "mean_relative": None}
    assert found["consistency"] == {"prompts": 0, "answers": 0, "prompts_equal": None, "pairs_equal": None}


def test_a_part_of_the_window_without_answers_has_no_accuracy() -> None:
    parts = quality(request(0.0, correct=True), stopped=10.0)["over_time"]
    assert parts[0]["ratio"] == 1.0
    assert all(part["n"] == 0 and part["ratio"] is None for part in parts[1:])


def test_where_all_loads_are_one_there_is_no_effect_of_the_load() -> None:
    found = quality(*graded(True, False, True))
    assert [third["concurrency"] for third in found["by_load"]] == [[1, 1]]
    assert found["load_effect"] is None


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


def test_hashes_are_compared_to_the_last_bit() -> None:
    found = quality(*said("p", 2**62, 2**62 + 1), *said("q", -(2**63), -(2**63)))["consistency"]
    assert (found["prompts"], found["prompts_equal"]) == (2, 0.5)


def test_a_server_that_invents_finish_reasons_does_not_fill_the_summary() -> None:
    records = [request(i / 100, finish_reason=f"reason {i}") for i in range(100)]
    found = quality(*records)["finish_reasons"]
    assert len(found) == MOST_KINDS + 1
    assert sum(found.values()) == 100


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
