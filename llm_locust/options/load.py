"""Options that say the load: when requests are sent and how many, and several loads one after the other."""

import math
import re
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from msgspec import field, structs

from llm_locust.core.manifest import MOST_PREFIXES, MOST_STAGES, PrefixShare
from llm_locust.core.record import MAX_TOKENS, LengthPair
from llm_locust.core.texts import ON_OFF, is_on, parse_time, plain_number
from llm_locust.figures.edge import Bounds
from llm_locust.figures.objective import Limit, Objective, parse_objective
from llm_locust.figures.search import KINDS, bounds_of, parse_first_load, parse_share
from llm_locust.figures.text import plural
from llm_locust.metrics.stage_course import Until, parse_until
from llm_locust.metrics.stats.censoring import fewest_samples
from llm_locust.options.option import Group, option, parse_count
from llm_locust.options.run import StopRule, parse_stop_rules
from llm_locust.scenario import readers
from llm_locust.scenario.document import TrafficClass
from llm_locust.scenario.request_kind import RequestKind
from llm_locust.workload.arrivals import MAX_RATE, Process, Profile, TraceFile, parse_arrival, parse_rate
from llm_locust.workload.plan import DEFAULT_INPUT_TOKENS, WorkloadSpec
from llm_locust.workload.traces import UNITS, Trace, TraceAsked, open_trace

# --- Loads of a sweep as text: the grammar of ``--sweep``
#
# ============================== ==============================================================
# ``users=1,2,4,8``              closed loop with so many users, one load after the other
# ``rate=2,4,8``                 open loop at so many requests/s
# ``rate=linear:1..10,10``       10 loads from 1 to 10 with equal differences
# ``agents=1,2,4``               the same as ``users=``, of users that walk through trajectories
# ``users=geometric:1..256,9``   9 loads from 1 to 256 with equal ratios
# ``lengths=128:32,4096:64``     the run's own load, first with prompts of 128 tokens and answers
#                                of 32, then with 4,096 and 64
# ``users=1,4 lengths=128:32``   every load at every pair of lengths
# ``users=4 prefix-share=0%,50%`` one load, first with prompts that share nothing, then with
#                                prompts half of which is one of 10 shared texts
# ``... prefixes=1``             of so many shared texts
# ============================== ==============================================================


#: What the loads of a sweep are numbers of.
Kind = Literal["users", "rate"]

#: Most users of a load: Locust keeps each as an object.
MAX_USERS = 1_000_000

ALLOWED_SWEEPS = (
    "users=1,2,4,8, rate=2,4,8, rate=linear:1..10,10 or users=geometric:1..256,9, and lengths=128:32,4096:64 "
    "(input:output tokens) alone or beside one of them, or prefix-share=0%,50%,90% at one load"
)

_LOAD_NAMES = ("users", "agents", "rate")
_SWEEP_NAMES = (*_LOAD_NAMES, "lengths", "prefix-share", "prefixes")

#: Shared texts of a stage where the sweep does not say how many.
_PREFIXES = 10
_NAMED = re.compile(r"(?:^|\s+)([^\s=,:]*)=")


@dataclass(frozen=True, slots=True)
class Sweep:
    """Loads in the order in which they are applied: numbers of users, or rates in requests/s.

    Attributes:
        values: empty: the run's own number of users is the load.
        lengths: pairs, at each of which all loads are applied; empty: as the run says.
        shares: of each prompt, that is one of ``prefixes`` shared texts; empty: as the run says.
    """

    kind: Kind
    values: tuple[float, ...]
    lengths: tuple[LengthPair, ...] = ()
    shares: tuple[float, ...] = ()
    prefixes: int = _PREFIXES

    @property
    def name(self) -> str:
        """What it is over, as it is written: its loads, else lengths or shares."""
        return str(self.kind) if self.values else "prefix-share" if self.shares else "lengths"

    @property
    def stages(self) -> int:
        """Number of stages, without repeats."""
        return max(1, len(self.values)) * max(1, len(self.lengths)) * max(1, len(self.shares))

    def of_users(self, users: int) -> "Sweep":
        """The same with the run's number of users where it has no loads of its own."""
        return self if self.values else replace(self, values=(float(users),))


