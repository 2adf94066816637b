"""Resources of a Locust process: CPU, memory, the lag of its event loop, and the limit of its open files."""

import math
import sys
import time

import gevent
import numpy as np
import psutil
from gevent.monkey import get_original

from llm_locust.core.manifest import HealthCell, NodeHealth
from llm_locust.host import CpuTaken, Taken, descriptors_for, file_limits, raise_file_limit
from llm_locust.metrics.stats.censoring import percentile
from llm_locust.metrics.stats.sketch import Histogram, count_durations, merge
from llm_locust.options.settings import UsageError

#: Interval of the timer; each one measures the loop's lag once.
LAG_INTERVAL_S = 0.05

#: Shortest span of a CPU mean; memory is sampled as often.
COST_INTERVAL_S = 3.0

#: First interval of the memory series. It doubles each time the series is full.
MEMORY_INTERVAL_S = 30.0
MOST_MEMORY_POINTS = 64

#: First length of a cell. It doubles each time the list of cells is full.
CELL_S = 9.0
MOST_CELLS = 32

#: Interval of the thread that shows whether the process runs at all.
BEAT_S = 0.1

#: A delay of so much is a pause of the whole process if that thread was silent for most of it and the process
#: did not compute: code that does not let go of the interpreter silences the thread too.
PAUSE_S, _MOST_OF_IT, _COMPUTING = 1.0, 0.8, 0.5

#: Most samples that one delay stands for.
_MOST_HELD = 10_000

_MIB = 1 << 20


class Beat:
    """A thread that only wakes up again and again, and what it has not lived through.

    It is silent while the process is stopped, its container frozen, its machine paused, or while no core is
    free. Only the system's clock of the time since the boot goes on while a machine sleeps.
    """

    def __init__(self) -> None:
        self._sleep = get_original("time", "sleep")
        self._last_ns, self._longest_ns, self._asleep_ns = time.monotonic_ns(), 0, _asleep_ns()
        self.going = True
        try:
            get_original("_thread", "start_new_thread")(self._run, ())
        except RuntimeError:  # no thread can be started
            self.going = False

    def take_ns(self) -> tuple[int, int]:
        """The longest silence, and the sleep of the machine, since the last call."""
        silent_ns, self._longest_ns = max(self._longest_ns, time.monotonic_ns() - self._last_ns), 0
        asleep_ns, before_ns = _asleep_ns(), self._asleep_ns
        self._asleep_ns = asleep_ns
        return silent_ns, max(0, asleep_ns - before_ns)

    def _run(self) -> None:
        while self.going:
            self._sleep(BEAT_S)
            now_ns = time.monotonic_ns()
            self._longest_ns, self._last_ns = max(self._longest_ns, now_ns - self._last_ns), now_ns


