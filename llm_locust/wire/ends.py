"""How an answer ended: what finish reasons say, in the words of any server.

Success is a positive list: the good ends of the API, and those at the bound of the answer's length. All else
is remarked on, and what says that the server gave the answer up is a failure.
"""

import re
from collections.abc import Collection
from contextlib import suppress
from enum import IntEnum
from functools import lru_cache
from typing import Any

from llm_locust.wire.payload import PayloadError, count_of, error_text, json_text, name_of, parse

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

#: Names of the bound of an answer's length, of the context's length, and of an answer that was cut there.
_LENGTH = re.compile(
    "(?:max|model|context|window|output|completion|predicted|generat(?:ed|ion)|new|gen|seq(?:uence)?|n|token)*"
    "(?:len(?:gth)?|tokens?|limit|window|ctx|context|overflow)(?:limit|reached|exceeded|full)*|truncated|toolong"
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
    "|shutdown|panic|invalid|unexpected|unhandled|corrupt|ratelimit|toomany|malformed|hangup|nobackend|capacity"
    "|gateway|discard|incomplete|unload|exhaust|outofcredit|migrat|degraded|sig(?:term|kill|segv|abrt)"
    "|nohealthy|userstop"
)

#: The same as whole words: they stand inside of other words too, as ``fault`` in ``default``.
_FAILURE_WORDS = frozenset(
    {
        *("err", "oom", "fault", "kill", "killed", "lost", "drop", "dropped", "reset", "busy", "dead"),
        *("died", "down", "closed", "stalled", "hung", "gone", "refused", "full", "terminated", "drained"),
        *("partial", "partially"),
    }
)

#: A status of HTTP in place of a reason.
_BAD_STATUS = re.compile("(?:http)?[45][0-9]{2}")

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
    if _LENGTH.fullmatch(plain):
        return AnswerEnd.LENGTH
    if plain in map(_plain, usual):
        return AnswerEnd.WHOLE
    if sounds_failed(reason) or _BAD_STATUS.fullmatch(plain):
        return AnswerEnd.FAILED
    return AnswerEnd.FILTERED if _FILTERS.search(plain) else AnswerEnd.UNKNOWN


def sounds_failed(text: str) -> bool:
    """Whether a text tells of a failure, as ``network_error`` and ``upstream timed out`` do."""
    words = {word.lower() for word in _WORDS.findall(text)}
    return _FAILURES.search(_plain(text)) is not None or bool(words & _FAILURE_WORDS)


def _plain(text: str) -> str:
    """Letters and digits only, without the name of an enumeration before them."""
    return _PREFIX.sub("", _LETTERS.sub("", text.lower()), count=1)


# --- What servers say outside of their API: errors in any form, and data of their own beside an answer


_SAID_MAX_CHARS = 1000

#: Names of an error, and of its parts, in letters only.
_ERROR_KEY = re.compile(
    "err|errors?(?:msg|message|code|type|info|details?)?|errmsg|errcode|[a-z]*exception|failure|failed"
)
_SEPARATORS = re.compile("[-_ ]")

#: Values of ``code`` beside a message that is none of an error.
_GOOD_CODE = re.compile("ok|okay|success|succeeded|0+|1|1[0-9]{2}|2[0-9]+", re.IGNORECASE)

#: Names of a code and of its text in an object that says how a request went: ``base_resp`` of MiniMax.
_CODE_KEYS = ("status_code", "statusCode", "code", "errcode", "ret")
_CODE_TEXTS = ("status_msg", "statusMsg", "message", "msg", "errmsg")

#: Texts beside a code, or under the name of an error, that tell of none.
_GOOD_TEXT = re.compile(
    r"(?:no|without) errors?|ok(?:ay)?|success(?:ful(?:ly)?)?|succeeded|done|normal"
    r"|null|none|nil|false|undefined|\W*",
    re.IGNORECASE,
)

