"""Who answered: the replica that a response's headers name, and which of its headers tell replicas apart."""

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from llm_locust.core.replica_headers import MOST_HEADER_VALUES, MOST_REPLICA_HEADERS, HeaderFacts
from llm_locust.wire.names import clean_name
from llm_locust.wire.secrecy import blanked_name

#: Response headers that name the replica, in order of priority after the user's own.
REPLICA_HEADERS = (
    "x-served-by",
    "x-upstream",
    "x-backend-server",
    "x-litellm-model-api-base",
    "x-envoy-upstream-host",
    "x-inference-pod",
)

#: Separators of addresses as in ``$upstream_addr``: a comma after each, a colon between groups of servers.
_BETWEEN = re.compile(r" : |, ?")
_ADDRESS = r"(?:[\w.-]+:\d+|\[[\da-fA-F:.]+\]:\d+|unix:[^\s,]+)"
_TRIED = re.compile(rf"{_ADDRESS}(?:(?:{_BETWEEN.pattern}){_ADDRESS})+")

#: Longest list of addresses; a longer one is ignored.
_MAX_TRIED_CHARS = 8192

#: Bytes of a value that are compared with those of the answers before.
_COMPARED_BYTES = 1024


@dataclass(slots=True)
class _Seen:
    """The values of one header. ``raw`` are those whose name is known already."""

    answers: int = 0
    first: str = ""
    raw: set[bytes] = field(default_factory=set)
    values: set[int] = field(default_factory=set)
    more: bool = False


class ReplicaNames:
    """Reads the replica of each answer, and counts the values of every header that may name one.

    Args:
        own: headers of the user's, which come before the known ones.
        secrets: texts that are blanked in names.
    """

    def __init__(self, own: Sequence[str] = (), secrets: Sequence[str] = ()) -> None:
        self.names = tuple(dict.fromkeys(name.lower().encode() for name in (*own, *REPLICA_HEADERS)))
        self._secrets = secrets
        self._seen = {name: _Seen() for name in self.names[:MOST_REPLICA_HEADERS]}

    def read(self, headers: Mapping[bytes, bytes]) -> str | None:
        """The replica that answered with these headers (lower-case names), and count their values."""
        for name, seen in self._seen.items():
            if name in headers:
                self._count(seen, headers, name)
        return replica_of(headers, self.names, self._secrets)

    def facts(self) -> list[HeaderFacts]:
        """The headers that answers have had so far, in order of priority."""
        return [
            HeaderFacts(
                name=clean_name(name.decode("latin-1")),
                answers=seen.answers,
                value=seen.first,
                values=sorted(seen.values),
                more=seen.more,
            )
            for name, seen in self._seen.items()
            if seen.answers
        ]

    def _count(self, seen: _Seen, headers: Mapping[bytes, bytes], name: bytes) -> None:
        seen.answers += 1
        raw = headers[name][:_COMPARED_BYTES]
        if seen.more or raw in seen.raw:
            return
        if len(seen.raw) == MOST_HEADER_VALUES:
            seen.more = True
            return
        seen.raw.add(raw)
        value = replica_of(headers, (name,), self._secrets) or ""
        seen.first = seen.first or value
        seen.values.add(zlib.crc32(value.encode()))


def replica_of(
    headers: Mapping[bytes, bytes], names: Sequence[bytes], secrets: Sequence[str] = ()
) -> str | None:
    """Value of the first of these headers (lower-case names) in the response, without secrets.

    Of several addresses the last: nginx's ``$upstream_addr`` lists those that it tried in turn, and the last
    one answered. A list of names stays unchanged, because its meaning is unknown.
    """
    value = next((headers[name].decode("latin-1") for name in names if name in headers), None)
    if value is None:
        return None
    value = blanked_name(value, secrets)
    if len(value) <= _MAX_TRIED_CHARS and _TRIED.fullmatch(value):
        value = _BETWEEN.split(value)[-1]
    return clean_name(value)
