"""Rules on the client: the thresholds, each defined once, and what shows that it was late, and why.

A figure beyond a threshold makes a run ``suspect`` or ``invalid``; docs/definitions.md has them as a table.
Findings are of a whole run, or of one that goes on.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from llm_locust.core.manifest import ClockFacts, HealthCell, Manifest, NodeHealth
from llm_locust.core.texts import quantity
from llm_locust.metrics.stats.proportions import Proportion
from llm_locust.metrics.structs import finite, largest
from llm_locust.metrics.window import Window

# --- Thresholds


Severity = Literal["suspect", "invalid"]

_ITL, _TTFT = "the median ITL (E2EL without one)", "the median TTFT (E2EL without one)"

#: Delays under this are never held against a client.
LAG_FLOOR_MS = 1.0


@dataclass(frozen=True, slots=True)
class Threshold:
    """A ``figure`` above so many times ``against`` makes a run suspect or invalid; None: never.

    ``against`` is empty where the figure is held against nothing; without a ``unit`` the two are shares. A
    figure under ``floor`` is harmless.
    """

    figure: str
    against: str
    suspect: float | None
    invalid: float | None
    why: str
    unit: str | None = None
    floor: float = 0.0

    def severity(self, value: float | None, of: float | None = 1.0) -> Severity | None:
        """What a value amounts to; None where it is harmless, or one of the two is not known."""
        if value is None or of is None or value < self.floor:
            return None
        if self.invalid is not None and value > self.invalid * of:
            return "invalid"
        return "suspect" if self.suspect is not None and value > self.suspect * of else None


FIRST_TOKENS_WIDE = Threshold(
    "`first_tokens_wide`, the lower end of its 95 % interval, of 3 wide ones at least: first tokens that a "
    "read of a late client brought with later ones, but not where the whole answer came, and was read, "
    "within 1 % of the wait for it",
    "",
    None,
    0.01,
    "the client knows only the time of the last of several packets",
)
LAG_PROGRAM = Threshold(
    "read delay (p99) of requests whose timestamps are not all the kernel's",
    _ITL,
    0.1,
    1.0,
    "lag is part of every latency",
    floor=LAG_FLOOR_MS,
)
HUB_LAG_PROGRAM = Threshold(
    "`hub_lag_ms_p99`, more than 1 % of the requests without the kernel's timestamps",
    _ITL,
    0.1,
    1.0,
    "an event loop that reads late also timestamps late",
    floor=LAG_FLOOR_MS,
)
WAITED = Threshold(
    "`end_lag_share`, closed loop, of a mean `end_lag` of 1 ms at least",
    "",
    0.05,
    0.5,
    "a user sends its next request only when the client has noticed the end of the last one: the load was "
    "lighter than the number of users implies",
)
STANDSTILL = Threshold(
    "`hub_lag_ms_max`, 1 s at least",
    "the window",
    0.02,
    None,
    "a worker sent nothing for so long; where its process or machine was paused, what came then may be timed "
    "late",
    floor=1000.0,
)
STANDSTILL_OF_LOAD = Threshold(
    "the mean over all workers of such `hub_lag_ms_max`",
    "the window",
    None,
    0.1,
    "this much of the load was sent by nobody",
)
DELAY = Threshold(
    "`schedule_delay_ms_p99`, open loop",
    _TTFT,
    0.1,
    None,
    "the load was not the requested one; the latencies from sent are right",
    floor=LAG_FLOOR_MS,
)
DELAY_OF_RATES = Threshold(
    "`schedule_delay_ms_p99`, open loop",
    "the window",
    None,
    0.1,
    "requests were sent in another part of the window than their schedule says: the rates are others",
    floor=LAG_FLOOR_MS,
)
BAD_BY_DELAY = Threshold(
    "`bad_by_delay`, open loop, the lower end of the 95 % interval of its share, of 3 at least: requests "
    "that broke a limit counted from their schedule, and none counted from when they were sent",
    "",
    None,
    0.01,
    "goodput counts the client's delay against the server",
)
CPU_PROGRAM = Threshold(
    "`cpu_percent_max`, more than 1 % of the requests without the kernel's timestamps",
    "",
    70.0,
    90.0,
    "a saturated core reads, sends and timestamps late",
    unit="%",
)
STEAL = Threshold(
    "`steal_percent_max`, where nothing above shows that the client was late",
    "",
    10.0,
    None,
    "the share of the CPU time that a worker's machine needed and its hypervisor gave to others: its kernel "
    "did not run either, and stamped what came meanwhile when it did",
    unit="%",
)
THROTTLED = Threshold(
    "`throttled_percent_max`, where nothing above shows that the client was late",
    "",
    10.0,
    None,
    "the share of periods in which a worker used up its CPU limit and stood still until the next one",
    unit="%",
)
STEAL_CAUSE = Threshold(
    "`steal_percent_max`, of a client that was late",
    "",
    2.0,
    None,
    "it was starved: others had its CPU time",
    unit="%",
)
THROTTLED_CAUSE = Threshold(
    "`throttled_percent_max`, of a client that was late",
    "",
    1.0,
    None,
    "it was starved by its own limit",
    unit="%",
)
RUN_QUEUE = Threshold(
    "`run_queue_percent_max`, of a client that was late",
    "",
    10.0,
    None,
    "its threads were ready and other programs had the cores: it was starved",
    unit="%",
)
BUSY = Threshold(
    "`cpu_percent_max`, of a client that was late and not starved",
    "",
    70.0,
    None,
    "it was busy: its own work took its core",
    unit="%",
)
CALIBRATION = Threshold(
    "`calibration.ttft_ms`, `calibration.itl_ms`, if the server knew its own times better",
    "",
    1.0,
    None,
    "so far were the client's times from the log of a server of known times, before the load",
    unit="ms",
)
CLOCK_STEPS = Threshold(
    "`clock_steps`, `worker_clock_steps`, `master_clock_steps`",
    "",
    0,
    None,
    "a clock was set: it is uncertain what is in the window; latencies are not affected",
    unit="",
)
CLOCK_ERROR = Threshold(
    "`clock_error_ms_max`",
    "the window, or 1 s",
    0.01,
    None,
    "this much of a worker's load may be on the wrong side of the window's edges",
)
LITTLES_LAW = Threshold(
    "`littles_law.difference`, and `littles_law.workers_difference` beyond what client lag explains",
    "",
    0.02,
    None,
    "records are missing, duplicated, or have wrong times",
)

#: Up to so many requests with times of the program's own move no p99.
PROGRAM_SHARE = 0.01


# --- Findings on a client that was late, and why it was: of a whole run, and while it runs


Finding = tuple[Severity, str]

Cause = Literal["starved", "busy", "late"]


#: So begins what says that the load was not the one asked for, and nothing of the times.
LOAD_LATE = "the load was late: "

#: Fewer are no share.
_LEAST = 3


@dataclass(frozen=True, slots=True)
class WorstNodes:
    """Figures of the worst worker, and of the master, by keys of :class:`ClientFacts`; None is unknown."""

    cpu_percent_max: float | None = None
    steal_percent_max: float | None = None
    throttled_percent_max: float | None = None
    run_queue_percent_max: float | None = None
    hub_lag_ms_p99: float | None = None
    hub_lag_ms_max: float | None = None
    hub_lag_master_ms_max: float | None = None
    worker_clock_steps: int = 0
    master_clock_steps: int = 0
    clock_error_ms_max: float | None = None

    @classmethod
    def of(cls, manifest: Manifest, window: Window) -> "WorstNodes":
        """In a window.

        A worker's figures are those of its :class:`~llm_locust.core.manifest.HealthCell` whose middle is in
        the window; if there is none, or the run's manifest has no such cells, those of its whole run.
        """
        workers = [health_in(w.health, w.clock, window) for w in manifest.workers]
        clocks = [w.clock for w in manifest.workers if w.clock]
        return cls(
            cpu_percent_max=largest(w.cpu_percent_max for w in workers),
            steal_percent_max=largest(w.steal_percent for w in workers),
            throttled_percent_max=largest(w.throttled_percent for w in workers),
            run_queue_percent_max=largest(w.run_queue_percent for w in workers),
            hub_lag_ms_p99=largest(w.hub_lag_ms_p99 for w in workers),
            hub_lag_ms_max=largest(w.hub_lag_ms_max for w in workers),
            hub_lag_master_ms_max=finite(health_in(manifest.master, None, window).hub_lag_ms_max),
            worker_clock_steps=sum(clock.steps for clock in clocks),
            master_clock_steps=manifest.clock_steps,
            clock_error_ms_max=largest(clock.placing_error_ns * 1e-6 for clock in clocks),
        )


def health_in(health: NodeHealth, clock: ClockFacts | None, window: Window) -> NodeHealth:
    """Figures of a window."""
    offset_ns = 0 if clock is None else clock.offset_ns
    cells = [cell for cell in health.cells if _inside(cell, offset_ns, window)]
    if not cells:
        return health
    return NodeHealth(
        cpu_percent_max=largest(cell.cpu_percent for cell in cells),
        hub_lag_ms_p99=largest(cell.hub_lag_ms_p99 for cell in cells),
        hub_lag_ms_max=largest(cell.hub_lag_ms_max for cell in cells),
        paused_ms_max=largest(cell.paused_ms_max for cell in cells),
        steal_percent=_mean((cell.seconds, cell.steal_percent) for cell in cells),
        throttled_percent=_mean((cell.seconds, cell.throttled_percent) for cell in cells),
        run_queue_percent=_mean((cell.seconds, cell.run_queue_percent) for cell in cells),
    )


def _inside(cell: HealthCell, offset_ns: int, window: Window) -> bool:
    middle_ns = round((cell.at_s - cell.seconds / 2) * 1e9) + offset_ns
    return any(span.start_ns <= middle_ns < span.end_ns for span in window.spans)


def _mean(values: Iterable[tuple[float, float | None]]) -> float | None:
    """Mean of the known values, by their weights."""
    some = [(weight, value) for weight, value in values if value is not None]
    total = sum(weight for weight, _ in some)
    return sum(weight * value for weight, value in some) / total if total > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Scale for a client's delays: the window and the medians of the ok requests."""

    window: Window
    itl_ms: float | None
    ttft_ms: float | None
    e2el_ms: float | None

    @classmethod
    def of(cls, window: Window, medians_ms: dict[str, float | None]) -> "Scale":
        """Make it from the medians of ``itl``, ``ttft`` and ``e2el``."""
        of_metric = {f"{metric}_ms": medians_ms[metric] for metric in ("itl", "ttft", "e2el")}
        return cls(window=window, **of_metric)


