"""Verdict on a stage: whether its figures are a result, and of what they are one if they are not."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from llm_locust.core.manifest import Manifest, StageFacts
from llm_locust.metrics.catalogue import e2el, ttft
from llm_locust.metrics.columns import Floats
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.sections.validity import Scale, client_validity
from llm_locust.metrics.stages.course import StageCourse
from llm_locust.metrics.stages.lengths import LengthsSeen
from llm_locust.metrics.stages.prefix import PrefixHits
from llm_locust.metrics.stages.steady import FEWEST_FOR_LATENCIES, saturation, unsteady
from llm_locust.metrics.stats.percentiles import Ascending, ordered, percentile
from llm_locust.metrics.summary_types.requests import UserTime

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
