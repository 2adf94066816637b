"""The ``classes`` of a scenario, and what they take from its top level and from presets."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from msgspec.structs import replace

from llm_locust.deployment.targets import PREFIXES, Arm, ArmError, checked_name, checked_url
from llm_locust.metrics.limits import Slo, parse_slo
from llm_locust.scenario import readers, tree
from llm_locust.scenario.readers import Conversation, DatasetSource, Expected
from llm_locust.scenario.tree import (
    Context,
    Fields,
    Items,
    Key,
    Node,
    Part,
    Scalar,
    ScenarioError,
    TreeKey,
    key,
    one_of,
)
from llm_locust.wire.dialects import DIALECTS
from llm_locust.wire.dialects.dialect import LIMIT_FIELDS
from llm_locust.wire.foreign_text import is_variable
from llm_locust.wire.headers import HEADER_FIELDS, HeaderError, header_template
from llm_locust.workload.answers import Validator
from llm_locust.workload.draws import Lengths, digest, parse_lengths
from llm_locust.workload.plan import ModelSplit
from llm_locust.workload.prompts import ImagesAsked
from llm_locust.workload.synthetic import SharedPrefix

# --- The usual cases of load with their usual lengths and limits: ``preset: chat``
#
# A class's keys win over the class's preset. Every option of the run, whichever way it is given, wins over
# a preset at the scenario's top level. Lengths are lognormal, as recorded lengths are to good
# approximation: few are far longer than the rest. Limits are what a person or a program at the other end
# notices.


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Lengths as :func:`~llm_locust.workload.draws.parse_lengths` takes them, limits as
    :func:`~llm_locust.metrics.limits.parse_slo`. An empty ``slo`` sets no limit on a single request."""

    input_tokens: str
    output_tokens: str
    slo: str


CHAT = Preset(input_tokens="lognormal:1020,0.8", output_tokens="lognormal:129,1.0", slo="ttft=500ms")
"""A person types and reads along.

Lengths: medians of the conversation part of Microsoft's Azure LLM inference trace of 2023 (Splitwise,
ISCA 2024), 1,020 and 129 tokens. Limit: half a second to the first token is well below the second after
which a person's thought is interrupted (Nielsen, Usability Engineering, 1993). People read about
240 words a minute (Brysbaert 2019), some 5 tokens/s, so that no limit of TPOT is needed as a rule;
``tpot=50ms`` is one for answers that are skimmed.
"""

CODE = Preset(input_tokens="lognormal:1500,0.8", output_tokens="lognormal:13,1.0", slo="ttft=100ms")
"""An editor completes code while a person types.

Lengths: medians of the coding part of the same trace, 1,500 and 13 tokens: much context, a few words.
Limit: at 100 ms an answer still feels immediate (Nielsen), and the next key is struck some 200 ms after
the last.
"""

VOICE = Preset(input_tokens="lognormal:500,0.6", output_tokens="lognormal:40,0.6", slo="ttft=100ms")
"""A spoken dialogue.

Lengths: instructions with some turns of dialogue, and an answer of two spoken sentences, which are
assumptions. Limit: speakers leave about 200 ms between two turns (Stivers et al., PNAS 2009). Speech
recognition, synthesis and the network share that time with the model, which leaves it below 100 ms.
Speech is slow, some 150 words a minute, so that TPOT is no concern.
"""

AGENT = Preset(input_tokens="lognormal:6000,0.8", output_tokens="lognormal:150,0.8", slo="ttft=1s tpot=25ms")
"""A program calls the model step after step and uses tools between.

Lengths: with means of 8,260 and 207 tokens near those of the tool and agent trace of Mooncake (FAST 2025),
where prompts of 8,600 tokens get answers of 180. Limits: steps add up and nobody reads along, so that
both parts count: ten steps of 1 s + 150 x 25 ms take 48 s.
"""

BATCH = Preset(input_tokens="lognormal:2000,0.6", output_tokens="lognormal:300,0.6", slo="")
"""Documents are worked off and nobody waits for a single one: extraction, labelling, evaluation.

Lengths: a page or two in, a paragraph or two out, which are assumptions. No limit on a single request: what
counts is throughput, as in ``gate: output_tps>2000``.
"""

PRESETS: Mapping[str, Preset] = {"chat": CHAT, "code": CODE, "voice": VOICE, "agent": AGENT, "batch": BATCH}


# --- Loads of public protocols as scenario files, which the package ships: ``preset: chat`` is of this
# project, a protocol is somebody else's, with its source
#
# A protocol's name stands wherever the path of a scenario does. A run with it rehearses the protocol; only
# what the protocol's own authors accept is a result of it.


#: Where the files are; ``examples/protocols`` is the same folder.
FOLDER = Path(__file__).parents[1] / "protocols"


