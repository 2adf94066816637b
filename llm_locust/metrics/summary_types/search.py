"""The search of a run: its stages as readings, and its answer."""

from typing import Annotated

from llm_locust.metrics.summary_types.base import SummaryPart, key

_STAGE = "the stage's measured part"
_SEARCH = "the stages that are results"


class LimitReading(SummaryPart, frozen=True):
    """What a stage shows about one limit."""

    gate: Annotated[str, key("the limit, as it was asked for", _STAGE)]
    required: Annotated[float, key("the share of requests that must be within it, 0 .. 1", _STAGE)]
    share: Annotated[
        float,
        key("the share within it, of requests scheduled in it; failed, hung and lost ones are not", _STAGE),
    ]
    ci95: Annotated[list[float], key("its 95 % interval (Wilson, of `n_effective`)", _STAGE)]
    n: Annotated[int, key("requests", _STAGE)]
    n_effective: Annotated[float, key("as many independent requests they are worth", _STAGE)]


class SearchStage(SummaryPart, frozen=True):
    """One stage of a search."""

    stage: Annotated[int | None, key("number of the stage", _STAGE)]
    load: Annotated[float, key("the load, in `unit`", _STAGE)]
    shows: Annotated[
        str | None,
        key(
            "`holds`, `broken` or `unresolved`, by the intervals of its shares; null: it was not used", _STAGE
        ),
    ]
    no_result: Annotated[str | None, key("why it is no reading", _STAGE)]
    client: Annotated[str | None, key("in what the client was the limit", _STAGE)]
    limits: Annotated[list[LimitReading], key("the readings, a limit each", _STAGE)]


class SearchAnswer(SummaryPart, frozen=True):
    """The highest load under which the limits hold."""

    load: Annotated[
        float | None,
        key(
            "the edge: where the isotonic fit of the share within a limit crosses what is required; null: "
            "not known",
            _SEARCH,
        ),
    ]
    low: Annotated[float | None, key("lower end of its 95 % interval (bootstrap); `edge` in gates", _SEARCH)]
    high: Annotated[float | None, key("upper end", _SEARCH)]
    at_least: Annotated[
        float | None, key("a lower bound: the highest load shown to hold, where none breaks a limit", _SEARCH)
    ]
    at_most: Annotated[
        float | None, key("an upper bound: the lowest load tried, where all break a limit", _SEARCH)
    ]
    limit: Annotated[str | None, key("the limit that breaks first", _SEARCH)]
    is_resolved: Annotated[bool, key("half the interval is within the precision", _SEARCH)]
    why: Annotated[str, key("why the search ended", _SEARCH)]


class SearchFacts(SummaryPart, frozen=True):
    """The search of a run (`--find`)."""

    objective: Annotated[str, key("what was looked for", "the run")]
    unit: Annotated[str, key("of loads: `requests/s` or `users`", "the run")]
    stages: list[SearchStage]
    answer: SearchAnswer
