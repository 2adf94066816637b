"""Changes to Locust in this process, as few as can be, and the event that it lacks."""

import functools
import logging
from datetime import datetime
from functools import partial
from inspect import currentframe, getframeinfo
from types import FrameType, SimpleNamespace
from typing import Any, NoReturn

import gevent
from gevent import Greenlet
from locust import argument_parser, runners
from locust.env import Environment
from locust.event import EventHook
from locust.runners import CPU_MONITOR_INTERVAL, MasterRunner, Runner
from locust.stats import RequestStats, StatsError

from llm_locust.host import reason_of
from llm_locust.swarm.process.event_loop import RateLimiter, every

logger = logging.getLogger(__name__)


class LlmEvents:
    """Events fired by this package.

    Attributes:
        llm_request: fired on the worker with ``record=RequestRecord`` for every request that ended,
            cancelled ones included, and for the first try (``resent``) of one that was sent again. Listeners
            run on the event loop: keep them short.
    """

    def __init__(self) -> None:
        self.llm_request = EventHook()


events = LlmEvents()


# --- What takes time in the event loop


def remember_default_arguments() -> None:
    """Cache the names of Locust's own arguments.

    A worker looks them up for every option of every spawn message, and each time Locust builds its whole
    parser: 60 ms in the event loop, every second of a ramp. The answer never changes.
    """
    if not hasattr(argument_parser.default_args_dict, "cache_info"):
        argument_parser.default_args_dict = functools.cache(argument_parser.default_args_dict)


def spare_sources() -> None:
    """Let Locust's ``stop`` see its caller without the source of every caller.

    It inspects them all for a debug message. The first such inspection reads the paths of some 2,000 modules
    and takes 100 ms, which would delay the streams that end then.
    """
    vars(runners)["inspect"] = SimpleNamespace(stack=_callers, getframeinfo=partial(getframeinfo, context=0))


def _callers() -> list[tuple[FrameType | None]]:
    """What Locust reads of ``inspect.stack``: the frame of who calls, and of its caller."""
    frame = currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return [(frame.f_back,), (frame.f_back.f_back,)]


# --------------------
# Locust's watch on CPU and memory, made to survive a moment without a free descriptor or memory.
#
# It reads /proc every 10 s. Where that fails, its greenlet would end by the exception, and with it a local
# run: that greenlet is all that Locust waits for.
# --------------------


def keep_monitoring() -> None:
    """Let the watch of every runner that is created from now on go on after an error of the system."""
    watch = Runner.monitor_cpu_and_memory

    def watch_on(runner: Runner) -> NoReturn:
        log_limit = RateLimiter()
        while True:
            try:
                watch(runner)
            except (OSError, MemoryError) as e:
                if log_limit.ready():
                    logger.warning("this process's CPU and memory cannot be read now: %s", reason_of(e))
            gevent.sleep(CPU_MONITOR_INTERVAL)

    patched: Any = Runner
    patched.monitor_cpu_and_memory = watch_on


# --------------------
# Bounds on the growth of Locust's own statistics during a run.
#
# What Locust shows stays correct: counts of a second are deleted when nothing reads them any more, old rows
# of the history are thinned, and errors beyond a number of kinds are counted as one.
# --------------------


PASS_INTERVAL_S = 30.0

#: Locust's current rates cover the seconds 12 to 3 before the last request. The rest is a margin for clocks
#: that differ or are changed.
SECONDS_KEPT = 60

#: Most rows of a history, which are 5 s apart; then the number of recent rows and of older rows that are
#: kept: the last 42 minutes in full, and of earlier days a row every 11 minutes or less after a week.
MOST_ROWS, RECENT_ROWS, OLDER_ROWS = 2000, 500, 1000
_ROW_INTERVAL_S = 5.0

#: Most kinds of errors: as many as Locust's page lists. The last one stands for the rest.
MOST_ERRORS = 500

#: Most workers that have left and whose last log, of up to 500 lines, is kept.
MOST_GONE_LOGS = 100

History = list[dict[str, Any]]


def keep_bounded(environment: Environment) -> "Greenlet[[], None]":
    """Start a greenlet that bounds the environment's statistics every :data:`PASS_INTERVAL_S`."""
    return every(PASS_INTERVAL_S, lambda: bound_statistics(environment), "the bounding of statistics")


def bound_statistics(environment: Environment) -> None:
    """Bound what Locust holds now."""
    stats = environment.stats
    options = environment.parsed_options
    # Locust's --json prints every second's counts, so that with it they must all be kept.
    if not (getattr(options, "json", False) or getattr(options, "json_file", None)):
        forget_seconds(stats)
    stats.history = thinned(stats.history)
    stats.errors = capped(stats.errors)
    if isinstance(environment.runner, MasterRunner):
        gone = [worker for worker in environment.worker_logs if worker not in environment.runner.clients]
        for worker in gone[:-MOST_GONE_LOGS]:
            del environment.worker_logs[worker]


def forget_seconds(stats: RequestStats) -> None:
    """Delete the counts of seconds that no current rate uses any more."""
    last = stats.last_request_timestamp
    if last is None:
        return
    oldest = int(last) - SECONDS_KEPT
    for entry in (stats.total, *stats.entries.values()):
        for counts in (entry.num_reqs_per_sec, entry.num_fail_per_sec):
            for second in [second for second in counts if second < oldest]:
                del counts[second]


def thinned(history: History) -> History:
    """The history itself, or if it has more than :data:`MOST_ROWS` rows, a copy with fewer of the older ones.

    The first of the older rows in each interval is kept. The interval is doubled until at most
    :data:`OLDER_ROWS` are left. Rows thinned before are thinned again, so that rows are further apart the
    older they are, and cover the whole run. The first row is always kept.
    """
    if len(history) <= MOST_ROWS:
        return history
    older, recent = history[:-RECENT_ROWS], history[-RECENT_ROWS:]
    begin, *_ = times = [datetime.fromisoformat(row["time"]).timestamp() for row in older]
    interval_s = _ROW_INTERVAL_S
    while len(older) > OLDER_ROWS:
        # int() and not floor: if the clock was set back, one interval holds both sides of the first row.
        intervals = [int((at - begin) / interval_s) for at in times]
        kept = [i for i, interval in enumerate(intervals) if i == 0 or interval != intervals[i - 1]]
        older, times = [older[i] for i in kept], [times[i] for i in kept]
        interval_s *= 2
    return older + recent


def capped(errors: dict[str, StatsError]) -> dict[str, StatsError]:
    """The errors themselves, or if there are more than :data:`MOST_ERRORS`, the most frequent and one for the
    rest.

    A kind that was counted with the rest starts at 0 when it occurs again; the sum of all stays correct.
    """
    if len(errors) <= MOST_ERRORS:
        return errors
    text = f"other errors (more than {MOST_ERRORS} kinds; see the report)"
    key = StatsError.create_key("", "", text)
    ranked = sorted((k for k in errors if k != key), key=lambda k: -errors[k].occurrences)
    frequent = set(ranked[: MOST_ERRORS - 1])
    rest = [error for k, error in errors.items() if k not in frequent]
    other = StatsError(
        "",
        "",
        text,
        sum(error.occurrences for error in rest),
        min((error.first_seen for error in rest if error.first_seen is not None), default=None),
        max((error.last_seen for error in rest if error.last_seen is not None), default=None),
    )
    return {**{k: error for k, error in errors.items() if k in frequent}, key: other}