def usual(**medians_ms: float | None) -> tuple[str, float | None]:
    """The first of these medians that is known, and its name.

    Answers that are not streamed, embeddings among them, have neither ITL nor TTFT: E2EL is their scale.
    """
    known = ((name, value) for name, value in medians_ms.items() if value is not None)
    return next(known, (next(iter(medians_ms)), None))


def wide_findings(wide: int, first_tokens: int) -> Iterator[Finding]:
    """The finding from the number of first tokens that a late read brought with later ones."""
    if found := _share(FIRST_TOKENS_WIDE, wide, first_tokens):
        yield (
            found,
            f"{_percent(wide / first_tokens)} of the first tokens were read late, together with later ones, "
            "and may have come earlier than their TTFT says",
        )


def _share(threshold: Threshold, hits: int, n: int) -> Severity | None:
    """What a share of requests amounts to: of few it may be chance."""
    interval = Proportion(hits, n).interval() if hits >= _LEAST else None
    return threshold.severity(interval[0]) if interval else None


@dataclass(frozen=True, slots=True)
class EndLags:
    """What users waited for the client after the ends of ``n`` responses, and for the responses, in all."""

    n: int
    lag_s: float
    response_s: float

    @property
    def share(self) -> float | None:
        """Share of the users' time that the client let pass: Σ end lag / (Σ end lag + Σ response time); None
        without a response."""
        whole_s = self.lag_s + self.response_s
        return self.lag_s / whole_s if whole_s > 0 else None


