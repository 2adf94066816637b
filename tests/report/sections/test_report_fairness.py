"""How evenly the replicas were used, in words."""

from typing import Any

import pytest
from report_cases import summary, told

from llm_locust.report.section import Section, Tone
from llm_locust.report.sections.contents import sections
from llm_locust.report.sections.fairness import MOST_CAUSES, fairness


def section(**changes: Any) -> Section:
    found = fairness(told(fairness={**summary()["fairness"], **changes}))
    assert found is not None
    return found


def test_each_amount_has_its_indices_and_what_was_tested_its_p_value() -> None:
    found = section(
        chance={"requests": {"statistic": 1.0, "p": 0.607}, "ttft": {"statistic": 99.0, "p": 1e-21}}
    )
    assert found.table is not None
    cells = [row.cells for row in found.table.rows]
    assert [each[0] for each in cells] == ["requests", "output tokens/s", "mean in flight", "TTFT p50"]
    assert [each[-1] for each in cells] == ["p 0.607", "–", "–", "p < 1e-6"]
    assert cells[0][1:4] == ("0.994", "0.0400", "7.9 %")


def test_causes_are_warnings_and_their_names_are_cleaned() -> None:
    causes = [{"kind": "slow", "text": "a\x1b[31m is slow\nvery", "replica": "a"}]
    (note,) = section(causes=causes, unnamed=0).notes
    assert (note.text, note.tone, note.verbatim) == ("a is slow very", Tone.WARN, True)


def test_only_so_many_causes_are_told() -> None:
    notes = section(
        causes=[{"kind": "slow", "text": f"r{i} is slow", "replica": None} for i in range(MOST_CAUSES + 3)],
        unnamed=0,
    ).notes
    assert len(notes) == MOST_CAUSES + 1
    assert notes[-1].text == "3 more causes in summary.json"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"named_by": "peer"}, "distinguished by connection address"),
        ({"unnamed": 7}, "7 requests have no replica"),
        ({"unnamed": 1}, "1 request has no replica"),
    ],
)
def test_it_is_said_how_replicas_were_told_apart(changes: dict[str, Any], text: str) -> None:
    assert any(text in note.text for note in section(causes=[], **changes).notes)


def test_a_report_of_one_replica_or_none_has_no_such_section() -> None:
    assert fairness(told(replicas=summary()["replicas"][:1])) is None
    titles = [section.title for section in sections(told())]
    assert titles.index("Fairness") == titles.index("Replicas") + 1
