"""A scenario: its classes of requests and their presets, its arms, and the whole, from its file and to
the workers that have not got the file.

What a scenario says comes after the command line and the environment, and before the defaults:
``options`` holds what it says of the run's options and nothing else.
"""

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from msgspec.structs import replace

from llm_locust.core.texts import parse_time
from llm_locust.deployment.targets import PREFIXES, Arm, ArmError, checked_name, checked_url
from llm_locust.metrics.limits import Slo, parse_slo
from llm_locust.scenario import readers, tree
from llm_locust.scenario.readers import Conversation, DatasetSource, Expected, Grammar
from llm_locust.scenario.tree import (
    Context,
    Fields,
    Items,
    Key,
    Node,
    Part,
    Place,
    Reader,
    Scalar,
    ScenarioError,
    TreeKey,
    from_plain,
    key,
    one_of,
    parse_yaml,
    plain,
    read_text,
)
from llm_locust.wire.dialects import DIALECTS
from llm_locust.wire.dialects.dialect import LIMIT_FIELDS
from llm_locust.wire.foreign_text import is_variable, without_keys
from llm_locust.wire.headers import HEADER_FIELDS, HeaderError, header_template, secret_texts
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


# --- The keys of classes, and what a class takes from the top level and from presets


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
    for own, instead in {"model": "the key model", **dict.fromkeys(LIMIT_FIELDS, "output_tokens")}.items():
        if own in found:
            raise ScenarioError(node.place, f"the body of an arm cannot set {own!r}: use {instead}")
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


# --- Where a scenario comes from: ``about`` at its top level


def _line(node: Node, name: str, context: Context) -> str:
    found = tree.text(node, name).strip()
    if not found.isprintable():
        raise tree.wrong(node, name, "one line of printable characters")
    return found


def _lines(node: Node, name: str, context: Context) -> tuple[str, ...]:
    nodes = node.nodes if isinstance(node, Items) else (node,)
    return tuple(_line(item, name, context) for item in nodes)


class About(Part, frozen=True, kw_only=True):
    """Where a scenario comes from: one line on what it is, its ``source``, the day on which its figures were
    compared with that, gates that the source sets for each load (``limits``: a sweep has none of its own),
    and in what a run with it ``differs`` from what the source asks for."""

    title: str = key(_line, "text", "one line; required", required=True)
    source: str = key(_line, "text", "where the figures are from", "")
    date: str = key(_line, "text", "when they were compared with the source", "")
    limits: str = key(
        readers.GATES.read,
        "gates",
        "of each load, where the run has several: for `llm-locust report RUN --where stage==N --gate ...`",
        "",
    )
    differs: tuple[str, ...] = key(
        _lines,
        "text, or list of texts",
        "in what a run with the file differs from what the source asks for",
        (),
    )


# --- Points of MLPerf Endpoints: the numbers of concurrent requests at which a server is measured
#
# Between the lowest and the highest concurrency lie three regions of equal ratio, counted from the lowest.
# A set has the lowest (Ultra-Low), at least one point in each region and three more in any, the highest
# being one of them. Source: mlcommons/endpoints_policies, v1.0.


#: The lowest concurrency is one of these, and the highest is above all of them.
ULTRA_LOW = range(1, 33)

#: The highest point may be this much above the highest concurrency that was declared.
MARGIN = 1.10

_MOST = 1_000_000


@dataclass(frozen=True, slots=True)
class Points:
    """Regions as (first, last), and a set of points, seven if no region is narrower than two of them.

    A narrow range may leave a region empty, its first above its last. ``highest`` is the margin's end.
    """

    low: tuple[int, int]
    medium: tuple[int, int]
    high: tuple[int, int]
    highest: int
    planned: tuple[int, ...]


def plan_points(c_min: int, c_max: int) -> Points:
    """Plan the points from ``c_min`` to ``c_max``: of each region the geometric middle and the end.

    Raises:
        ValueError: ``c_min`` is not in 1 .. 32, or ``c_max`` not above 32.
    """
    if c_min not in ULTRA_LOW:
        raise ValueError(f"the lowest concurrency is one of 1 .. {ULTRA_LOW[-1]}, not {c_min}")
    if not ULTRA_LOW[-1] < c_max <= _MOST:
        raise ValueError(
            f"the highest concurrency is above {ULTRA_LOW[-1]} and at most {_MOST:,}, not {c_max}"
        )
    third = math.log2(c_max - c_min) / 3
    ends = (round(c_min + 2**third), round(c_min + 2 ** (2 * third)), c_max)
    firsts = (c_min + 1, ends[0] + 1, ends[1] + 1)
    planned = {c_min}
    for first, end in zip(firsts, ends, strict=True):
        planned |= {round(math.sqrt(first * end)), end} if first <= end else set()
    low, medium, high = zip(firsts, ends, strict=True)
    # Rounded before: 1.1 * 1,000 is 1,100.0000000000002 in binary.
    return Points(low, medium, high, math.ceil(round(MARGIN * c_max, 6)), tuple(sorted(planned)))