def waiting_findings(waits: EndLags, end_lag_p50_ms: float | None) -> Iterator[Finding]:
    """The finding on a closed loop whose users waited for the client."""
    if not waits.n or waits.lag_s * 1e3 / waits.n < LAG_FLOOR_MS:
        return
    if found := WAITED.severity(waits.share):
        yield (
            found,
            f"{LOAD_LATE}users waited {_percent(waits.share)} of their time for the client to notice "
            f"the end of a response ({quantity(end_lag_p50_ms)} ms in the median), so the load was that much "
            "lighter than the number of users implies",
        )


def mean_standstill_ms(manifest: Manifest, window: Window) -> float | None:
    """The longest standstill of each worker's event loop, of a second or more; its mean over the workers."""
    lags_ms = [health_in(w.health, w.clock, window).hub_lag_ms_max or 0.0 for w in manifest.workers]
    return sum(ms for ms in lags_ms if ms >= STANDSTILL.floor) / len(lags_ms) if lags_ms else None


def standstill_findings(
    hub_max_ms: float | None,
    window_s: float,
    mean_ms: float | None = None,
    paused_ms: float | None = None,
) -> Iterator[Finding]:
    """The finding on an event loop that stood still: for how long at most, and in the mean of all workers.

    ``paused_ms`` is the longest time in which all threads of a worker did; None if that is not known.
    """
    window_ms = window_s * 1e3
    found = STANDSTILL_OF_LOAD.severity(mean_ms, window_ms) or STANDSTILL.severity(hub_max_ms, window_ms)
    if window_s > 0 and found:
        how = "; if its whole machine was paused, what came then is timed late"
        if paused_ms is not None:
            how = ", while other threads of it went on"
        if is_paused(paused_ms):
            how = (
                f". For {quantity((paused_ms or 0) * 1e-3)} s no thread of a worker ran: its process was "
                "stopped, or its container or machine was paused, which may time late what came then"
            )
        yield (
            found,
            f"{LOAD_LATE}a worker's event loop stood still for {quantity((hub_max_ms or 0) * 1e-3)} s of a "
            f"window of {quantity(window_s)} s and sent nothing{how}",
        )


