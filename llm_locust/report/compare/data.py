"""A comparison as plain values, for ``--format json``: figures in milliseconds, shares and numbers."""

import math
from itertools import pairwise
from typing import Any

from llm_locust.metrics.compare.comparison import CONFIDENCE, Row
from llm_locust.metrics.compare.relative_gates import GateResult, Unknown
from llm_locust.metrics.gates import MetricKind
from llm_locust.metrics.sections.failures import iso
from llm_locust.metrics.stats.estimates import Difference
from llm_locust.report.compare import scaling
from llm_locust.report.compare.outcome import ComparedRun, ComparedRuns
from llm_locust.report.compare.words import gate_note, gate_reason, shown, why_open

SCHEMA = 1

_UNITS = {MetricKind.LATENCY: "ms", MetricKind.SHARE: "share", MetricKind.NUMBER: "number"}


def as_data(outcome: ComparedRuns) -> dict[str, Any]:
    """Stable keys; what is not defined or not known is None.

    ``comparisons[i]`` is run i + 1 against run i. ``change`` is a share of base's figure. ``confidence`` is
    that of each interval, ``joint_confidence`` of all together.
    """
    return {
        "schema": SCHEMA,
        "runs": [_run(run) for run in outcome.runs],
        "slo_ms": {metric: limit_s * 1e3 for metric, limit_s in outcome.slo.limits.items()},
        "joint_confidence": CONFIDENCE,
        "warnings": list(outcome.warnings),
        "comparisons": [
            {
                "base": base.label,
                "new": new.label,
                "confidence": comparison.confidence,
                "rows": [_row(row) for row in comparison.rows],
            }
            for (base, new), comparison in zip(pairwise(outcome.runs), outcome.comparisons, strict=True)
        ],
        "finding": outcome.finding if outcome.gates else None,
        "exit_code": outcome.exit_code,
        "scaling": scaling.as_data(outcome),
        "gates": [_gate(gate, outcome.gate_unknown) for gate in outcome.gates],
    }


def _run(run: ComparedRun) -> dict[str, Any]:
    manifest, population = run.compared.manifest, run.compared.population
    return {
        "label": run.label,
        "id": manifest.id,
        "started": iso(manifest.started_ns),
        "model": manifest.model,
        "host": manifest.host,
        "window_s": run.compared.window.seconds,
        "ok": len(population.ok),
        "failed": len(population.failed),
        "client_verdict": run.compared.client()["verdict"],
    }


def _row(row: Row) -> dict[str, Any]:
    metric, found = row.metric, row.difference
    scale = shown(metric, 1.0)
    return {
        "metric": metric.name,
        "unit": _UNITS[metric.kind],
        "base": None if row.base is None else _known(row.base * scale),
        "new": None if row.new is None else _known(row.new * scale),
        **_interval("difference", found, scale),
        **_interval("change", row.change, 1.0),
        "verdict": str(row.verdict),
        "reason": None if row.why_open is None else why_open(row),
    }


def _interval(key: str, found: Difference | None, scale: float) -> dict[str, Any]:
    if found is None:
        return {key: None, f"{key}_interval": None}
    ends = [_known(end * scale) for end in (found.low, found.high)]
    return {key: _known(found.value * scale), f"{key}_interval": ends}


def _gate(result: GateResult, unknown: Unknown) -> dict[str, Any]:
    return {
        "text": result.gate.text,
        "passed": result.passed(unknown),
        "finding": result.state.finding,
        "state": str(result.state),
        "reason": gate_reason(result),
        "note": gate_note(result),
        "times_the_requests": None if result.times is None else _known(result.times),
        "change": None if result.change is None else _known(result.change),
        "change_interval": _gate_interval(result.interval),
        "in_points": result.gate.in_points,
        "row": _row(result.row),
    }


def _gate_interval(interval: Difference | None) -> list[float | None] | None:
    return None if interval is None else [_known(interval.low), _known(interval.high)]


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