def _asleep_ns() -> int:
    """How long the machine has slept since its boot."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()


class Health:
    """Samples this process's event loop, CPU and memory, in bounded memory for any length of run.

    The loop's lag is how much later than requested a timer ran. It includes everything that holds the loop or
    stops the process. A delay also counts for the timers that would have been due meanwhile, each with what
    was left of it, because a held loop takes no samples. The percentile is off by at most
    :data:`~llm_locust.metrics.stats.sketch.RELATIVE_ERROR`, the maximum is exact. CPU is that of all
    threads, in percent of one core.
    """

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._taken = CpuTaken()
        self._beat = Beat()
        self._timer = gevent.get_hub().loop.timer(LAG_INTERVAL_S, LAG_INTERVAL_S, ref=False)
        self.begin()

    def begin(self) -> None:
        """Start a new run: forget all samples."""
        self._lag = self._cell_lag = merge([])
        self._paused_ms = self._cell_paused_ms = 0.0
        self._beat.take_ns()
        self._new_lags_ns: list[int] = []  # since the last interval, not in the histogram yet
        self._cpu_percent_max: float | None = None
        self._cell_cpu_percent: float | None = None
        self._rss_mib_max = 0.0
        self._rss_mib: list[list[float]] = []
        self._memory_interval_s = MEMORY_INTERVAL_S
        self._began_s = time.monotonic()
        self._cells: list[HealthCell] = []
        self._cell_s = CELL_S
        self._taken_first = self._taken.read()
        self._begin_cell()
        self._begin_interval()
        self._ask()

    def close(self) -> None:
        """Stop sampling."""
        self._beat.going = False
        self._timer.stop()
        self._timer.close()

    def snapshot(self) -> NodeHealth:
        """Figures since :meth:`begin`. Before the end of the first interval, CPU is the mean so far."""
        self._count_lags()
        self._sample_memory()
        cpu_percent = self._cpu_percent() if self._cpu_percent_max is None else self._cpu_percent_max
        taken = self._taken.read()
        return NodeHealth(
            hub_lag_ms_p99=_lag_ms(self._lag, 99.0),
            hub_lag_ms_max=_lag_ms(self._lag, 100.0),
            paused_ms_max=round(self._paused_ms, 3) if self._beat.going else None,
            cpu_percent_max=round(cpu_percent, 1),
            rss_mib_max=round(self._rss_mib_max, 1),
            rss_mib=list(self._rss_mib),
            steal_percent=_rounded(taken.steal_percent(self._taken_first)),
            throttled_percent=_rounded(taken.throttled_percent(self._taken_first)),
            run_queue_percent=_rounded(taken.run_queue_percent(self._taken_first)),
            cells=[*self._cells, self._cell(taken)],
        )

    def _ask(self) -> None:
        self._due_ns = time.monotonic_ns() + round(LAG_INTERVAL_S * 1e9)
        self._asked_cpu_s = time.process_time()
        # From now on: not from when it was due, nor from the loop's cached time.
        self._timer.again(self._on_timer, update=True)

    def _on_timer(self) -> None:
        # A loop's timer may run a little early, because it uses its own clock.
        silent_ns, asleep_ns = self._beat.take_ns()
        lag_ns = max(0, time.monotonic_ns() - self._due_ns) + asleep_ns
        self._new_lags_ns.append(lag_ns)
        computing_ns = (time.process_time() - self._asked_cpu_s) * 1e9
        silent = silent_ns >= _MOST_OF_IT * (lag_ns - asleep_ns) and computing_ns < _COMPUTING * lag_ns
        if lag_ns >= PAUSE_S * 1e9 and self._beat.going and silent:
            self._paused_ms = max(self._paused_ms, lag_ns * 1e-6)
            self._cell_paused_ms = max(self._cell_paused_ms, lag_ns * 1e-6)
        if time.monotonic() - self._interval_began_s >= COST_INTERVAL_S:
            self._cpu_percent_max = max(self._cpu_percent_max or 0.0, self._cpu_percent())
            self._cell_cpu_percent = max(self._cell_cpu_percent or 0.0, self._cpu_percent())
            self._sample_memory()
            self._count_lags()
            if time.monotonic() - self._cell_began_s >= self._cell_s:
                self._end_cell()
            self._begin_interval()
        self._ask()

    def _begin_interval(self) -> None:
        self._interval_began_s, self._cpu_before_s = time.monotonic(), time.process_time()

    def _cpu_percent(self) -> float:
        """CPU of this interval so far."""
        elapsed_s = max(time.monotonic() - self._interval_began_s, 1e-6)
        return 100 * (time.process_time() - self._cpu_before_s) / elapsed_s

    def _sample_memory(self) -> None:
        try:
            rss_mib, at_s = self._process.memory_info().rss / _MIB, time.monotonic() - self._began_s
        except OSError:  # no descriptor is free to read it; the next sample may have one
            return
        self._rss_mib_max = max(self._rss_mib_max, rss_mib)
        if at_s >= self._memory_interval_s * (1 + len(self._rss_mib)):
            self._rss_mib.append([round(at_s, 1), round(rss_mib, 1)])
            if len(self._rss_mib) >= MOST_MEMORY_POINTS:
                self._rss_mib, self._memory_interval_s = self._rss_mib[1::2], 2 * self._memory_interval_s

    def _count_lags(self) -> None:
        interval_ns = round(LAG_INTERVAL_S * 1e9)
        lags_ns = np.asarray(self._new_lags_ns, dtype=np.int64)
        late = lags_ns[lags_ns >= interval_ns].tolist()
        missed = [np.arange(lag - interval_ns, -1, -interval_ns)[: _MOST_HELD - 1] for lag in late]
        counted: Histogram = count_durations(np.concatenate([lags_ns, *missed]))
        self._lag = merge([self._lag, counted])
        self._cell_lag = merge([self._cell_lag, counted])
        self._new_lags_ns.clear()

    # -- course of the run -----------------------------------------------------------------

    def _begin_cell(self) -> None:
        self._cell_began_s = time.monotonic()
        self._cell_lag = merge([])
        self._cell_paused_ms = 0.0
        self._cell_cpu_percent = None
        self._cell_taken: Taken = self._taken.read()

    def _cell(self, taken: Taken) -> HealthCell:
        """The current cell."""
        cpu_percent = self._cpu_percent() if self._cell_cpu_percent is None else self._cell_cpu_percent
        return HealthCell(
            at_s=round(time.time(), 3),
            seconds=round(time.monotonic() - self._cell_began_s, 3),
            cpu_percent=round(cpu_percent, 1),
            hub_lag_ms_p99=_lag_ms(self._cell_lag, 99.0),
            hub_lag_ms_max=_lag_ms(self._cell_lag, 100.0),
            paused_ms_max=round(self._cell_paused_ms, 3) if self._beat.going else None,
            steal_percent=_rounded(taken.steal_percent(self._cell_taken)),
            throttled_percent=_rounded(taken.throttled_percent(self._cell_taken)),
            run_queue_percent=_rounded(taken.run_queue_percent(self._cell_taken)),
        )

    def _end_cell(self) -> None:
        self._cells.append(self._cell(self._taken.read()))
        if len(self._cells) >= MOST_CELLS:
            pairs = zip(self._cells[::2], self._cells[1::2], strict=True)
            self._cells, self._cell_s = [first.joined(second) for first, second in pairs], 2 * self._cell_s
        self._begin_cell()


def _lag_ms(lag: Histogram, percent: float) -> float | None:
    return round(percentile(lag, percent) * 1e3, 3) if len(lag) else None


def _rounded(percent: float | None) -> float | None:
    return None if percent is None else round(percent, 2)


# --- Limit of open files: enough for the connections of a load, ensured before it starts


def ensure_descriptors(at_once: int | None, what: str, workers: int, targets: int) -> None:
    """Ensure that this process may open as many files as its share of the load needs.

    The soft limit is raised as far as the hard one allows.

    Args:
        at_once: the number of ``what`` that the run may have at once, such as users; None if it is unknown:
            then the limit is raised all the way, and nothing is checked.
        workers: number of processes that share them.
        targets: number of ``--targets``.

    Raises:
        UsageError: the hard limit is too low; the text names the number that is needed.
    """
    if at_once is None:
        raise_file_limit(sys.maxsize)
        return
    share = math.ceil(at_once / workers)
    needed = descriptors_for(share, targets)
    if not raise_file_limit(needed):
        raise UsageError(
            f"{share} {what} need {needed} open files in this process, and it may have {file_limits().hard}: "
            f"raise the limit before the start, by `ulimit -n {needed}` (a container's by its runtime), or "
            f"use more workers; `llm-locust doctor --users {share}` shows all limits of this machine"
        )
