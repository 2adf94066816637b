"""The search of a run: what it looked for, and what its stages show of it."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest, StageFacts
from llm_locust.core.stages import finished
from llm_locust.metrics.curves.objective import UNITS, Axis, Objective, parse_objective
from llm_locust.metrics.curves.probe import Probe
from llm_locust.metrics.curves.readings import probes
from llm_locust.metrics.curves.search import last_answer
from llm_locust.metrics.curves.steps import Bounds, NextStage, SearchResult
from llm_locust.metrics.question import Question

#: Kind of the stages of each axis.
KINDS: dict[Axis, Any] = {"rate": "rate", "concurrency": "users"}

_ANSWER = (
    *("load", "low", "high", "at_least", "at_most", "limit", "is_resolved", "why"),
    *("good_per_s", "good_low", "good_high"),
)

DEFAULT_FIRST_LOAD, DEFAULT_PRECISION, DEFAULT_MOST_STAGES = 4.0, 0.05, 12


def parse_share(text: str) -> float:
    """A share above 0 and below 1, as ``5%`` or ``0.05`` (raises ValueError)."""
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise ValueError(f'"{text}" is not a share: write it as 5% or 0.05')
    return value


def parse_first_load(text: str) -> float:
    """A number above 0 (raises ValueError)."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise ValueError(f"{text!r} is not a load: give a number above 0")
    return value


def bounds_of(
    objective: Objective,
    *,
    first_load: float | None,
    precision: float | None,
    max_stages: int | None,
    most: float = math.inf,
) -> Bounds:
    """The bounds of a search; None is the default.

    Raises:
        ValueError: one is out of its range.
    """
    start = DEFAULT_FIRST_LOAD if first_load is None else first_load
    if objective.axis == "concurrency" and not start.is_integer():
        raise ValueError(f"--first-load {start:g}: concurrency is a whole number of users")
    return Bounds(
        start,
        most=most,
        precision=precision or DEFAULT_PRECISION,
        most_stages=max_stages or DEFAULT_MOST_STAGES,
    )


def search_of(manifest: Manifest) -> tuple[Objective, Bounds] | None:
    """The objective and the bounds of the run's search, by its options; None in another run.

    Raises:
        ValueError: the manifest has an option that cannot be read.
    """
    options = manifest.options
    if not (text := options.get("find")):
        return None
    objective = parse_objective(str(text))
    found = bounds_of(
        objective,
        first_load=_parsed(parse_first_load, options.get("first_load")),
        precision=_parsed(parse_share, options.get("precision")),
        max_stages=_parsed(int, options.get("max_stages")),
    )
    return objective, replace(found, seed=manifest.seed)


def search(requests: Requests, manifest: Manifest, question: Question) -> dict[str, Any] | None:
    """The ``search`` of a summary, from the records of its stages; None in a run without a search.

    Options that cannot be read, as another version wrote them, leave the rest of the summary as it is.
    """
    try:
        asked = search_of(manifest)
    except ValueError as e:
        return _unread(manifest, str(e))
    if asked is None:
        return None
    objective, bounds = asked
    found = probes(requests, manifest, question, objective) if manifest.stages else []
    step = last_answer(objective, bounds, found) if found else SearchResult("no stage has begun")
    return told(objective, found, step, [stage.number for stage in _of_axis(objective, manifest)])


def _unread(manifest: Manifest, why: str) -> dict[str, Any]:
    """A search that this version cannot read: its words, and no answer."""
    kinds = {KINDS[axis]: UNITS[axis] for axis in UNITS}
    unit = next((kinds[stage.kind] for stage in manifest.stages), UNITS["rate"])
    answer = _shown(SearchResult(f"this version cannot read what was asked for: {why}"))
    return {"objective": str(manifest.options["find"]), "unit": unit, "stages": [], "answer": answer}


def _shown(found: SearchResult) -> dict[str, Any]:
    return {key: getattr(found, key) for key in _ANSWER}


def _of_axis(objective: Objective, manifest: Manifest) -> list[StageFacts]:
    return [stage for stage in finished(manifest.stages) if stage.kind == KINDS[objective.axis]]


def _parsed(parse: Any, value: Any) -> Any:
    return None if value in (None, "") else parse(str(value))


def told(
    objective: Objective,
    found: Sequence[Probe],
    step: NextStage | SearchResult,
    numbers: Sequence[int | None],
) -> dict[str, Any]:
    """Objective, stages and answer as plain data. Where there is a next stage, ``next`` replaces the answer.

    Args:
        numbers: of the stages in their run.
    """
    required = tuple(limit.required for limit in objective.limits)
    common = {
        "objective": objective.text,
        "unit": UNITS[objective.axis],
        "stages": [
            _stage(objective, required, probe, number) for probe, number in zip(found, numbers, strict=True)
        ],
    }
    if isinstance(step, NextStage):
        return common | {"next": {"load": step.load, "why": step.why}}
    return common | {"answer": _shown(step)}


def _stage(
    objective: Objective, required: tuple[float, ...], probe: Probe, number: int | None
) -> dict[str, Any]:
    return {
        "stage": number,
        "load": probe.load,
        "shows": str(probe.shows(required)) if probe.counts and not objective.is_maximum else None,
        "good_per_s": None if probe.good is None or not objective.is_maximum else probe.good.value,
        "no_result": probe.no_result or None,
        "client": probe.client or None,
        "limits": [
            {
                "gate": limit.text,
                "required": limit.required if r.certified is None else r.certified,
                "share": r.share,
                "ci95": list(r.ends),
                "n": r.n,
                "n_effective": r.n_eff,
            }
            for limit, r in zip(objective.limits, probe.readings, strict=False)
        ],
    }