def protocol_names() -> tuple[str, ...]:
    """The names of all protocols, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def scenario_path(text: str) -> str:
    """The path of the scenario that ``text`` names: a protocol's, unless there is a file of this name."""
    if text in protocol_names() and not os.path.exists(text):
        return str(FOLDER / f"{text}.yaml")
    return text


read_preset: tree.Reader = tree.word(*PRESETS)

A_PRESET = "a [preset](#presets)"

_HEADERS = (
    f"per request; {', '.join(f'`{{{word}}}`' for word in HEADER_FIELDS)} are filled in, `{{{{` is a brace; "
    'other words in braces are an error, everything else (`{"a":1}`) is kept as it is'
)

_EMPTY: Mapping[str, Any] = MappingProxyType({})


class Shared(Part, frozen=True, kw_only=True):
    """Keys that the top level gives to every class, unless the class says otherwise."""

    endpoint: str = key(readers.endpoint, "a name", one_of(DIALECTS, "chat"), "chat")
    inputs: Lengths | None = key(
        readers.lengths,
        "[lengths](#lengths)",
        "texts of an embeddings request (default 1), documents of a rerank request (default 10); each has "
        "`input_tokens`",
    )
    stream: bool = key(tree.truth, "true or false", "ask for a stream (default)", True)
    images: ImagesAsked | None = key(readers.images, "[mapping](#images)", "images of noise in every prompt")
    shared_prefix: SharedPrefix | None = key(
        readers.shared_prefix, "[mapping](#shared_prefix)", "prefixes shared by many prompts"
    )
    unique_head: bool | None = key(
        tree.truth,
        "true or false",
        "every prompt starts with unique words (default), so that no prefix cache helps",
    )
    models: ModelSplit | None = key(
        readers.models,
        "text, or list or mapping of names",
        "models or adapters that requests ask for: `lora-a`, `{base: 1, lora-a: 2}` with weights, "
        "`zipf:1.1 base,lora-a`, `round_robin lora-a,lora-b`; a conversation keeps its model (default: "
        "`model`)",
    )
    headers: Mapping[str, str] = key(readers.headers, "mapping", _HEADERS, _EMPTY)
    conversation: Conversation | None = key(
        Conversation.read, "[mapping](#conversation)", "requests that follow each other"
    )
    validators: tuple[Validator, ...] = key(
        readers.validators, "[list](#validators)", "conditions that an answer must meet", ()
    )
    expected: Expected | None = key(
        readers.expected,
        "word, or [mapping](#expected)",
        "how answers are compared with those that the dataset expects",
    )


class TrafficClass(Shared, frozen=True, kw_only=True):
    """One kind of request.

    Either ``weight`` (its part of the run's load is weight / sum of all weights) or ``rate`` (a rate of its
    own, in the grammar of ``--request-rate``) is not None. ``None`` elsewhere: the run's option applies.
    ``body`` overrides the run's ``--body``, key by key. ``inherited`` are the keys that the top level of the
    scenario gave to it. The values of ``headers`` are templates (see
    :mod:`llm_locust.wire.headers`); they may be secrets.
    """

    name: str = key(tree.printable, "text", "the class in the report; only in a list", "")
    request_name: str = key(
        tree.printable, "text", "the requests' name in Locust's statistics (default: the class's name)", ""
    )
    weight: float | None = key(
        readers.weight,
        "number ≥ 0",
        "its share of the run's load is weight / sum of weights (default 1)",
        1.0,
    )
    rate: str | None = key(
        readers.rate,
        "text",
        "its own arrival rate, in the form of `request_rate`. Either all classes have a rate, and the run "
        "has no `request_rate`, or none has",
    )
    preset: str | None = key(read_preset, A_PRESET, "lengths and limits that the class does not set itself")
    input_tokens: Lengths | None = key(readers.lengths, "[lengths](#lengths)", "as at the top level")
    output_tokens: Lengths | None = key(readers.lengths, "[lengths](#lengths)", "as at the top level")
    dataset: DatasetSource | None = key(
        readers.dataset,
        "path, or [mapping](#dataset)",
        "not together with `input_tokens`; replaces a preset's lengths",
    )
    body: Mapping[str, Any] = key(
        readers.body, "mapping", "merged over the run's `body`, field by field", _EMPTY
    )
    slo: Slo | None = key(readers.slo, "limits", "instead of the run's")
    inherited: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        shown = (name for name in self.__struct_fields__ if name != "headers")
        return f"TrafficClass({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


#: Keys that the top level gives to every class.
SHARED = Shared.keys()