def parse_sweep(text: str) -> Sweep:
    """Parse the loads in ``text``, in the grammar above (raises ValueError)."""
    try:
        found = _sweep(_sweep_parts(text.strip()))
        if found.stages > MOST_STAGES:
            pairs = f" at {plural(len(found.lengths), 'pair')} of lengths" if found.lengths else ""
            loads = plural(len(found.values), "load")
            raise ValueError(f"it has {loads}{pairs}, at most {MOST_STAGES} are allowed")
        if any(a == b for a, b in pairwise(found.values)):
            raise ValueError("it has the same load twice in a row: leave one out, or give fewer loads")
    except ValueError as e:
        raise ValueError(f"sweep {text!r}: {e}; allowed are {ALLOWED_SWEEPS}") from None
    return found


def _sweep_parts(text: str) -> dict[str, str]:
    """What is said of each name."""
    names = list(_NAMED.finditer(text))
    if not names or names[0].start() or not names[0][1]:
        raise ValueError("it must begin with users=, agents=, rate=, lengths= or prefix-share=")
    ends = [*(name.start() for name in names[1:]), len(text)]
    found: dict[str, str] = {}
    for name, end in zip(names, ends, strict=True):
        if name[1] not in _SWEEP_NAMES:
            raise ValueError(f"{name[1]!r} is not {', '.join(_SWEEP_NAMES[:-1])} or {_SWEEP_NAMES[-1]}")
        if name[1] in found:
            raise ValueError(f"it has {name[1]}= twice")
        found[name[1]] = text[name.end() : end]
    return found


def _sweep(parts: dict[str, str]) -> Sweep:
    given = [name for name in _LOAD_NAMES if name in parts]
    if len(given) > 1:
        raise ValueError(f"{given[0]}= beside {given[1]}=: a run has one kind of load")
    if given == ["agents"] and "lengths" in parts:
        raise ValueError("agents= beside lengths=: trajectories have recorded lengths; leave lengths= out")
    kind: Kind = "rate" if given == ["rate"] else "users"
    values = tuple(_checked_load(kind, value) for name in given for value in _load_values(parts[name]))
    lengths = tuple(_length_pair(word) for word in parts["lengths"].split(",")) if "lengths" in parts else ()
    twice = next((pair for at, pair in enumerate(lengths) if pair in lengths[:at]), None)
    if twice is not None:
        raise ValueError(f"it has the lengths {twice} twice; --repeat measures all of them again")
    return Sweep(kind, values, lengths, *_prefix_shares(parts, len(values)))


def _prefix_shares(parts: dict[str, str], loads: int) -> tuple[tuple[float, ...], int]:
    """Shares of shared prefixes, and the number of these."""
    if "prefix-share" not in parts:
        if "prefixes" in parts:
            raise ValueError("prefixes= without prefix-share=: say how much of a prompt they are")
        return (), _PREFIXES
    if loads > 1 or "lengths" in parts or "agents" in parts:
        raise ValueError(
            "prefix-share= beside several loads, lengths= or agents=: an experiment varies one thing; give "
            "one load, users= or rate=, and --input-tokens for the length of all prompts"
        )
    shares = tuple(_prefix_share(word.strip()) for word in parts["prefix-share"].split(","))
    twice = next((share for at, share in enumerate(shares) if share in shares[:at]), None)
    if twice is not None:
        raise ValueError(f"it has the share {twice * 100:g}% twice; --repeat measures all of them again")
    number = parts.get("prefixes", f"{_PREFIXES}").strip()
    is_short = number.isascii() and number.isdecimal() and len(number) <= len(f"{MOST_PREFIXES}")
    if not is_short or not 1 <= int(number) <= MOST_PREFIXES:
        raise ValueError(f"prefixes={number} is not a whole number in 1 .. {MOST_PREFIXES:,}")
    return shares, int(number)


