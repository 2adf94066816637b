"""Failed requests by cause, and wall times as text."""

import re
import string
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import numpy as np

from llm_locust.core.batch import Labels
from llm_locust.metrics.columns import OUTCOMES, Columns, Floats, Rows
from llm_locust.metrics.summary_types.requests import ErrorKind

# --------------------
# Error texts without the details that differ between cases, so that failures of one kind are equal.
# --------------------


#: A folded text has no more characters than this.
LONGEST = 300

_ID, _ADDRESS, _NUMBER, _QUERY = "<id>", "<addr>", "<n>", "?<query>"

#: What stands for the details of a text: of use to tell kinds apart, and not to a person.
PLACEHOLDERS = (_ID, _ADDRESS, _NUMBER, _QUERY)

_CACHED_TEXTS = 4096

_WORD_CHARACTERS = string.ascii_letters + string.digits + "_./:-"

#: A terminal's colours: with their numbers folded nobody would know them as such.
_COLOUR = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")

_URL_QUERY = re.compile(r"\?[\w.%~+-]+=[^\s\"'<>)\]]*", re.ASCII)

_GROUP = "[0-9A-Fa-f]{1,4}"
_GROUPS = f"(?:{_GROUP}(?::{_GROUP})*)?"
_IPV6 = rf"(?: (?:{_GROUP}:){{7}}{_GROUP} | {_GROUPS}::{_GROUPS} ) (?:%\w+)?"
_IPV6_ADDRESS = re.compile(
    rf"\[{_IPV6}\] | (?<![\w:.])(?=:*[0-9A-Fa-f]){_IPV6}(?![\w:.])", re.ASCII | re.VERBOSE
)

#: Ids of the usual APIs. One in two hundred has no digit that it could be known by.
_API_ID = re.compile(r"\b(chatcmpl-|cmpl-|resp_|msg_|req[_-]|call_)[0-9A-Za-z]{16,}", re.ASCII)

#: Words that points, hyphens and slashes join, a digit among them: a quantity, which begins with a
#: digit and ends before a slash, or a name, whose beginning is group 1.
_TOKEN = re.compile(
    r"(?: (?<![\w./-]) | (?=/) ) (?: \d[\w.-]* | ([A-Za-z_./-]++)\d[\w./-]* ) (?<=\w)", re.ASCII | re.VERBOSE
)

#: What makes the digits behind it a code that tells kinds of failure apart.
_CODE_WORD = re.compile(
    r"(?<![a-z]) (?: http(?:/[\d.]+)? | status(?:[ _]code)? | code | errno ) [\"']? [ :=]{1,3} $",
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)
_CODE_DIGITS, _CODE_WORD_LENGTH = 3, 16

_VARYING = r"""
    (?P<address> (?<![\w.]) \d{1,3} (?:\.\d{1,3}){3} (?![\w.]) )
    | (?<![0-9A-Za-z])
        (?:
            (?P<duration> (?: \d+ (?:\.\d+)? (?:ns|us|ms|s|m|min|h) )+ )
            | (?P<id>
                [0-9A-Fa-f]{8} - (?:[0-9A-Fa-f]{4}-){3} [0-9A-Fa-f]{12}
                | 0x[0-9A-Fa-f]+
                | (?=\d*[A-Za-z]) (?=[A-Za-z]*\d) [0-9A-Fa-f]{8,}
                | (?=\d*[A-Za-z]+\d) (?=(?:[A-Za-z]*\d){2}) [0-9A-Za-z]{8,}
            )
        )
        (?![0-9A-Za-z])
"""
_IN_QUANTITY = re.compile(
    rf"{_VARYING} | (?P<number> \d+ (?:\.\d+)* (?:[eE]-?\d+\b)? )", re.ASCII | re.VERBOSE
)
#: In a name, such as ``/v1/llama-3.1-8b``, a number of up to three digits is part of it.
_IN_NAME = re.compile(rf"{_VARYING} | (?P<number> \d{{4,}} )", re.ASCII | re.VERBOSE)

_PLACEHOLDERS = {"address": _ADDRESS, "duration": _NUMBER, "id": _ID, "number": _NUMBER}

