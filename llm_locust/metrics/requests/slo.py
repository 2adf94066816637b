"""Limits of a single request, and how they are written: ``ttft=500ms tpot=50ms e2el=10s``."""

import math
from dataclasses import dataclass, fields

from llm_locust.core.durations import parse_duration
from llm_locust.core.terms import Term, listed, nearest, split_terms


class SloError(ValueError):
    """A text or a value that is no SLO; one line that says what is wrong and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Limits in seconds; a request holds one when its metric is at or below it.

    ``ttft_s``, ``ttfo_s`` and ``e2el_s`` are measured from scheduled in an open loop and from sent
    in a closed one; ``ttft_scheduled_s`` and ``e2el_scheduled_s`` always from scheduled, and
    ``ttft_started_s`` from when a connection was asked for. Without
    any limit the object is false, and nothing is judged by it.

    Raises:
        SloError: a limit that is not a number above 0.
    """

    ttft_s: float | None = None
    ttfo_s: float | None = None
    tpot_s: float | None = None
    e2el_s: float | None = None
    ttft_started_s: float | None = None
    ttft_scheduled_s: float | None = None
    e2el_scheduled_s: float | None = None

    def __post_init__(self) -> None:
        for metric, limit_s in self.limits.items():
            if not (math.isfinite(limit_s) and limit_s > 0):
                raise SloError(f"the limit of {metric} is {limit_s!r} s; it has to be above 0")

    @property
    def limits(self) -> dict[str, float]:
        """Metric -> limit in seconds, of those that are set."""
        values = ((f.name.removesuffix("_s"), getattr(self, f.name)) for f in fields(self))
        return {metric: limit_s for metric, limit_s in values if limit_s is not None}

    def __bool__(self) -> bool:
        return bool(self.limits)


SLO_METRICS = tuple(f.name.removesuffix("_s") for f in fields(Slo))


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
        raise SloError(f"SLO: {term.value.pointed('a limit has to be above 0')}")
    return limit_s
