"""Options of a run that measures several loads, and their checks."""

import math
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llm_locust.core.manifest import MOST_STAGES, PrefixShare
from llm_locust.core.texts import parse_time
from llm_locust.figures.edge import Bounds
from llm_locust.figures.objective import Limit, Objective
from llm_locust.figures.search import KINDS, bounds_of
from llm_locust.metrics.stats.censoring import fewest_samples
from llm_locust.options.option import parse_count
from llm_locust.scenario.classes import TrafficClass
from llm_locust.scenario.request_kind import RequestKind
from llm_locust.workload.arrival_grammar import MAX_RATE, MAX_USERS, Sweep
from llm_locust.workload.arrivals import Profile
from llm_locust.workload.plan import DEFAULT_INPUT_TOKENS, WorkloadSpec


def parse_stage_time(text: str) -> float:
    """A duration above 0 (raises ValueError)."""
    seconds = parse_time(text)
    if seconds <= 0:
        raise ValueError(f"{text!r}: a stage must be measured for longer than 0 s")
    return seconds


def parse_most_stages(text: Any) -> int:
    """A number of stages (raises ValueError)."""
    found = parse_count(text)
    if found > MOST_STAGES:
        raise ValueError(f"{found} stages are too many, at most {MOST_STAGES} are allowed")
    return found


# --- Checks of a sweep over lengths: that nothing else says how long prompts and answers are


LENGTHS = "--sweep lengths"

#: Options that say lengths, by their names.
_OTHERS = ("input_tokens", "output_tokens", "dataset", "trajectories")


def with_own_rate(sweep: Sweep | None, rate: Profile | None) -> tuple[Sweep | None, Profile | None]:
    """A sweep with the run's rate as its load where it has none of its own, and the rate that is then left.

    Raises:
        ValueError: the rate changes over time.
    """
    if sweep is None or sweep.values or rate is None:
        return sweep, rate
    (first, *later) = rate.segments
    if later or first.slope or first.amplitude:
        name = f"--sweep {sweep.name}"
        raise ValueError(f"{name} beside --request-rate: a stage has one rate; give one number")
    return replace(sweep, kind="rate", values=(first.rate,)), None


def check_lengths(
    sweep: Sweep | None, given: Namespace, classes: Sequence[TrafficClass], kinds: Sequence[RequestKind]
) -> None:
    """Refuse what contradicts the lengths of a sweep, and lengths that no prompt can have.

    Raises:
        ValueError: one line, which names it and says what to do.
    """
    if sweep is None or not sweep.lengths:
        return
    for name in _OTHERS:
        if getattr(given, name, None):
            other = f"--{name.replace('_', '-')}"
            preset = " (a --preset gives it too)" if name.endswith("_tokens") else ""
            raise ValueError(
                f"{LENGTHS} beside {other}: each stage sets the lengths of prompts and answers; leave "
                f"{other} out{preset}"
            )
    for found, kind in zip(classes, kinds, strict=True):
        where = f"class {found.name!r}: " if found.name else ""
        for why in (*_of_class(found), *against_lengths(kind.spec)):
            raise ValueError(f"{LENGTHS}: {where}{why}")
        for lengths in sweep.lengths:
            try:
                kind.spec.of_lengths(lengths)
            except ValueError as e:
                raise ValueError(f"{LENGTHS}: {where}{lengths}: {e}") from e


def _of_class(found: TrafficClass) -> Iterator[str]:
    """Why lengths cannot be set for a class of a scenario."""
    for name in ("input_tokens", "output_tokens"):
        if getattr(found, name) is not None:
            yield f"it has {name} of its own, and each stage sets them; leave them out, or its preset"
    if found.conversation is not None:
        yield "it holds conversations, whose prompts grow with each turn; leave conversation out"


def against_lengths(spec: WorkloadSpec) -> Iterator[str]:
    """Why the lengths of a workload cannot be set."""
    endpoint = spec.endpoint
    if not endpoint.generates:
        yield f"the {endpoint.name} endpoint generates no tokens, so there is no output length"
    if spec.dataset is not None:
        yield f"dataset {spec.dataset.path!r} has lengths of its own; leave it out"
    if spec.shared_prefix is not None:
        yield (
            f"the {spec.shared_prefix.tokens} tokens of --shared-prefix would come on top of each prompt's "
            "length; leave it out"
        )
    if spec.images is not None:
        yield "the tokens of --images would come on top of each prompt's length; leave them out"
    for name in endpoint.limit_fields:
        if name in spec.extra_body:
            yield f"--body sets {name}, which bounds the answers; leave it out"


# --- Checks of a prefix-cache experiment: that nothing else says what prompts share


PREFIX = "--sweep prefix-share"


