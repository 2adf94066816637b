"""Header lines of requests: what a user may set, and templates that are filled for each request.

``{session}`` in a value, or another of :data:`HEADER_FIELDS`, is filled in; ``{{`` stands for a brace
itself. Braces around anything that is not a word are as they stand, so that JSON needs no care. No
error text shows a value: it may be a secret.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: What may stand in braces in a header's value.
HEADER_FIELDS = ("class", "name", "request_id", "seq", "session", "turn", "user", "worker")

#: Names that are each request's own, in lower case, and why.
RESERVED = {
    "connection": "say by --connection-reuse how long connections are kept",
    "content-length": "it is each body's own",
    "transfer-encoding": "a body is sent whole, with its length",
    "x-request-id": "it is each request's own; put {request_id} into a header of another name",
}

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_WORD = r"[A-Za-z_][\w-]*"
_BRACES = re.compile(rf"\{{\{{(?:({_WORD})\}}\}})?|\{{({_WORD})\}}", re.ASCII)
_NOT_SENDABLE = re.compile(r"[^ -~]")


class HeaderError(ValueError):
    """A header that cannot be sent; the text names it, and never shows its value."""


@dataclass(frozen=True, slots=True)
class HeaderTemplate:
    """A header's name, and its value in pieces: text and a field's name by turns, text at both ends."""

    name: str
    pieces: tuple[str, ...]

    @property
    def fixed(self) -> bool:
        """The value is the same in every request."""
        return len(self.pieces) == 1

    @property
    def texts(self) -> tuple[str, ...]:
        """What of the value is the same in every request."""
        return self.pieces[::2]

    def value(self, fields: Mapping[str, str]) -> str:
        """The value for one request. What no header can hold of a field becomes ``?``."""
        pieces = list(self.pieces)
        pieces[1::2] = [_NOT_SENDABLE.sub("?", fields[name]) for name in self.pieces[1::2]]
        return "".join(pieces)


def shown_name(text: str) -> str:
    """A header's name for an error text: only what is before a colon or blank, as what is behind may be its
    value."""
    name = _NAME.match(text.strip())
    if name is None or name[0] == text:
        return "what is there" if name is None else repr(name[0][:40])
    return f"what begins with {name[0][:40]!r}"


def header_template(name: str, value: str) -> HeaderTemplate:
    """A header as its user writes it.

    Raises:
        HeaderError: a name or a value that no header can have, a reserved name, an unknown field.
    """
    if not _NAME.fullmatch(name):
        raise HeaderError(f"{shown_name(name)} is no header name: write NAME=VALUE, such as X-Team=inference")
    if why := RESERVED.get(name.lower()):
        raise HeaderError(f"the header {name!r} cannot be set: {why}")
    if not all((" " <= c <= "\xff" and c != "\x7f") or c == "\t" for c in value):
        raise HeaderError(f"the value of {name!r} holds a line break or a character that no header can hold")
    pieces, text, end = [], "", 0
    for found in _BRACES.finditer(value):
        text += value[end : found.start()]
        end = found.end()
        field = found[2]
        if field is None:
            text += f"{{{found[1]}}}" if found[1] else "{"
        elif field in HEADER_FIELDS:
            pieces += [text, field]
            text = ""
        else:
            raise HeaderError(
                f"the value of {name!r} has in braces, at character {found.start() + 1}, a word that is no "
                f"field; there are {', '.join(f'{{{f}}}' for f in HEADER_FIELDS)}; "
                "write {{ for a brace itself"
            )
    return HeaderTemplate(name, (*pieces, text + value[end:]))


def header_templates(headers: Mapping[str, str]) -> dict[str, HeaderTemplate]:
    """By name in lower case; of two that differ only in case the later one counts (raises HeaderError)."""
    return {name.lower(): header_template(name, value) for name, value in headers.items()}


def secret_texts(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Texts of the values that must not stand in any file, log or page.

    Of ``Authorization: Bearer TOKEN`` the token alone too; of a template what stands around its fields.
    A text of under four characters would blank out half of every message.
    """
    texts = [(name, text) for name, t in header_templates(headers).items() for text in t.texts]
    tokens = [text.split()[-1] for name, text in texts if name.endswith("authorization") and text.strip()]
    return tuple(text for text in (*(text for _, text in texts), *tokens) if len(text) >= 4)


def header_lines(headers: Iterable[tuple[str, str]]) -> bytes:
    """Names and values as the lines of a head."""
    return "".join(f"{name}: {value}\r\n" for name, value in headers).encode("latin-1")


def as_last(request: bytes) -> bytes:
    """The same request, marked as the last one of its connection (RFC 9112, 9.6)."""
    return request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
