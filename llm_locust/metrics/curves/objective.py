"""The highest load that is looked for: ``max rate under goodput>=95%``.

Every limit becomes a share of requests: ``p99_ttft<500ms`` is held where at least 99 % of all requests have
their first token within 500 ms. A failed request is not within any limit. So each limit has one reading per
stage, ``hits`` of ``n``, and one share that it must reach.
"""

import re
from dataclasses import dataclass
from typing import Literal

from llm_locust.core.terms import listed, nearest
from llm_locust.metrics.gates import EDGE, Gate, GateError, MetricKind, parse_gates
from llm_locust.metrics.requests.slo import SLO_METRICS
from llm_locust.metrics.stats.percentiles import PERCENTILES

Axis = Literal["rate", "concurrency"]

#: Unit of each axis in texts.
UNITS: dict[Axis, str] = {"rate": "requests/s", "concurrency": "users"}

#: Other words for an axis: each user of trajectories is an agent.
_ALIASES: dict[str, Axis] = {"agents": "concurrency"}

_FORM = re.compile(r"\s*max\s+(?P<axis>\S+)\s+under\s+(?P<gates>.*)", re.DOTALL)
_ALLOWED = (
    'write "max rate under GATES" or "max concurrency under GATES", '
    'where GATES are as in "goodput>=95% p99_ttft<500ms"; or "max-goodput", "max-goodput over concurrency"'
)

#: A stage whose share of good requests is above it must show how sure that share is, to be a maximum.
_MOSTLY_GOOD = 0.5


class ObjectiveError(ValueError):
    """A text that is no objective of a search; one line that says what is wrong and what is allowed."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A gate as a share: held where more than, or at least, ``required`` of the requests are within it.

    ``metric`` is ``goodput``, ``ok`` (requests that did not fail), or a latency with the limit ``limit_s``.
    ``is_certified``: a stage must show it with the confidence of :mod:`~llm_locust.metrics.stats.certified`.
    """

    text: str
    metric: str
    required: float
    limit_s: float | None = None
    is_certified: bool = False

    @property
    def percent(self) -> float:
        """The share that is required, in percent."""
        return round(self.required * 100, 6)


@dataclass(frozen=True, slots=True)
class Objective:
    """The highest load on ``axis`` under which all ``limits`` hold.

    ``is_maximum``: the load with the most good requests/s; its one limit says which requests are good.
    """

    text: str
    axis: Axis
    limits: tuple[Limit, ...]
    is_maximum: bool = False


def parse_objective(text: str) -> Objective:
    """
    Raises:
        ObjectiveError: the text has another form, an unknown axis, or no limit that a higher load breaks.
        GateError: one of its gates cannot be read.
    """
    if text.split()[:1] == ["max-goodput"]:
        return _maximum(text.split())
    found = _FORM.fullmatch(text)
    if found is None:
        raise ObjectiveError(f'find: "{text}" is not an objective; {_ALLOWED}')
    axis = _axis(found["axis"])
    try:
        gates = parse_gates(found["gates"])
    except GateError as e:
        raise ObjectiveError(f'find: after "under", {str(e).removeprefix("gate: ")}') from None
    if not gates:
        raise ObjectiveError(f'find: no gate after "under"; {_ALLOWED}')
    return Objective(" ".join(text.split()), axis, tuple(_limit(gate) for gate in gates))


def _maximum(words: list[str]) -> Objective:
    text = " ".join(words)
    if len(words) not in (1, 3) or words[1:2] not in ([], ["over"]):
        raise ObjectiveError(f'find: "{text}" is not an objective; {_ALLOWED}')
    axis = _axis(words[2]) if len(words) == 3 else "rate"
    return Objective(text, axis, (Limit("goodput", "goodput", _MOSTLY_GOOD),), is_maximum=True)


def _axis(word: str) -> Axis:
    if word in _ALIASES:
        return _ALIASES[word]
    for axis in UNITS:
        if word == axis:
            return axis
    raise ObjectiveError(
        f'find: "{word}" is not a load; {nearest(word, UNITS)}write one of {listed((*UNITS, *_ALIASES))}'
    )


def _limit(gate: Gate) -> Limit:
    if gate.kind is MetricKind.LATENCY:
        return _latency_limit(gate)
    if gate.metric == "goodput":
        if gate.op not in (">", ">=") or not gate.limit > 0:
            raise _refused(gate, "a higher load does not break it: write a lower limit, as goodput>=95%")
        return _share(gate, "goodput", gate.limit)
    if gate.metric == "error_rate":
        if gate.op not in ("<", "<=") or not gate.limit < 1:
            raise _refused(gate, "a higher load does not break it: write an upper limit, as error_rate<1%")
        return _share(gate, "ok", 1 - gate.limit)
    if gate.metric == EDGE:
        raise _refused(gate, 'it is what is looked for; give it as a gate: --gate "edge>=30"')
    raise _refused(gate, f"{gate.metric} grows with the load; limit goodput, error_rate or a latency")


def _share(gate: Gate, metric: str, required: float) -> Limit:
    if not required < 1:
        raise _refused(gate, "no number of requests can show a share of exactly 100 %; allow 0.1 %")
    return Limit(gate.text, metric, required)


def _latency_limit(gate: Gate) -> Limit:
    if gate.op not in ("<", "<="):
        raise _refused(gate, "a higher load does not break it: write an upper limit, with <")
    if not gate.limit > 0:
        raise _refused(gate, "no request takes 0 ms; write a limit above 0")
    if gate.latency not in SLO_METRICS:
        raise _refused(gate, f"{gate.latency} is not a latency of one request; limit {listed(SLO_METRICS)}")
    if gate.statistic not in PERCENTILES:
        raise _refused(
            gate, "neither a mean nor a maximum can include requests that failed; limit a percentile, as p99"
        )
    required = PERCENTILES[gate.statistic] / 100
    return Limit(gate.text, gate.latency, required, gate.limit / 1e3, gate.is_certified)


def _refused(gate: Gate, why: str) -> ObjectiveError:
    return ObjectiveError(f'find: "{gate.text}" cannot be searched: {why}')
