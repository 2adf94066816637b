"""The ``arms`` of a scenario: names, and in what the requests of each differ."""

from collections.abc import Mapping
from typing import Any

from llm_locust.deployment.arms import PREFIXES, Arm, ArmError, checked_name, checked_url
from llm_locust.scenario import readers, values
from llm_locust.scenario.tree import Node, Scalar, ScenarioError, TreeKey
from llm_locust.scenario.values import Context, Key
from llm_locust.wire.dialects.dialect import LIMIT_FIELDS
from llm_locust.wire.headers import HeaderError, header_template
from llm_locust.wire.secrecy import is_variable


def read_arms(node: Node, name: str, context: Context) -> tuple[Arm, ...]:
    """The arms of a mapping whose keys are their names."""
    entries = values.mapping(node, name, "a mapping of names to arms, as {cold: {prefix: cold}}").entries
    return tuple(_arm(key, entry, context) for key, entry in entries.items())


def _arm(name: str, entry: TreeKey, context: Context) -> Arm:
    try:
        checked_name(name)
    except ArmError as e:
        raise ScenarioError(entry.key, f"arms: {e}") from e
    node = entry.node
    plain = isinstance(node, Scalar) and node.value is None  # a name alone: as the run is
    return Arm(name, **({} if plain else values.read(node, f"arm {name!r}", ARM, context)))


def _url(node: Node, name: str, context: Context) -> str:
    found = values.text(node, name, "a URL such as http://HOST:8000")
    return values.checked(checked_url, name, found.strip(), node.place)


def _share(node: Node, name: str, context: Context) -> float:
    return values.number(node, name, 0.001, 1000)


def _path(node: Node, name: str, context: Context) -> str:
    found = values.printable(node, name)
    if not found.startswith("/") or not found.isascii() or set(found) & set(" ?#"):
        raise values.wrong(node, name, "a path such as /chat/completions")
    return found


def _body(node: Node, name: str, context: Context) -> dict[str, Any]:
    found = readers.body(node, name, context)
    for field, instead in {"model": "the key model", **dict.fromkeys(LIMIT_FIELDS, "output_tokens")}.items():
        if field in found:
            raise ScenarioError(node.place, f"the body of an arm cannot set {field!r}: use {instead}")
    return found


def _header_env(node: Node, name: str, context: Context) -> dict[str, str]:
    """Header -> variable. No message shows a value, which may be a secret by mistake."""
    allowed = "a mapping of header names and environment variables"
    found: dict[str, str] = {}
    for header, entry in values.mapping(node, name, allowed).entries.items():
        try:
            header_template(header, "")
        except HeaderError as e:
            raise ScenarioError(entry.key, str(e)) from e
        if not isinstance(entry.node, Scalar) or not is_variable(entry.node.text):
            raise ScenarioError(entry.node.place, f"{name}: {header!r} is not the name of a variable")
        found[header.lower()] = entry.node.text
    return found


#: What is said of an arm.
ARM: Mapping[str, Key] = {
    "url": Key(_url, "URL", "where its requests go (default: the run's `host`); two arms may have the same"),
    "share": Key(_share, "number", "of the requests, in proportion to the other arms' (default 1)"),
    "model": Key(readers.name, "text", "the model that it is asked for"),
    "path": Key(
        _path, "path", "in place of the endpoint's own, below the base of the API: `/chat/completions`"
    ),
    "headers": Key(readers.headers, "mapping", "over those of the same name; templates as those of a class"),
    "header_env": Key(
        _header_env, "mapping", "header names, and the environment variables that hold their values"
    ),
    "body": Key(_body, "mapping", "merged over the body, field by field; `null` leaves a field out"),
    "prefix": Key(
        values.word(*PREFIXES),
        "a name",
        "`cold`: every request begins with six words of its own, so that no prefix cache helps; `warm`: with "
        "six that all of them share, so that the lengths are equal (default: neither)",
    ),
}
