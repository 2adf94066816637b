"""What to change after a request that did not bring a token: one clause for a person."""

import re
from collections.abc import Collection
from dataclasses import dataclass

from llm_locust.core.record import Outcome, RequestRecord

#: Statuses that waiting does not change: the request itself is refused.
PERMANENT = frozenset({400, 401, 403, 405, 413, 422})

#: Statuses of a server that may take requests later.
NOT_READY = frozenset({408, 425, 429, 502, 503, 504})

_TOO_LONG = re.compile(
    r"context.{0,12}(length|window|size)|(too|so) (long|many|large)|max\w*.{0,20}(token|length|len\b)"
    r"|token.{0,20}(exceed|limit|max)|(exceed|longer).{0,40}(token|length|context)",
    re.IGNORECASE,
)
_MODEL = re.compile(r"\bmodels?\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A request as its advice needs it.

    Attributes:
        base, path: of the API at the server, and of the endpoint below it.
        fields: names of the body's fields that the user can change.
        limit_field: the field that bounds the length of the answer.
        input_tokens, output_tokens: lengths asked for; None if not asked for.
        has_key: a key was sent.
    """

    base: str
    path: str
    fields: Collection[str]
    limit_field: str
    model: str
    input_tokens: int | None = None
    output_tokens: int | None = None
    has_key: bool = False


def is_permanent(record: RequestRecord) -> bool:
    """Whether the same request would be refused again, however long one waits."""
    return record.outcome is Outcome.HTTP_ERROR and record.status in PERMANENT


def advice(record: RequestRecord, sent: SentRequest) -> str:
    """What to change after a request that failed."""
    status, error = record.status or 0, record.error or ""
    match record.outcome:
        case Outcome.TIMEOUT | Outcome.CANCELLED:
            return "look at the server's log, or wait longer: --timeouts, or --ready-timeout while it starts"
        case Outcome.CONNECT_ERROR:
            return "look at the server's log, and at that of a proxy before it"
        case Outcome.EMPTY:
            return "allow longer answers by --output-tokens: reasoning may use up all of them"
        case Outcome.INVALID | Outcome.TRUNCATED if not 300 <= status < 400:
            return f"check that {sent.base}{sent.path} is the API that the user class expects"
    if 300 <= status < 400:
        return "give -H the address that it redirects to"
    if status in (401, 403):
        return "check the key given" if sent.has_key else "give a key by --api-key-env NAME or --header"
    if status in (404, 405, 410):
        return _of_not_found(error, sent)
    if status in NOT_READY:
        return "wait until the server takes requests, or let --ready-timeout 5m wait for it"
    return "look at the server's log" if status >= 500 else _of_content(error, sent)


def _of_not_found(error: str, sent: SentRequest) -> str:
    if _MODEL.search(error):
        return f"check --model: {sent.model!r} was asked for"
    return f"check the path: {sent.base} is from -H, {sent.path} is that of the user class's endpoint"


def _of_content(error: str, sent: SentRequest) -> str:
    named = next((name for name in sent.fields if re.search(rf"\b{re.escape(name)}\b", error)), None)
    if named == sent.limit_field and re.search(r"unsupported|not supported|unknown|unexpected", error, re.I):
        other = "max_completion_tokens" if named == "max_tokens" else "max_tokens"
        return (
            f"""leave the field out: --body '{{"{named}": null, "{other}": {sent.output_tokens or 128}}}'"""
        )
    if _TOO_LONG.search(error):
        return (
            f"ask for fewer tokens by --input-tokens ({_known(sent.input_tokens)} here), --output-tokens "
            f"({_known(sent.output_tokens)} here) or a dataset of shorter prompts"
        )
    if named is not None:
        return f"""change that field by --body; null leaves it out: --body '{{"{named}": null}}'"""
    if _MODEL.search(error):
        return f"check --model: {sent.model!r} was asked for"
    return "check what is sent: --body, --model and the user class's endpoint"


def _known(tokens: int | None) -> str:
    return "unknown" if tokens is None else f"{tokens}"
