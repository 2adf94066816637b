"""How an answer ended: what finish reasons say, in the words of any server.

Success is a positive list: the good ends of the API, and those at the bound of the answer's length. All else
is remarked on, and what says that the server gave the answer up is a failure.
"""

import re
from collections.abc import Collection
from enum import IntEnum
from functools import lru_cache
from typing import Any

from llm_locust.wire.payload import error_text, json_text, name_of

_MAX_CHARS = 80


class AnswerEnd(IntEnum):
    """What an answer's finish reason says. Of several choices the greatest counts."""

    WHOLE = 0
    LENGTH = 1  # at the bound of its length
    UNKNOWN = 2  # a reason that the API does not have
    MISSING = 3  # none was sent
    FILTERED = 4  # a content filter cut it, or the model refused
    FAILED = 5  # the server gave it up


#: Texts that stand for no reason: some servers send one with every chunk.
_NONE = frozenset(
    {"", "null", "none", "nil", "nan", "undefined", "false", "unspecified", "notfinished", "unfinished"}
) | {"inprogress"}

#: Names of the bound of an answer's length.
_LENGTHS = frozenset(
    {
        *("length", "maxlength", "maxtokens", "maxnewtokens", "maxcompletiontokens", "maxoutputtokens"),
        *("tokenlimit", "maxtokensreached", "lengthlimit", "modellength", "maxmodellen", "contextlength"),
        *("contextlengthexceeded", "contextwindowexceeded", "contextlimit", "modelcontextwindowexceeded"),
    }
)

#: Parts of the names of content filters, in letters only.
_FILTERS = re.compile(
    "filter|safety|recitation|blocklist|prohibited|spii|refus|guardrail|sensitive|moderat|toxic|flagged"
    "|blocked|policy|harm"
)

#: The same of failures.
_FAILURES = re.compile(
    "error|abort|fail|network|resource|insufficient|timeout|timedout|deadline|cancel|unavailable|overload|exception"
    "|crash|disconnect|interrupt|unreach|memory|internal|reject|throttl|quota|expired|broken|preempt|evict"
    "|shutdown|panic|invalid|unexpected|unhandled|corrupt|ratelimit|toomany|malformed|hangup|nobackend"
)

#: The same as whole words: they stand inside of other words too, as ``fault`` in ``default``.
_FAILURE_WORDS = frozenset(
    {
        *(
            "err",
            "oom",
            "fault",
            "kill",
            "killed",
            "lost",
            "drop",
            "dropped",
            "reset",
            "busy",
            "dead",
            "died",
        ),
        *("down", "closed", "stalled", "hung", "gone", "refused"),
    }
)

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_LETTERS = re.compile(r"[^a-z0-9]+")
_PREFIX = re.compile("(?:finish|stop|completion)reason(?=.)")

#: Where objects have their reason.
_REASON_KEYS = ("type", "reason", "finish_reason", "stop_reason", "name", "kind", "code", "status", "value")


def reason_of(sent: Any) -> tuple[str | None, str]:
    """A finish reason as text, and what the server says of it beside.

    None where the value stands for no reason: null, an empty text, ``"null"``. Any other true value is one:
    some servers send numbers, some an object such as ``{"type": "abort", "message": "..."}``.
    """
    said = ""
    if isinstance(sent, list) and len(sent) == 1:
        sent = sent[0]
    if isinstance(sent, dict):
        said = error_text(sent) if any(sent.get(key) for key in ("message", "error", "detail")) else ""
        named = next((text for key in _REASON_KEYS if (text := name_of(sent.get(key))) is not None), None)
        if named is None and len(sent) == 1:  # {"Error": "..."}, as some languages write their enumerations
            (named, inner), *_ = sent.items()
            said = said or error_text(inner)
        sent = named or sent
    if not sent:
        return None, ""
    text = json_text(sent)[:_MAX_CHARS]
    return (None, "") if _plain(text) in _NONE and not said else (text, said)


def worse(reason: Any, native: Any) -> Any:
    """The reason of a gateway, or that of the server behind it, which it may have made a good one of."""
    if not reason or not native:
        return reason
    return native if end_of(reason_of(native)[0]) >= AnswerEnd.FILTERED else reason


@lru_cache(maxsize=1024)
def end_of(reason: str | None, usual: Collection[str] = ()) -> AnswerEnd:
    """What a reason of :func:`reason_of` says, in any spelling: ``STOP``, ``FinishReason.stop``.

    Args:
        usual: the good ends of the API.
    """
    if reason is None:
        return AnswerEnd.MISSING
    plain = _plain(reason)
    if plain in _LENGTHS:
        return AnswerEnd.LENGTH
    if plain in map(_plain, usual):
        return AnswerEnd.WHOLE
    if sounds_failed(reason):
        return AnswerEnd.FAILED
    return AnswerEnd.FILTERED if _FILTERS.search(plain) else AnswerEnd.UNKNOWN


def sounds_failed(text: str) -> bool:
    """Whether a text tells of a failure, as ``network_error`` and ``upstream timed out`` do."""
    words = {word.lower() for word in _WORDS.findall(text)}
    return _FAILURES.search(_plain(text)) is not None or bool(words & _FAILURE_WORDS)


def _plain(text: str) -> str:
    """Letters and digits only, without the name of an enumeration before them."""
    return _PREFIX.sub("", _LETTERS.sub("", text.lower()), count=1)
