"""What one request is known by in an expression: the columns of its record, and its metrics.

A duration is held as whole nanoseconds, as records have it, so that ``ttft<=500ms`` is true of one of
500 ms exactly.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pyarrow as pa

from llm_locust.core.arrow.schema import SCHEMA
from llm_locust.core.batch import RecordBatch
from llm_locust.core.record import MOMENTS
from llm_locust.metrics.catalogue import FORMULAS
from llm_locust.metrics.columns import PART_COLUMNS, Floats, Part
from llm_locust.metrics.requests.goodput import Limits, MeasuredFrom, judge
from llm_locust.metrics.requests.latency import per_request, user_tps


class FieldKind(StrEnum):
    """What a field holds, and so what it can be compared with."""

    TEXT = "a text"
    NUMBER = "a number"
    DURATION = "a duration"
    TRUTH = "yes or no"


def _kind(field: pa.Field) -> FieldKind:
    if pa.types.is_boolean(field.type):
        return FieldKind.TRUTH
    if not pa.types.is_integer(field.type):
        return FieldKind.TEXT
    return (
        FieldKind.DURATION if field.name.endswith("_ns") and field.name not in MOMENTS else FieldKind.NUMBER
    )


_COLUMNS = {field.name: _kind(field) for field in SCHEMA if not pa.types.is_list(field.type)}
_OF_PART = {
    **dict.fromkeys(FORMULAS, FieldKind.DURATION),
    "events": FieldKind.NUMBER,
    "n_output_tokens": FieldKind.NUMBER,
    "user_tps": FieldKind.NUMBER,
    "good": FieldKind.TRUTH,
}

#: Every field: the columns of a record but for its lists, the metrics that are one number a request,
#: and ``at`` (scheduled, after the run's start), ``events`` (token events), ``n_output_tokens`` (n of
#: docs/definitions.md), ``user_tps`` and ``good``.
FIELDS: Mapping[str, FieldKind] = {**_COLUMNS, "at": FieldKind.DURATION, **_OF_PART}


@dataclass(frozen=True, slots=True)
class Terms:
    """By what the fields of a run are taken: where ``at`` begins, and what ``good`` is."""

    started_ns: int
    limits: Limits
    measured_from: MeasuredFrom


def columns_of(fields: frozenset[str]) -> tuple[str, ...]:
    """The columns of records that these fields are made of."""
    own = {"scheduled_ns" if field == "at" else field for field in fields if field not in _OF_PART}
    computed = PART_COLUMNS if fields & _OF_PART.keys() else ()
    return tuple(dict.fromkeys([*computed, *sorted(own), "scheduled_ns"]))


class FieldValues(Mapping[str, pa.Array]):
    """The fields of a batch that has :func:`columns_of` them; null is undefined.

    Texts are strings, numbers int64 or float64, durations int64 nanoseconds.
    """

    def __init__(self, batch: RecordBatch, terms: Terms) -> None:
        self._batch = batch
        self._terms = terms
        self._part: Part | None = None

    def __getitem__(self, field: str) -> pa.Array:
        if field in _OF_PART:
            self._part = self._part or Part.from_batch(self._batch, self._terms.started_ns)
            return _computed(field, self._part, self._terms)
        if field == "at":
            return pa.array(self._batch.ints("scheduled_ns") - self._terms.started_ns)
        column = self._batch.table.column(field).combine_chunks()
        kind = FIELDS[field]
        if kind is FieldKind.TRUTH:
            return column
        return column.cast(pa.string() if kind is FieldKind.TEXT else pa.int64())

    def __iter__(self) -> Iterator[str]:
        return iter(FIELDS)

    def __len__(self) -> int:
        return len(FIELDS)


def _computed(field: str, part: Part, terms: Terms) -> pa.Array:
    if field in FORMULAS:
        return _whole_ns(per_request(part)[field])
    if field == "good":
        judgement = judge(part, per_request(part), terms.limits, terms.measured_from)
        return pa.array(judgement.good, mask=~judgement.judged)
    values: dict[str, Callable[[], Floats]] = {
        "events": lambda: part.events.astype(np.float64),
        "n_output_tokens": lambda: part.output_tokens,
        "user_tps": lambda: user_tps(part),
    }
    return pa.array(values[field](), from_pandas=True)


def _whole_ns(values_s: Floats) -> pa.Array:
    known = ~np.isnan(values_s)
    return pa.array(np.rint(np.where(known, values_s, 0) * 1e9).astype(np.int64), mask=~known)
