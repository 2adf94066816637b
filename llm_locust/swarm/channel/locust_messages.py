"""Checks of Locust's own messages from workers: one that does not fit would end the master's listener."""

from typing import Annotated, Any

import msgspec
from locust import runners
from locust.rpc import Message
from msgspec import Meta

from llm_locust.core.manifest import Count
from llm_locust.swarm.channel.messages import MessageError, Name, read

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
        found = read(data, struct)
        if isinstance(found, _Logs) and found.worker_id != message.node_id:
            raise MessageError("it carries the log of another worker")
    elif message.type in _BARE:
        if data is not None:
            raise MessageError("it has data where none is allowed")
    elif message.type == "client_ready" and not (data == -1 or (isinstance(data, str) and len(data) <= 64)):
        raise MessageError("its version is not a short text")
