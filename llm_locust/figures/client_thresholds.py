"""Thresholds from which a figure of the client makes a run ``suspect`` or ``invalid``, each defined once.

docs/definitions.md has them as a table.
"""

from dataclasses import dataclass
from typing import Literal

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
