"""Names in one process's records, bounded in number."""

from dataclasses import replace
from typing import Any

from llm_locust.core.record import RequestRecord
from llm_locust.wire.names import clean_name

#: Most different names of one kind (replicas, models, finish reasons) in the records of one process.
MAX_NAMES = 1000

#: Replacement of every further name once there are :data:`MAX_NAMES`.
OTHER = "(other)"


class Names:
    """The different names in one process's records, bounded: each is a row or a label in some table."""

    def __init__(self) -> None:
        self._known: dict[str, set[str]] = {
            name: set() for name in ("replica", "model", "answered_model", "finish_reason", "unread")
        }

    def bounded(self, record: RequestRecord) -> RequestRecord:
        """The record with its names cleaned; those beyond the limit become :data:`OTHER`."""
        changed: dict[str, Any] = {
            field: name
            for field, known in self._known.items()
            if (said := getattr(record, field)) is not None and (name := _known(said, known)) != said
        }
        return replace(record, **changed) if changed else record


def _known(said: str, known: set[str]) -> str:
    if said in known:
        return said
    name = clean_name(said)
    if name not in known:
        if len(known) >= MAX_NAMES:
            return OTHER
        known.add(name)
    return name
