"""Names that a server gives to itself, and other foreign text, made fit for records, tables and lines."""

import re

from llm_locust.wire.payload import well_formed

#: Most characters of a name.
MAX_NAME_CHARS = 200

#: Of a line longer than this the middle is left out.
_MAX_LINE_CHARS = 2_000
_MAX_LINE_END_CHARS = 500

#: Control characters, and those that turn the direction of the text around them.
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def clean_name(text: str) -> str:
    """A name without control characters, each of which becomes U+FFFD, of at most 200 characters."""
    text = well_formed(text[: MAX_NAME_CHARS + 1])
    if not text.isprintable():
        text = CONTROL.sub("\ufffd", text)
    return text if len(text) <= MAX_NAME_CHARS else text[: MAX_NAME_CHARS - 1] + "…"


def one_line(text: str) -> str:
    """Text with foreign parts as one printable line: other characters are escaped, its length is bounded."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    if len(text) > _MAX_LINE_CHARS:
        text = f"{text[: _MAX_LINE_CHARS - _MAX_LINE_END_CHARS - 1]}…{text[-_MAX_LINE_END_CHARS:]}"
    return text
