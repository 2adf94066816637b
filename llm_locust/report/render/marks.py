"""Foreign text and marks in Markdown."""

import re

from llm_locust.report.section import Tone

MARKS = {Tone.GOOD: "✅ ", Tone.WARN: "⚠️ ", Tone.BAD: "❌ "}

#: What Markdown or HTML takes for its own; an underscore inside a word is not.
_SPECIAL = re.compile(r"[\\`*\[\]<>|~#&]|(?<!\w)_|_(?!\w)")


def escaped(text: str) -> str:
    """Our own text: nothing in it is markup."""
    return _SPECIAL.sub(r"\\\g<0>", text)


def code(text: str) -> str:
    """Foreign text as a code span, its fence longer than any run of backticks in the text."""
    fence = "`" * (1 + max(map(len, re.findall(r"`+", text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"
