"""The request body as bytes: a template made once, a prompt put in for each request.

Three sources name fields, the later one winning: this module's own, the dataset line's
(:attr:`Prompt.extra`), the user's ``--body``. ``model``, ``stream``, ``stream_options`` are the
run's: a line's are left out. A field that ``--body`` sets to null is not sent at all.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Never

import msgspec

from llm_locust.wire.dialects.table import DIALECTS as TABLE
from llm_locust.wire.dialects.table import Endpoint
from llm_locust.workload.dialects import DIALECTS, in_dialect
from llm_locust.workload.text.prompts import Prompt, as_text

#: The fields that bound an answer's length. A body carries one of them.
LIMIT_FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")

#: The bound of an answer of the messages API, which asks for one, where the workload has none.
MESSAGES_MAX_TOKENS = 1024

_CONTENT_FIELDS = ("messages", "prompt", "input")

ENDPOINTS = tuple(e.value for e in Endpoint)

_EXAMPLE = """expected a JSON object such as {"temperature": 0}"""
_encode = msgspec.json.Encoder().encode


class BodyError(ValueError):
    """A text that is no set of body fields; says where in it, and what is expected."""


def path_of(endpoint: str) -> str:
    """The path of an endpoint below the API's base (``http://host/v1``).

    Raises:
        BodyError: there is no such endpoint.
    """
    return TABLE[check_endpoint(endpoint)].path


def check_endpoint(endpoint: str) -> str:
    """``endpoint`` itself, when it is one of :data:`ENDPOINTS`.

    Raises:
        BodyError: it is not.
    """
    if endpoint not in TABLE:
        raise BodyError(f"no endpoint {endpoint!r}; there are {', '.join(ENDPOINTS)}")
    return endpoint


def parse_body(text: str) -> dict[str, Any]:
    """The body fields of a JSON object's text. A null value means: leave that field out.

    Raises:
        BodyError: not a JSON object, or it names a field that the workload fills.
    """
    try:
        fields = json.loads(text, parse_constant=_no_constant)
        _encode(fields)
    except json.JSONDecodeError as e:
        near = f"before {text[e.pos : e.pos + 20]!r}" if text[e.pos :] else "at its end"
        raise BodyError(f"body {_short(text)}: {e.msg} at character {e.pos + 1}, {near}; {_EXAMPLE}") from e
    except (RecursionError, UnicodeEncodeError, ValueError) as e:
        raise BodyError(f"body {_short(text)}: {e}; {_EXAMPLE}") from e
    if not isinstance(fields, dict):
        raise BodyError(f"body {_short(text)} is {_KINDS[type(fields)]}; {_EXAMPLE}")
    for name in _CONTENT_FIELDS:
        if name in fields:
            raise BodyError(f"body {_short(text)}: {name!r} is what the workload fills; use a dataset for it")
    check_choices(fields, f"body {_short(text)}")
    if not isinstance(fields.get("stream_options") or {}, dict):
        raise BodyError(f"body {_short(text)}: 'stream_options' is not an object")
    return fields


def check_choices(fields: Mapping[str, Any], where: str) -> None:
    """Refuse fields that ask for several answers in one.

    Raises:
        BodyError: one does; ``where`` says where they are from.
    """
    for name in ("n", "best_of"):
        value = fields.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 1:
            raise BodyError(
                f"{where}: {name!r} asks for {value} answers in one, whose tokens cannot be told apart in "
                "time; leave it out and send more requests"
            )


_KINDS = {
    list: "a list",
    str: "a text",
    int: "a number",
    float: "a number",
    bool: "a truth value",
    type(None): "null",
}


def _no_constant(name: str) -> Never:
    raise ValueError(f"{name} is not JSON")


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "…")


def output_limit(fields: Mapping[str, Any]) -> int | None:
    """The bound of the answer's length that body fields set, if they do."""
    for name in LIMIT_FIELDS:
        value = fields.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


