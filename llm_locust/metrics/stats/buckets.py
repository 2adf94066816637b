"""Buckets whose width grows with their values, for histograms and sketches.

A bucket is the exponent and the first bits of the mantissa of a value as a float32: ``2 ** kept_bits`` of
them, of equal width, between each power of two and the next.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llm_locust.metrics.columns import Floats

_MANTISSA_BITS, _EXPONENT_BIAS = 23, 127


@dataclass(frozen=True, slots=True)
class Buckets:
    """``2 ** kept_bits`` buckets an octave, from ``2 ** first_exponent`` to before ``2 ** end_exponent``.

    Bucket 0 also takes values below its start, and the last one values above its end.

    Attributes:
        below: whether bucket 0 lies before the first octave, and so holds nothing else.
    """

    kept_bits: int
    first_exponent: int
    end_exponent: int
    below: bool = False

    def __len__(self) -> int:
        return ((self.end_exponent - self.first_exponent) << self.kept_bits) + self.below

    @property
    def _zero(self) -> int:
        """Leading bits of the start of bucket 0."""
        return ((_EXPONENT_BIAS + self.first_exponent) << self.kept_bits) - self.below

    def of(self, values: NDArray[np.float64] | NDArray[np.int64]) -> NDArray[np.int32]:
        """Bucket of each value; values must be neither negative nor NaN."""
        bits: NDArray[np.int32] = values.astype(np.float32).view(np.int32)
        bits >>= np.int32(_MANTISSA_BITS - self.kept_bits)
        bits -= np.int32(self._zero)
        return np.clip(bits, 0, len(self) - 1, out=bits)

    def edges(self, first: int, end: int) -> Floats:
        """Starts of the buckets from ``first`` to before ``end``, and the end of the last of them."""
        bits = np.arange(first + self._zero, end + self._zero + 1, dtype=np.int32)
        return (bits << np.int32(_MANTISSA_BITS - self.kept_bits)).view(np.float32).astype(np.float64)