_ANY_PLACEHOLDER = re.compile("|".join(map(re.escape, PLACEHOLDERS)))

_NUMBERS = re.compile(f"{_NUMBER}(?:, ?{_NUMBER})+")


@lru_cache(_CACHED_TEXTS)
def fold(text: str) -> str:
    """Kind of an error text: the text with placeholders for details that differ between cases.

    ``<id>`` stands for UUIDs, hexadecimal numbers and words of eight characters or more that mix letters and
    digits; ``<addr>`` for an IP address with its port; ``<n>`` for a number, a list of numbers or a duration
    with its unit; ``?<query>`` for the query of a URL. Up to three digits stay in a name (``gpt-4o``,
    ``/v1``) and as a code (``HTTP 503``, ``Errno 111``). A terminal's colours are left out. A folded text is
    its own kind; it has :data:`LONGEST` characters at most, and ends with ``…`` if cut.
    """
    folded = _bounded(text)
    # What is left beside a placeholder may be something else than it was: once more, until nothing is.
    while (again := _bounded(_folded(folded))) != folded:
        folded = again
    return folded


class ErrorKinds:
    """Kinds of error texts so far, for people of all processes; at most ``limit`` are kept apart."""

    def __init__(self, limit: int = 100) -> None:
        self._limit = limit
        self._kinds: set[str] = set()

    def of(self, text: str) -> str:
        """Kind of a text, or one common name for all that are new after the limit.

        It is that of :func:`fold` with ``…`` for each detail: an example would be another one in each
        process.
        """
        kind = _ANY_PLACEHOLDER.sub("…", fold(text))
        if kind not in self._kinds:
            if len(self._kinds) >= self._limit:
                return f"other errors (more than {self._limit} kinds; see the report)"
            self._kinds.add(kind)
        return kind


def _bounded(text: str) -> str:
    """At most LONGEST characters. A word that is cut may be a part of an id: it is left out."""
    if len(text) < LONGEST:
        return text
    return text[: LONGEST - 1].rstrip(_WORD_CHARACTERS) + "…"


def _folded(text: str) -> str:
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    if "?" in text:
        text = _URL_QUERY.sub(_QUERY, text)
    if "::" in text or text.count(":") >= 7:
        text = _IPV6_ADDRESS.sub(_ADDRESS, text)
    text = _TOKEN.sub(_fold_token, _API_ID.sub(rf"\1{_ID}", text))
    if ">," in text:
        text = _NUMBERS.sub(_NUMBER, text)
    return text.replace(f"{_ADDRESS}:{_NUMBER}", _ADDRESS)


def _fold_token(token: re.Match[str]) -> str:
    text = token[0]
    if text.isdigit():
        return text if len(text) <= _CODE_DIGITS and _follows_code_word(token) else _NUMBER
    in_name = bool(token[1] and token[1].strip("_./-"))
    return (_IN_NAME if in_name else _IN_QUANTITY).sub(_placeholder, text)


def _follows_code_word(token: re.Match[str]) -> bool:
    begin = token.start()
    return _CODE_WORD.search(token.string, max(0, begin - _CODE_WORD_LENGTH), begin) is not None


def _placeholder(found: re.Match[str]) -> str:
    return _PLACEHOLDERS[str(found.lastgroup)]


#: Kinds of failure that are listed one by one.
MOST_KINDS = 50

#: ``outcome`` of the last entry, which counts the kinds that are not listed.
OTHER = "other"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def failures(c: Columns, failed: Rows) -> list[ErrorKind]:
    """The requests ``failed`` by (outcome, status, message), most frequent first.

    ``message`` is the error text without details that differ between cases
    (:func:`~llm_locust.metrics.sections.failures.fold`), ``example`` the unchanged text of the first such
    request; of several at one time, the one that sorts first. ``first`` and ``last`` are when such requests
    ended. Beyond :data:`MOST_KINDS` kinds one entry with the outcome ``other`` counts the rest, so that the
    counts add up to all failures.
    """
    kinds = _kinds(c, failed)
    order = sorted(range(len(kinds.names)), key=lambda k: (-kinds.counts[k], *_sortable(kinds.names[k])))
    examples = _examples(c, failed, kinds, set(order[:MOST_KINDS]))
    listed = [
        ErrorKind(
            outcome=kinds.names[k][0],
            status=kinds.names[k][1],
            message=kinds.names[k][2],
            example=examples.get(k),
            count=int(kinds.counts[k]),
            first=_at(c, kinds.first_s[k]),
            last=_at(c, kinds.last_s[k]),
        )
        for k in order[:MOST_KINDS]
    ]
    return listed + _rest(c, kinds, np.array(order[MOST_KINDS:], dtype=np.int64))


