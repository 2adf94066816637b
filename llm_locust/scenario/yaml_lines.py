"""YAML as a tree in which every key and value knows its place, so that an error can point at it.

Plain scalars are those of JSON: ``true``, ``false``, ``null``, decimal numbers. Everything else is
a text, also what YAML 1.1 makes of it otherwise: ``no``, ``1:30``, ``0x10``, ``2026-01-31``. No object
is ever constructed, a key stands once in its mapping, and anchors and merge keys (``<<``) are
resolved, within :data:`MAX_SIZE` and :data:`MAX_DEPTH`.
"""

import math
import re
from pathlib import Path
from typing import Any

import yaml

from llm_locust.core.input_files import SETTINGS, InputError, read_input
from llm_locust.scenario.tree import Fields, Items, Node, Place, Plain, Scalar, ScenarioError, TreeKey

#: Characters of all scalars, and eight for every value, once aliases are replaced by what they stand for.
MAX_SIZE = 1 << 20

#: Lists and mappings inside one another.
MAX_DEPTH = 40


def read_text(path: str) -> str:
    """The text of a file in UTF-8, without its byte order mark.

    Raises:
        ScenarioError: it cannot be read, is larger than :data:`~llm_locust.core.input_files.SETTINGS`, or is
            not UTF-8.
    """
    try:
        raw = read_input(Path(path), SETTINGS)
    except InputError as e:
        advice = "; prompts belong into files of their own" if "longer" in e.why else ""
        raise ScenarioError(Place(path), f"{e.why}{advice}") from e
    try:
        return raw.decode()
    except UnicodeDecodeError as e:
        before = raw[: e.start].decode("utf-8", "replace")
        raise ScenarioError(
            _place_after(path, before), f"byte 0x{raw[e.start]:02x} is not UTF-8; save the file as UTF-8"
        ) from e


def parse_yaml(text: str, path: str) -> Node:
    """The tree of the one document in ``text``; ``path`` names it in places.

    Raises:
        ScenarioError: broken YAML, a key that is there twice or is no text, a tag, or out of bounds.
    """
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as e:
        place = _place_after(path, text[: e.position])
        raise ScenarioError(place, f"the character {chr(int(e.character))!r} is not allowed") from e
    try:
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as e:
        raise _broken(path, e) from e
    except (ValueError, OverflowError) as e:  # a number in an escape or a directive that is out of all bounds
        raise ScenarioError(_place(path, loader.get_mark()), f"broken YAML: {e}") from e
    if root is None:
        raise ScenarioError(Place(path, 1, 1), "nothing in it; expected keys such as model, slo or classes")
    return _Converter(path).node(root, 1)


_NUMBER = r"[-+]?(?:[0-9]{1,300}(?:\.[0-9]{0,300})?|\.[0-9]{1,300})(?:[eE][-+]?[0-9]{1,3})?"
_INTEGER = r"[-+]?[0-9]{1,300}"
_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, used up to the composed nodes, with JSON's plain scalars."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (its base's own)

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=_TOO_DEEP, problem_mark=mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


_TOO_DEEP = f"lists and mappings inside one another, deeper than {MAX_DEPTH}"

for _name, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("number", _NUMBER, "-+.0123456789"),
    ("merge", "<<", "<"),
):
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(rf"(?:{_pattern})\Z"), list(_first))


def _broken(path: str, error: yaml.MarkedYAMLError) -> ScenarioError:
    """The place of the problem, and where that began which was being read."""
    mark = error.problem_mark or error.context_mark
    begun = f" (line {error.context_mark.line + 1})" if error.context_mark else ""
    what = ", ".join(filter(None, (error.context and error.context + begun, error.problem)))
    if "'\\t'" in what:
        what += "; indent with spaces"
    return ScenarioError(Place(path, 1, 1) if mark is None else _place(path, mark), f"broken YAML: {what}")


def _place(path: str, mark: Any) -> Place:
    return Place(path, mark.line + 1, mark.column + 1)


def _place_after(path: str, before: str) -> Place:
    line_start = before.rfind("\n") + 1
    return Place(path, before.count("\n") + 1, len(before) - line_start + 1)


class _Converter:
    """Composed nodes to the tree, counting what it makes: aliases can ask for any amount."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._size = 0

    def node(self, node: yaml.Node, depth: int) -> Node:
        place = _place(self._path, node.start_mark)
        self._size += 8 + (len(node.value) if isinstance(node, yaml.ScalarNode) else 0)
        if self._size > MAX_SIZE:
            raise ScenarioError(place, f"with its aliases replaced, the file is larger than {MAX_SIZE:,}")
        if depth > MAX_DEPTH:
            raise ScenarioError(place, _TOO_DEEP)
        if isinstance(node, yaml.ScalarNode):
            return Scalar(_scalar(node, place), place)
        kind = "seq" if isinstance(node, yaml.SequenceNode) else "map"
        if node.tag != _TAG + kind:
            raise ScenarioError(place, f"the tag {_shown(node.tag)} is not allowed; leave it out")
        if isinstance(node, yaml.SequenceNode):
            return Items(tuple(self.node(item, depth + 1) for item in node.value), place)
        return self._fields(node, place, depth)

    def _fields(self, node: yaml.Node, place: Place, depth: int) -> Fields:
        own: dict[str, TreeKey] = {}
        merged: dict[str, TreeKey] = {}
        for key, value in node.value:
            key_place = _place(self._path, key.start_mark)
            name = _key(key, key_place)
            merges = key.tag == _TAG + "merge"
            if name in own or (merges and merged):
                raise ScenarioError(key_place, f"the key {_shown(name)} is there twice")
            if merges:
                merged = self._merged(self.node(value, depth + 1))
            else:
                own[name] = TreeKey(key_place, self.node(value, depth + 1))
        return Fields({**merged, **own}, place)

    def _merged(self, source: Node) -> dict[str, TreeKey]:
        """What ``<<`` brings; of several mappings the first that has a key gives its value."""
        mappings = source.nodes if isinstance(source, Items) else (source,)
        entries: dict[str, TreeKey] = {}
        for mapping in mappings:
            if not isinstance(mapping, Fields):
                raise ScenarioError(
                    mapping.place, "<< takes a mapping or a list of mappings, such as *anchor"
                )
            for name, entry in mapping.entries.items():
                entries.setdefault(name, entry)
        return entries


def _key(node: yaml.Node, place: Place) -> str:
    if not isinstance(node, yaml.ScalarNode) or _scalar(node, place) is None:
        raise ScenarioError(place, "a key must be a text")
    return str(node.value)


def _scalar(node: yaml.ScalarNode, place: Place) -> Plain:
    text = node.value
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise ScenarioError(place, f"{_shown(text)} has half a surrogate pair; write the character itself")
    match node.tag.removeprefix(_TAG):
        case "str" | "merge":
            return str(text)
        case "null":
            return None
        case "bool":
            return str(text).lower() == "true"
        case "number" | "int" | "float" if (number := _number(text)) is not None:
            return number
        case "number":
            return str(text)
    raise ScenarioError(place, f"the tag {_shown(node.tag)} of {_shown(text)} is not allowed; leave it out")


def _number(text: str) -> int | float | None:
    if re.fullmatch(_INTEGER, text):
        return int(text)
    number = float(text) if re.fullmatch(_NUMBER, text) else math.inf
    return number if math.isfinite(number) else None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "…")
