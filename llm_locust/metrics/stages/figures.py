"""The ``stages`` of a summary: the figures of each stage, as a run of its own would have them."""

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from llm_locust.core.batch import Requests
from llm_locust.core.figures import quantity
from llm_locust.core.manifest import Manifest, StageFacts
from llm_locust.metrics.agents.figures import agents
from llm_locust.metrics.columns import Columns
from llm_locust.metrics.measured import Measured, measure
from llm_locust.metrics.parts import part_of_all
from llm_locust.metrics.question import Question
from llm_locust.metrics.requests.goodput import Missing
from llm_locust.metrics.sections.completeness import requests_lost, requests_unsent
from llm_locust.metrics.sections.failures import iso
from llm_locust.metrics.sections.steady import asked_load
from llm_locust.metrics.sections.user_time import user_time
from llm_locust.metrics.select.selection import Selected
from llm_locust.metrics.stages.lengths import LengthsSeen
from llm_locust.metrics.stages.prefix import PrefixHits
from llm_locust.metrics.stages.until import is_enough, look_at, parse_until
from llm_locust.metrics.stages.verdict import NOT_MEASURED, StageVerdict, stage_verdict
from llm_locust.metrics.summary_types.requests import UserTime
from llm_locust.metrics.window import Window, stage_window, sweep_window

_EDGES = ("scheduled_ns", "ended_ns")


def stages(
    requests: Requests,
    manifest: Manifest,
    question: Question,
    rows: int,
    only: Container[int] | None = None,
) -> list[dict[str, Any]]:
    """Each stage that has begun, in order.

    Every stage is measured in a pass of its own, over the requests that reach into its measured part: those
    of an earlier stage that are still in flight there deliver tokens in it too.

    Args:
        rows: number of requests that the run has, first tries included.
        only: numbers of the stages that are asked for; None: all.
    """
    lost = requests_lost(manifest, rows)
    missing_unsent = requests_unsent(manifest, question.warmup_of(manifest))
    unsent_known = manifest.is_sweep or not missing_unsent
    return [
        _stage(
            requests,
            manifest,
            question,
            stage,
            Missing(None if lost else 0, stage.unsent if unsent_known else None),
        )
        for stage in manifest.stages
        if only is None or stage.number in only
    ]


def _stage(
    requests: Requests, manifest: Manifest, question: Question, stage: StageFacts, missing: Missing
) -> dict[str, Any]:
    window = stage_window(stage, manifest)
    found: dict[str, Any] = {
        "number": stage.number,
        "kind": stage.kind,
        "asked": stage.asked,
        "offered": None,
        "repeat": stage.repeat,
        "repeated_as": stage.repeated_as,
        "window": None,
        "figures": None,
    }
    if window is None:
        lengths = None if stage.lengths is None else LengthsSeen.unknown(stage.lengths)
        prefix = None if stage.prefix is None else PrefixHits(asked=stage.prefix, caches=stage.caches)
        why = stage.fault or NOT_MEASURED
        return found | {"until": None} | _told(StageVerdict(reasons=(why,), lengths=lengths, prefix=prefix))
    theirs = touching(requests, window)
    m = measure(theirs, manifest, replace(question, window=window, where=None))
    found["offered"] = _offered(stage, m, theirs, manifest)
    found["window"] = {
        "start": iso(window.start_ns),
        "end": iso(window.end_ns),
        "start_s": (window.start_ns - manifest.started_ns) * 1e-9,
        "seconds": window.seconds,
    }
    found["figures"] = part_of_all(m, question.places, missing)
    if manifest.trajectories is not None:
        gpus = question.prices_of(manifest).gpus
        found["figures"]["agents"] = agents(theirs, m.c, window, manifest.trajectories, gpus)
    verdict = stage_verdict(m, manifest, stage, PrefixHits.of(m, theirs, stage), hung_users(theirs, m, stage))
    until = _until(m, manifest, stage)
    if until is not None:
        verdict = replace(verdict, notes=(*verdict.notes, _ended(until, window.seconds)))
    return found | {"until": until} | _told(verdict)


def hung_users(requests: Requests, m: Measured, stage: StageFacts) -> UserTime | None:
    """The time of the users of a stage some of whom hung to its end; None where none did, and of a rate."""
    times = user_time(requests, m, are_all=False) if stage.kind == "users" else None
    return times if times is not None and times.hung.n else None


def _until(m: Measured, manifest: Manifest, stage: StageFacts) -> dict[str, Any] | None:
    """The figure of ``--until`` in the whole stage; None without that option."""
    try:
        until = parse_until(str(manifest.options["until"]))
    except (KeyError, ValueError):  # another version's manifest may have what this one does not know
        return None
    look = look_at(m, until)
    return {
        "asked": until.text,
        "value_ms": None if look.value_s is None else look.value_s * 1e3,
        "interval_ms": None if look.ends_s is None else [end * 1e3 for end in look.ends_s],
        "half": look.half,
        "is_early": stage.is_early,
        "is_reached": is_enough(look, until),
    }


def _ended(until: Mapping[str, Any], seconds: float) -> str:
    """What ended the stage, as a note."""
    figure, _, asked = until["asked"].partition("±")
    lasted = quantity(seconds)
    when = f"ended early, after {lasted} s" if until["is_early"] else f"lasted its {lasted} s"
    if until["half"] is None:
        return f"{when}: its requests do not give {figure} an interval; ±{asked} was asked for"
    return f"{when}: {figure} is known to ±{until['half']:.1%}, ±{asked} was asked for"


def _told(verdict: StageVerdict) -> dict[str, Any]:
    return {
        "is_result": verdict.is_result,
        "steady": verdict.steady,
        "all_failed": verdict.all_failed,
        "saturated": verdict.saturated,
        "client": verdict.client,
        "reasons": list(verdict.reasons),
        "notes": list(verdict.notes),
        "lengths": None if verdict.lengths is None else verdict.lengths.told(),
        **({} if verdict.prefix is None else {"prefix": verdict.prefix.told()}),
    }


def touching(requests: Requests, window: Window) -> Selected:
    """The requests that were scheduled before the window's end, and had not ended at its start."""
    mask = np.zeros(len(requests), dtype=np.bool_)
    at = 0
    for batch in requests.parts(_EDGES):
        scheduled_ns, ended_ns = (batch.ints(name) for name in _EDGES)
        mask[at : at + len(batch)] = (scheduled_ns < window.end_ns) & (ended_ns >= window.start_ns)
        at += len(batch)
    return Selected(requests, mask)


def _offered(stage: StageFacts, m: Measured, requests: Requests, manifest: Manifest) -> float | None:
    if stage.kind == "rate":
        return int(m.window.scheduled(m.c).sum()) / m.window.seconds
    load = asked_load(requests, manifest, m.c.origin_ns)
    if load is None:
        return None
    edges = np.array([m.window.start_s(m.c), m.window.end_s(m.c)])
    return float(load.levels(edges)[0])


def outside(c: Columns, manifest: Manifest) -> dict[str, int] | None:
    """``outside_stages``: requests of a sweep in no stage's measured part; None in other runs."""
    window = sweep_window(manifest) if manifest.is_sweep else None
    if window is None:
        return None
    theirs = ~window.scheduled(c)
    return {"requests": int(theirs.sum()), "failed": int((theirs & ~c.ok & ~c.cancelled).sum())}
