"""Locust's own messages from workers: which can be processed, and how much of them is kept.

One that does not fit would end the master's listener, which hears nobody then.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from locust import runners
from locust.rpc import Message
from locust.runners import MasterRunner
from locust.stats import RequestStats
from msgspec import Meta

from llm_locust.core.manifest import Count
from llm_locust.swarm.channel.messages import (
    MessageError,
    Name,
    read,
)
from llm_locust.swarm.process.event_loop import RateLimiter
from llm_locust.swarm.process.patches import MOST_ERRORS, capped

logger = logging.getLogger(__name__)


_STATES = frozenset(value for name, value in vars(runners).items() if name.startswith("STATE_"))

_Kind = Annotated[str, Meta(min_length=1, max_length=64)]
_Line = Annotated[str, Meta(max_length=1 << 16)]
_Long = Annotated[str, Meta(max_length=1 << 20)]
_Label = Annotated[str, Meta(max_length=4096)]
_Number = Annotated[float, Meta(ge=-1e300, le=1e300)]

#: Seconds since the epoch that can be formatted as a date, as Locust's reports do.
_Time = Annotated[float, Meta(ge=0, le=2e11)]
_Classes = Annotated[dict[Name, Count], Meta(max_length=10_000)]
_Counted = Annotated[dict[_Number, Count], Meta(max_length=100_000)]


class _Version(msgspec.Struct):
    version: _Kind


class _Heartbeat(msgspec.Struct):
    state: _Kind
    current_cpu_usage: _Number
    current_memory_usage: _Number = 0

    def __post_init__(self) -> None:
        if self.state not in _STATES:
            raise ValueError("its state is unknown")


class _Spawned(msgspec.Struct):
    user_classes_count: _Classes
    user_count: Count = 0


class _Logs(msgspec.Struct):
    worker_id: Name
    logs: Annotated[list[_Line], Meta(max_length=10_000)]


class _Exception(msgspec.Struct):
    msg: _Long
    traceback: _Long


class _Entry(msgspec.Struct):
    name: _Label
    method: _Label | None
    last_request_timestamp: _Time | None = None
    start_time: _Time = 0
    num_requests: Count = 0
    num_none_requests: Count = 0
    num_failures: Count = 0
    total_response_time: _Number = 0
    max_response_time: _Number = 0
    min_response_time: _Number | None = None
    total_content_length: Count = 0
    response_times: _Counted = {}
    num_reqs_per_sec: _Counted = {}
    num_fail_per_sec: _Counted = {}

    def __post_init__(self) -> None:
        if self.response_times and self.num_requests == 0:
            raise ValueError("response times without a request")


class _Error(msgspec.Struct):
    method: _Label | None
    name: _Label
    error: _Long
    occurrences: Count
    first_seen: _Time | None = None
    last_seen: _Time | None = None


class _Stats(msgspec.Struct):
    stats: Annotated[list[_Entry], Meta(max_length=100_000)]
    stats_total: _Entry
    errors: Annotated[dict[_Label, _Error], Meta(max_length=100_000)]
    user_classes_count: _Classes
    user_count: Count = 0


_OF_KIND: dict[str, type[msgspec.Struct]] = {
    "locustfile": _Version,
    "heartbeat": _Heartbeat,
    "spawning_complete": _Spawned,
    "logs": _Logs,
    "exception": _Exception,
    "stats": _Stats,
}

#: Kinds without data.
_BARE = frozenset(("client_stopped", "spawning", "quit"))

#: All kinds that Locust's master listens to.
KINDS = frozenset((*_OF_KIND, *_BARE, "client_ready"))


def unpacked(payload: bytes) -> Message:
    """Decode bytes as one of Locust's messages, whose kind and sender are text.

    Raises:
        MessageError: they are not one.
    """
    try:
        message: Message = Message.unserialize(payload)
    except Exception as e:  # msgpack's own, ValueError, TypeError, KeyError, UnicodeDecodeError
        raise MessageError(f"its bytes are not a message ({type(e).__name__})") from e
    if not isinstance(message.type, str) or not 1 <= len(message.type) <= 64:
        raise MessageError("its kind is not a short text")
    if not isinstance(message.node_id, str):
        raise MessageError("its sender is not text")
    return message


def check(message: Message) -> None:
    """Check that Locust's master can process the data of one of its own messages (raises MessageError)."""
    data: Any = message.data
    struct = _OF_KIND.get(message.type)
    if struct is not None:
        content = read(data, struct)
        if isinstance(content, _Logs) and content.worker_id != message.node_id:
            raise MessageError("it carries the log of another worker")
    elif message.type in _BARE:
        if data is not None:
            raise MessageError("it has data where none is allowed")
    elif message.type == "client_ready" and not (data == -1 or (isinstance(data, str) and len(data) <= 64)):
        raise MessageError("its version is not a short text")


# --------------------
# Bounds on what workers report into Locust's own statistics.
#
# Without a secret anybody can join, and Locust keeps every name, text and response time that a worker
# sends. So names beyond a limit are counted as one, and long texts are cut. No count is lost: the sums over
# all entries stay correct. The run's own records do not pass through here.
# --------------------


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
        self._log_limit = RateLimiter()

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
        exceptions = self._runner.exceptions
        if len(exceptions) >= MOST_ERRORS and hash(data["traceback"]) not in exceptions:
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
                if self._log_limit.ready():
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


def _bound_times(entries: Sequence[dict[str, Any]], present: int) -> None:
    """Round response times if, with ``present`` ones, they may exceed :data:`MOST_TIMES`."""
    if present + sum(len(entry.get("response_times", ())) for entry in entries) > MOST_TIMES:
        for entry in entries:
            entry["response_times"] = coarse(entry.get("response_times", {}))


def coarse(times: Mapping[float, int]) -> dict[int, int]:
    """Response times in ms rounded to two digits, 0 .. 12 days: at most 731 different values."""
    counts: dict[int, int] = {}
    for time_ms, count in times.items():
        whole = round(min(time_ms, _MOST_MS)) if time_ms > 0 else 0  # NaN too
        rounded = round(whole, 2 - len(str(whole)))
        counts[rounded] = counts.get(rounded, 0) + count
    return counts


def _cut(text: str, longest: int = LONGEST_NAME) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