def _prefix_share(word: str) -> float:
    if not word.endswith("%"):
        raise ValueError(f"{word!r} is not a share such as 50%")
    share = _sweep_number(word.removesuffix("%")) / 100
    if share >= 1:
        raise ValueError(f"{word}: each prompt needs an end of its own; give a share below 100%")
    return share


def _length_pair(word: str) -> LengthPair:
    numbers = [number.strip() for number in word.split(":")]
    if len(numbers) != 2 or not all(number.isascii() and number.isdecimal() for number in numbers):
        raise ValueError(f"{word.strip()!r} is not a pair of lengths in tokens, input:output, such as 128:32")
    for number in numbers:
        if not 1 <= int(number[:20]) <= MAX_TOKENS:
            raise ValueError(f"{word.strip()!r}: {number} tokens are not in 1 .. {MAX_TOKENS:,}")
    return LengthPair(int(numbers[0]), int(numbers[1]))


def _load_values(text: str) -> Iterator[float]:
    shape, colon, rest = text.partition(":")
    if not colon:
        yield from (_sweep_number(word) for word in text.split(","))
        return
    span, comma, count = rest.partition(",")
    first, dots, last = span.partition("..")
    if shape not in ("linear", "geometric") or not comma or not dots or not count.strip().isdecimal():
        raise ValueError(f"{text!r} is not linear:FROM..TO,COUNT or geometric:FROM..TO,COUNT")
    low, high, n = _sweep_number(first), _sweep_number(last), int(count)
    if not 2 <= n <= MOST_STAGES:
        raise ValueError(f"COUNT {count.strip()!r} is not in 2 .. {MOST_STAGES}")
    if low <= 0:
        raise ValueError(f"FROM {first.strip()!r} is not above 0")
    for i in range(n):
        part = i / (n - 1)
        yield low + (high - low) * part if shape == "linear" else low * (high / low) ** part


def _checked_load(kind: Kind, value: float) -> float:
    if kind == "users":
        value = float(round(value))
        if not 1 <= value <= MAX_USERS:
            raise ValueError(f"{value:g} users are not in 1 .. {MAX_USERS:,}")
        return value
    if not 0 < value <= MAX_RATE:
        raise ValueError(f"{value:g} is not in 0 .. {MAX_RATE:,.0f} requests/s, without 0")
    return float(f"{value:.6g}")


def _sweep_number(word: str) -> float:
    value, text = plain_number(word), word.strip()
    if math.isnan(value) or not set(text) <= set("0123456789."):
        raise ValueError(f"{text!r} is not a number above 0")
    return value


# --- How long each load is measured, and how many there may be


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


# --- The options, as checked values


#: Of an open loop that is told a rate and nothing else.
DEFAULT_PROCESS = Process(1.0)

