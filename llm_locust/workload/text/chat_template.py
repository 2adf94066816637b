"""A model's chat template, rendered as by the servers: jinja2 in the configuration of transformers.

A template comes with a model's files and is not trusted: it runs in jinja2's sandbox.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Never

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class ChatTemplateError(ValueError):
    """A template that cannot be used, or messages that it rejects; one line."""


class _Generation(Extension):
    """``{% generation %}`` marks the model's text, for training. Here it is its content."""

    tags = {"generation"}  # noqa: RUF012  jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One template, compiled.

    Args:
        source: the template's text.
        special_tokens: names such as ``bos_token`` that it may use, and their texts.

    Raises:
        ChatTemplateError: the text is no jinja2 template.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _now
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as e:
            raise ChatTemplateError(f"line {e.lineno} of the chat template: {_line(e)}") from e

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> str:
        """Render the model's input for ``messages``, up to the start of its answer.

        Raises:
            ChatTemplateError: the template rejects them, or fails.
        """
        try:
            return self._template.render(
                messages=list(messages),
                tools=list(tools) if tools else None,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            )
        # The template's own code can fail in any way.
        except Exception as e:
            raise ChatTemplateError(f"the chat template does not take these messages: {_line(e)}") from e


def _line(e: Exception) -> str:
    return " ".join(str(e).split())[:200] or type(e).__name__


def _refuse(message: str) -> Never:
    raise jinja2.TemplateError(message)


def _now(format_: str) -> str:
    return datetime.now().strftime(format_)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja2's own filter would escape ``<`` and ``>`` for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
