"""A small language that chooses requests: ``input_tokens>1000 and name in (chat, search)``.

::

    condition  = both { "or" both }
    both       = one { "and" one }
    one        = "not" one | "(" condition ")" | test
    test       = field [ operator value | [ "not" ] "in" "(" value { "," value } ")" ]
    operator   = "==" | "=" | "!=" | "<" | "<=" | ">" | ">="

A field alone is a yes-or-no one. A value is a word, or a text in quotes where it has blanks or signs of
the language in it; durations have a unit (``500ms``). What is not defined for a request meets no
test but ``!=`` and ``not``; ``field == none`` finds it.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llm_locust.core.arrow import SCHEMA
from llm_locust.core.batch import Labels, RecordBatch, Requests
from llm_locust.core.record import MOMENTS, Outcome
from llm_locust.core.texts import Word, listed, nearest, parse_duration
from llm_locust.metrics.catalogue import FORMULAS
from llm_locust.metrics.columns import PART_COLUMNS, Floats, Mask, Part, Times
from llm_locust.metrics.requests.judgement import Limits, judge
from llm_locust.metrics.requests.latency import MeasuredFrom, per_request, user_tps
from llm_locust.metrics.window import Window

# --- Conditions on requests as values, and which requests meet them.
#
# A comparison with a value that is not defined is not met; so ``Not`` of it is. That is what pandas
# does with NaN.


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


# --------------------
# What one request is known by in an expression: the columns of its record, and its metrics.
#
# A duration is held as whole nanoseconds, as records have it, so that ``ttft<=500ms`` is true of one of 500
# ms exactly.
# --------------------


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


#: Parentheses and ``not`` inside each other.
DEEPEST = 40

_TOKEN = re.compile(
    r"""\s*(?: (?P<text>"[^"]*"|'[^']*') | (?P<open>[(\[]) | (?P<close>[)\]]) | (?P<comma>,)
        | (?P<op>[=!<>]+) | (?P<word>[^\s()\[\],=!<>"']+) | (?P<broken>["'].*) )""",
    re.VERBOSE | re.DOTALL,
)
_OPERATORS = {"==": "==", "=": "==", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_TRUTHS = {"true": True, "yes": True, "false": False, "no": False}
_SIGNS = {"&": "and", "&&": "and", "|": "or", "||": "or"}


class WhereError(ValueError):
    """A text that is no condition; one line that says where, what is wrong and what is allowed."""


@dataclass(frozen=True, slots=True)
class Where:
    """A condition on requests, and the text it was read from."""

    text: str
    condition: Condition

    @property
    def fields(self) -> frozenset[str]:
        return self.condition.fields

    @property
    def stage(self) -> int | None:
        """The number of the stage, if the condition is ``stage==N`` and nothing else."""
        match self.condition:
            case FieldCondition("stage", "==", int(number)):
                return number
        return None


def parse_where(text: str) -> Where:
    """The condition that ``text`` says.

    Raises:
        WhereError: it is none; the text points at the wrong word.
    """
    return Where(text.strip(), _Parser(text).parse())


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    word: Word

    def says(self, keyword: str) -> bool:
        return self.kind == "word" and self.word.text.lower() == keyword


def _tokens(text: str) -> Iterator[_Token]:
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at, end)
        assert match is not None  # every character is one of a token
        kind = str(match.lastgroup)
        word = Word(match[kind], match.start(kind) + 1)
        if kind == "broken":
            raise WhereError(f"where: {word.error_at('the quote is not closed')}")
        yield _Token(kind, word)
        at = match.end()
    yield _Token("end", Word("", end + 1))


class _Parser:
    """One function a rule of the grammar; ``_next`` is the token that none has taken yet."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = next(self._tokens)
        self._depth = 0

    def parse(self) -> Condition:
        if self._next.kind == "end":
            raise self._error("empty condition; try input_tokens>1000")
        condition = self._either()
        if self._next.kind != "end":
            sign = _SIGNS.get(self._next.word.text)
            raise self._error(f'write "{sign}"' if sign else 'write "and" or "or" between two conditions')
        return condition

    def _either(self) -> Condition:
        parts = [self._both()]
        while self._next.says("or"):
            self._take()
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else Joined(tuple(parts), every=False)

    def _both(self) -> Condition:
        parts = [self._one()]
        while self._next.says("and"):
            self._take()
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else Joined(tuple(parts), every=True)

    def _one(self) -> Condition:
        negated, opened = self._next.says("not"), self._next.kind == "open"
        if not negated and not opened:
            return self._test()
        if self._depth >= DEEPEST:
            raise self._error(f"more than {DEEPEST} conditions inside each other")
        self._depth += 1
        self._take()
        inner = Not(self._one()) if negated else self._either()
        if opened:
            self._take("close", 'close the parenthesis with ")"')
        self._depth -= 1
        return inner

    def _test(self) -> Condition:
        field = self._field()
        if self._next.kind == "op":
            return self._comparison(field)
        if self._next.says("not"):
            self._take()
            if not self._next.says("in"):
                raise self._error(f'after "{field} not" write "in"')
            return Not(self._membership(field))
        if self._next.says("in"):
            return self._membership(field)
        if FIELDS[field] is not FieldKind.TRUTH:
            raise self._error(f"after {field} write {listed(_OPERATORS)} or in")
        return FieldCondition(field, "==", True)

    def _field(self) -> str:
        token = self._next
        if token.kind != "word" or any(token.says(keyword) for keyword in ("and", "or", "in")):
            raise self._error("write a field first, as in ttft>500ms")
        name = token.word.text
        if name not in FIELDS:
            raise self._error(
                f"unknown field; {nearest(name, FIELDS) or f'fields are {listed(FIELDS)}'}".rstrip()
            )
        return self._take().word.text

    def _comparison(self, field: str) -> Condition:
        op = self._next.word.text
        if op not in _OPERATORS:
            raise self._error(f"after {field} write {listed(_OPERATORS)} or in")
        self._take()
        at = self._next
        value, ordered = self._value(field), _OPERATORS[op] not in ("==", "!=")
        if ordered and (value is None or FIELDS[field] in (FieldKind.TEXT, FieldKind.TRUTH)):
            why = f"{field} is {FIELDS[field]}, which has no order: write == or !=, not {op}"
            raise WhereError(f"where: {at.word.error_at('none has no order' if value is None else why)}")
        if op == "!=":
            return Not(FieldCondition(field, "==", value))
        return FieldCondition(field, _OPERATORS[op], value)

    def _membership(self, field: str) -> Condition:
        self._take()
        self._take("open", f"after {field} in write the values, as (a, b)")
        tests = [FieldCondition(field, "==", self._value(field))]
        while self._next.kind == "comma":
            self._take()
            tests.append(FieldCondition(field, "==", self._value(field)))
        self._take("close", 'write "," or close the list with ")"')
        return Joined(tuple(tests), every=False)

    def _value(self, field: str) -> Value:
        token = self._next
        if token.kind not in ("word", "text"):
            raise self._error(f"no value to compare {field} with")
        self._take()
        quoted = token.kind == "text"
        text = token.word.text[1:-1] if quoted else token.word.text
        if not quoted and text.lower() == "none":
            return None
        try:
            return _read_value(field, text)
        except ValueError as e:
            raise WhereError(f"where: {token.word.error_at(f'{field} is {FIELDS[field]}: {e}')}") from None

    def _take(self, kind: str | None = None, why: str = "") -> _Token:
        if kind is not None and self._next.kind != kind:
            raise self._error(why)
        token = self._next
        if token.kind != "end":
            self._next = next(self._tokens)
        return token

    def _error(self, why: str) -> WhereError:
        return WhereError(f"where: {self._next.word.error_at(why)}")


def _read_value(field: str, text: str) -> Value:
    """The value of a word, in the unit of the field. ValueError says what is wrong with it."""
    match FIELDS[field]:
        case FieldKind.TEXT:
            return text
        case FieldKind.TRUTH:
            if text.lower() not in _TRUTHS:
                raise ValueError(f"write one of {listed(_TRUTHS)}")
            return _TRUTHS[text.lower()]
        case FieldKind.DURATION if not (field.endswith("_ns") and _NUMBER.fullmatch(text)):
            sign = -1 if text.startswith("-") else 1
            return sign * round(parse_duration(text.removeprefix("-")) * 1e9)
        case _:
            return _number(text)


def _number(text: str) -> int | float:
    if _NUMBER.fullmatch(text) is None:
        raise ValueError("write a number, as 1000")
    whole = text.lstrip("+-").isdecimal() and len(text) < 20
    return int(text) if whole else float(text)


# --- Requests that a report is of, taken from one run's or put together from several, without a copy.


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


def without_first_tries(requests: Requests) -> SelectedRequests:
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

_LABEL_COLUMNS = ("scheduled_ns", "sent_ns", "ended_ns", "name", "class")


@dataclass(frozen=True, slots=True)
class FirstTries:
    """The first tries of a run. ``inside`` marks those of requests that were scheduled in the window."""

    inside: Mask
    name: Labels
    slo_class: Labels

    @classmethod
    def of(cls, requests: SelectedRequests, window: Window, origin_ns: int) -> "FirstTries":
        rows = requests.first_tries(_LABEL_COLUMNS)
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
