"""What a run costs a process of Locust, and how late its event loop is."""

import time

import gevent
import numpy as np
import psutil

from llm_locust.manifest import NodeHealth
from llm_locust.metrics.histogram import Histogram, count_durations, merge
from llm_locust.metrics.percentiles import percentile

#: How often the event loop is asked for a timer; each one tells the loop's lag once.
LAG_INTERVAL_S = 0.05

#: CPU is a mean over so long at least; memory is looked at as often.
COST_INTERVAL_S = 3.0

#: Memory is kept this often at first, and half as often each time that so many points are there.
MEMORY_INTERVAL_S = 30.0
MOST_MEMORY_POINTS = 64

_MIB = 1 << 20


class Health:
    """Samples this process's event loop, CPU and memory, of bounded size however long it lives.

    The loop's lag is how much later than asked a timer ran: all that holds the loop or stops the process
    is in it, as is the pause of :class:`~llm_locust.client.polling.PollLimiter` (1 ms at most). Its
    percentile is off by :data:`~llm_locust.metrics.histogram.RELATIVE_ERROR` at most, its maximum is exact.
    CPU is that of all threads, in percent of one core.
    """

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._timer = gevent.get_hub().loop.timer(LAG_INTERVAL_S, LAG_INTERVAL_S, ref=False)
        self.begin()

    def begin(self) -> None:
        """A new run: what was sampled so far is forgotten."""
        self._lag = merge([])
        self._new_lags_ns: list[int] = []  # since the last interval, not yet in the histogram
        self._cpu_percent_max: float | None = None
        self._rss_mib_max = 0.0
        self._rss_mib: list[list[float]] = []
        self._memory_interval_s = MEMORY_INTERVAL_S
        self._began_s = time.monotonic()
        self._begin_interval()
        self._ask()

    def close(self) -> None:
        """Sample no more."""
        self._timer.stop()
        self._timer.close()

    def snapshot(self) -> NodeHealth:
        """The figures since :meth:`begin`; the CPU until the first interval is over is the mean so far."""
        self._count_lags()
        self._sample_memory()
        p99_s, max_s = (percentile(self._lag, percent) for percent in (99.0, 100.0))
        measured = len(self._lag) > 0
        cpu_percent = self._cpu_percent() if self._cpu_percent_max is None else self._cpu_percent_max
        return NodeHealth(
            hub_lag_ms_p99=round(p99_s * 1e3, 3) if measured else None,
            hub_lag_ms_max=round(max_s * 1e3, 3) if measured else None,
            cpu_percent_max=round(cpu_percent, 1),
            rss_mib_max=round(self._rss_mib_max, 1),
            rss_mib=list(self._rss_mib),
        )

    def _ask(self) -> None:
        self._due_ns = time.monotonic_ns() + round(LAG_INTERVAL_S * 1e9)
        # From now on, and not from when it was due, nor from when the loop last looked at its clock.
        self._timer.again(self._on_timer, update=True)

    def _on_timer(self) -> None:
        # A loop's timer may run a little early: it counts in its own clock.
        self._new_lags_ns.append(max(0, time.monotonic_ns() - self._due_ns))
        if time.monotonic() - self._interval_began_s >= COST_INTERVAL_S:
            self._cpu_percent_max = max(self._cpu_percent_max or 0.0, self._cpu_percent())
            self._sample_memory()
            self._count_lags()
            self._begin_interval()
        self._ask()

    def _begin_interval(self) -> None:
        self._interval_began_s, self._cpu_before_s = time.monotonic(), time.process_time()

    def _cpu_percent(self) -> float:
        """The CPU of this interval so far."""
        elapsed_s = time.monotonic() - self._interval_began_s
        return 100 * (time.process_time() - self._cpu_before_s) / elapsed_s

    def _sample_memory(self) -> None:
        rss_mib, at_s = self._process.memory_info().rss / _MIB, time.monotonic() - self._began_s
        self._rss_mib_max = max(self._rss_mib_max, rss_mib)
        if at_s >= self._memory_interval_s * (1 + len(self._rss_mib)):
            self._rss_mib.append([round(at_s, 1), round(rss_mib, 1)])
            if len(self._rss_mib) >= MOST_MEMORY_POINTS:
                self._rss_mib, self._memory_interval_s = self._rss_mib[1::2], 2 * self._memory_interval_s

    def _count_lags(self) -> None:
        counted: Histogram = count_durations(np.array(self._new_lags_ns, dtype=np.int64))
        self._lag = merge([self._lag, counted])
        self._new_lags_ns.clear()
