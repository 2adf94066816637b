"""What a report says of answers that ended ok and may not be what was asked for."""

import pytest
from metrics_cases import failed, request
from report_cases import summary

from llm_locust.core.record import Doubt, RequestRecord
from llm_locust.figures.quality import doubtful
from llm_locust.figures.section import Section
from llm_locust.figures.summary import typed
from llm_locust.report.sections.contents import sections
from llm_locust.report.sections.findings import findings


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