def prefixes_of(sweep: Sweep, spec: WorkloadSpec) -> tuple[PrefixShare, ...]:
    """The shares of a sweep in whole blocks; empty without any.

    Raises:
        ValueError: a share is less than a block, two are as many blocks, or the length of prompts varies.
    """
    if not sweep.shares:
        return ()
    lengths = spec.input_tokens or DEFAULT_INPUT_TOKENS
    if not lengths.text.strip().isdecimal():
        raise ValueError(
            f"{PREFIX} beside --input-tokens {lengths.text}: all prompts have one length, of which the "
            "prefix is a share; give one number"
        )
    found = tuple(PrefixShare.of(share, int(lengths.text), sweep.prefixes) for share in sweep.shares)
    for at, one in enumerate(found):
        for other in found[:at]:
            if other.tokens == one.tokens:
                raise ValueError(
                    f"{PREFIX}: {other} and {one} of {lengths.text} tokens are both {one.tokens} in whole "
                    "blocks: leave one out, or ask for longer prompts"
                )
    return found


def check_prompts(
    sweep: Sweep | None, given: Namespace, classes: Sequence[TrafficClass], kinds: Sequence[RequestKind]
) -> None:
    """Refuse what contradicts the lengths or the shared prefixes of a sweep (raises ValueError)."""
    check_lengths(sweep, given, classes, kinds)
    if sweep is None or not sweep.shares:
        return
    for name in ("reset_prefix_cache", "trajectories", "dataset", "shared_prefix"):
        if getattr(given, name, None):
            other = f"--{name.replace('_', '-')}"
            raise ValueError(
                f"{PREFIX} beside {other}: each stage sets what prompts share; leave {other} out"
            )
    if len(kinds) > 1:
        raise ValueError(
            f"{PREFIX}: the scenario has {len(kinds)} classes, and an experiment is of one kind of prompt"
        )
    for kind in kinds:
        for why in against_prefix(kind.spec):
            raise ValueError(f"{PREFIX}: {why}")
        if kind.plan is not None:
            raise ValueError(f"{PREFIX}: conversations share their own history; leave conversation out")
        for prefix in prefixes_of(sweep, kind.spec):
            try:
                kind.spec.of_prefix(prefix)
            except ValueError as e:
                raise ValueError(f"{PREFIX}: {prefix}: {e}") from e


def against_prefix(spec: WorkloadSpec) -> Iterator[str]:
    """Why the prompts of a workload cannot share what a sweep says."""
    if not spec.endpoint.generates:
        yield f"the {spec.endpoint.name} endpoint has no first token, whose time is looked at"
    if spec.dataset is not None:
        yield f"dataset {spec.dataset.path!r} has prompts of its own; leave it out"
    if spec.shared_prefix is not None:
        yield "each stage sets what prompts share; leave shared_prefix out"
    if spec.images is not None:
        yield "the tokens of images are not known, so nor is the share of a prefix; leave images out"
    if not spec.unique_head:
        yield "without unique heads prompts of one seed are in the cache of an earlier run; leave it on"
    if spec.models is not None:
        yield "each model or adapter has blocks of its own in the cache: ask for one by --model"


# --- The search that the options of a run ask for


@dataclass(frozen=True, slots=True)
class Search:
    """What a search looks for, and where it begins and ends."""

    objective: Objective
    bounds: Bounds


def search_of(
    objective: Objective | None,
    *,
    start: float | None,
    precision: float | None,
    max_stages: int | None,
    stage_s: float,
) -> Search | None:
    """The search that options ask for, which begins at ``start``; None without one (raises ValueError)."""
    if objective is None:
        return None
    most = MAX_RATE if objective.axis == "rate" else MAX_USERS
    bounds = bounds_of(objective, first_load=start, precision=precision, max_stages=max_stages, most=most)
    if objective.axis == "rate":
        for limit in objective.limits:
            _check_certified(limit, bounds.start, stage_s)
    return Search(objective, bounds)


def _check_certified(limit: Limit, rate: float, stage_s: float) -> None:
    """Refuse a first stage that is too short for a certificate."""
    fewest = fewest_samples(limit.percent) if limit.is_certified else 0
    if rate * stage_s < fewest:
        raise ValueError(
            f"--find: {limit.text} needs {fewest:,} requests a stage, and the first one, {rate:g}/s for "
            f"{stage_s:g} s, has about {rate * stage_s:,.0f}: write --stage-time {math.ceil(fewest / rate)}s "
            f"or --first-load {math.ceil(fewest / stage_s)}"
        )


def first_load(search: Search) -> Sweep:
    """The loads of a search that are known before it begins."""
    return Sweep(KINDS[search.objective.axis], (search.bounds.start,))
