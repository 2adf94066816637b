"""Bounds on what a master may bring about here: growth of Locust's statistics, Python code of its own."""

from datetime import datetime
from typing import Any

from gevent import Greenlet
from locust.env import Environment
from locust.runners import MasterRunner
from locust.stats import RequestStats, StatsError

from llm_locust.swarm.process.loops import every

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
