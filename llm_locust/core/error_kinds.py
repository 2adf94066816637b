"""Error texts without the details that differ between cases, so that failures of one kind are equal."""

import re
import string
from functools import lru_cache

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
