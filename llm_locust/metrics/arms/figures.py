"""The ``arms`` of a summary: the figures of each arm, and how they differ from those of the first."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from llm_locust.core.arms import ArmFacts
from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest
from llm_locust.metrics.arms.comparison import compare_arms
from llm_locust.metrics.columns import Mask
from llm_locust.metrics.compare.compared import Compared
from llm_locust.metrics.compare.comparison import Row
from llm_locust.metrics.gates import MetricKind
from llm_locust.metrics.measured import Measured, measure
from llm_locust.metrics.parts import part_of_all
from llm_locust.metrics.question import Question
from llm_locust.metrics.requests.goodput import Missing
from llm_locust.metrics.requests.tokens import faults
from llm_locust.metrics.sections.user_time import user_time
from llm_locust.metrics.select.selection import Selected, asked
from llm_locust.metrics.stats.intervals import rounded
from llm_locust.metrics.window import Window

_UNITS = {MetricKind.LATENCY: "ms", MetricKind.SHARE: "share", MetricKind.NUMBER: "number"}

#: Gates on the figures of one arm.
ArmGates = Callable[[Mapping[str, Any], Measured], list[dict[str, Any]]]


def arms(
    requests: Requests,
    manifest: Manifest,
    question: Question,
    window: Window,
    missing: Missing,
    *,
    of_selection: bool,
    gates: ArmGates,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Each arm of a run in the order of its options, and the gates of all of them.

    Every arm is measured in a pass of its own, in the window of the run. Of a request without a record nobody
    knows the arm.

    Args:
        missing: requests without a record that may belong to an arm.
        of_selection: arms without a request were left out by a condition, and are left out here.
        gates: gates on the figures of an arm: over several arms they would be of no server.
    """
    stored = asked(requests).stored
    masks = _masks(stored, [arm.name for arm in manifest.arms])
    shown = [arm for arm in manifest.arms if not of_selection or masks[arm.name].any()]
    plain = replace(question, window=window, where=None)
    measured, found, judged = [], [], []
    for arm in shown:
        requests_of = Selected(stored, masks[arm.name])
        run, sessions = _measured(requests_of, manifest, plain)
        figures = part_of_all(run.measured, question.places, missing.of_part)
        measured.append((run, sessions))
        found.append(_told(arm, figures))
        of_arm = gates(_gated(run.measured, figures, requests_of, manifest), run.measured)
        judged += [each | {"arm": arm.name} for each in of_arm]
    of = sum(len(run.c) for run, _ in measured)
    for part, (run, _) in zip(found, measured, strict=True):
        part["share"] = len(run.c) / of if of else None
    if len(shown) > 1:
        compared, confidence = compare_arms(measured, open_loop=manifest.open_loop)
        for part, rows in zip(found[1:], compared, strict=True):
            part["against"] = {
                "arm": shown[0].name,
                "confidence": confidence,
                "rows": [_row(row) for row in rows],
            }
    return found, judged


def _gated(m: Measured, figures: dict[str, Any], requests: Requests, manifest: Manifest) -> dict[str, Any]:
    """What gates may ask of an arm beside its ``figures``: its tokens, and its part of the users' time."""
    ok = m.population(np.arange(len(m.c))).ok
    times = None if manifest.open_loop else user_time(asked(requests), m, are_all=False)
    return {
        "window": {"seconds": m.window.seconds},
        "tokens": {"faults": faults(m.c, ok)},
        "user_time": times,
        **figures,
    }


def _told(arm: ArmFacts, figures: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": arm.name,
        "host": arm.url,
        "model": arm.model or None,
        "differs_in": list(arm.differs_in),
        "share_asked": arm.share,
        "share": None,
        "figures": figures,
        "against": None,
    }


def _masks(stored: Requests, names: list[str]) -> dict[str, Mask]:
    """Which requests each arm has; a byte a request and arm is kept."""
    masks = {name: np.zeros(len(stored), dtype=np.bool_) for name in names}
    at = 0
    for batch in stored.parts(["arm"]):
        labels = batch.labels("arm")
        for code, name in enumerate(labels.names):
            if name in masks:
                masks[name][at : at + len(batch)] = labels.codes == code
        at += len(batch)
    return masks


def _measured(
    requests: Requests, manifest: Manifest, question: Question
) -> tuple[Compared, NDArray[np.int64]]:
    of_arm = asked(requests)
    m = measure(of_arm, manifest, question)
    population = m.population(np.arange(len(m.c)))
    run = Compared(manifest, m, population, m.gaps.ascending(), lost=0, unsent=0)
    return run, _sessions(of_arm)


def _sessions(requests: Requests) -> NDArray[np.int64]:
    """The session of each request by number, a request without one being its own; empty without any."""
    columns = [batch.table.column("session") for batch in requests.parts(["session"])]
    chunks = [chunk for column in columns for chunk in column.chunks]
    if all(chunk.null_count == len(chunk) for chunk in chunks):
        return np.empty(0, dtype=np.int64)
    codes = pa.chunked_array(chunks).combine_chunks().dictionary_encode().indices
    found: NDArray[np.int64] = codes.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    alone = found < 0
    found[alone] = -1 - np.arange(int(alone.sum()))
    return found


def _row(row: Row) -> dict[str, Any]:
    scale = 1e3 if row.metric.kind is MetricKind.LATENCY else 1.0
    return {
        "metric": row.metric.name,
        "unit": _UNITS[row.metric.kind],
        "base": None if row.base is None else row.base * scale,
        "new": None if row.new is None else row.new * scale,
        **dict(_interval("difference", row.difference, scale)),
        **dict(_interval("change", row.change, 1.0)),
        "verdict": str(row.verdict),
        "reason": row.why_open,
    }


def _interval(key: str, found: Any, scale: float) -> Iterator[tuple[str, Any]]:
    yield key, None if found is None else rounded(found.value * scale)
    known = found is not None and found.is_known
    yield f"{key}_interval", [rounded(found.low * scale), rounded(found.high * scale)] if known else None
