"""What a summary tells of all requests, and again of those with one name or of one class."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from llm_locust.batch import Labels
from llm_locust.metrics.accuracy import Answers
from llm_locust.metrics.columns import OUTCOMES, Columns, Floats, Rows, groups
from llm_locust.metrics.goodput import goodput
from llm_locust.metrics.latency import Measurable, latency_tables
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.pace import summarise_on_time
from llm_locust.metrics.percentiles import Ascending
from llm_locust.metrics.quality import quality_of_part
from llm_locust.metrics.throughput import throughput
from llm_locust.metrics.window import Population

Label = Literal["name", "slo_class"]


@dataclass(frozen=True, slots=True)
class Group:
    """Requests that a part of the summary is of, what gives their gaps, and how many have no record.

    Of lost requests neither name nor class is known: a part of a run that lost some has None.
    """

    rows: Rows
    gaps: Callable[[], Floats | Ascending]
    lost: int | None


def whole_and_parts(
    m: Measured, answers: Answers, percentiles: Mapping[str, float], lost: int, *, of_selection: bool
) -> dict[str, Any]:
    """What :func:`parts` has of all requests, and ``by_name`` and ``by_class`` of theirs.

    Args:
        percentiles: of the latencies, key to percent.
        lost: requests of the whole run without a record.
        of_selection: these are some of the run's: whether a lost one belongs here is not known either.
    """
    of_part = None if lost else 0
    everything = Group(np.arange(len(m.c)), m.gaps.ascending, of_part if of_selection else lost)
    (whole,) = parts(m, [everything], percentiles)
    by_name = parts_by(m, answers, "name", whole, of_part, percentiles)
    by_class = parts_by(m, answers, "slo_class", whole, of_part, percentiles)
    return {**whole, "by_name": by_name, "by_class": by_class if by_class.keys() - {""} else {}}


def parts(m: Measured, groups_: Sequence[Group], percentiles: Mapping[str, float]) -> list[dict[str, Any]]:
    """requests, latency_ms, latency_ms_adjusted, throughput and goodput of each group.

    Args:
        percentiles: of the latencies, key to percent.
    """
    populations = [m.population(group.rows) for group in groups_]
    tables = latency_tables(
        m.values,
        [
            Measurable(population.ok, len(population.failed), group.gaps)
            for population, group in zip(populations, groups_, strict=True)
        ],
        percentiles,
    )
    return [
        {
            **_latencies(plain, adjusted, m.gaps.relative_error),
            "throughput": throughput(m.c, m.credits, group.rows),
            **_counted(m, population, group.lost),
        }
        for group, population, (plain, adjusted) in zip(groups_, populations, tables, strict=True)
    ]


def parts_by(
    m: Measured,
    answers: Answers,
    by: Label,
    whole: dict[str, Any],
    lost: int | None,
    percentiles: Mapping[str, float],
) -> dict[str, Any]:
    """The same parts for each name or class, with the quality of its answers.

    Of a text that all requests have they are the whole's, but for what counts lost ones.
    """
    labels: Labels = getattr(m.c, by)
    texts, found = [], []
    for text, rows in groups(labels):
        texts.append(text)
        found.append(Group(rows, partial(m.gaps.ascending, **{by: text}), lost))
    if len(texts) == 1 and len(found[0].rows) == len(m.c):
        shared = {key: whole[key] for key in ("latency_ms", "latency_ms_adjusted", "throughput")}
        made = [copy.deepcopy(shared) | _counted(m, m.population(found[0].rows), lost)]
    else:
        made = parts(m, found, percentiles)
    for part, group in zip(made, found, strict=True):
        part["quality"] = quality_of_part(answers, m.c, m.population(group.rows).judged)
    return dict(zip(texts, made, strict=True))


def _counted(m: Measured, population: Population, lost: int | None) -> dict[str, Any]:
    judged = goodput(m.judgement, m.c, population.judged, m.window.seconds, lost=lost)
    return {
        "requests": _requests(m.c, population, lost),
        "goodput": judged | summarise_on_time(None if m.on_time is None else m.on_time[population.ok]),
    }


def _latencies(plain: dict[str, Any], adjusted: dict[str, Any], itl_error: float) -> dict[str, Any]:
    """Both tables; what is told of ``itl`` may be off by this share of it."""
    return {
        key: table | {"itl": table["itl"] | {"relative_error": itl_error}}
        for key, table in (("latency_ms", plain), ("latency_ms_adjusted", adjusted))
    }


def _requests(c: Columns, population: Population, lost: int | None) -> dict[str, Any]:
    scheduled = population.all
    judged = len(population.judged)
    counts = np.bincount(c.outcome[scheduled], minlength=len(OUTCOMES))
    return {
        "scheduled": len(scheduled),
        "sent": int((~np.isnan(c.sent_s[scheduled])).sum()),
        "ok": len(population.ok),
        "failed": len(population.failed),
        "cancelled": len(population.cancelled),
        "abandoned": int(c.abandoned[population.cancelled].sum()),
        "lost": lost,
        "population": judged,
        "error_rate": len(population.failed) / judged if judged else None,
        "by_outcome": {o.value: int(n) for o, n in zip(OUTCOMES, counts, strict=True)},
    }
