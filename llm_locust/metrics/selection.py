"""Requests that a report is of, taken from one run's or put together from several, without a copy."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from llm_locust.batch import SCHEMA, RecordBatch, Requests
from llm_locust.metrics.columns import Mask
from llm_locust.metrics.request_fields import FieldValues, Terms, columns_of
from llm_locust.metrics.where import Where


@dataclass(frozen=True, slots=True, eq=False)
class Selected:
    """The requests that ``mask`` marks (:class:`~llm_locust.batch.Requests`)."""

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


@dataclass(frozen=True, slots=True)
class Pooled:
    """The requests of several runs, one run after the other (:class:`~llm_locust.batch.Requests`)."""

    runs: tuple[Requests, ...]

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    def parts(self, columns: Sequence[str] = SCHEMA.names) -> Iterator[RecordBatch]:
        """The parts of the first run, then those of the second, and so on."""
        for requests in self.runs:
            yield from requests.parts(columns)


def selected(requests: Requests, where: Where, terms: Terms) -> Selected:
    """The requests that meet a condition, read part by part: a byte a request is kept."""
    mask = np.zeros(len(requests), dtype=np.bool_)
    at = 0
    for batch in requests.parts(columns_of(where.fields)):
        mask[at : at + len(batch)] = where.condition.mask(FieldValues(batch, terms))
        at += len(batch)
    return Selected(requests, mask)
