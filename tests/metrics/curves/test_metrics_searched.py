"""The search of a run, as its manifest and its records have it."""

from typing import Any

import pytest
from metrics_cases import batch, manifest, request, stage

from llm_locust.figures.search import SearchStage, readings
from llm_locust.figures.summarise import summarise
from llm_locust.figures.summary import typed
from llm_locust.report.markdown import markdown


@pytest.mark.parametrize(
    "options",
    [
        {"find": "max throughput at dawn"},
        {"find": "max rate under goodput>=95%", "first_load": "auto"},
        {"find": "max rate under goodput>=95%", "max_stages": "many"},
    ],
)
def test_a_search_that_another_version_wrote_leaves_a_report_that_says_so(options: dict[str, Any]) -> None:
    stages = [stage(0, 1.0, 9.0, kind="rate", asked=1.0)]
    known = manifest(10.0, options=options, open_loop=True, stages=stages)
    found = typed(summarise(batch(*(request(float(i)) for i in range(1, 9))), known))
    assert found.search is not None
    assert found.search.answer.load is None
    assert "this version cannot read what was asked for" in markdown(found)
    assert found.stages is not None
    assert found.stages[0].figures is not None


def test_why_a_stage_has_no_result_is_below_the_table_once() -> None:
    stages = [
        SearchStage(
            stage=None, load=load, shows=None, no_result="not steady", client=None, limits=[], good_per_s=None
        )
        for load in (15.3, 15.3, 16.0)
    ]
    made = readings("Readings", "requests/s", stages)
    assert made.table is not None
    assert [row.cells[-1] for row in made.table.rows] == ["no result"] * 3
    assert [note.text for note in made.notes] == ["15.3, 16 requests/s: not steady"]
