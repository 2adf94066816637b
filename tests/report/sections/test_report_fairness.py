"""How evenly the replicas were used, in words."""

from typing import Any

import pytest
from report_cases import summary, told

from llm_locust.figures.fairness import MOST_CAUSES, show as fairness
from llm_locust.figures.section import Section, Tone
from llm_locust.report.sections.contents import brief, sections
from llm_locust.report.sections.findings import findings
from llm_locust.report.sections.headline import verdict

UNEVEN = {"requests": {"statistic": 99.0, "p": 1e-21}, "ttft": None}


def section(**changes: Any) -> Section:
    found = fairness(told(fairness={**summary()["fairness"], "chance": UNEVEN, **changes}))
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
    causes = [{"kind": "sticky", "text": "a\x1b[31m is had\nvery often", "replica": "a"}]
    (note,) = section(causes=causes).notes
    assert (note.text, note.tone, note.verbatim) == ("a is had very often", Tone.WARN, True)


def test_a_slow_replica_and_one_that_was_out_have_a_box_of_their_own_what_was_out_first() -> None:
    causes = [{"kind": kind, "text": f"{kind} it is", "replica": "a"} for kind in ("slow", "sticky", "out")]
    found = told(fairness={**summary()["fairness"], "chance": UNEVEN, "causes": causes})
    (box,) = [each.box for each in findings(found) if each.key == "replicas"]
    assert box is not None
    assert [line.text for line in box.lines][:2] == ["out it is", "slow it is"]
    assert [line.text for line in section(causes=causes).notes] == ["sticky it is"]


def test_replicas_that_were_alike_have_no_indices() -> None:
    even = {"chance": {"requests": {"statistic": 0.1, "p": 0.9}, "ttft": None}, "causes": []}
    even["cv"] = dict.fromkeys(("requests", "output_tokens", "in_flight", "ttft"), 0.02)
    assert fairness(told(fairness={**summary()["fairness"], **even})) is None


def test_only_so_many_causes_are_told() -> None:
    notes = section(
        causes=[
            {"kind": "affine", "text": f"r{i} is affine", "replica": None} for i in range(MOST_CAUSES + 3)
        ],
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
    found = told(fairness={**summary()["fairness"], **changes})
    (replicas,) = [section for section in sections(found) if section.key == "replicas"]
    assert any(text in note.text for note in replicas.notes)


def test_a_header_that_names_one_replica_is_told_with_that_which_names_several() -> None:
    headers = [
        {"name": name, "answers": 60, "values": values, "more": False, "value": value}
        for name, values, value in (("x-served-by", 1, "lb-1"), ("x-upstream", 3, "10.0.0.1:80"))
    ]
    part = {**summary()["fairness"], "headers": headers, "better_header": "x-upstream"}
    found = told(fairness=part, replicas=summary()["replicas"][:1])
    (replicas,) = [section for section in sections(found) if section.key == "replicas"]
    (note,) = [note for note in replicas.notes if note.tone is Tone.WARN]
    assert note.text == (
        "every answer has x-served-by: lb-1, but x-upstream names 3 replicas: use --replica-header x-upstream"
    )
    remarks = [line.text for section in brief(found, verdict(found)) for line in section.lines]
    assert any(note.text in text for text in remarks)


def test_a_report_of_one_replica_or_none_has_no_such_section() -> None:
    assert fairness(told(replicas=summary()["replicas"][:1])) is None
    uneven = told(fairness={**summary()["fairness"], "chance": UNEVEN})
    titles = [section.title for section in sections(uneven)]
    assert titles.index("Fairness") == titles.index("Replicas") + 1