# --- The whole


#: Where the warm-up's prompts come from: draws of its own, or the first of the run's.
WARM_UP_PROMPTS = ("own", "shared")

_ERROR_RATE = re.compile(r"\s*>?\s*(?P<share>[0-9]{1,3}(?:\.[0-9]{1,9})?)%\s*(?:over\s+(?P<time>\S+)\s*)?")
_ERROR_RATE_FORM = "a share and the time it is taken over, as >20% over 30s"


def _error_rate(node: Node, name: str, context: Context) -> tuple[float, float]:
    """The share and the seconds of ``>20% over 30s``."""
    match = _ERROR_RATE.fullmatch(tree.text(node, name, _ERROR_RATE_FORM))
    if match is None:
        raise tree.wrong(node, name, _ERROR_RATE_FORM)
    share = float(match["share"]) / 100
    try:
        over_s = parse_time(match["time"] or "30s")
    except ValueError as e:
        raise ScenarioError(
            node.place, f"{name} {tree.shown(node)}: {e}; allowed is {_ERROR_RATE_FORM}"
        ) from e
    if share >= 1 or over_s <= 0:
        raise ScenarioError(
            node.place, f"{name} {tree.shown(node)}: a share below 100% over a time above 0 s"
        )
    return share, over_s


class WarmUp(Part, frozen=True, kw_only=True):
    """The load before the measured phase. Its ``duration`` is that of the option ``warmup``."""

    duration: str | None = key(readers.duration, "time", "length of the warm-up; not together with `warmup`")
    prompts: str = key(
        tree.word(*WARM_UP_PROMPTS),
        "a name",
        "`own` (default): drawn separately from the run's; `shared`: the first of the run's",
        "own",
    )


