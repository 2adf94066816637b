"""Conversion between Python values, numpy arrays and Arrow arrays, through their buffers.

``pa.array``, ``to_numpy`` and, in older versions of pyarrow, ``to_pandas_dtype`` import pandas wherever it is
installed: half a second and 54 MiB in each worker, which does not need it.
"""

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from llm_locust.core.record import MAX_TEXT_CHARS

#: Type code of :mod:`array` for each integer type of Arrow. It refuses floats and values out of range.
_CODES = {pa.int16(): "h", pa.int32(): "i", pa.int64(): "q"}

_DTYPES = {
    pa.bool_(): np.bool_,
    pa.float64(): np.float64,
    **{getattr(pa, name)(): getattr(np, name) for name in ("int8", "int16", "int32", "int64")},
    **{getattr(pa, name)(): getattr(np, name) for name in ("uint8", "uint16", "uint32", "uint64")},
}


def from_values(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Make an array of integers, booleans or texts, of which long ones are cut off; None is null.

    Raises:
        OverflowError, TypeError: the type cannot hold a value.
    """
    nulls = values.count(None)
    if nulls == len(values):
        return pa.nulls(nulls, type_)
    valid = _bits([v is not None for v in values]) if nulls else None
    if type_ == pa.string():
        texts = [b"" if v is None else v[:MAX_TEXT_CHARS].encode() for v in values]
        ends = np.cumsum([0, *map(len, texts)]).astype(np.int32)
        content = [pa.py_buffer(ends), pa.py_buffer(b"".join(texts))]
    elif type_ == pa.bool_():
        content = [_bits(values)]
    else:
        numbers = [0 if v is None else v for v in values] if nulls else values
        content = [pa.py_buffer(array(_CODES[type_], numbers))]
    return pa.Array.from_buffers(type_, len(values), [valid, *content], nulls)


def from_labels(texts: Sequence[str | None]) -> pa.Array:
    """Make an array of texts as codes; each text is there once, in the order of the first occurrences.

    It takes half the time of Arrow's ``dictionary_encode`` of the texts.
    """
    code_of: dict[str, int] = {}
    if any(text is not None and len(text) > MAX_TEXT_CHARS for text in {*texts}):
        texts = [text and text[:MAX_TEXT_CHARS] for text in texts]
    codes = [None if text is None else code_of.setdefault(text, len(code_of)) for text in texts]
    return pa.DictionaryArray.from_arrays(
        from_values(codes, pa.int32()), from_values([*code_of], pa.string())
    )


def from_lists(lists: Sequence[NDArray[np.int64] | None], type_: pa.ListType) -> pa.Array:
    """Make an array of lists of integers; None is null."""
    lengths = [0 if own is None else len(own) for own in lists]
    ends = np.cumsum([0, *lengths]).astype(np.int32)
    values = np.concatenate([np.empty(0, np.int64), *(own for own in lists if own is not None)])
    known = [own is not None for own in lists]
    child = pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])
    valid = None if all(known) else _bits(known)
    return pa.Array.from_buffers(
        type_, len(lists), [valid, pa.py_buffer(ends)], len(lists) - sum(known), children=[child]
    )


def from_numpy(values: NDArray[Any]) -> pa.Array:
    """Make an array of booleans or of 64-bit integers, without nulls."""
    if values.dtype == np.bool_:
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, _bits(values)])
    whole = np.ascontiguousarray(values, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(whole), [None, pa.py_buffer(whole)])


def values_of(column: pa.Array) -> NDArray[Any]:
    """Numbers or booleans of an array; undefined where it is null."""
    buffer, start, stop = column.buffers()[1], column.offset, column.offset + len(column)
    dtype = _DTYPES.get(column.type) or column.type.to_pandas_dtype()
    if buffer is None or start == stop:
        return np.empty(0, dtype=dtype)
    if pa.types.is_boolean(column.type):
        return _truths(buffer, start, stop)
    return np.frombuffer(buffer, dtype=dtype)[start:stop]


def known_of(column: pa.Array) -> NDArray[np.bool_] | None:
    """Mask of the values that are not null; None if there is no null."""
    if not column.null_count:
        return None
    return _truths(column.buffers()[0], column.offset, column.offset + len(column))


def _bits(truths: Sequence[bool | None] | NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(np.asarray(truths, dtype=np.bool_), bitorder="little"))


def _truths(buffer: pa.Buffer, start: int, stop: int) -> NDArray[np.bool_]:
    first = start // 8
    bits = np.unpackbits(np.frombuffer(buffer, np.uint8)[first : (stop + 7) // 8], bitorder="little")
    return bits[start - 8 * first : stop - 8 * first].view(np.bool_)
