"""What a scenario file says, as a tree in which every key and value knows its place."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm_locust.wire.names import one_line

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
