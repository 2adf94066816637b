"""The agents' figures of each load of a sweep."""

from types import SimpleNamespace
from typing import Any, cast

from llm_locust.figures.agents import agents_by_load


def summary(*figures: Any) -> Any:
    return cast(Any, SimpleNamespace(stages=[SimpleNamespace(asked=8.0, figures=each) for each in figures]))


def test_loads_without_agents_have_no_row() -> None:
    assert agents_by_load(summary(None, SimpleNamespace(agents=None))) is None
    assert agents_by_load(cast(Any, SimpleNamespace(stages=None))) is None


def test_a_load_is_a_whole_number_of_agents_and_what_is_not_known_is_no_zero() -> None:
    cache = SimpleNamespace(achieved=0.5, possible=None)
    part = SimpleNamespace(
        turns=1200,
        jobs=3,
        output_tokens_per_s_p25=20.0,
        e2e_tokens_per_s_p25=10.0,
        jobs_per_h_per_user=4.0,
        jobs_per_h_per_gpu=None,
        between_turns_share=0.25,
        tools_share=0.2,
        cache=cache,
    )
    section = agents_by_load(summary(SimpleNamespace(agents=part)))
    assert section is not None
    assert section.table is not None
    assert section.table.rows[0].cells[:3] == ("8", "1,200", "3")
    assert section.table.rows[0].cells[6:] == ("–", "25.0 %", "20.0 %", "50.0 %", "–")
