"""Thresholds from which a figure of the client makes a run ``suspect`` or ``invalid``, each defined once.

docs/metrics.md has them as a table.
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

    ``against`` is empty where the figure is held against nothing; ``percent``: the two are told so. A figure
    under ``floor`` is harmless.
    """

    figure: str
    against: str
    suspect: float | None
    invalid: float | None
    why: str
    unit: str = ""
    percent: bool = True
    floor: float = 0.0

    def severity(self, value: float | None, of: float | None = 1.0) -> Severity | None:
        """What a value amounts to; None where it is harmless, or one of the two is not known."""
        if value is None or of is None or value < self.floor:
            return None
        if self.invalid is not None and value > self.invalid * of:
            return "invalid"
        return "suspect" if self.suspect is not None and value > self.suspect * of else None

    def told(self, limit: float | None) -> str:
        """A limit in words."""
        if limit is None:
            return "–"
        number = f"{limit * 100:g} %" if self.percent else f"{limit:g}{self.unit and ' ' + self.unit}"
        return f"{number} of {self.against}" if self.against else number


def usual(**medians_ms: float | None) -> tuple[str, float | None]:
    """The first of these medians that is known, and its name.

    Answers that are not streamed, embeddings among them, have neither ITL nor TTFT: E2EL is their scale.
    """
    known = ((name, value) for name, value in medians_ms.items() if value is not None)
    return next(known, (next(iter(medians_ms)), None))


FIRST_TOKENS_WIDE = Threshold(
    "`first_tokens_wide`, the lower end of its 95 % interval, of 3 wide ones at least: first tokens that a "
    "read of a late client brought with later ones",
    "",
    None,
    0.01,
    "the client knows only the time of the last of several packets",
)
LAG_PROGRAM = Threshold(
    "`lag_ms_p99`, not all timestamps the kernel's",
    _ITL,
    0.1,
    1.0,
    "lag is part of every latency",
    floor=LAG_FLOOR_MS,
)
HUB_LAG_PROGRAM = Threshold(
    "`hub_lag_ms_p99`, not all timestamps the kernel's",
    _ITL,
    0.1,
    1.0,
    "an event loop that reads late also timestamps late",
    floor=LAG_FLOOR_MS,
)
LAG_CLOSED = Threshold(
    "`end_lag_share`, closed loop",
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
    "a worker sent nothing for so long; where its whole machine was paused, what came then is timed late",
    floor=1000.0,
)
DELAY = Threshold(
    "`schedule_delay_ms_p99`, open loop",
    _TTFT,
    0.1,
    0.5,
    "the load was not the requested one",
    floor=LAG_FLOOR_MS,
)
CPU_KERNEL = Threshold(
    "`cpu_percent_max`, all timestamps the kernel's",
    "",
    90.0,
    None,
    "a saturated core reads and sends late",
    "%",
    False,
)
CPU_PROGRAM = Threshold(
    "`cpu_percent_max`, not all timestamps the kernel's",
    "",
    70.0,
    90.0,
    "a saturated core reads, sends and timestamps late",
    "%",
    False,
)
STEAL = Threshold(
    "`steal_percent_max`",
    "",
    2.0,
    10.0,
    "the share of the CPU time that a worker's machine needed and its hypervisor gave to others",
    "%",
    False,
)
THROTTLED = Threshold(
    "`throttled_percent_max`",
    "",
    1.0,
    10.0,
    "the share of periods in which a worker used up its CPU limit and stood still until the next one",
    "%",
    False,
)
RUN_QUEUE = Threshold(
    "`run_queue_percent_max`, of a client that was late",
    "",
    10.0,
    None,
    "its threads were ready and other programs had the cores: it was starved",
    "%",
    False,
)
CLOCK_STEPS = Threshold(
    "`clock_steps`, `worker_clock_steps`, `master_clock_steps`",
    "",
    0,
    None,
    "a clock was set: it is uncertain what is in the window; latencies are not affected",
    "",
    False,
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

#: By whether all timestamps are the kernel's.
CPU = {True: CPU_KERNEL, False: CPU_PROGRAM}

#: In the order of the table.
THRESHOLDS = (
    FIRST_TOKENS_WIDE,
    LAG_PROGRAM,
    HUB_LAG_PROGRAM,
    LAG_CLOSED,
    STANDSTILL,
    DELAY,
    CPU_KERNEL,
    CPU_PROGRAM,
    STEAL,
    THROTTLED,
    RUN_QUEUE,
    CLOCK_STEPS,
    CLOCK_ERROR,
    LITTLES_LAW,
)
