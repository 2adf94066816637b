"""What a scenario file says, as a tree in which every key and value knows its place."""

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml
from msgspec import Struct, field
from msgspec.structs import fields

from llm_locust.core.files import SETTINGS, InputError, read_input
from llm_locust.core.texts import listed, nearest
from llm_locust.wire.foreign_text import one_line

Plain = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands; line and column count from 1 and are None where there are none."""

    path: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return self.path if self.line is None else f"{self.path}:{self.line}:{self.column}"


class ScenarioError(ValueError):
    """A scenario that cannot be used; one line: ``FILE:LINE:COLUMN: what is wrong; what is allowed``."""

    def __init__(self, place: Place, what: str) -> None:
        super().__init__(one_line(f"{place}: {what}"))


@dataclass(frozen=True, slots=True)
class Scalar:
    value: Plain
    place: Place

    @property
    def text(self) -> str:
        """The value as a person writes it; of a number the shortest form, of null the empty text."""
        match self.value:
            case None:
                return ""
            case bool():
                return "true" if self.value else "false"
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    nodes: tuple["Node", ...]
    place: Place


@dataclass(frozen=True, slots=True)
class TreeKey:
    """A key's place, and what belongs to the key."""

    key: Place
    node: "Node"


@dataclass(frozen=True, slots=True)
class Fields:
    """A mapping, in the order of the file; what a merge key brings stands first."""

    entries: Mapping[str, TreeKey]
    place: Place


Node = Scalar | Items | Fields


def plain(node: Node) -> Any:
    """The node as text, number, truth value, None, list and dict."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Items):
        return [plain(item) for item in node.nodes]
    return {name: plain(entry.node) for name, entry in node.entries.items()}


def from_plain(value: Any, place: Place) -> Node:
    """The inverse of :func:`plain`; everything stands at ``place``."""
    if isinstance(value, dict):
        return Fields({k: TreeKey(place, from_plain(v, place)) for k, v in value.items()}, place)
    if isinstance(value, list):
        return Items(tuple(from_plain(item, place) for item in value), place)
    return Scalar(value, place)


# --- YAML as a tree in which every key and value knows its place, so that an error can point at it
#
# Plain scalars are those of JSON: ``true``, ``false``, ``null``, decimal numbers. Everything else is a
# text, also what YAML 1.1 makes of it otherwise: ``no``, ``1:30``, ``0x10``, ``2026-01-31``. No object is
# ever constructed, a key stands once in its mapping, and anchors and merge keys (``<<``) are resolved,
# within :data:`MAX_SIZE` and :data:`MAX_DEPTH`.


#: Characters of all scalars, and eight for every value, once aliases are replaced by what they stand for.
MAX_SIZE = 1 << 20

#: Lists and mappings inside one another.
MAX_DEPTH = 40


def read_text(path: str) -> str:
    """The text of a file in UTF-8, without its byte order mark.

    Raises:
        ScenarioError: it cannot be read, is larger than :data:`~llm_locust.core.files.SETTINGS`, or is
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
    return repr(_cut(text))


# --- Nodes of the file to checked values; every error points at the node, and says what is allowed


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


@dataclass(frozen=True, slots=True)
class _Left:
    """Makes the value of a key that the file leaves out."""

    key: Key
    value: Any
    required: bool

    def __call__(self) -> Any:
        return self.value


class Part(Struct, frozen=True, kw_only=True):
    """A mapping of the file: its fields are the keys."""

    @classmethod
    @cache
    def _lefts(cls) -> Mapping[str, _Left]:
        found = {each.name: each.default_factory for each in fields(cls)}
        return {name: left for name, left in found.items() if isinstance(left, _Left)}

    @classmethod
    def keys(cls) -> Mapping[str, Key]:
        """The keys of the mapping, in the order of ``docs/scenario.md``."""
        return {name: left.key for name, left in cls._lefts().items()}

    @classmethod
    def read(cls, node: Node, name: str, context: Context) -> Self:
        """The mapping at ``node`` (raises ScenarioError)."""
        required = [name for name, left in cls._lefts().items() if left.required]
        return cls(**read(node, name, cls.keys(), context, required=required))


def key(read: Reader, value: str, meaning: str, default: Any = None, *, required: bool = False) -> Any:
    """A field of a :class:`Part`: its :class:`Key`, and its value where the file leaves it out."""
    return field(default_factory=_Left(Key(read, value, meaning), default, required))


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
            return _shown(text)
    return node.text


def text(node: Node, name: str, allowed: str = "a text") -> str:
    """A text that is not blank; a number or a truth value counts as it is written."""
    if not isinstance(node, Scalar) or not node.text.strip():
        raise wrong(node, name, allowed)
    return node.text


def printable(node: Node, name: str, context: Context | None = None) -> str:
    """A name of up to 100 printable characters: it stands in tables and charts."""
    found = text(node, name).strip()
    if len(found) > 100 or not found.isprintable():
        raise wrong(node, name, "a name of up to 100 printable characters")
    return found


def truth(node: Node, name: str, context: Context) -> bool:
    if not isinstance(node, Scalar) or not isinstance(node.value, bool):
        raise wrong(node, name, "true or false")
    return node.value


def whole(least: int, most: int) -> Callable[[Node, str, Context], int]:
    """What reads a whole number in ``least`` .. ``most``."""

    def read_whole(node: Node, name: str, context: Context) -> int:
        value = node.value if isinstance(node, Scalar) else None
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise wrong(node, name, f"a whole number in {least} .. {most:,}")
        return value

    return read_whole


def number(least: float, most: float) -> Callable[[Node, str, Context], float]:
    """What reads a number in ``least`` .. ``most``."""

    def read_number(node: Node, name: str, context: Context) -> float:
        value = node.value if isinstance(node, Scalar) else None
        if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
            raise wrong(node, name, f"a number in {least:g} .. {most:,.10g}")
        return float(value)

    return read_number


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
    """A mapping. What stands there instead is not shown: where keys and headers belong, it may have one."""
    if isinstance(node, Scalar) and node.value is not None:
        raise ScenarioError(node.place, f"{name} is no mapping: allowed is {allowed}")
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
            shown = _cut(written.partition(":")[0])  # behind it may be a header's value
            raise ScenarioError(
                entry.key, f"unknown key {shown!r}; {nearest(key, names)}{name} takes {listed(names)}"
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
