"""Checks of a sweep over lengths: that nothing else says how long prompts and answers are."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from llm_locust.options.option import Values
from llm_locust.scenario import TrafficClass
from llm_locust.scenario.request_kind import RequestKind
from llm_locust.workload.arrivals import Profile, Sweep
from llm_locust.workload.spec import WorkloadSpec

FLAG = "--sweep lengths"

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
    sweep: Sweep | None, given: Values, classes: Sequence[TrafficClass], kinds: Sequence[RequestKind]
) -> None:
    """Refuse what contradicts the lengths of a sweep, and lengths that no prompt can have.

    Raises:
        ValueError: one line, which names it and says what to do.
    """
    if sweep is None or not sweep.lengths:
        return
    for name in _OTHERS:
        if given[name]:
            other = f"--{name.replace('_', '-')}"
            preset = " (a --preset gives it too)" if name.endswith("_tokens") else ""
            raise ValueError(
                f"{FLAG} beside {other}: each stage sets the lengths of prompts and answers; leave {other} "
                f"out{preset}"
            )
    for found, kind in zip(classes, kinds, strict=True):
        where = f"class {found.name!r}: " if found.name else ""
        for why in (*_of_class(found), *against_lengths(kind.spec)):
            raise ValueError(f"{FLAG}: {where}{why}")
        for lengths in sweep.lengths:
            try:
                kind.spec.of_lengths(lengths)
            except ValueError as e:
                raise ValueError(f"{FLAG}: {where}{lengths}: {e}") from e


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
