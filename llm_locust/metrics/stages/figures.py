"""The ``stages`` of a summary: the figures of each stage, as a run of its own would have them."""

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest, StageFacts
from llm_locust.core.texts import quantity
from llm_locust.metrics.agents import agents
from llm_locust.metrics.catalogue import View, e2el, shown_in, ttft
from llm_locust.metrics.columns import Columns, Floats
from llm_locust.metrics.measured import Measured, measure
from llm_locust.metrics.parts import part_of_all
from llm_locust.metrics.question import Question
from llm_locust.metrics.requests.goodput import Missing
from llm_locust.metrics.sections.completeness import requests_lost, requests_unsent
from llm_locust.metrics.sections.failures import iso
from llm_locust.metrics.sections.steady import asked_load
from llm_locust.metrics.sections.user_time import user_time
from llm_locust.metrics.sections.validity import Scale, client_validity
from llm_locust.metrics.select.selection import Selected
from llm_locust.metrics.stages.checks import LengthsSeen, PrefixHits, pair_of, share_of
from llm_locust.metrics.stages.steady import (
    FEWEST_FOR_LATENCIES,
    StageCourse,
    is_enough,
    look_at,
    parse_until,
    saturation,
    unsteady,
)
from llm_locust.metrics.stats.censoring import Ascending, ordered, percentile
from llm_locust.metrics.stats.intervals import CONFIDENCE, rounded
from llm_locust.metrics.stats.trend import student_t
from llm_locust.metrics.summary_types.requests import UserTime
from llm_locust.metrics.window import Window, stage_window, sweep_window

# --------------------
# Verdict on a stage: whether its figures are a result, and of what they are one if they are not.
# --------------------


#: Begins the reason of a stage whose client was the limit; it is the last one.
CLIENT_LIMITED = "client-limited: "

#: Reason of a stage that ended before its measured part began.
NOT_MEASURED = "it had no measured part: the run ended before, or the warm-up took all of it"

#: Note on a stage of few requests.
FEW = f"fewer than {FEWEST_FOR_LATENCIES} requests: intervals are wide, changes of latency may go unnoticed"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageVerdict:
    """What speaks against a stage.

    ``steady`` is None where too few requests began in it to tell or none succeeded, ``saturated`` in a closed
    loop, ``client`` (``ok``, ``suspect`` or ``invalid``) where nothing was measured. ``all_failed``:
    requests failed and none succeeded, which is the server's doing: the stage had its time, and the client
    is not invalid. ``reasons`` say why the stage is not a result, ``notes`` what else should be known of it.
    ``lengths`` are those of a sweep over them, ``prefix`` the hits of one over shares of a shared prefix.
    """

    steady: bool | None = None
    all_failed: bool = False
    saturated: bool | None = None
    client: str | None = None
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    lengths: LengthsSeen | None = None
    prefix: PrefixHits | None = None

    @property
    def is_result(self) -> bool:
        return not self.reasons


def stage_verdict(
    m: Measured,
    manifest: Manifest,
    stage: StageFacts,
    prefix: PrefixHits | None = None,
    hung: UserTime | None = None,
) -> StageVerdict:
    """The verdict on a stage that was measured over its window.

    A stage whose load outran the server is not steady by that alone, so its other changes are not listed. How
    steadily requests fail is not looked at where all do. Users that ``hung`` to the end of the stage are a
    part of its load that was not served, whatever the others got.
    """
    course = StageCourse.of(m.c, m.window, stage.kind == "rate")
    overload = saturation(course, stage.unsent)
    population = m.population(np.arange(len(m.c)))
    asked = len(population.all)
    none_ok = asked > 0 and not len(population.ok)
    changes = [] if overload or none_ok else unsteady(course)
    client = _client(m, manifest)
    begun = len(course.in_order())
    found = [stage.fault] if stage.fault else []
    if none_ok:
        found.append(f"none of its {asked:,} requests succeeded")
    if overload:
        found.append(f"saturated: {overload}")
    if changes:
        found.append(f"not steady: {'; '.join(changes)}")
    if hung is not None:
        found.append(hung.hung_text)
    lengths = LengthsSeen.of(m, stage)
    if lengths is not None and lengths.reason:
        found.append(lengths.reason)
    found += () if prefix is None else prefix.reasons
    if is_clients := client["verdict"] == "invalid":
        found.append(f"{CLIENT_LIMITED}{client['reasons'][0]}")
    few = begun < FEWEST_FOR_LATENCIES
    notes = [FEW] if few else []
    if lengths is not None and lengths.note:
        notes.append(lengths.note)
    if prefix is not None and prefix.note:
        notes.append(prefix.note)
    return StageVerdict(
        steady=False if overload or changes else None if few or none_ok else True,
        all_failed=none_ok and bool(len(population.failed)) and not stage.fault and not is_clients,
        saturated=bool(overload) if course.open_loop else None,
        client=client["verdict"],
        reasons=tuple(found),
        notes=tuple(notes),
        lengths=lengths,
        prefix=prefix,
    )