#: What stands in every event that may tell of a failure beside a part of an answer.
_SPOKEN = (b'code"', b'"ret"', b"err", b"fail", b"abort", b"exception", b"fatal", b'"success"')

#: A longer document is not read for that.
_MAX_SPOKEN_BYTES = 256 << 10

#: Objects beside an answer whose code is not its own.
_OTHERS_CODE = re.compile("warn|notice|deprecat|filter|moderat|hint|info|limit", re.IGNORECASE)

#: Objects beside an answer whose error is the server's: ``x_groq``.
_SERVERS = re.compile("^x[-_]|meta|provider|vendor|server|backend|engine|upstream|response", re.IGNORECASE)

#: Values of ``status`` and the like that say that something failed.
_FAILED = re.compile(r"err(or)?|fail(ed|ure)?|abort(ed)?|exception|fatal", re.IGNORECASE)

#: Names of what an answer's text or tokens stand under, in any API that is known.
_CONTENT = ("content", "text", "delta", "token", "generated_text", "response", "output", "outputs")
_CONTENT_OBJECTS = ("message", "candidates", "completion", "answer")

#: What some servers send while nothing else is to be said.
_IDLE = re.compile(
    rb"\s*(?:null|true|false|\d+|\[\s*\]"
    rb"|[\"'\[<]*(?:ping|pong|heart[-_ ]?beat|keep[-_ ]?alive|no-?op|waiting|processing)?[\"'\]>]*)\s*",
    re.IGNORECASE,
)

#: The start of an error object that was cut off, or is not JSON to the end.
_CUT_ERROR = re.compile(rb'\s*\{\s*"(?:error|errors|detail)"\s*:')

#: Names of events and of fields of an event stream that announce an error.
_ERROR_NAME = re.compile(
    rb"(?:.*[._:\s-])?\w*(?:error|errors|exception)|fail(?:ed|ure)|abort(?:ed)?|fatal", re.IGNORECASE
)


def error_in(payload: dict[str, Any], *, sure: bool = False) -> str | None:
    """The message of an object that is an error rather than a part of an answer; None where it is none.

    Args:
        sure: the object is such a part by its other fields.
    """
    if (
        any(_is_error(name, value) for name, value in payload.items())
        or any(_says_failed(payload.get(key)) for key in ("object", "type", "status", "state", "event"))
        or any(_is_bad_status(payload.get(key)) for key in ("code", "status", "status_code", "statusCode"))
        or payload.get("success") is False
        or bad_result(payload, sure=sure) is not None
        or (not sure and payload.get("detail") and len(payload) == 1)
    ):
        return error_text(payload) or "an error without a message"
    beside = ((name, value) for name, value in payload.items() if isinstance(value, dict))
    results = (_failure_in(name, value) for name, value in beside if not _OTHERS_CODE.search(name))
    return next((said for said in results if said is not None), None)


def failure_beside(data: bytes, payload: Any = None) -> str | None:
    """The message of what an event says of a failure beside a part of an answer; None where it says nothing.

    A code is one of a failure if it is a number that no server has for success, or a text that tells of one.

    Args:
        payload: the event, if it was read already.
    """
    if len(data) > _MAX_SPOKEN_BYTES:
        return None
    spoken = data.lower()
    if not any(word in spoken for word in _SPOKEN):
        return None
    if payload is None:
        with suppress(PayloadError):
            payload = parse(data)
    if not isinstance(payload, dict):
        return None
    choices = payload.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    held = [first.get("delta"), first.get("message")] if isinstance(first, dict) else []
    found = (error_in(part, sure=True) for part in (payload, first, *held) if isinstance(part, dict))
    return next((said for said in found if said is not None), None)


def says_error(value: Any) -> bool:
    """Whether what stands under the name of an error is one: not null, nothing, a text of either or of
    success, or an object of such."""
    if isinstance(value, dict):
        said = {name: each for name, each in value.items() if not (name in _CODE_KEYS and _is_good(each))}
        return any(bool(each) if isinstance(each, dict) else says_error(each) for each in said.values())
    return not _is_good_text(value) if isinstance(value, str) else bool(value)