#: Tokens of a block: with fewer, words are too few to tell blocks apart.
LEAST_BLOCK, MOST_BLOCK = 4, 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A part of a trace, in recorded seconds after its first request; to its end without ``end_s``."""

    start_s: float = 0.0
    end_s: float | None = None


def parse_slice(text: str) -> Slice:
    """``10m-20m``, ``10m-`` or ``-20m``; raises ValueError, which says what is allowed."""
    start, dash, end = text.partition("-")
    try:
        if not dash or not (start.strip() or end.strip()):
            raise ValueError("no FROM-TO")
        found = Slice(
            start_s=parse_time(start) if start.strip() else 0.0,
            end_s=parse_time(end) if end.strip() else None,
        )
        if found.end_s is not None and found.end_s <= found.start_s:
            raise ValueError("it ends before it starts")
    except ValueError as e:
        raise ValueError(f"slice {text!r}: {e}; allowed is FROM-TO, such as 10m-20m, or 10m-") from None
    return found


def parse_scale(text: str) -> float:
    """A number above 0 (raises ValueError)."""
    scale = plain_number(text)
    if not 1e-6 <= scale <= 1e6:
        raise ValueError(f"scale {text!r}: a number above 0; 2 is twice as slow, 0.5 twice as fast")
    return scale


def parse_block(text: str) -> int:
    """A number of tokens that a hash may stand for (raises ValueError)."""
    if not (text.isascii() and text.isdigit() and LEAST_BLOCK <= int(text[:9]) <= MOST_BLOCK):
        raise ValueError(
            f"block {text!r}: a whole number of tokens from {LEAST_BLOCK} to {MOST_BLOCK:,}, such as 512"
        )
    return int(text)


class LoadSettings(Group, frozen=True, kw_only=True):
    """When requests are sent, and when no more are. None is what was not said.

    Attributes:
        trace_scale: stretches a trace's times: 2 is twice as slow.
        max_in_flight, num_requests: of all workers together. In a run of conversations they count
            these, not their turns.
        backs_off: a user of a closed loop waits after a failed request.
        sweep: loads that are applied one after the other, each for ``stage_s`` of measured time; of a search
            the first.
        until: figure whose interval ends a stage before its time.
        repeats: how often all loads of a sweep are measured.
        class_rates: the rate of each class of a scenario, where they have rates of their own.
        search: what a search looks for; it chooses each further load.
        most_skipped: lines of a trace that are skipped because they cannot be read.
    """

    arrival: Process | TraceFile | None = option(
        "--arrival",
        "open loop: constant, poisson, gamma:CV or trace:FILE (default poisson; requires an OpenLoopUser)",
        parse_arrival,
        "A",
        form=readers.ARRIVAL,
        ui=True,
    )
    rate: Profile | None = option(
        "--request-rate",
        "open loop: requests per second of all workers together: 10, ramp:10..100,60s, "
        "steps:10@60s,50@30s, sine:MEAN,AMPLITUDE,PERIOD or spike:BASE,PEAK,AT,FOR; of a trace its mean "
        "(default: the number of users)",
        parse_rate,
        "R",
        ui=True,
    )
    max_in_flight: int | None = option(
        "--max-in-flight",
        "open loop: no more than N requests of all workers at once; the others wait and are counted",
        parse_count,
        "N",
        ui=True,
    )
    num_requests: int | None = option(
        "--num-requests",
        "end the run after exactly N requests from all workers together",
        parse_count,
        "N",
        ui=True,
    )
    sweep: Sweep | None = option(
        "--sweep",
        "measure several loads one after the other in one run: users=1,2,4,8, rate=2,4,8, "
        "rate=linear:1..10,10 or users=geometric:1..256,9; also at several lengths (input:output tokens), "
        '"users=1,4 lengths=128:32,4096:64", or lengths= alone at the load of the run; or with shared '
        'prefixes, "users=4 prefix-share=0%,50%,90%", which empties and fills the prefix caches before each; '
        "--warmup is left out of each, and requests in flight end (--drain) before the next",
        parse_sweep,
        "LOADS",
        ui=True,
    )
    stage_s: float = option(
        "--stage-time",
        "how long each load of --sweep and --find is measured (default 60s)",
        parse_stage_time,
        "TIME",
        default="60s",
        ui=True,
    )
    until: Until | None = option(
        "--until",
        "end the measured part of a load as soon as the 95 % interval of a figure is narrow enough, at the "
        'latest after --stage-time: "p99_ttft±5%", also +-5%; looked at after each quarter of the time',
        parse_until,
        "FIGURE",
        ui=True,
    )
    repeats: int = option(
        "--repeat",
        "measure all loads of --sweep N times in turn, and show the intervals over the repeats (default 1)",
        parse_count,
        "N",
        ui=True,
        otherwise=1,
    )
    resume: bool = option(
        "--resume",
        "go on with the sweep or search in --out that was cut short: what it has finished is kept, the stage "
        "that was under way is repeated, and one report joins all; the settings must be the same. Without a "
        "run there it begins one",
        kind="truth",
        is_load=False,
    )
    find: Objective | None = option(
        "--find",
        'search the highest load under which limits hold, each load as one of --sweep: "max rate under '
        'goodput>=95%" or "max concurrency under p99_ttft<500ms p99_tpot<50ms"; or "max-goodput", '
        '"max-goodput over concurrency": the load with the most good requests/s; --gate "edge>=30" is on the '
        "lower end of its interval",
        parse_objective,
        "OBJECTIVE",
        ui=True,
    )
    first_load: float | None = option(
        "--first-load",
        "load at which --find begins, in requests/s or users; it is doubled until a limit breaks (default 4)",
        parse_first_load,
        "N",
        ui=True,
    )
    precision: float | None = option(
        "--precision",
        "--find ends when half the 95 % interval is this share of its answer (default 5%)",
        parse_share,
        "SHARE",
        ui=True,
    )
    max_stages: int | None = option(
        "--max-stages",
        "most loads that --find measures (default 12)",
        parse_most_stages,
        "N",
        form=readers.WHOLE,
        ui=True,
    )
    stop_rules: tuple[StopRule, ...] = option(
        "--stop-when",
        'end the run by rule: "error_rate>20% over 30s", oversaturation, or both with a comma between',
        parse_stop_rules,
        "RULES",
        ui=True,
        otherwise=(),
    )
    backs_off: bool = option(
        "--backoff",
        "closed loop: a user whose request failed waits before its next one, longer after each failure in "
        "a row, from 100 ms to 5 s (default on)",
        parse=is_on,
        choices=ON_OFF,
        otherwise=True,
    )
    trace_scale: float | None = option(
        "--trace-scale",
        "stretch a trace's times: 2 is twice as slow (default 1)",
        parse_scale,
        "X",
    )
    trace_slice: Slice = option(
        "--trace-slice",
        "replay a part of a trace, counted from its first request: 10m-20m, or 10m-",
        parse_slice,
        "FROM-TO",
        otherwise=Slice(),
    )
    trace_unit: str | None = option(
        "--trace-unit",
        "unit of a trace's times, where it is not the format's (default: ms of Mooncake's, s of Bailian's "
        "and BurstGPT's)",
        choices=tuple(UNITS),
    )
    trace_block: int | None = option(
        "--trace-block",
        "tokens that one of the hash_ids of a trace or of trajectories stands for (default: 512, of "
        "Bailian's 16)",
        parse_block,
        "N",
    )
    class_rates: Mapping[str, Profile] = field(default_factory=dict)
    search: Search | None = None
    most_skipped: int = 0

    @property
    def profile(self) -> Profile | None:
        """The rate over time; None of a trace, whose own times count, and of a closed loop."""
        return None if self.trace is not None else self.rate

    @property
    def open_loop_option(self) -> str | None:
        """An option that was given and makes sense in an open loop only."""
        given = {
            "--arrival": self.arrival,
            "--request-rate": self.rate,
            "--max-in-flight": self.max_in_flight,
            "a class's rate": self.class_rates or None,
            self.sweep_flag: self.sweep if self.sweep is not None and self.sweep.kind == "rate" else None,
        }
        return next((flag for flag, value in given.items() if value is not None), None)

    @property
    def sweep_flag(self) -> str:
        """What to call the option that sets the loads."""
        if self.search is not None:
            return "--find"
        return "--sweep" if self.sweep is None else f"--sweep {self.sweep.name}"

    @property
    def trace(self) -> Path | None:
        return self.arrival.path if isinstance(self.arrival, TraceFile) else None

    @property
    def users_are_rate(self) -> bool:
        """Of an open loop: the number of users is the rate, because nothing else says it."""
        return self.rate is None and self.trace is None and not self.class_rates and self.sweep is None

    def open_trace(self, scale: float | None = None) -> Trace:
        """The trace, checked as far as its first request; stretched to the asked rate, which reads it once.

        Args:
            scale: known from an earlier reading; the asked one is not worked out again.

        Raises:
            TraceError: as :func:`llm_locust.workload.traces.open_trace`.
        """
        assert self.trace is not None
        part, rate = self.trace_slice, None
        if scale is None:
            rate = None if self.rate is None else self.rate.rate(0.0)
            scale = self.trace_scale or 1.0
        return open_trace(
            self.trace,
            scale=scale,
            start_s=part.start_s,
            end_s=part.end_s,
            rate=rate,
            asked=TraceAsked(
                unit=self.trace_unit, block_tokens=self.trace_block, most_skipped=self.most_skipped
            ),
        )


def parse_load(
    options: Namespace,
    class_rates: Mapping[str, str] = MappingProxyType({}),
    most_skipped: int = 0,
) -> LoadSettings:
    """The options' values; raises ValueError, which names the option.

    Args:
        class_rates: of the scenario's classes that have a rate of their own.
        most_skipped: lines of a trace that are skipped because they cannot be read.
    """
    given = LoadSettings.of(options)
    search = search_of(
        given.find,
        start=given.first_load,
        precision=given.precision,
        max_stages=given.max_stages,
        stage_s=given.stage_s,
    )
    if search is not None and given.sweep is not None:
        raise ValueError("--find beside --sweep: a search chooses its loads; leave --sweep out")
    sweep, rate = with_own_rate(given.sweep, given.rate)
    load = structs.replace(
        given,
        rate=rate,
        sweep=sweep if search is None else first_load(search),
        search=search,
        class_rates={name: parse_rate(rate) for name, rate in class_rates.items()},
        most_skipped=most_skipped,
    )
    _check_trace(load)
    if load.trace is None and load.trace_block is not None and not getattr(options, "trajectories", None):
        raise ValueError("--trace-block without a trace or trajectories: nothing has hash ids")
    _check_sweep(load)
    _check_stages(load)
    if load.resume and load.sweep is None:
        raise ValueError("--resume without --sweep or --find: a soak goes on by --restartable")
    return load


def _check_sweep(load: LoadSettings) -> None:
    """Refuse what would set the load besides a sweep or a search, or end it before its last stage."""
    if load.sweep is None:
        return
    flag = "--sweep" if load.search is None else "--find"
    what = "a sweep sets" if load.search is None else "a search sets"
    others = {
        "--request-rate": load.rate,
        "--arrival trace": load.trace,
        "a class's rate": load.class_rates or None,
        "--num-requests": load.num_requests,
    }
    for other, value in others.items():
        if value is not None:
            raise ValueError(f"{flag} beside {other}: {what} each load and its end; leave {other} out")
    if load.sweep.kind == "users":
        given = load.open_loop_option
        if given is not None and load.search is not None:
            raise ValueError(f"{given} is of an open loop, and concurrency a closed one; write max rate")
        if given is not None:
            raise ValueError(f"{given} is of an open loop, and {load.sweep_flag} is a closed one; use rate=")


def _check_stages(load: LoadSettings) -> None:
    """Refuse what is of stages in a run without them, and more stages than a run may have."""
    if load.sweep is None and load.until is not None:
        raise ValueError("--until without --sweep or --find: it ends the measured part of their loads")
    if load.repeats == 1:
        return
    if load.sweep is None or load.search is not None:
        raise ValueError("--repeat without --sweep: it repeats the loads of a sweep")
    if (stages := load.sweep.stages * load.repeats) > MOST_STAGES:
        raise ValueError(f"--repeat {load.repeats}: {stages} stages are too many, at most {MOST_STAGES}")


def _check_trace(load: LoadSettings) -> None:
    if load.class_rates and (load.trace is not None or load.rate is not None):
        flag = "--request-rate" if load.trace is None else "--arrival trace"
        raise ValueError(f"{flag} beside classes that have rates of their own; give one of the two")
    if load.trace is None:
        given = {
            "--trace-scale": load.trace_scale,
            "--trace-slice": None if load.trace_slice == Slice() else load.trace_slice,
            "--trace-unit": load.trace_unit,
        }
        for flag in (flag for flag, value in given.items() if value is not None):
            raise ValueError(f"{flag} without a trace: give --arrival trace:FILE too")
        return
    if load.rate is None:
        return
    segments = load.rate.segments
    if len(segments) > 1 or segments[0].amplitude:
        raise ValueError(
            "--request-rate: a trace has its own rate over time; give one number, the mean that it is "
            "stretched to, or leave it out"
        )
    if load.trace_scale is not None:
        raise ValueError("--trace-scale beside --request-rate: both stretch the trace; give one")
