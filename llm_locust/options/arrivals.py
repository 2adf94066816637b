"""Options that say when requests are sent, and how many, as checked values."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from llm_locust.core.manifest import MOST_STAGES
from llm_locust.core.texts import parse_time
from llm_locust.metrics.stages.steady import Until
from llm_locust.options.option import Option, Values, parse_count
from llm_locust.options.run import StopRule, parse_stop_rules
from llm_locust.options.stages import STAGES, Search, first_load, search_of, with_own_rate
from llm_locust.scenario import readers
from llm_locust.workload.arrivals import (
    Process,
    Profile,
    Sweep,
    TraceFile,
    parse_arrival,
    parse_rate,
)
from llm_locust.workload.traces import Trace, TraceAsked, open_trace
from llm_locust.workload.traces.trace import UNITS

#: Of an open loop that is told a rate and nothing else.
DEFAULT_PROCESS = Process(1.0)

#: Tokens of a block: with fewer, words are too few to tell blocks apart.
LEAST_BLOCK, MOST_BLOCK = 4, 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A part of a trace, in recorded seconds after its first request; to its end without ``end_s``."""

    start_s: float = 0.0
    end_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """When requests are sent, and when no more are. None is what was not said.

    Attributes:
        trace_scale: stretches a trace's times: 2 is twice as slow.
        trace_asked: what a trace's numbers mean, and how many of its lines may be skipped.
        max_in_flight, num_requests: of all workers together. In a run of conversations they count
            these, not their turns.
        class_rates: the rate of each class of a scenario, where they have rates of their own.
        backs_off: a user of a closed loop waits after a failed request.
        sweep: loads that are applied one after the other, each for ``stage_s`` of measured time; of a search
            the first.
        search: what a search looks for; it chooses each further load.
        until: figure whose interval ends a stage before its time.
        repeats: how often all loads of a sweep are measured.
    """

    arrival: Process | TraceFile | None = None
    rate: Profile | None = None
    trace_scale: float | None = None
    trace_slice: Slice = Slice()
    trace_asked: TraceAsked = field(default_factory=TraceAsked)
    max_in_flight: int | None = None
    num_requests: int | None = None
    stop_rules: tuple[StopRule, ...] = ()
    class_rates: Mapping[str, Profile] = field(default_factory=dict)
    backs_off: bool = True
    sweep: Sweep | None = None
    search: Search | None = None
    stage_s: float = 60.0
    until: Until | None = None
    repeats: int = 1

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
            asked=self.trace_asked,
        )


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
    try:
        scale = float(text)
    except ValueError:
        scale = 0.0
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


LOAD = (
    Option(
        "--arrival",
        "open loop: constant, poisson, gamma:CV or trace:FILE (default poisson; "
        "needs a user class of OpenLoopUser)",
        parse_arrival,
        "A",
        form=readers.ARRIVAL,
        ui=True,
    ),
    Option(
        "--request-rate",
        "open loop: requests per second of all workers together: 10, ramp:10..100,60s, "
        "steps:10@60s,50@30s, sine:MEAN,AMPLITUDE,PERIOD or spike:BASE,PEAK,AT,FOR; of a trace its mean "
        "(default: the number of users)",
        parse_rate,
        "R",
        ui=True,
    ),
    Option(
        "--max-in-flight",
        "open loop: no more than N requests of all workers at once; the others wait and are counted",
        parse_count,
        "N",
        form=readers.WHOLE,
        ui=True,
    ),
    Option(
        "--num-requests",
        "end the run after exactly N requests from all workers together",
        parse_count,
        "N",
        form=readers.WHOLE,
        ui=True,
    ),
    *STAGES,
    Option(
        "--stop-when",
        'end the run by rule: "error_rate>20% over 30s", oversaturation, or both with a comma between',
        parse_stop_rules,
        "RULES",
        ui=True,
    ),
    Option(
        "--backoff",
        "closed loop: a user whose request failed waits before its next one, longer after each failure in "
        "a row, from 100 ms to 5 s (default on)",
        choices=("on", "off"),
    ),
    Option("--trace-scale", "stretch a trace's times: 2 is twice as slow (default 1)", parse_scale, "X"),
    Option(
        "--trace-slice",
        "replay a part of a trace, counted from its first request: 10m-20m, or 10m-",
        parse_slice,
        "FROM-TO",
    ),
    Option(
        "--trace-unit",
        "unit of a trace's times, where it is not the format's (default: ms of Mooncake's, s of Bailian's "
        "and BurstGPT's)",
        choices=tuple(UNITS),
    ),
    Option(
        "--trace-block",
        "tokens that one of the hash_ids of a trace or of trajectories stands for (default: 512, of "
        "Bailian's 16)",
        parse_block,
        "N",
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
    given = Values(LOAD, options)
    search = search_of(given)
    if search is not None and given["sweep"] is not None:
        raise ValueError("--find beside --sweep: a search chooses its loads; leave --sweep out")
    sweep, rate = with_own_rate(given["sweep"], given["request_rate"])
    load = LoadSettings(
        arrival=given["arrival"],
        rate=rate,
        trace_scale=given["trace_scale"],
        trace_slice=given["trace_slice"] or Slice(),
        trace_asked=TraceAsked(
            unit=given["trace_unit"], block_tokens=given["trace_block"], most_skipped=most_skipped
        ),
        max_in_flight=given["max_in_flight"],
        num_requests=given["num_requests"],
        stop_rules=given["stop_when"] or (),
        backs_off=given["backoff"] != "off",
        class_rates={name: parse_rate(rate) for name, rate in class_rates.items()},
        sweep=sweep if search is None else first_load(search),
        search=search,
        stage_s=given["stage_time"],
        until=given["until"],
        repeats=given["repeat"] or 1,
    )
    _check_trace(load)
    if (
        load.trace is None
        and load.trace_asked.block_tokens is not None
        and not getattr(options, "trajectories", None)
    ):
        raise ValueError("--trace-block without a trace or trajectories: nothing has hash ids")
    _check_sweep(load)
    _check_stages(load)
    if given["resume"] and load.sweep is None:
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
            "--trace-unit": load.trace_asked.unit,
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
