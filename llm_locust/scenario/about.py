"""Where a scenario comes from: ``about`` at its top level."""

from collections.abc import Mapping
from dataclasses import dataclass

from llm_locust.scenario import forms, values
from llm_locust.scenario.tree import Items, Node
from llm_locust.scenario.values import Context, Key


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Where a scenario comes from: one line on what it is, its ``source``, the day on which its figures were
    compared with that, gates that the source sets for each load (``limits``: a sweep has none of its own),
    and in what a run with it ``differs`` from what the source asks for."""

    title: str
    source: str = ""
    date: str = ""
    limits: str = ""
    differs: tuple[str, ...] = ()


def read_about(node: Node, name: str, context: Context) -> About:
    return About(**values.read(node, name, ABOUT, context, required=("title",)))


def _line(node: Node, name: str, context: Context) -> str:
    found = values.text(node, name).strip()
    if not found.isprintable():
        raise values.wrong(node, name, "one line of printable characters")
    return found


def _lines(node: Node, name: str, context: Context) -> tuple[str, ...]:
    nodes = node.nodes if isinstance(node, Items) else (node,)
    return tuple(_line(item, name, context) for item in nodes)


ABOUT: Mapping[str, Key] = {
    "title": Key(_line, "text", "one line; required"),
    "source": Key(_line, "text", "where the figures are from"),
    "date": Key(_line, "text", "when they were compared with the source"),
    "limits": Key(
        forms.GATES.read,
        "gates",
        "of each load, where the run has several: for `llm-locust report RUN --where stage==N --gate ...`",
    ),
    "differs": Key(
        _lines,
        "text, or list of texts",
        "in what a run with the file differs from what the source asks for",
    ),
}
