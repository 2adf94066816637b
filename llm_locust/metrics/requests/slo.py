"""Limits of a single request, and how they are written: ``ttft=500ms tpot=50ms e2el=10s``."""

import math
from dataclasses import dataclass

from llm_locust.core.durations import parse_duration
from llm_locust.core.terms import Term, listed, nearest, split_terms
from llm_locust.metrics.catalogue import LATENCIES


class SloError(ValueError):
    """A text or a value that is no SLO; one line that says what is wrong and what is allowed."""


#: The latencies that may have a limit.
SLO_METRICS = tuple(metric.key for metric in LATENCIES if metric.is_limited)


@dataclass(frozen=True, slots=True, init=False)
class Slo:
    """Limits in seconds; a request holds one when its metric is at or below it.

    ``ttft``, ``ttfo`` and ``e2el`` are measured from scheduled in an open loop and from sent in a closed
    one; all others from where their names say. Without any limit the object is false, and nothing is judged
    by it.

    Attributes:
        limits: metric -> limit in seconds, in the order of :data:`SLO_METRICS`.
    """

    limits: dict[str, float]

    def __init__(self, **limits_s: float | None) -> None:
        """``limits_s`` are named as ``ttft_s``; None is no limit.

        Raises:
            SloError: a limit that is not a number above 0.
            TypeError: no metric of :data:`SLO_METRICS` has this name.
        """
        if unknown := limits_s.keys() - {f"{metric}_s" for metric in SLO_METRICS}:
            raise TypeError(f"no latency that may have a limit: {', '.join(sorted(unknown))}")
        given = {metric: limits_s.get(f"{metric}_s") for metric in SLO_METRICS}
        limits = {metric: limit_s for metric, limit_s in given.items() if limit_s is not None}
        for metric, limit_s in limits.items():
            if not (math.isfinite(limit_s) and limit_s > 0):
                raise SloError(f"the limit of {metric} is {limit_s!r} s; it must be above 0")
        object.__setattr__(self, "limits", limits)

    def __bool__(self) -> bool:
        return bool(self.limits)


def parse_slo(text: str) -> Slo:
    """The SLO of ``ttft=500ms tpot=50ms``; of an empty text the one without limits.

    Raises:
        SloError: one line that points at the wrong word.
    """
    limits: dict[str, float] = {}
    for term in split_terms(text):
        metric = _metric(term)
        if metric in limits:
            raise SloError(f"SLO: {term.name.pointed('is there twice: give each limit once')}")
        limits[metric] = _limit_s(term)
    return Slo(**{f"{metric}_s": limit_s for metric, limit_s in limits.items()})


def _metric(term: Term) -> str:
    name = term.name.text
    allowed = f"limits are for {listed(SLO_METRICS)}"
    if not name:
        raise SloError(f"SLO: {term.op.pointed(f'no metric before it; {allowed}')}")
    if name not in SLO_METRICS:
        raise SloError(f"SLO: {term.name.pointed(f'unknown metric; {nearest(name, SLO_METRICS)}{allowed}')}")
    if term.op.text != "=":
        raise SloError(f"SLO: {term.op.pointed(f'write a limit as {name}=500ms')}")
    return name


def _limit_s(term: Term) -> float:
    if not term.value.text:
        raise SloError(f"SLO: {term.value.pointed(f'no limit; write {term.name.text}=500ms')}")
    try:
        limit_s = parse_duration(term.value.text)
    except ValueError as e:
        raise SloError(f"SLO: {term.value.pointed(str(e))}") from None
    if limit_s <= 0:
        raise SloError(f"SLO: {term.value.pointed('a limit must be above 0')}")
    return limit_s
