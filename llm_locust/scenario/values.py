"""Nodes of the file to checked values; every error points at the node, and says what is allowed."""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from llm_locust.core.terms import listed, nearest
from llm_locust.scenario.tree import Fields, Items, Node, Place, Scalar, ScenarioError, TreeKey

T = TypeVar("T")

#: What a text is checked by; raises ValueError.
Check = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Context:
    """What readers need beside their node: the file's folder."""

    folder: str


#: A node, the key it stands under, the context -> the value.
Reader = Callable[[Node, str, Context], Any]


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the file: the reader of its value, and its row in ``docs/scenario.md``.

    Attributes:
        read: makes the value of a node, or raises ScenarioError.
        value: what the value may be, in Markdown.
        meaning: what it sets, in Markdown; a default is in it.
    """

    read: Reader
    value: str
    meaning: str

    def __call__(self, node: Node, name: str, context: Context) -> Any:
        return self.read(node, name, context)


def one_of(allowed: Iterable[str], default: str | None = None) -> str:
    """Words in Markdown, for the meaning of a key; the default is marked."""
    return ", ".join(f"`{word}`{' (default)' if word == default else ''}" for word in allowed)


def wrong(node: Node, name: str, allowed: str) -> ScenarioError:
    """The error of a value that ``name`` does not take."""
    return ScenarioError(node.place, f"{name} {shown(node)}: allowed is {allowed}")


def shown(node: Node) -> str:
    """What stands there, in short."""
    match node:
        case Fields() if not node.entries:
            return "has nothing in it"
        case Fields():
            return "is a mapping"
        case Items(nodes=()):
            return "has nothing in it"
        case Items():
            return "is a list"
        case Scalar(value=None):
            return "has no value"
        case Scalar(value=str(text)):
            return repr(text if len(text) <= 60 else text[:60] + "…")
    return node.text


def text(node: Node, name: str, allowed: str = "a text") -> str:
    """A text that is not blank; a number or a truth value counts as it is written."""
    if not isinstance(node, Scalar) or not node.text.strip():
        raise wrong(node, name, allowed)
    return node.text


def printable(node: Node, name: str) -> str:
    """A name of up to 100 printable characters: it stands in tables and charts."""
    found = text(node, name).strip()
    if len(found) > 100 or not found.isprintable():
        raise wrong(node, name, "a name of up to 100 printable characters")
    return found


def truth(node: Node, name: str) -> bool:
    if not isinstance(node, Scalar) or not isinstance(node.value, bool):
        raise wrong(node, name, "true or false")
    return node.value


def whole(node: Node, name: str, least: int, most: int) -> int:
    """A whole number in ``least`` .. ``most``."""
    value = node.value if isinstance(node, Scalar) else None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise wrong(node, name, f"a whole number in {least} .. {most:,}")
    return value


def number(node: Node, name: str, least: float, most: float) -> float:
    """A number in ``least`` .. ``most``."""
    value = node.value if isinstance(node, Scalar) else None
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        raise wrong(node, name, f"a number in {least:g} .. {most:,.10g}")
    return float(value)


def word(*allowed: str) -> Reader:
    """What reads one of the ``allowed`` words."""

    def read_word(node: Node, name: str, context: Context) -> str:
        found = text(node, name, listed(allowed))
        if found not in allowed:
            suggestion = f"{nearest(found, allowed)}allowed is one of {listed(allowed)}"
            raise ScenarioError(node.place, f"{name} {shown(node)}: {suggestion}")
        return found

    return read_word


def texts(node: Node, name: str) -> list[str]:
    """A text, or a list of texts."""
    nodes = node.nodes if isinstance(node, Items) else (node,)
    return [text(item, name, "a text or a list of texts") for item in nodes]


def mapping(node: Node, name: str, allowed: str) -> Fields:
    if not isinstance(node, Fields):
        raise wrong(node, name, allowed)
    return node


def known(node: Node, name: str, keys: Iterable[str]) -> dict[str, TreeKey]:
    """The entries of a mapping whose keys must be among ``keys``; a dash counts as an underscore.

    Raises:
        ScenarioError: no mapping, an unknown key, or one that is there twice.
    """
    names = list(keys)
    found: dict[str, TreeKey] = {}
    for written, entry in mapping(node, name, f"a mapping of {listed(names)}").entries.items():
        key = written.replace("-", "_")
        if key not in names:
            raise ScenarioError(
                entry.key, f"unknown key {_cut(written)!r}; {nearest(key, names)}{name} takes {listed(names)}"
            )
        if key in found:
            raise ScenarioError(entry.key, f"the key {written!r} is there twice, once with a dash")
        found[key] = entry
    return found


def read_entries(
    entries: Mapping[str, TreeKey], keys: Mapping[str, Reader], context: Context
) -> dict[str, Any]:
    """The values of those entries that are among ``keys``."""
    return {key: keys[key](entry.node, key, context) for key, entry in entries.items() if key in keys}


def read(
    node: Node, name: str, keys: Mapping[str, Reader], context: Context, *, required: Iterable[str] = ()
) -> dict[str, Any]:
    """The values of a mapping that has all ``required`` of ``keys``, and no others."""
    entries = known(node, name, keys)
    for key in required:
        if key not in entries:
            raise ScenarioError(node.place, f"{name} lacks {key!r}")
    return read_entries(entries, keys, context)


def checked(parse: Callable[[str], T], name: str, text: str, place: Place) -> T:
    """The value that ``parse`` makes of ``text``; its error text is led by ``name``, once."""
    try:
        return parse(text)
    except ValueError as e:
        said = str(e)
        led = said if said.lower().startswith(name.replace("_", " ")) else f"{name}: {said}"
        raise ScenarioError(place, led) from e


def path(node: Node, name: str, context: Context) -> str:
    """The path of something that exists, given from the folder of the file.

    ``""`` as folder leaves it relative to the working directory, as the scenario's own path is.
    """
    given = text(node, name, "the path of a file")
    joined = os.path.join(context.folder, given)
    if "\0" in joined or not os.path.exists(joined):
        raise ScenarioError(
            node.place, f"{name} {given!r}: there is no such file; paths start at the scenario's folder"
        )
    return joined


_FILE_FORM = re.compile(r"\s*(?P<kind>file|trace):(?P<path>.*)", re.DOTALL)


def with_file(node: Node, name: str, context: Context) -> str:
    """A text that may be ``file:PATH`` or ``trace:PATH``, whose path then starts at the file's folder."""
    given = text(node, name)
    match = _FILE_FORM.fullmatch(given)
    if match is None or not match["path"].strip():
        return given
    return f"{match['kind']}:{path(Scalar(match['path'].strip(), node.place), name, context)}"


def _cut(word: str) -> str:
    return word if len(word) <= 60 else word[:60] + "…"
