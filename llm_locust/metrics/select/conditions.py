"""Conditions on requests as values, and which requests meet them.

A comparison with a value that is not defined is not met; so ``Not`` of it is. That is what pandas
does with NaN.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llm_locust.metrics.columns import Mask

Value = str | int | float | bool | None

_COMPARE: dict[str, Callable[[pa.Array, pa.Scalar], pa.Array]] = {
    "==": pc.equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_LARGEST = 2**63


@dataclass(frozen=True, slots=True)
class FieldCondition:
    """``field op value``; equal to None means not defined."""

    field: str
    op: str
    value: Value

    @property
    def fields(self) -> frozenset[str]:
        return frozenset([self.field])

    def mask(self, values: Mapping[str, pa.Array]) -> Mask:
        """Which rows meet it; ``values`` has each of :attr:`fields` as an array with nulls."""
        column = values[self.field]
        if self.value is None:
            return _numpy(pc.is_null(column))
        value = self.value
        if isinstance(value, float) or (isinstance(value, int) and abs(value) >= _LARGEST):
            # An integer column is compared as it is, unless the value is no such integer.
            column, value = column.cast(pa.float64(), safe=False), float(value)
        return _numpy(_COMPARE[self.op](column, pa.scalar(value)).fill_null(False))


@dataclass(frozen=True, slots=True)
class Not:
    condition: "Condition"

    @property
    def fields(self) -> frozenset[str]:
        return self.condition.fields

    def mask(self, values: Mapping[str, pa.Array]) -> Mask:
        return ~self.condition.mask(values)


@dataclass(frozen=True, slots=True)
class Joined:
    """Several conditions: ``every`` one has to be met, or any of them."""

    conditions: tuple["Condition", ...]
    every: bool

    @property
    def fields(self) -> frozenset[str]:
        return frozenset().union(*(condition.fields for condition in self.conditions))

    def mask(self, values: Mapping[str, pa.Array]) -> Mask:
        masks = [condition.mask(values) for condition in self.conditions]
        return np.asarray((np.all if self.every else np.any)(masks, axis=0), dtype=np.bool_)


Condition = FieldCondition | Not | Joined


def _numpy(mask: pa.Array) -> Mask:
    return np.asarray(mask.to_numpy(zero_copy_only=False), dtype=np.bool_)