def is_paused(paused_ms: float | None) -> bool:
    """Whether all threads of a worker stood still for a time that counts."""
    return paused_ms is not None and paused_ms >= STANDSTILL.floor


def hub_lag_findings(hub_ms: float | None, of: str, of_ms: float | None) -> Iterator[Finding]:
    """The finding on a late event loop that also took the timestamps."""
    if found := HUB_LAG_PROGRAM.severity(hub_ms, of_ms):
        yield (
            found,
            f"a worker's event loop was {quantity(hub_ms)} ms late (p99), "
            f"the median {of} is {quantity(of_ms)} ms, and not all timestamps are the kernel's, so its lag "
            "is part of the latencies",
        )


def delay_findings(
    delay_ms: float | None, of: str, of_ms: float | None, window_s: float
) -> Iterator[Finding]:
    """The finding on an open loop that sent late."""
    late = f"{LOAD_LATE}requests were sent {quantity(delay_ms)} ms after their schedule (p99), "
    if window_s > 0 and (found := DELAY_OF_RATES.severity(delay_ms, window_s * 1e3)):
        yield (
            found,
            f"{late}of a window of {quantity(window_s)} s: rates and concurrency are not the schedule's",
        )
    elif found := DELAY.severity(delay_ms, of_ms):
        yield found, f"{late}the median {of} is {quantity(of_ms)} ms. The latencies from sent are right"