class Stop(Part, frozen=True, kw_only=True):
    """When a run ends before its time: a share of failed requests (0 .. 1) above the first of ``error_rate``
    within any so many seconds as the second, or a queue that grows without end."""

    error_rate: tuple[float, float] | None = key(
        _error_rate,
        "text",
        "`>20% over 30s`: of the requests that ended in the last 30 s, at least 10, more than this share "
        "failed, beyond chance; one that hangs counts when its timeout ends it; default of `over`: 30 s",
    )
    oversaturation: bool = key(tree.truth, "true or false", "the queue grows without end", False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A checked scenario.

    ``options`` are values for argparse by their keys; paths in them start at the working directory.
    ``dataset`` is the run's, with the order and format that the option cannot say. ``classes`` holds at
    least one; without ``classes`` in the file a nameless one. ``needs`` has names of options that the run
    must be given besides. ``document`` is the file's content as plain values, header values included;
    ``secret_keys`` as in :class:`Grammar`.
    """

    path: str
    options: Mapping[str, Any] = field(repr=False)
    classes: tuple[TrafficClass, ...]
    dataset: DatasetSource | None = None
    warm_up: WarmUp = field(default_factory=WarmUp)
    stop: Stop = field(default_factory=Stop)
    arms: tuple[Arm, ...] = ()
    about: About | None = None
    needs: tuple[str, ...] = ()
    document: Mapping[str, Any] = field(repr=False, compare=False)
    secret_keys: frozenset[str] = field(default=frozenset(), repr=False, compare=False)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must stand in no file, log or page: what is fixed of the headers' values."""
        headers = (*(c.headers for c in self.classes), *(arm.headers for arm in self.arms))
        return tuple(sorted({text for each in headers for text in secret_texts(each)}))

    @property
    def public_document(self) -> dict[str, Any]:
        """:attr:`document` without the values of headers, and of fields that have the name of a key."""
        public = {
            str(key): _without_headers(key, value, self.secret_keys) for key, value in self.document.items()
        }
        return dict(without_keys(public))

    def text_for_workers(self) -> str:
        """JSON that :meth:`from_text` makes this scenario of; equal for files that say the same.

        Paths in it start at the folder of ``path``. It holds the headers' values: not for files or logs.
        """
        return json.dumps({"path": self.path, "scenario": self.document}, ensure_ascii=False)

    @classmethod
    def from_text(cls, text: str, grammar: Grammar) -> "Scenario":
        """The inverse of :meth:`text_for_workers`, on a machine that has the files which it names.

        Raises:
            ScenarioError: one of them is not there, or the text is none of a scenario.
        """
        try:
            content = json.loads(text)
            path, document = (
                str(content["path"]),
                from_plain(content["scenario"], Place(str(content["path"]))),
            )
        except (ValueError, KeyError, TypeError, RecursionError) as e:
            raise ScenarioError(Place("scenario"), f"not the text of a scenario: {e}") from e
        return _scenario(document, path, grammar)


def _without_headers(key: str, value: Any, secret: frozenset[str]) -> Any:
    if key.replace("-", "_") == "headers" and isinstance(value, dict):
        return dict.fromkeys(value, "***")
    if key.replace("-", "_") in secret:
        return [f"{text.partition('=')[0]}=***" for text in ([value] if isinstance(value, str) else value)]
    if isinstance(value, dict):
        return {name: _without_headers(name, item, secret) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_headers("", item, secret) for item in value]
    return value


def load_scenario(path: str | os.PathLike[str], grammar: Grammar) -> Scenario:
    """The scenario in a file.

    Args:
        path: of a YAML file, or the name of a protocol; paths in it start at its folder.
        grammar: the options that it may give.

    Raises:
        ScenarioError: in one line what is wrong, where, and what is allowed.
    """
    name = scenario_path(os.fspath(path))
    return parse_scenario(read_text(name), name, grammar)


def parse_scenario(text: str, path: str, grammar: Grammar) -> Scenario:
    """The scenario of a YAML text that stands in the file at ``path``; see :func:`load_scenario`."""
    return _scenario(parse_yaml(text, path), path, grammar)


def _scenario(root: Node, path: str, grammar: Grammar) -> Scenario:
    context = Context(os.path.dirname(path))
    keys: Mapping[str, Reader] = {**grammar.options, **TOP_KEYS}
    entries = tree.known(root, "a scenario", keys)
    found = tree.read_entries(entries, keys, context)
    shared = {key: value for key, value in found.items() if key in SHARED}
    classes = sole_class(shared)
    if "classes" in entries:
        classes = read_classes(entries["classes"].node, shared, context)
    if "request_rate" in entries and classes[0].rate is not None:
        raise ScenarioError(
            entries["request_rate"].key, "request_rate beside classes that have a rate of their own; give one"
        )
    if "dataset" in entries and "input_tokens" in entries:
        raise ScenarioError(
            entries["input_tokens"].key,
            "input_tokens beside a dataset, whose prompts have lengths of their own",
        )
    return Scenario(
        path=path,
        options=_options(entries, found, grammar),
        classes=classes,
        dataset=readers.dataset(entries["dataset"].node, "dataset", context)
        if "dataset" in entries
        else None,
        warm_up=found.get("warm_up", WarmUp()),
        stop=found.get("stop", Stop()),
        arms=found.get("arms", ()),
        about=found.get("about"),
        needs=found.get("needs", ()),
        document=plain(root),
        secret_keys=grammar.secret,
    )


def _options(entries: Mapping[str, TreeKey], found: Mapping[str, Any], grammar: Grammar) -> dict[str, Any]:
    """What the file says of options; what it leaves open, a preset at its top level may say."""
    said = {key: value for key, value in found.items() if key in grammar.options}
    if "warm_up" in found and (duration := found["warm_up"].duration) is not None:
        if "warmup" in said:
            raise ScenarioError(entries["warmup"].key, "both warmup and the duration of warm_up; give one")
        said["warmup"] = duration
    if "preset" in found:
        usual = PRESETS[found["preset"]]
        if "dataset" not in said:
            said = {"input_tokens": usual.input_tokens, "output_tokens": usual.output_tokens, **said}
        if usual.slo:
            said = {"slo": usual.slo, **said}
    return said


def _later(node: Node, name: str, context: Context) -> None:
    """Classes are read when it is known what they take from the top level."""


#: Keys of the run as a whole that are no options.
OF_RUN: Mapping[str, Key] = {
    "preset": Key(read_preset, A_PRESET, "lengths and limits that no option sets"),
    "needs": Key(
        lambda node, name, _: tuple(tree.texts(node, name)),
        "name, or list of names",
        "options that the run must be given besides, such as `trajectories`: it is refused without them",
    ),
    "about": Key(About.read, "[mapping](#about)", "where the scenario comes from; no effect on the run"),
    "warm_up": Key(WarmUp.read, "[mapping](#warm_up)", "the load before the measured phase"),
    "stop": Key(
        Stop.read, "[mapping](#stop)", "rules that end the run early; the report shows which one did"
    ),
    "arms": Key(
        read_arms,
        "[mapping](#arms) of names",
        "what one run compares: each request, or conversation, goes to one of them at random",
    ),
    "classes": Key(
        _later,
        "list, or mapping of names",
        "the [classes](#classes); without it there is one class, made of the keys above and below",
    ),
}

#: Everything that stands at the top level besides options of the run.
TOP_KEYS: Mapping[str, Key] = {**SHARED, **OF_RUN}
