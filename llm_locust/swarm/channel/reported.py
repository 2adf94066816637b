"""Bounds on what workers report into Locust's own statistics.

Without a secret anybody can join, and Locust keeps every name, text and response time that a worker sends. So
names beyond a limit are counted as one, and long texts are cut. No count is lost: the sums over all entries
stay correct. The run's own records do not pass through here.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from locust.runners import MasterRunner
from locust.stats import RequestStats

from llm_locust.swarm.process.bounds import MOST_ERRORS, capped
from llm_locust.swarm.process.throttle import Throttle

logger = logging.getLogger(__name__)

#: Most pairs of method and name with an entry of their own. The rest is counted as :data:`OTHERS`.
MOST_NAMES = 500
OTHERS = "(other names)"

#: Longest name, and longest error text; longer ones are cut.
LONGEST_NAME = 200
LONGEST_TEXT = 4096

#: Most pairs of name and response time. Beyond them new times keep two digits, as Locust's do below 10 s.
MOST_TIMES = 20_000

#: Most seconds whose counts an entry has. Each pass over the statistics, every 30 s, reduces them to 60.
MOST_SECONDS = 1000

#: Longest response time counted: 12 days.
_MOST_MS = 10**9

_OTHER_EXCEPTIONS = f"other exceptions (more than {MOST_ERRORS} kinds)"


class Reported:
    """Bounds of one master's statistics.

    Attributes:
        folded: reports of names that were counted as :data:`OTHERS`.

    Args:
        runner: owner of the statistics.
        keep_seconds: keep the counts of all seconds (for ``--json``).
    """

    def __init__(self, runner: MasterRunner, *, keep_seconds: bool = False) -> None:
        self.folded = 0
        self._runner = runner
        self._keep_seconds = keep_seconds
        self._may_say = Throttle()

    def bound_stats(self, data: dict[str, Any]) -> None:
        """Bound a worker's checked ``stats`` in place, before Locust adds them."""
        stats = self._runner.stats
        new: set[tuple[str, str]] = set()
        for entry in data["stats"]:
            self._bound_name(entry, stats, new)
        _bound_times(data["stats"], _times(stats))
        _bound_times([data["stats_total"]], len(stats.total.response_times))
        for error in data["errors"].values():
            error["name"], error["method"] = _cut(error["name"]), _cut(error["method"] or "")
            error["error"] = _cut(error["error"], LONGEST_TEXT)

    def bound_exception(self, data: dict[str, Any]) -> None:
        """Bound an exception of a user in place."""
        data["msg"] = _cut(data["msg"], LONGEST_TEXT)
        data["traceback"] = _cut(data["traceback"], 4 * LONGEST_TEXT)
        known = self._runner.exceptions
        if len(known) >= MOST_ERRORS and hash(data["traceback"]) not in known:
            data["msg"], data["traceback"] = _OTHER_EXCEPTIONS, ""

    def after(self) -> None:
        """Bound what Locust has added up."""
        stats = self._runner.stats
        if len(stats.errors) > 2 * MOST_ERRORS:
            stats.errors = capped(stats.errors)
        entries = list(stats.entries.values())
        if _times(stats) > MOST_TIMES:
            for entry in entries:  # 20 copies of its response times, for the rows of --csv-full-history
                entry.use_response_times_cache, entry.response_times_cache = False, None
        for entry in () if self._keep_seconds else (stats.total, *entries):
            for counts in (entry.num_reqs_per_sec, entry.num_fail_per_sec):
                for second in sorted(counts)[:-MOST_SECONDS] if len(counts) > MOST_SECONDS else ():
                    del counts[second]

    def _bound_name(self, entry: dict[str, Any], stats: RequestStats, new: set[tuple[str, str]]) -> None:
        key = _cut(entry["name"]), _cut(entry["method"] or "")
        if key not in stats.entries and key not in new:
            if len(stats.entries) + len(new) >= MOST_NAMES:
                key = OTHERS, ""
                self.folded += 1
                if self._may_say():
                    logger.warning(
                        "more than %d names of requests: Locust's own statistics count the rest as %r (%d "
                        "reports so far); use fewer names",
                        MOST_NAMES,
                        OTHERS,
                        self.folded,
                    )
            else:
                new.add(key)
        entry["name"], entry["method"] = key


def _times(stats: RequestStats) -> int:
    return sum(len(entry.response_times) for entry in stats.entries.values())


def _bound_times(entries: Sequence[dict[str, Any]], known: int) -> None:
    """Round response times if, with ``known`` ones, they may exceed :data:`MOST_TIMES`."""
    if known + sum(len(entry.get("response_times", ())) for entry in entries) > MOST_TIMES:
        for entry in entries:
            entry["response_times"] = coarse(entry.get("response_times", {}))


def coarse(times: Mapping[float, int]) -> dict[int, int]:
    """Response times in ms rounded to two digits, 0 .. 12 days: at most 731 different values."""
    found: dict[int, int] = {}
    for time_ms, count in times.items():
        whole = round(min(time_ms, _MOST_MS)) if time_ms > 0 else 0  # NaN too
        rounded = round(whole, 2 - len(str(whole)))
        found[rounded] = found.get(rounded, 0) + count
    return found


def _cut(text: str, longest: int = LONGEST_NAME) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
