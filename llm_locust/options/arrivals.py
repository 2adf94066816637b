"""Options that say when requests are sent, and how many, as checked values."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from msgspec import field
from msgspec.structs import replace

from llm_locust.core.manifest import MOST_STAGES
from llm_locust.core.texts import ON_OFF, is_on, parse_time, plain_number
from llm_locust.figures.objective import Objective, parse_objective
from llm_locust.figures.search import parse_first_load, parse_share
from llm_locust.metrics.stage_course import Until, parse_until
from llm_locust.options.option import Group, option, parse_count
from llm_locust.options.run import StopRule, parse_stop_rules
from llm_locust.options.stages import (
    Search,
    first_load,
    parse_most_stages,
    parse_stage_time,
    search_of,
    with_own_rate,
)
from llm_locust.scenario import readers
from llm_locust.workload.arrival_grammar import Sweep, TraceFile, parse_arrival, parse_rate, parse_sweep
from llm_locust.workload.arrivals import Process, Profile
from llm_locust.workload.traces import UNITS, Trace, TraceAsked, open_trace

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
    options: argparse.Namespace,
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
    load = replace(
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