def made_bad_findings(made_bad: int, n: int) -> Iterator[Finding]:
    """The finding on requests that only the client's delay made bad."""
    if found := _share(BAD_BY_DELAY, made_bad, n):
        yield (
            found,
            f"{LOAD_LATE}{_percent(made_bad / n)} of the requests broke a limit counted from their "
            "schedule, and none counted from when they were sent: goodput counts the client's delay",
        )


def explain(late: list[Finding], of_nodes: WorstNodes, paused_ms: float | None = None) -> Cause | None:
    """Why the client was late; the worst of the findings, now the first, is told it with what to do."""
    if not late:
        return None
    late.sort(key=lambda finding: finding[0])
    cause, remedy = _cause(of_nodes)
    if is_paused(paused_ms):
        cause, remedy = "late", "Look for what stopped the process, or paused its container or machine"
    late[0] = (late[0][0], f"{late[0][1]}. {remedy}")
    return cause


def _cause(of_nodes: WorstNodes) -> tuple[Cause, str]:
    """Why a client was late, and what to do. What others took comes first: more workers do not help there."""
    waited, cpu = of_nodes.run_queue_percent_max, of_nodes.cpu_percent_max
    throttled, steal = of_nodes.throttled_percent_max, of_nodes.steal_percent_max
    if THROTTLED_CAUSE.severity(throttled):
        return "starved", (
            f"It was starved by its CPU limit, in {quantity(throttled)} % of the limit's periods: "
            "raise the limit to a core for each worker at least"
        )
    if STEAL_CAUSE.severity(steal):
        return "starved", (
            f"It was starved: the hypervisor gave {quantity(steal)} % of its CPU time to others. "
            "Use a machine with dedicated CPUs"
        )
    if RUN_QUEUE.severity(waited):
        return "starved", (
            f"It was starved: a worker's threads waited for a core during {quantity(waited)} % of the time. "
            "Stop other programs on its machine, or start no more workers than it has cores"
        )
    if BUSY.severity(cpu):
        return "busy", f"It was busy: a worker used {quantity(cpu)} % of its core. Use more workers"
    return "late", "It had CPU time enough, as far as is known: look for what holds its event loop"


def cpu_findings(cpu: float | None) -> Iterator[Finding]:
    """The finding on the core of a worker that takes timestamps itself."""
    if found := CPU_PROGRAM.severity(cpu):
        yield (
            found,
            f"the busiest worker used {quantity(cpu)} % of its core: use more workers; not all timestamps "
            "are the kernel's, so its delays are part of the latencies",
        )


def taken_findings(of_nodes: WorstNodes) -> Iterator[Finding]:
    """The finding on much CPU time that a worker did not get, though nothing shows that it was late.

    A program that waits is seen to be late. A machine that waits is not: what came meanwhile, its kernel
    stamps when it runs again. And a thread that was stopped may have merged tokens that were not the first.
    """
    steal, throttled = of_nodes.steal_percent_max, of_nodes.throttled_percent_max
    unseen = "No figure shows that the client was late, but tokens that came meanwhile may be"
    if found := STEAL.severity(steal):
        yield (
            found,
            f"a worker's machine got {quantity(steal)} % less CPU time than it needed: its hypervisor gave "
            f"it to others. {unseen} timed late. Use a machine with dedicated CPUs",
        )
    if found := THROTTLED.severity(throttled):
        yield (
            found,
            f"a worker was throttled in {quantity(throttled)} % of the periods of its CPU limit. {unseen} "
            "timed together. Raise the limit to a core for each worker at least",
        )


def _percent(ratio: float | None) -> str:
    return f"{100 * (ratio or 0):.1f} %"
