"""Texts of the form ``name op value name op value ...``, and errors with the position of a word."""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

_TERM = re.compile(r"[\s,]*(?P<name>[^\s,<>=!]*)\s*(?P<op>[<>=!]*)\s*")
_VALUE = re.compile(r"[^\s,<>=!]*")


@dataclass(frozen=True, slots=True)
class Word:
    """A part of a text with the position of its first character, counted from 1."""

    text: str
    position: int

    def pointed(self, why: str) -> str:
        """Error line: where the word is, the word, and ``why`` it is wrong."""
        return f'at character {self.position}, "{self.text}": {why}' if self.text else self._lacking(why)

    def _lacking(self, why: str) -> str:
        return f"at character {self.position}: {why}"


@dataclass(frozen=True, slots=True)
class Term:
    """One ``name op value``. A missing part is an empty word at the position where it belongs."""

    name: Word
    op: Word
    value: Word

    @property
    def text(self) -> str:
        return self.name.text + self.op.text + self.value.text


def split_terms(text: str) -> list[Term]:
    """Split ``text`` into terms. Terms are separated by spaces or commas; spaces may surround an operator."""
    terms, at, end = [], 0, len(text)
    while end and (text[end - 1] == "," or text[end - 1].isspace()):
        end -= 1
    while at < end:
        head = _TERM.match(text, at)
        assert head is not None  # every part of the pattern may be empty
        op = Word(head["op"], (head.start("op") if head["op"] else head.end("name")) + 1)
        # Without an operator, the next word belongs to the next term, not to this one.
        value = _VALUE.match(text, head.end()) if head["op"] else None
        found = value[0] if value else ""
        after = head.end("op") if head["op"] else head.end("name")
        value_at = head.end() if found else after
        terms.append(Term(Word(head["name"], head.start("name") + 1), op, Word(found, value_at + 1)))
        at = value_at + len(found)
    return terms


def nearest(word: str, known: Iterable[str]) -> str:
    """Suggestion ``did you mean "x"? ``, or an empty text if no known word is similar."""
    matches = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.5)
    return f'did you mean "{matches[0]}"? ' if matches else ""


def named_values(words: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """The words of the form ``KEY=VALUE`` by key, and the others (raises ValueError for a repeated key)."""
    named: dict[str, str] = {}
    others = []
    for word in words:
        key, equals, value = word.strip().partition("=")
        if not equals:
            others.append(word)
        elif key in named:
            raise ValueError(f"{key}= is given twice, with {named[key]!r} and {value!r}; leave one out")
        else:
            named[key] = value
    return named, others


def listed(words: Iterable[str]) -> str:
    return ", ".join(words)
