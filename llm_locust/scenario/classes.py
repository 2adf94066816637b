"""The ``classes`` of a scenario, and what they take from its top level and from presets."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from llm_locust.metrics.requests.slo import parse_slo
from llm_locust.scenario import forms, readers, values
from llm_locust.scenario.presets import PRESETS, Preset
from llm_locust.scenario.tree import Fields, Items, Node, Scalar, ScenarioError, TreeKey
from llm_locust.scenario.values import Context, Key, one_of
from llm_locust.wire.dialects.table import DIALECTS
from llm_locust.wire.headers import HEADER_FIELDS
from llm_locust.workload.lengths.tokens import parse_lengths
from llm_locust.workload.parts import TrafficClass

preset = values.word(*PRESETS)

A_PRESET = "a [preset](#presets)"

_HEADERS = (
    f"per request; {', '.join(f'`{{{word}}}`' for word in HEADER_FIELDS)} are filled in, `{{{{` is a brace; "
    'other words in braces are an error, everything else (`{"a":1}`) is kept as it is'
)

#: Keys that the top level gives to every class, unless the class says otherwise; no options of the run.
SHARED: Mapping[str, Key] = {
    "endpoint": Key(readers.endpoint, "a name", one_of(DIALECTS, "chat")),
    "inputs": Key(
        readers.lengths,
        "[lengths](#lengths)",
        "texts of an embeddings request (default 1), documents of a rerank request (default 10); each has "
        "`input_tokens`",
    ),
    "stream": Key(forms.truth, "true or false", "ask for a stream (default)"),
    "images": Key(readers.images, "[mapping](#images)", "images of noise in every prompt"),
    "shared_prefix": Key(
        readers.shared_prefix, "[mapping](#shared_prefix)", "prefixes shared by many prompts"
    ),
    "unique_head": Key(
        forms.truth,
        "true or false",
        "every prompt starts with unique words (default), so that no prefix cache helps",
    ),
    "models": Key(
        readers.models,
        "text, or list or mapping of names",
        "models or adapters that requests ask for: `lora-a`, `{base: 1, lora-a: 2}` with weights, "
        "`zipf:1.1 base,lora-a`, `round_robin lora-a,lora-b`; a conversation keeps its model (default: "
        "`model`)",
    ),
    "headers": Key(readers.headers, "mapping", _HEADERS),
    "conversation": Key(readers.conversation, "[mapping](#conversation)", "requests that follow each other"),
    "validators": Key(readers.validators, "[list](#validators)", "conditions that an answer must meet"),
    "expected": Key(
        readers.expected,
        "word, or [mapping](#expected)",
        "how answers are compared with those that the dataset expects",
    ),
}

#: Keys that only a class takes, or that its own table explains.
OF_CLASSES: Mapping[str, Key] = {
    "name": Key(readers.name, "text", "the class in the report; only in a list"),
    "request_name": Key(
        readers.name, "text", "the requests' name in Locust's statistics (default: the class's name)"
    ),
    "weight": Key(
        readers.weight,
        "number ≥ 0",
        "its share of the run's load is weight / sum of weights (default 1)",
    ),
    "rate": Key(
        readers.rate,
        "text",
        "its own arrival rate, in the form of `request_rate`. Either all classes have a rate, and the run "
        "has no `request_rate`, or none has",
    ),
    "preset": Key(preset, A_PRESET, "lengths and limits that the class does not set itself"),
    "input_tokens": Key(readers.lengths, "[lengths](#lengths)", "as at the top level"),
    "output_tokens": Key(readers.lengths, "[lengths](#lengths)", "as at the top level"),
    "dataset": Key(
        readers.dataset,
        "path, or [mapping](#dataset)",
        "not together with `input_tokens`; replaces a preset's lengths",
    ),
    "body": Key(readers.body, "mapping", "merged over the run's `body`, field by field"),
    "slo": Key(readers.slo, "limits", "instead of the run's"),
}

#: Everything that a class takes.
CLASS_KEYS: Mapping[str, Key] = {**OF_CLASSES, **SHARED}


def sole_class(shared: Mapping[str, Any]) -> tuple[TrafficClass, ...]:
    """The class of a scenario that has no ``classes``: nameless, as requests are without a scenario."""
    return (TrafficClass(name="", request_name="", **shared, inherited=frozenset(shared)),)


def with_options(classes: Iterable[TrafficClass], given: Mapping[str, Any]) -> tuple[TrafficClass, ...]:
    """The classes with what options say in place of what the top level gave to them.

    Args:
        given: keys of classes that are options, too; None: not given.
    """
    said = {key: value for key, value in given.items() if value is not None}
    return tuple(
        replace(found, **{key: value for key, value in said.items() if key in found.inherited})
        for found in classes
    )


def read_classes(node: Node, shared: Mapping[str, Any], context: Context) -> tuple[TrafficClass, ...]:
    """The classes of a list, or of a mapping whose keys are their names.

    Raises:
        ScenarioError: none, two of one name, weights and rates mixed, or no weight above 0.
    """
    classes: dict[str, TrafficClass] = {}
    for key, item in _items(node):
        entries = values.known(item, "class" if key is None else f"class {key!r}", CLASS_KEYS)
        found = _class(key, item, entries, shared, context)
        if found.name in classes:
            place = entries["name"].node.place if "name" in entries else item.place
            raise ScenarioError(place, f"the class {found.name!r} is there twice; names tell classes apart")
        _check_kind(found, item, entries, next(iter(classes.values()), None))
        classes[found.name] = found
    weights = [c.weight for c in classes.values() if c.weight is not None]
    if weights and not sum(weights):
        raise ScenarioError(node.place, "the weights of all classes are 0: give one a weight above 0")
    return tuple(classes.values())


def _items(node: Node) -> list[tuple[str | None, Node]]:
    """Each class with its name where a mapping gives it."""
    if isinstance(node, Items) and node.nodes:
        return [(None, item) for item in node.nodes]
    if isinstance(node, Fields) and node.entries:
        return [
            (values.printable(Scalar(name, entry.key), "name"), entry.node)
            for name, entry in node.entries.items()
        ]
    raise values.wrong(node, "classes", "a list of at least one class, or a mapping of names to classes")


def _class(
    key: str | None, node: Node, entries: Mapping[str, TreeKey], shared: Mapping[str, Any], context: Context
) -> TrafficClass:
    own = values.read_entries(entries, CLASS_KEYS, context)
    if key is None and "name" not in own:
        raise ScenarioError(node.place, "the class lacks 'name'")
    if key is not None and "name" in own:
        raise ScenarioError(
            entries["name"].key,
            f"the class has its name, {key!r}, already; its requests' name is request_name",
        )
    own.setdefault("name", key)
    if "dataset" in own and "input_tokens" in own:
        raise ScenarioError(
            entries["input_tokens"].key,
            "input_tokens beside a dataset, whose prompts have lengths of their own",
        )
    if "weight" in own and "rate" in own:
        raise ScenarioError(entries["rate"].key, "both weight and rate; a class has one of the two")
    headers = {**shared.get("headers", {}), **own.get("headers", {})}
    filled = {**_of_preset(own), **shared, **own, "headers": headers}
    filled.setdefault("request_name", filled["name"])
    inherited = frozenset(shared.keys() - own.keys())
    return TrafficClass(**filled | ({"weight": None} if "rate" in own else {}), inherited=inherited)


def _of_preset(own: Mapping[str, Any]) -> dict[str, Any]:
    """What the class's preset says; its lengths make way for a dataset."""
    if "preset" not in own:
        return {}
    found: Preset = PRESETS[own["preset"]]
    limits = {"slo": parse_slo(found.slo)}
    if "dataset" in own:
        return limits
    return {
        "input_tokens": parse_lengths(found.input_tokens),
        "output_tokens": parse_lengths(found.output_tokens),
        **limits,
    }


def _check_kind(
    found: TrafficClass, node: Node, entries: Mapping[str, TreeKey], first: TrafficClass | None
) -> None:
    if first is None or (found.rate is None) == (first.rate is None):
        return
    key, other = ("weight", "a rate") if found.rate is None else ("rate", "a weight")
    place = entries[key].key if key in entries else node.place
    raise ScenarioError(
        place,
        f"class {found.name!r} has a {key}, class {first.name!r} {other}: "
        "either all classes have a rate or none has, a class without both having weight 1",
    )
