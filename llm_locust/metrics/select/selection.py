"""Requests that a report is of, taken from one run's or put together from several, without a copy."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from llm_locust.core.arrow import SCHEMA
from llm_locust.core.batch import Labels, RecordBatch, Requests
from llm_locust.core.record import Outcome
from llm_locust.metrics.columns import Mask, Times
from llm_locust.metrics.select.where import FieldValues, Terms, Where, columns_of
from llm_locust.metrics.window import Window


@dataclass(frozen=True, slots=True, eq=False)
class Selected:
    """The requests that ``mask`` marks (:class:`~llm_locust.core.batch.Requests`)."""

    requests: Requests
    mask: Mask

    def __len__(self) -> int:
        return int(self.mask.sum())

    def parts(self, columns: Sequence[str] = SCHEMA.names) -> Iterator[RecordBatch]:
        """The parts of all requests, each without the rows that are not marked."""
        at = 0
        for batch in self.requests.parts(columns):
            yield batch.filter(self.mask[at : at + len(batch)])
            at += len(batch)


@dataclass(frozen=True, slots=True, eq=False)
class SelectedRequests:
    """What was asked for, each request once (:class:`~llm_locust.core.batch.Requests`).

    Attributes:
        stored: all rows, those of first tries among them.
        first_try: marks the first tries of requests that were sent again, shape (rows of ``stored``,).
    """

    stored: Requests
    first_try: Mask

    def __len__(self) -> int:
        return len(self.first_try) - int(self.first_try.sum())

    def parts(self, columns: Sequence[str] = SCHEMA.names) -> Iterator[RecordBatch]:
        """The parts of all rows, each without its first tries."""
        at = 0
        for batch in self.stored.parts(columns):
            first_try = self.first_try[at : at + len(batch)]
            yield batch.filter(~first_try) if first_try.any() else batch
            at += len(batch)

    def in_memory(self) -> RecordBatch:
        """All of them as one batch."""
        if isinstance(self.stored, RecordBatch) and not self.first_try.any():
            return self.stored
        return RecordBatch.concat(self.parts())

    def first_tries(self, columns: Sequence[str] = SCHEMA.names) -> RecordBatch:
        """The rows that are left out."""
        if not self.first_try.any():
            return RecordBatch.from_table(RecordBatch.empty().table, columns)
        return RecordBatch.concat(Selected(self.stored, self.first_try).parts(columns))


@dataclass(frozen=True, slots=True)
class Pooled:
    """The requests of several runs, one run after the other (:class:`~llm_locust.core.batch.Requests`)."""

    runs: tuple[Requests, ...]

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    def parts(self, columns: Sequence[str] = SCHEMA.names) -> Iterator[RecordBatch]:
        """The parts of the first run, then those of the second, and so on."""
        for requests in self.runs:
            yield from requests.parts(columns)


def asked(requests: Requests) -> SelectedRequests:
    """The requests without first tries, found in one pass over their outcomes: a byte a request is kept."""
    if isinstance(requests, SelectedRequests):
        return requests
    first_try = np.zeros(len(requests), dtype=np.bool_)
    at = 0
    for batch in requests.parts(["outcome"]):
        labels = batch.labels("outcome")
        if Outcome.RESENT in labels.names:
            first_try[at : at + len(batch)] = labels.codes == labels.names.index(Outcome.RESENT)
        at += len(batch)
    return SelectedRequests(requests, first_try)


def selected(requests: Requests, where: Where, terms: Terms) -> Selected:
    """The requests that meet a condition, read part by part: a byte a request is kept."""
    mask = np.zeros(len(requests), dtype=np.bool_)
    at = 0
    for batch in requests.parts(columns_of(where.fields)):
        mask[at : at + len(batch)] = where.condition.mask(FieldValues(batch, terms))
        at += len(batch)
    return Selected(requests, mask)


# --- How many sendings were first tries: they broke before they were worked on, and were sent again


Label = Literal["name", "slo_class"]

_COLUMNS = ("scheduled_ns", "sent_ns", "ended_ns", "name", "class")


@dataclass(frozen=True, slots=True)
class FirstTries:
    """The first tries of a run. ``inside`` marks those of requests that were scheduled in the window."""

    inside: Mask
    name: Labels
    slo_class: Labels

    @classmethod
    def of(cls, requests: SelectedRequests, window: Window, origin_ns: int) -> "FirstTries":
        rows = requests.first_tries(_COLUMNS)
        inside = window.scheduled(Times.of(rows, origin_ns))
        return cls(inside, rows.labels("name"), rows.labels("class"))

    def count(self) -> int:
        """Those of the window."""
        return int(self.inside.sum())

    def among(self, label: Label, text: str) -> int:
        """Those of the window with this name or class."""
        labels: Labels = getattr(self, label)
        if text not in labels.names:
            return 0
        return int((self.inside & np.equal(labels.codes, labels.names.index(text))).sum())