#: Keys that only a class takes, or that its own table explains.
OF_CLASSES = {name: found for name, found in TrafficClass.keys().items() if name not in SHARED}

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
    for own_name, item in _items(node):
        entries = tree.known(item, "class" if own_name is None else f"class {own_name!r}", CLASS_KEYS)
        found = _class(own_name, item, entries, shared, context)
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
            (tree.printable(Scalar(name, entry.key), "name"), entry.node)
            for name, entry in node.entries.items()
        ]
    raise tree.wrong(node, "classes", "a list of at least one class, or a mapping of names to classes")


def _class(
    key: str | None, node: Node, entries: Mapping[str, TreeKey], shared: Mapping[str, Any], context: Context
) -> TrafficClass:
    own = tree.read_entries(entries, CLASS_KEYS, context)
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


# --- Which class a request belongs to, drawn by the classes' weights, reproducibly


#: Sets these draws apart from every other use of the same seed.
_KEY = int.from_bytes(b"mix", "big")

_BLOCK = 64


class Weighted(Protocol):
    """A class; ``weight`` is None where it has a rate of its own."""

    @property
    def weight(self) -> float | None: ...


T = TypeVar("T", bound=Weighted)


class Mix(Generic[T]):
    """Classes in the shares of their weights.

    Raises:
        ValueError: no class, one with a rate of its own, or weights without one above 0.
    """

    def __init__(self, classes: Sequence[T]) -> None:
        weights = np.array([c.weight for c in classes if c.weight is not None], dtype=np.float64)
        if len(weights) < len(classes):
            raise ValueError("a class with a rate of its own has arrivals of its own, and is in no mix")
        if not (len(weights) and np.all(weights >= 0) and 0 < weights.sum() < np.inf):
            raise ValueError(f"weights {weights.tolist()}: none may be negative, and one must be above 0")
        self.classes = tuple(classes)
        edges = np.cumsum(weights)
        self._edges = edges / edges[-1]  # the last one is exactly 1, which no draw reaches

    def of_user(self, seed: int, worker: int, user: int) -> Iterator[T]:
        """The classes of a user's requests, one after another without end: a closed loop.

        Every (seed, worker, user) has draws of its own.
        """
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_KEY, worker, user)))
        while True:
            for i in np.searchsorted(self._edges, rng.random(_BLOCK), side="right").tolist():
                yield self.classes[i]

    def of_arrival(self, seed: int, k: int) -> T:
        """The class of arrival ``k`` of all workers: the same whichever worker sends it, and of how many."""
        # 53 bits: what a float in 0 .. 1 holds without being rounded up to 1.
        fraction = (int.from_bytes(digest(seed, _KEY, k)) >> 11) * 2.0**-53
        return self.classes[int(np.searchsorted(self._edges, fraction, side="right"))]


# --- The ``arms`` of a scenario: names, and in what the requests of each differ


def read_arms(node: Node, name: str, context: Context) -> tuple[Arm, ...]:
    """The arms of a mapping whose keys are their names."""
    entries = tree.mapping(node, name, "a mapping of names to arms, as {cold: {prefix: cold}}").entries
    return tuple(_arm(key, entry, context) for key, entry in entries.items())


def _arm(name: str, entry: TreeKey, context: Context) -> Arm:
    try:
        checked_name(name)
    except ArmError as e:
        raise ScenarioError(entry.key, f"arms: {e}") from e
    node = entry.node
    plain = isinstance(node, Scalar) and node.value is None  # a name alone: as the run is
    return Arm(name, **({} if plain else tree.read(node, f"arm {name!r}", ARM, context)))


def _url(node: Node, name: str, context: Context) -> str:
    found = tree.text(node, name, "a URL such as http://HOST:8000")
    return tree.checked(checked_url, name, found.strip(), node.place)


def _path(node: Node, name: str, context: Context) -> str:
    found = tree.printable(node, name)
    if not found.startswith("/") or not found.isascii() or set(found) & set(" ?#"):
        raise tree.wrong(node, name, "a path such as /chat/completions")
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
    for header, entry in tree.mapping(node, name, allowed).entries.items():
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
    "share": Key(
        tree.number(0.001, 1000), "number", "of the requests, in proportion to the other arms' (default 1)"
    ),
    "model": Key(tree.printable, "text", "the model that it is asked for"),
    "path": Key(
        _path, "path", "in place of the endpoint's own, below the base of the API: `/chat/completions`"
    ),
    "headers": Key(readers.headers, "mapping", "over those of the same name; templates as those of a class"),
    "header_env": Key(
        _header_env, "mapping", "header names, and the environment variables that hold their values"
    ),
    "body": Key(_body, "mapping", "merged over the body, field by field; `null` leaves a field out"),
    "prefix": Key(
        tree.word(*PREFIXES),
        "a name",
        "`cold`: every request begins with six words of its own, so that no prefix cache helps; `warm`: with "
        "six that all of them share, so that the lengths are equal (default: neither)",
    ),
}
