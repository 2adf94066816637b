"""A model's own tokenizer: the tokens that a server counts for a text or a conversation.

A Hugging Face folder (``tokenizer.json``, ``tokenizer_config.json``, ``chat_template.jinja``) or a
``tokenizer.json`` alone. Special tokens are counted as servers add them: around a plain text those that
``tokenizer.json`` defines (BOS and EOS in the configuration are ignored, as by transformers), in a
conversation only those that the template writes.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Never

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from llm_locust.core.files import TOKENIZER, read_input

# --- A model's chat template, rendered as by the servers: jinja2 in the configuration of transformers
#
# A template comes with a model's files and is not trusted: it runs in jinja2's sandbox.


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
            raise ChatTemplateError(f"line {e.lineno} of the chat template: {_chat_template_line(e)}") from e

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Render the model's input for ``messages``, up to the start of its answer.

        Raises:
            ChatTemplateError: the template rejects them, or fails.
        """
        try:
            return self._template.render(
                messages=list(messages),
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            )
        # The template's own code can fail in any way.
        except Exception as e:
            raise ChatTemplateError(
                f"the chat template does not take these messages: {_chat_template_line(e)}"
            ) from e


def _chat_template_line(e: Exception) -> str:
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


_EXPECTED = "expected a Hugging Face folder with tokenizer.json, or such a file"

_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class TokenizerError(ValueError):
    """A path without a usable tokenizer, or text that it cannot count; one line."""


@dataclass(frozen=True, slots=True)
class PromptTokenizer:
    """A tokenizer with its chat template. Make one with :func:`load_tokenizer`.

    Counting releases the GIL, so that it does not block other threads.
    """

    path: str
    tokenizer: Tokenizer = field(compare=False, repr=False)
    template: ChatTemplate | None = field(default=None, compare=False, repr=False)

    def count(self, text: str, *, special: bool = False) -> int:
        """Tokens of ``text``; with ``special`` including those added around a completion's prompt."""
        # encode() would hold the GIL: 8 ms for 4,000 tokens.
        return len(self.tokenizer.encode_batch_fast([text], add_special_tokens=special)[0])

    def count_all(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text, without special ones."""
        return [len(e) for e in self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    @property
    def knows_chat(self) -> bool:
        """Whether there is a chat template, so that :meth:`count_chat` can count."""
        return self.template is not None

    def count_chat(self, messages: Sequence[Mapping[str, Any]]) -> int:
        """Tokens of the model's input for a conversation, including the start of its answer.

        Text parts of one message are put on separate lines, as servers do for templates that take text.

        Raises:
            TokenizerError: no chat template, one that rejects the messages, or a part that is not text.
        """
        if self.template is None:
            raise TokenizerError(
                f"{self.path!r} has no chat template: expected one in tokenizer_config.json, "
                "or chat_template.jinja next to it"
            )
        try:
            return self.count(self.template.render([_plain(message) for message in messages]))
        except ChatTemplateError as e:
            raise TokenizerError(f"{self.path!r}: {e}") from e


def _plain(message: Mapping[str, Any]) -> Mapping[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    texts = []
    for part in content:
        if not isinstance(part.get("text"), str):
            kind = part.get("type")
            raise TokenizerError(f"the tokens of a message part of type {kind!r} cannot be counted")
        texts.append(part["text"])
    return {**message, "content": "\n".join(texts)}


def load_tokenizer(path: str | Path) -> PromptTokenizer:
    """Load the tokenizer at ``path``.

    Raises:
        TokenizerError: there is none, or one of its files is invalid.
    """
    place = Path(path)
    folder = place if place.is_dir() else place.parent
    file = place / "tokenizer.json" if place.is_dir() else place
    text = _read(file)
    if text is None:
        raise TokenizerError(f"tokenizer file {str(file)!r} does not exist; {_EXPECTED}")
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as e:  # the library raises Exception itself
        raise TokenizerError(f"{file} is not a tokenizer: {_line(e)}; {_EXPECTED}") from e
    # A file may contain the limits of its training: counts would stop there.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if not place.is_dir():
        return PromptTokenizer(str(path), tokenizer)
    config = _read_object(folder / "tokenizer_config.json")
    tokens = _special_tokens({**_read_object(folder / "special_tokens_map.json"), **config})
    return PromptTokenizer(str(path), tokenizer, _template(folder, _template_source(folder, config), tokens))


def _read(file: Path) -> str | None:
    try:
        return read_input(file, TOKENIZER).decode() if os.path.lexists(file) else None
    except UnicodeDecodeError as e:
        raise TokenizerError(f"{TOKENIZER.name} {str(file)!r}: cannot be read: {e}; {_EXPECTED}") from e
    except ValueError as e:  # also of a path with a null byte
        raise TokenizerError(f"{e}; {_EXPECTED}") from e


def _read_object(file: Path) -> dict[str, Any]:
    text = _read(file)
    try:
        value = {} if text is None else json.loads(text)
    except (ValueError, RecursionError) as e:
        raise TokenizerError(f"{file} is not JSON: {_line(e)}") from e
    if not isinstance(value, dict):
        raise TokenizerError(f"{file}: expected a JSON object")
    return value


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Texts of the special tokens by name; each is a text, or an object with ``content``."""
    found = {}
    for name in _TOKEN_NAMES:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found


def _template_source(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The template for conversations. A file takes precedence over the configuration."""
    own = _read(folder / "chat_template.jinja")
    if own is not None:
        return own
    value = config.get("chat_template")
    if value is None:
        value = _read_object(folder / "chat_template.json").get("chat_template")
    for item in value if isinstance(value, list) else [{"name": "default", "template": value}]:
        if isinstance(item, dict) and item.get("name") == "default" and isinstance(item.get("template"), str):
            return str(item["template"])
    return None


def _template(folder: Path, source: str | None, tokens: Mapping[str, str]) -> ChatTemplate | None:
    try:
        return None if source is None else ChatTemplate(source, tokens)
    except ChatTemplateError as e:
        raise TokenizerError(f"{folder}: {e}") from e


def _line(e: Exception) -> str:
    return " ".join(str(e).split())[:160]