@dataclass(frozen=True, slots=True)
class BodyTemplate:
    """Everything of a body but its prompt. Make one with :func:`body_template`."""

    endpoint: str
    streamed: bool  # what the server is asked for, --body included
    limit_field: str | None  # None where --body says it, or forbids it
    tail: bytes  # the fixed fields as `,"name":value...}`
    own: frozenset[str]  # names that a dataset line cannot set

    def encode(self, prompt: Prompt) -> bytes:
        """The body that asks for ``prompt``.

        Raises:
            PromptError: the endpoint takes text, and a message has a part that is not.
        """
        if self.endpoint in DIALECTS:
            prompt = self._in_dialect(prompt)
        parts = [self._content(prompt)]
        extra = prompt.extra
        if extra and (line := {k: v for k, v in extra.items() if k not in self.own}):
            parts += b",", _encode(line)[1:-1]
        if self.limit_field and prompt.asked_output_tokens and not any(f in extra for f in LIMIT_FIELDS):
            parts.append(b',"%b":%d' % (self.limit_field.encode(), prompt.asked_output_tokens))
        parts.append(self.tail)
        return b"".join(parts)

    def _in_dialect(self, prompt: Prompt) -> Prompt:
        """The prompt in the endpoint's words, the bound of its answer under the endpoint's name."""
        asked = prompt.asked_output_tokens or output_limit(prompt.extra)
        if asked is None and self.endpoint == "messages":
            asked = MESSAGES_MAX_TOKENS
        found = in_dialect(prompt, self.endpoint) if prompt.extra or prompt.messages else prompt
        extra = {name: value for name, value in found.extra.items() if name not in LIMIT_FIELDS}
        return replace(found, extra=extra, asked_output_tokens=asked)

    def _content(self, prompt: Prompt) -> bytes:
        if self.endpoint == "completions":
            return b'{"prompt":' + _encode(as_text(prompt))
        name = b'{"input":' if self.endpoint == "responses" else b'{"messages":'
        if prompt.messages is not None:
            return name + _encode(prompt.messages)
        return name + b'[{"role":"user","content":' + _encode(prompt.text) + b"}]"


def body_template(
    endpoint: str,
    model: str,
    *,
    stream: bool = True,
    ignore_eos: bool = False,
    extra_body: Mapping[str, Any] | None = None,
    limit_field: str | None = None,
) -> BodyTemplate:
    """The template of an endpoint's bodies.

    Args:
        endpoint: one of :data:`ENDPOINTS`.
        model: the model's name.
        stream: ask for a stream, and on chat and completions for usage at its end.
        ignore_eos: ask the server (vLLM, SGLang) to go on to the bound of the answer's length.
        extra_body: the fields of :func:`parse_body`; ``stream_options`` is merged, others replace.
        limit_field: the name for the bound of the answer's length; by default ``max_tokens``,
            and ``max_output_tokens`` on responses.

    Raises:
        BodyError: there is no such endpoint, or ``extra_body`` leaves out a field that it cannot be without.
    """
    extra = dict(extra_body or {})
    fixed: dict[str, Any] = {"model": model, "stream": stream}
    if stream and check_endpoint(endpoint) not in DIALECTS:
        fixed["stream_options"] = {"include_usage": True}
    if isinstance(options := extra.get("stream_options"), dict):
        extra["stream_options"] = {**fixed.get("stream_options", {}), **options}
    if ignore_eos:
        fixed["ignore_eos"] = True
    fixed.update(extra)
    sent = {name: value for name, value in fixed.items() if value is not None}
    bounded = any(name in extra for name in LIMIT_FIELDS)
    if endpoint == "messages" and bounded and not sent.get("max_tokens"):
        raise BodyError("body: the messages endpoint takes no request without 'max_tokens'; set that one")
    own = {*fixed, "stream_options", *_CONTENT_FIELDS, *(LIMIT_FIELDS if bounded else ())}
    return BodyTemplate(
        endpoint=endpoint,
        streamed=bool(sent.get("stream", False)),
        limit_field=None if bounded else limit_field or TABLE[check_endpoint(endpoint)].limit_field,
        tail=b"," + _encode(sent)[1:] if sent else b"}",
        own=frozenset(own),
    )
