"""``summary.json``: every number of a run, computed once, from its records.

Its keys are a contract. Values are plain Python; what is not defined is None.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from llm_locust.batch import Labels, Requests
from llm_locust.manifest import Manifest
from llm_locust.metrics.accuracy import Answers, ByPrompt
from llm_locust.metrics.columns import OUTCOMES, Columns, Floats, Rows, groups
from llm_locust.metrics.completeness import completeness, requests_lost
from llm_locust.metrics.failures import failures, iso
from llm_locust.metrics.gates import Gate, evaluate, parse_gates
from llm_locust.metrics.goodput import goodput
from llm_locust.metrics.latency import Measurable, latency_tables
from llm_locust.metrics.measured import Measured, measure
from llm_locust.metrics.percentiles import Ascending
from llm_locust.metrics.quality import quality, quality_of_part
from llm_locust.metrics.replicas import fairness, replicas
from llm_locust.metrics.sessions import sessions
from llm_locust.metrics.slo import Slo, parse_slo
from llm_locust.metrics.throughput import throughput
from llm_locust.metrics.tokens import delivery, tokens
from llm_locust.metrics.validity import client_validity
from llm_locust.metrics.window import Population, Window

SUMMARY_SCHEMA = 1

WINDOWS = ("run", "steady")

_Label = Literal["name", "slo_class"]
_LABELS: tuple[_Label, _Label] = ("name", "slo_class")


@dataclass(frozen=True, slots=True)
class _Group:
    """Requests that a part of the summary is of, what gives their gaps, and how many have no record.

    Of lost requests neither name nor class is known: a part of a run that lost some has None.
    """

    rows: Rows
    gaps: Callable[[], Floats | Ascending]
    lost: int | None


def summarise(
    requests: Requests,
    manifest: Manifest,
    *,
    slo: Slo | None = None,
    gates: tuple[Gate, ...] | None = None,
    warmup_s: float | None = None,
    window: str = "run",
    quality_baseline: ByPrompt | None = None,
) -> dict[str, Any]:
    """The content of ``summary.json``: JSON-ready, with None for what is not defined.

    What is not given is the manifest's. The manifest's option ``slo_from`` (``sent`` or
    ``scheduled``) says where the SLO is measured from; without it an open loop is measured from
    scheduled, a closed one from sent.

    Args:
        requests: a batch, or requests that are read part by part and never are in memory as a whole.
        window: ``run`` or ``steady``, see :mod:`llm_locust.metrics.window`.
        quality_baseline: the answers of another run, for ``quality.baseline``; see
            :func:`~llm_locust.metrics.accuracy.accuracy_difference`.

    Raises:
        ValueError: another window; a warm-up that is negative; a text of the manifest that is no
            SLO or no gate (:class:`SloError`, :class:`GateError`).
    """
    slo = parse_slo(manifest.slo) if slo is None else slo
    gates = parse_gates(manifest.gates) if gates is None else gates
    warmup_s = manifest.warmup_s if warmup_s is None else warmup_s
    measured = measure(requests, manifest, slo, _chosen_window(window, warmup_s), warmup_s)
    c = measured.c
    everything = np.arange(len(c))
    lost = requests_lost(manifest, len(c))
    (whole,) = _parts(measured, [_Group(everything, measured.gaps.ascending, lost)])
    by_name, by_class = (_by(measured, by, whole, None if lost else 0) for by in _LABELS)
    population = measured.population(everything)
    answers = Answers.of(requests)
    _add_quality(by_name, answers, measured, "name")
    _add_quality(by_class, answers, measured, "slo_class")
    per_replica = replicas(c, measured.values, measured.credits, measured.judgement)
    summary = {
        "schema": SUMMARY_SCHEMA,
        "run": _run(manifest),
        "window": _window(measured.window),
        **whole,
        "tokens": _tokens(c, population.ok, whole["latency_ms"]),
        "client": _client(measured, population, manifest, whole["latency_ms"]),
        "completeness": completeness(manifest, len(c)),
        "replicas": per_replica,
        "fairness": fairness(per_replica),
        "quality": quality(answers, c, population.judged, measured.window, quality_baseline),
        "sessions": sessions(requests, c, measured.window),
        "errors": failures(c, population.failed),
        "gates": [],
        "cost": {},
        "energy": {},
        "by_name": by_name,
        "by_class": by_class if by_class.keys() - {""} else {},
    }
    return summary | {"gates": evaluate(gates, summary)}


def exit_code(summary: dict[str, Any], manifest: Manifest, allow_incomplete: bool = False) -> int | None:
    """The exit code that a run's result asks for.

    2 when records are missing or a fault cut the run short (unless ``allow_incomplete``), before 3 when
    the measurement is
    invalid and the manifest requires a valid one, before 1 when a gate broke: a gate on a part of
    the records, or on numbers that are the client's own, says nothing about the server. 0 when all
    gates held. None without gates: Locust's own code stands then.
    """
    whole = summary["completeness"]["complete"] and not summary["completeness"]["cut_short"]
    if not whole and not allow_incomplete:
        return 2
    if manifest.require_valid and summary["client"]["verdict"] == "invalid":
        return 3
    if not summary["gates"]:
        return None
    return 0 if all(gate["passed"] for gate in summary["gates"]) else 1


def _chosen_window(window: str, warmup_s: float) -> str:
    if window not in WINDOWS:
        raise ValueError(f'unknown window "{window}": write one of {", ".join(WINDOWS)}')
    if not 0 <= warmup_s < float("inf"):
        raise ValueError(f"the warm-up is {warmup_s!r} s; it has to be 0 or more")
    return window


def _parts(m: Measured, groups_: Sequence[_Group]) -> list[dict[str, Any]]:
    """requests, latency_ms, latency_ms_adjusted, throughput and goodput of each group."""
    populations = [m.population(group.rows) for group in groups_]
    tables = latency_tables(
        m.values,
        [
            Measurable(population.ok, len(population.failed), group.gaps)
            for population, group in zip(populations, groups_, strict=True)
        ],
    )
    return [
        {
            **_latencies(plain, adjusted, m.gaps.relative_error),
            "throughput": throughput(m.c, m.credits, group.rows),
            **_counted(m, population, group.lost),
        }
        for group, population, (plain, adjusted) in zip(groups_, populations, tables, strict=True)
    ]


def _counted(m: Measured, population: Population, lost: int | None) -> dict[str, Any]:
    judged = goodput(m.judgement, m.c, population.judged, m.window.seconds, lost=lost)
    return {
        "requests": _requests(m.c, population, lost),
        "goodput": judged | {"on_time_ratio": _on_time(m, population.ok)},
    }


def _latencies(plain: dict[str, Any], adjusted: dict[str, Any], itl_error: float) -> dict[str, Any]:
    """Both tables; what is told of ``itl`` may be off by this share of it."""
    return {
        key: table | {"itl": table["itl"] | {"relative_error": itl_error}}
        for key, table in (("latency_ms", plain), ("latency_ms_adjusted", adjusted))
    }


def _by(m: Measured, by: _Label, whole: dict[str, Any], lost: int | None) -> dict[str, Any]:
    """The same parts for each name or class; of a text that all requests have they are the whole's, but
    for what counts lost ones."""
    labels: Labels = getattr(m.c, by)
    texts, found = [], []
    for text, rows in groups(labels):
        texts.append(text)
        found.append(_Group(rows, partial(m.gaps.ascending, **{by: text}), lost))
    if len(texts) == 1 and len(found[0].rows) == len(m.c):
        shared = {key: whole[key] for key in ("latency_ms", "latency_ms_adjusted", "throughput")}
        return {texts[0]: copy.deepcopy(shared) | _counted(m, m.population(found[0].rows), lost)}
    return dict(zip(texts, _parts(m, found), strict=True))


def _add_quality(parts: dict[str, Any], answers: Answers, m: Measured, by: _Label) -> None:
    for text, rows in groups(getattr(m.c, by)):
        parts[text]["quality"] = quality_of_part(answers, m.c, m.population(rows).judged)


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


def _tokens(c: Columns, ok: Rows, latency_ms: dict[str, Any]) -> dict[str, Any]:
    counted = tokens(c, ok)
    came = delivery(counted["tokens_per_event"], latency_ms["itl"]["p50"], latency_ms["tpot"]["p50"])
    return counted | {"delivery": came}


def _client(m: Measured, p: Population, manifest: Manifest, latency_ms: dict[str, Any]) -> dict[str, Any]:
    return client_validity(
        m.c,
        p.judged,
        manifest,
        window_s=m.window.seconds,
        itl_p50_ms=latency_ms["itl"]["p50"],
        ttft_p50_ms=latency_ms["ttft"]["p50"],
    )


def _on_time(m: Measured, ok: Rows) -> float | None:
    """Mean share of tokens in time over the ok requests; None unless ttft and tpot have limits."""
    if m.on_time is None:
        return None
    shares = m.on_time[ok]
    return _mean(shares[~np.isnan(shares)])


def _mean(values: Floats) -> float | None:
    return float(np.sort(values).mean()) if len(values) else None


def _run(manifest: Manifest) -> dict[str, Any]:
    return {
        "id": manifest.id,
        "name": manifest.name,
        "started": iso(manifest.started_ns),
        "host": manifest.host,
        "model": manifest.model,
        "scenario": manifest.scenario,
        "seed": manifest.seed,
        "versions": dict(manifest.versions),
        "stop_reason": manifest.stop_reason or None,
    }


def _window(window: Window) -> dict[str, Any]:
    return {
        "start": iso(window.start_ns),
        "end": iso(window.end_ns),
        "seconds": window.seconds,
        "rule": window.rule,
    }