def iso(at_ns: int) -> str:
    """A wall-clock time as ISO 8601 in UTC, to the microsecond."""
    moment = _EPOCH + timedelta(microseconds=at_ns // 1000)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


_Name = tuple[str, int | None, str | None]


@dataclass(frozen=True, slots=True)
class _Kinds:
    """``names[k]`` is (outcome, status, message) of kind k; ``of[i]`` is the kind of failed request i."""

    names: list[_Name]
    of: Rows
    counts: Rows
    first_s: Floats
    last_s: Floats


def _kinds(c: Columns, failed: Rows) -> _Kinds:
    message, messages = _messages(c.error, failed)
    # One integer instead of three columns: numpy sorts those a hundred times faster than rows.
    keys = (c.outcome[failed].astype(np.int64) << 48) + (c.status[failed].astype(np.int64) + 1 << 32)
    keys, of, counts = np.unique(keys + message + 1, return_inverse=True, return_counts=True)
    first_s, last_s = np.full(len(keys), np.inf), np.full(len(keys), -np.inf)
    np.minimum.at(first_s, of, c.ended_s[failed])
    np.maximum.at(last_s, of, c.ended_s[failed])
    triples = zip(keys >> 48, (keys >> 32 & 0xFFFF) - 1, (keys & 0xFFFF_FFFF) - 1, strict=True)
    names = [
        (OUTCOMES[outcome].value, int(status) if status >= 0 else None, messages[text] if text >= 0 else None)
        for outcome, status, text in triples
    ]
    return _Kinds(names, of, counts, first_s, last_s)


def _messages(error: Labels, failed: Rows) -> tuple[Rows, list[str]]:
    """Folded texts, each once, and for each failed request the index of its text; -1 without one."""
    codes = error.codes[failed]
    messages: dict[str, int] = {}
    folded = np.full(len(error.names) + 1, -1, dtype=np.int64)  # the last one is that of code -1
    for code in np.unique(codes[codes >= 0]).tolist():
        folded[code] = messages.setdefault(fold(error.names[code]), len(messages))
    return folded[codes], list(messages)


def _examples(c: Columns, failed: Rows, kinds: _Kinds, wanted: set[int]) -> dict[int, str]:
    """For each kind with texts, the least text among those of its first time."""
    at_first = np.flatnonzero(c.ended_s[failed] == kinds.first_s[kinds.of])
    examples: dict[int, str] = {}
    for kind, code in zip(kinds.of[at_first].tolist(), c.error.codes[failed[at_first]].tolist(), strict=True):
        if kind in wanted and code >= 0:
            text = c.error.names[code]
            examples[kind] = min(text, examples.get(kind, text))
    return examples


def _sortable(name: _Name) -> tuple[str, int, str]:
    outcome, status, message = name
    return outcome, status or 0, message or ""


def _rest(c: Columns, kinds: _Kinds, rest: Rows) -> list[ErrorKind]:
    if not len(rest):
        return []
    return [
        ErrorKind(
            outcome=OTHER,
            status=None,
            message=f"{len(rest)} more kinds of failure",
            example=None,
            count=int(kinds.counts[rest].sum()),
            first=_at(c, kinds.first_s[rest].min()),
            last=_at(c, kinds.last_s[rest].max()),
        )
    ]


def _at(c: Columns, ended_s: float) -> str:
    return iso(c.origin_ns + round(float(ended_s) * 1e9))