def _client(m: Measured, manifest: Manifest) -> dict[str, Any]:
    population = m.population(np.arange(len(m.c)))
    medians_ms = {
        "itl": _median_ms(m.gaps.ascending()),
        "ttft": _median_ms(ordered(ttft(m.c)[population.ok])),
        "e2el": _median_ms(ordered(e2el(m.c)[population.ok])),
    }
    return client_validity(m.c, population.judged, manifest, Scale.of(m.window, medians_ms), m.judgement)


def _median_ms(ascending_s: Floats | Ascending) -> float | None:
    return percentile(ascending_s, 50.0) * 1e3 if len(ascending_s) else None


# --------------------
# Figures of a load over its repeats: what intervals within one stage cannot show.
#
# Between two stages of one load lies all that changes with time: caches, other tenants, temperatures. The
# interval of a mean over n repeats is x̄ ± t s / √n, with Student's t of n − 1 degrees of freedom.
# --------------------


PLACES = ("p50", "p99")

#: Figure over repeats -> section and key of a stage's figures.
_RATES = {
    "requests_per_s": ("throughput", "requests_per_s"),
    "output_tokens_per_s": ("throughput", "output_tokens_per_s"),
    "inputs_per_s": ("throughput", "inputs_per_s"),
    "error_rate": ("requests", "error_rate"),
    "goodput": ("goodput", "ratio"),
}


def repeats(stages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each load that was measured more than once at its lengths, in the order of first appearance.

    Stages that are not a result are counted and left out, but for those in which all requests failed: they
    have no latencies, and rates that are known.
    """
    loads: dict[tuple[str, float, str, float | None], list[Mapping[str, Any]]] = {}
    for stage in stages:
        load = stage["kind"], stage["asked"], pair_of(stage), share_of(stage)
        loads.setdefault(load, []).append(stage)
    return [_of_load(*load, theirs) for load, theirs in loads.items() if len(theirs) > 1]


def _of_load(
    kind: str, asked: float, lengths: str, prefix: float | None, stages: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    results = [stage for stage in stages if stage["is_result"] and stage["figures"]]
    known = [stage["figures"] for stage in stages if stage in results or stage["all_failed"]]
    return {
        "kind": kind,
        "asked": asked,
        "lengths": lengths or None,
        **({} if prefix is None else {"prefix": prefix}),
        "stages": [stage["number"] for stage in stages],
        "results": len(results),
        "figures": {name: over(values) for name, values in _values(known).items()},
    }


def _values(results: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """Every figure of each stage."""
    found: dict[str, list[float | None]] = {
        f"{metric.key}_{place}_ms": [figures["latency_ms"][metric.key][place] for figures in results]
        for metric in shown_in(View.GROUPS)
        for place in PLACES
    }
    return found | {
        name: [figures[section][key] for figures in results] for name, (section, key) in _RATES.items()
    }


def over(values: Sequence[float | None]) -> dict[str, Any]:
    """Number, mean, extremes and the 95 % interval of the mean of the values that are known."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    n = len(known)
    if not n:
        return {"n": 0, "mean": None, "min": None, "max": None, "ci95": None}
    mean = math.fsum(known) / n
    found: dict[str, Any] = {"n": n, "mean": mean, "min": min(known), "max": max(known), "ci95": None}
    if n > 1:
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in known) / (n - 1))
        reach = student_t(n - 1, CONFIDENCE) * deviation / math.sqrt(n)
        found["ci95"] = [rounded(mean - reach), rounded(mean + reach)]
    return found


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