def bad_result(value: dict[str, Any], *, sure: bool = False) -> str | None:
    """The text beside a code that is no good one; None where there is no such code or text.

    Args:
        sure: a code that is a text must tell of a failure.
    """
    said = next((text for key in _CODE_TEXTS if (text := name_of(value.get(key))) is not None), None)
    if said is None or _is_good_text(said):
        return None
    codes = [value.get(key) for key in _CODE_KEYS]
    return said if any(_is_bad_code(code) and (not sure or _is_sure(code)) for code in codes) else None


def _failure_in(name: str, value: dict[str, Any]) -> str | None:
    """The message of an object of this name beside an answer; None where it tells of no failure."""
    if _SERVERS.search(name) and says_error(value.get("error")):
        return error_text(value)
    return bad_result(value, sure=True)


def _is_error(name: str, value: Any) -> bool:
    plain = _SEPARATORS.sub("", name[:40]).lower()
    if _ERROR_KEY.fullmatch(plain) is None or not says_error(value):
        return False
    return not (plain.endswith("code") and _is_good(value))


def _says_failed(kind: Any) -> bool:
    return isinstance(kind, str) and (_FAILED.fullmatch(kind) is not None or kind.endswith("_error"))


def _is_bad_status(code: Any) -> bool:
    number = int(code) if isinstance(code, str) and code.isdecimal() and len(code) == 3 else count_of(code)
    return number is not None and 400 <= number < 600


def _is_bad_code(code: Any) -> bool:
    is_one = isinstance(code, str | int) and not isinstance(code, bool) and code != ""
    return is_one and not _is_good(code)


def _is_good(code: Any) -> bool:
    return _GOOD_CODE.fullmatch(str(code)) is not None


def _is_good_text(text: str) -> bool:
    return len(text) <= _MAX_CHARS and _GOOD_TEXT.fullmatch(text) is not None


def _is_sure(code: Any) -> bool:
    return isinstance(code, int) or code.lstrip("-").isdecimal() or sounds_failed(code)


def is_idle(data: bytes) -> bool:
    """Whether an event only keeps the connection open: ``ping``, or a JSON value that holds nothing."""
    return len(data) <= 64 and _IDLE.fullmatch(data) is not None


def has_content(payload: dict[str, Any]) -> bool:
    """Whether an object has anything that may be a part of an answer, in whatever API."""
    return (
        "choices" in payload
        or any(payload.get(key) for key in _CONTENT)
        or any(isinstance(payload.get(key), dict | list) and payload[key] for key in _CONTENT_OBJECTS)
    )


@lru_cache(maxsize=256)
def is_error_name(name: bytes) -> bool:
    """Whether the name of an event, or of a field of a stream, announces an error: ``Stream-Error``."""
    return len(name) <= 64 and _ERROR_NAME.fullmatch(name.strip()) is not None


def said_in(data: bytes) -> str:
    """The message of what was sent as an error: JSON of any form, or text."""
    with suppress(PayloadError):
        return error_text(parse(data))
    return data[:_SAID_MAX_CHARS].decode("utf-8", "replace").strip()


def error_among(text: bytes) -> str | None:
    """The message of an error object in a text: all of it, one of its lines, or cut off. None without one."""
    for part in (text, *text.splitlines()):
        part = re.sub(rb"^\s*data:", b"", part).strip()
        if not part.startswith((b"{", b"[")):
            continue
        value: Any = None
        with suppress(PayloadError):
            value = parse(part)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if isinstance(value, dict) and not value.get("choices") and (said := error_in(value)) is not None:
            return said
    cut = _CUT_ERROR.match(re.sub(rb"^\s*data:", b"", text))
    return text[cut.start() :][:_SAID_MAX_CHARS].decode("utf-8", "replace").strip() if cut else None
