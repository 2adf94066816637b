"""What several loads show: the search of a run with its readings and its answer, and the curve of a sweep."""

from typing import Annotated

from llm_locust.metrics.summary_types.base import Interval, SummaryPart, key

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
    good_per_s: Annotated[
        float | None,
        key(
            "of `max-goodput`: good requests/s, of a rate the share of good ones × the rate asked for", _STAGE
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
            "the edge: where the isotonic fit of the share within a limit crosses what is required; of "
            "`max-goodput` the load tried with the most good requests/s; null: not known",
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
    good_per_s: Annotated[
        float | None,
        key("of `max-goodput`: good requests/s at `load`, or at `at_least`, of all stages there", _SEARCH),
    ]
    good_low: Annotated[float | None, key("lower end of their 95 % interval", _SEARCH)]
    good_high: Annotated[float | None, key("upper end", _SEARCH)]
    is_resolved: Annotated[bool, key("half the interval is within the precision", _SEARCH)]
    why: Annotated[str, key("why the search ended", _SEARCH)]


class SearchFacts(SummaryPart, frozen=True):
    """The search of a run (`--find`)."""

    objective: Annotated[str, key("what was looked for", "the run")]
    unit: Annotated[str, key("of loads: `requests/s` or `users`", "the run")]
    stages: list[SearchStage]
    answer: SearchAnswer


_SWEEP = "the stages that are results"


class Knee(SummaryPart, frozen=True):
    """The knee of the median E2EL over the load (Kneedle)."""

    load: Annotated[
        float,
        key("the load whose median E2EL is farthest below the line between the first and the last", _SWEEP),
    ]
    ci95: Annotated[list[float], key("its 95 % interval (bootstrap), in loads that were tried", _SWEEP)]
    depth: Annotated[float, key("that distance over the growth of the latency, 0.2 or more", _SWEEP)]
    latency_ms: Annotated[float, key("the median E2EL there, ms: the geometric mean of its repeats", _SWEEP)]


class UslParameter(SummaryPart, frozen=True):
    """A parameter of the law and its 95 % interval (bootstrap); null is infinite."""

    value: Annotated[float | None, key("least squares of relative errors of N / X; null: infinite", _SWEEP)]
    ci95: Annotated[list[float | None], key("its 95 % interval (bootstrap)", _SWEEP)]


class UslFigures(SummaryPart, frozen=True):
    """The universal scalability law of requests/s over mean requests in flight."""

    gamma: Annotated[UslParameter, key("requests/s of one request at a time", _SWEEP)]
    alpha: Annotated[UslParameter, key("contention: the share of work done one after the other", _SWEEP)]
    beta: Annotated[UslParameter, key("coherency: what each pair of requests costs", _SWEEP)]
    peak: Annotated[
        UslParameter, key("requests in flight with the highest throughput; null: it never falls", _SWEEP)
    ]
    plateau: Annotated[
        UslParameter,
        key("the highest throughput by the law, requests/s; null: it grows without end", _SWEEP),
    ]
    residual: Annotated[float, key("root mean square of the relative residuals", _SWEEP)]
    measured_to: Annotated[
        float | None, key("largest mean of requests in flight; beyond it the law is a model", _SWEEP)
    ]


class Overload(SummaryPart, frozen=True):
    """Good requests/s at the highest load, beside those of the best one."""

    best_load: Annotated[float, key("the load with the most good requests/s", "the stages")]
    best_good_per_s: Annotated[float, key("good requests/s there", "the stage")]
    load: Annotated[float, key("the highest load; a saturated stage counts here", "the stages")]
    good_per_s: Annotated[float, key("good requests/s there", "the stage")]
    kept: Annotated[float, key("their ratio", "the stages")]
    repeats: Annotated[int, key("repeats in which both loads were measured", "the stages")]
    ci95: Annotated[
        Interval, key("95 % interval of `kept` over those repeats; null for fewer than 2", "the stages")
    ]
    collapses: Annotated[bool, key("it is below 0.8", "the stages")]


class CurveFacts(SummaryPart, frozen=True):
    """What the stages of a sweep show together."""

    loads: Annotated[int, key("different loads that are results", "the sweep")]
    left_out: Annotated[int, key("stages that are not results, in no figure but `overload`", "the sweep")]
    knee: Knee | None
    usl: UslFigures | None
    overload: Overload | None
    missing: Annotated[dict[str, str], key("why there is no `knee`, `usl` or `overload`", "the sweep")]
