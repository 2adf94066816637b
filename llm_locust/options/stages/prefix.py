"""Checks of a prefix-cache experiment: that nothing else says what prompts share."""

from collections.abc import Iterator, Sequence

from llm_locust.core.prefix import PrefixShare
from llm_locust.options.option import Values
from llm_locust.options.stages.lengths import check_lengths
from llm_locust.scenario import TrafficClass
from llm_locust.scenario.request_kind import RequestKind
from llm_locust.workload.arrivals import Sweep
from llm_locust.workload.plan import DEFAULT_INPUT_TOKENS
from llm_locust.workload.spec import WorkloadSpec

FLAG = "--sweep prefix-share"


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
            f"{FLAG} beside --input-tokens {lengths.text}: all prompts have one length, of which the prefix "
            "is a share; give one number"
        )
    found = tuple(PrefixShare.of(share, int(lengths.text), sweep.prefixes) for share in sweep.shares)
    for at, one in enumerate(found):
        for other in found[:at]:
            if other.tokens == one.tokens:
                raise ValueError(
                    f"{FLAG}: {other} and {one} of {lengths.text} tokens are both {one.tokens} in whole "
                    "blocks: leave one out, or ask for longer prompts"
                )
    return found


def check_prompts(
    sweep: Sweep | None, given: Values, classes: Sequence[TrafficClass], kinds: Sequence[RequestKind]
) -> None:
    """Refuse what contradicts the lengths or the shared prefixes of a sweep (raises ValueError)."""
    check_lengths(sweep, given, classes, kinds)
    if sweep is None or not sweep.shares:
        return
    for name in ("reset_prefix_cache", "trajectories", "dataset", "shared_prefix"):
        if given[name]:
            other = f"--{name.replace('_', '-')}"
            raise ValueError(f"{FLAG} beside {other}: each stage sets what prompts share; leave {other} out")
    if len(kinds) > 1:
        raise ValueError(
            f"{FLAG}: the scenario has {len(kinds)} classes, and an experiment is of one kind of prompt"
        )
    for kind in kinds:
        for why in against_prefix(kind.spec):
            raise ValueError(f"{FLAG}: {why}")
        if kind.plan is not None:
            raise ValueError(f"{FLAG}: conversations share their own history; leave conversation out")
        for prefix in prefixes_of(sweep, kind.spec):
            try:
                kind.spec.of_prefix(prefix)
            except ValueError as e:
                raise ValueError(f"{FLAG}: {prefix}: {e}") from e


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
