"""What reads the values of a class's keys."""

import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from llm_locust.core.record import MAX_TOKENS
from llm_locust.core.texts import listed, parse_time
from llm_locust.metrics.limits import SLO_METRICS, Slo, parse_gates, parse_slo
from llm_locust.scenario import tree
from llm_locust.scenario.tree import (
    Check,
    Context,
    Fields,
    Items,
    Key,
    Node,
    Part,
    Reader,
    Scalar,
    ScenarioError,
    TreeKey,
    checked,
    key,
    one_of,
    plain,
)
from llm_locust.wire.dialects import DIALECTS
from llm_locust.wire.headers import HeaderError, header_template
from llm_locust.workload.answers import KINDS as EXPECTATION_KINDS, Validator
from llm_locust.workload.arrivals import parse_arrival, parse_rate
from llm_locust.workload.body import parse_body
from llm_locust.workload.conversations import HISTORY_FORMS, parse_history
from llm_locust.workload.datasets import EXPECTED_FIELD, FORMATS
from llm_locust.workload.draws import ORDERS, Lengths, Order, parse_lengths, parse_times
from llm_locust.workload.plan import ModelSplit, parse_models
from llm_locust.workload.prompts import ImagesAsked, images_asked, parse_images
from llm_locust.workload.synthetic import Choice, SharedPrefix, parse_shared_prefix

# --- Forms that the values of a run's options have in a scenario
#
# What a form reads is what argparse would hold: a text, a whole number, a truth value, a list of texts.


_RUN_TIME = re.compile(r"[0-9]{1,9}s?|(?=.)(?:[0-9]{1,6}h)?(?:[0-9]{1,6}m)?(?:[0-9]{1,9}s)?")


@dataclass(frozen=True, slots=True)
class Form:
    """What a value may be, in words for the reference, and what reads it."""

    says: str
    read: Reader


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a scenario may say of the options of its run.

    Attributes:
        options: key -> what reads its value.
        secret: keys whose texts are ``NAME=VALUE`` with a value that may be a secret.
    """

    options: Mapping[str, Reader]
    secret: frozenset[str] = frozenset()


def text(node: Node, name: str, context: Context, *, parse: Check | None, allowed: str = "a text") -> str:
    """A text that ``parse`` has nothing against."""
    found = tree.text(node, name, allowed)
    if parse is not None:
        checked(parse, name, found, node.place)
    return found


def texts(node: Node, name: str, context: Context, *, parse: Check | None) -> list[str]:
    """The same of a text, or of a list of texts."""
    found = tree.texts(node, name)
    if parse is not None:
        for item, at in zip(found, node.nodes if isinstance(node, Items) else (node,), strict=True):
            checked(parse, name, item, at.place)
    return found


def of_file(node: Node, name: str, context: Context, *, parse: Check) -> str:
    """A text whose ``file:PATH`` or ``trace:PATH`` starts at the scenario's folder."""
    found = tree.with_file(node, name, context)
    checked(parse, name, found, node.place)
    return found


lengths_form = partial(of_file, parse=parse_lengths)
duration = partial(text, parse=parse_time, allowed="a time such as 30s")


def body_form(node: Node, name: str, context: Context) -> str:
    """The JSON text of a mapping's fields."""
    fields = json.dumps(plain(tree.mapping(node, name, "a mapping of body fields, as {temperature: 0}")))
    checked(parse_body, name, fields, node.place)
    return fields


def slo_form(node: Node, name: str, context: Context) -> str:
    """``ttft=500ms tpot=50ms`` as a text, or as a mapping of metrics."""
    if isinstance(node, Fields):
        return " ".join(tree.read(node, name, dict.fromkeys(SLO_METRICS, _limit), context).values())
    return text(node, name, context, parse=parse_slo, allowed="limits such as ttft=500ms")


def _limit(node: Node, name: str, context: Context) -> str:
    limit = f"{name}={tree.text(node, name, 'a time such as 500ms')}"
    checked(parse_slo, name, limit, node.place)
    return limit


def _gates(node: Node, name: str, context: Context) -> str:
    """``goodput>=95% p99_ttft<800ms``; a list of them is joined."""
    return " ".join(texts(node, name, context, parse=parse_gates))


def bounds(node: Node, name: str, context: Context, *, parse: Check) -> str:
    """``first=60s gap=30s`` as a text, or as a mapping."""
    if not isinstance(node, Fields):
        return text(node, name, context, parse=parse)
    found = tree.read(node, name, dict.fromkeys(("first", "gap", "total"), duration), context)
    written = " ".join(f"{bound}={limit}" for bound, limit in found.items())
    checked(parse, name, written, node.place)
    return written


class DatasetSource(Part, frozen=True, kw_only=True):
    """A file of prompts, not opened yet. ``format`` None: by the file's name."""

    file: str = key(tree.path, "path", "required", required=True)
    order: Order = key(tree.word(*ORDERS), "a name", one_of(ORDERS, "sequential"), "sequential")
    format: str | None = key(
        tree.word(*FORMATS),
        "a name",
        f"{one_of(FORMATS)}; default: inferred from the file's name and first bytes",
    )


def dataset(node: Node, name: str, context: Context) -> DatasetSource:
    """A file's path, or a mapping of ``file``, ``order`` and ``format``."""
    if not isinstance(node, Fields):
        return DatasetSource(file=tree.path(node, name, context))
    return DatasetSource.read(node, name, context)


def _dataset_path(node: Node, name: str, context: Context) -> str:
    """The path alone; what a mapping says besides is in :attr:`Scenario.dataset`."""
    return dataset(node, name, context).file


def _run_time(node: Node, name: str, context: Context) -> str:
    """Locust's ``--run-time``, which takes whole numbers only; another duration is written in seconds."""
    found = tree.text(node, name, "a time such as 90s, 20m or 1h30m")
    if _RUN_TIME.fullmatch(found):
        return found
    seconds = checked(parse_time, name, found, node.place)
    if not seconds.is_integer():
        raise ScenarioError(node.place, f"{name} {found!r}: a run lasts whole seconds, such as 90s or 1h30m")
    return f"{seconds:.0f}s"


def _spawn_rate(node: Node, name: str, context: Context) -> float:
    rate = tree.number(0, 1e6)(node, name, context)
    if rate == 0:
        raise tree.wrong(node, name, "a number of users per second above 0")
    return rate


def _price(node: Node, name: str, context: Context) -> str:
    return f"{tree.number(0, 1e12)(node, name, context):.12g}"


TEXT = Form("text", partial(text, parse=None))
WHOLE = Form("whole number", tree.whole(1, 2**63 - 1))
WHOLE_FROM_0 = Form("whole number from 0", tree.whole(0, 2**63 - 1))
NUMBER = Form("number", _price)
TRUTH = Form("true or false", tree.truth)
PATH = Form("path", tree.path)
TIME = Form("time", duration)
LENGTHS = Form("lengths", lengths_form)
LIMITS = Form("limits", slo_form)
GATES = Form("text, or list of texts", _gates)
BODY = Form("mapping", body_form)
DATASET = Form("path, or [mapping](scenario.md#dataset)", _dataset_path)
ARRIVAL = Form("text", partial(of_file, parse=parse_arrival))
RUN_TIME = Form("time", _run_time)
SPAWN_RATE = Form("number", _spawn_rate)


MOST_WEIGHT = 1e9

_FUNCTION = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*")
_LAW = re.compile(r"[a-z]+:\S.*")


weight = tree.number(0, MOST_WEIGHT)


def rate(node: Node, name: str, context: Context) -> str:
    found = tree.text(node, name, "a rate such as 5 or ramp:1..10,60s")
    checked(parse_rate, "request_rate", found, node.place)
    return found


endpoint = tree.word(*DIALECTS)


def lengths(node: Node, name: str, context: Context) -> Lengths:
    return parse_lengths(lengths_form(node, name, context))


def slo(node: Node, name: str, context: Context) -> Slo:
    return parse_slo(slo_form(node, name, context))


def body(node: Node, name: str, context: Context) -> dict[str, Any]:
    return parse_body(body_form(node, name, context))


def shared_prefix(node: Node, name: str, context: Context) -> SharedPrefix:
    """A mapping of the fields of :class:`SharedPrefix`, or its text."""
    if not isinstance(node, Fields):
        given = tree.text(node, name, "a mapping such as {groups: 10, tokens: 1000}")
        return checked(parse_shared_prefix, name, given, node.place)
    found = tree.read(node, name, SHARED_PREFIX, context)
    return checked(lambda _: SharedPrefix(**found), name, name, node.place)


def images(node: Node, name: str, context: Context) -> ImagesAsked:
    """A mapping of the settings of :class:`ImagesAsked`, or its text."""
    if not isinstance(node, Fields):
        given = tree.text(node, name, "a mapping such as {count: 2, size: 1024x768}")
        return checked(parse_images, name, given, node.place)
    found = tree.read(node, name, IMAGES, context, required=("size",))
    return checked(lambda of: images_asked(of, *(found.get(key) for key in IMAGES)), name, name, node.place)


def models(node: Node, name: str, context: Context) -> ModelSplit:
    """A text as the option has it, a list of names, or a mapping of names to weights."""
    if isinstance(node, Fields):
        read = {model: f"{model}={weight(e.node, name, context)!r}" for model, e in node.entries.items()}
        found = ",".join(read.values())
    else:
        found = ",".join(tree.texts(node, name))
    return checked(parse_models, name, found, node.place)


def headers(node: Node, name: str, context: Context) -> dict[str, str]:
    """Header names in lower case -> templates. No message shows a value: it may be a secret."""
    found: dict[str, str] = {}
    for header, entry in tree.mapping(node, name, "a mapping of header names and values").entries.items():
        if header.lower() in found:
            raise ScenarioError(entry.key, f"the header {header!r} is there twice")
        found[header.lower()] = _template(header, entry)
    return found


def _template(header: str, entry: TreeKey) -> str:
    try:
        header_template(header, "")
    except HeaderError as e:
        raise ScenarioError(entry.key, str(e)) from e
    node = entry.node
    if not isinstance(node, Scalar) or node.value is None:
        raise ScenarioError(node.place, f"the value of header {header!r} is no text")
    try:
        header_template(header, node.text)
    except HeaderError as e:
        raise ScenarioError(node.place, str(e)) from e
    return node.text


def _time_law(node: Node, name: str, context: Context) -> str:
    """``5s``, or the text of a distribution (``NAME:...``)."""
    found = tree.text(node, name, "a time such as 5s")
    checked(parse_times if _LAW.fullmatch(found) else parse_time, name, found, node.place)
    return found


class Conversation(Part, frozen=True, kw_only=True):
    """Consecutive requests of a session. ``turns`` is their number; ``think_time`` (between an answer and the
    next turn) and ``patience`` (for a first token) are texts, or None: no pause, no limit."""

    turns: Lengths = key(
        lengths, "lengths", "number of turns per session: `5`, `uniform:3,8`; required", required=True
    )
    think_time: str | None = key(
        _time_law, "time, or a distribution", "between an answer and the next turn (default: none)"
    )
    patience: str | None = key(
        _time_law,
        "time, or a distribution",
        "a user who waits longer for a first token leaves (default: never)",
    )
    history: str = key(
        partial(text, parse=parse_history, allowed=HISTORY_FORMS),
        "text",
        "`full` (default): each request includes the previous turns; `none`; `last:3`: the last 3 turns",
        "full",
    )


def validators(node: Node, name: str, context: Context) -> tuple[Validator, ...]:
    """A list of mappings with one key each."""
    nodes = node.nodes if isinstance(node, Items) else (node,)
    return tuple(_validator(item, name, context) for item in nodes)


def _validator(node: Node, name: str, context: Context) -> Validator:
    entries = tree.known(node, name, VALIDATORS)
    if len(entries) != 1:
        raise ScenarioError(
            node.place, f"{name}: an item of the list has one of {listed(VALIDATORS)}, not {len(entries)}"
        )
    ((kind, argument),) = tree.read_entries(entries, VALIDATORS, context).items()
    return Validator(kind, argument)


def _regex(node: Node, name: str, context: Context) -> str:
    pattern = tree.text(node, name, "a regular expression")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # what Python will read otherwise one day
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError, Warning) as e:
        shown = tree.shown(node)
        raise ScenarioError(
            node.place, f"{name} {shown}: {e}; allowed is a regular expression of Python"
        ) from e
    return pattern


def _contains(node: Node, name: str, context: Context) -> tuple[str, ...]:
    found = tuple(tree.texts(node, name))
    if not found:
        raise tree.wrong(node, name, "a text or a list of texts")
    return found


def _function(node: Node, name: str, context: Context) -> str:
    found = tree.text(node, name, "module:function")
    if not _FUNCTION.fullmatch(found):
        raise tree.wrong(node, name, "module:function, as mychecks:is_sql")
    return found


#: Kind of validator -> what reads its argument.
VALIDATORS: Mapping[str, Key] = {
    "regex": Key(_regex, "text", "matches somewhere in the answer"),
    "contains": Key(_contains, "text, or list of texts", "the answer contains all of them"),
    "json_schema": Key(
        lambda node, name, _: plain(tree.mapping(node, name, "a mapping, as {type: object}")),
        "mapping",
        "the answer is JSON that matches it",
    ),
    "max_repetition": Key(
        tree.number(0, 1), "number 0 .. 1", "the largest share of the answer that may be repetition"
    ),
    "function": Key(_function, "`module:function`", "your own Python function returns true"),
}


class Expected(Part, frozen=True, kw_only=True):
    """Key ``field`` of the dataset's lines with the right answer, and its comparison ``match``."""

    match: str = key(
        tree.word(*EXPECTATION_KINDS),
        "a name",
        f"{one_of(EXPECTATION_KINDS)}; `choice` is a letter; required",
        required=True,
    )
    field: str = key(
        tree.printable,
        "text",
        f"the field of the dataset's lines with the correct answer (default `{EXPECTED_FIELD}`)",
        EXPECTED_FIELD,
    )


def expected(node: Node, name: str, context: Context) -> Expected:
    """How to compare, or a mapping of ``match`` and ``field``."""
    if not isinstance(node, Fields):
        return Expected(match=Expected.keys()["match"](node, name, context))
    return Expected.read(node, name, context)


_tokens = tree.whole(1, MAX_TOKENS)
_USUAL_PREFIX = SharedPrefix()

SHARED_PREFIX: Mapping[str, Key] = {
    "groups": Key(_tokens, "integer", f"number of prefixes (default {_USUAL_PREFIX.groups})"),
    "tokens": Key(
        _tokens,
        "integer",
        f"their length (default {_USUAL_PREFIX.tokens}), "
        "added to that of `input_tokens` or the dataset's line",
    ),
    "choice": Key(
        tree.word(*get_args(Choice)),
        "a name",
        f"how prefixes are chosen: {one_of(get_args(Choice), _USUAL_PREFIX.choice)}",
    ),
    "run_unique": Key(tree.truth, "true or false", "each run has its own prefixes (default)"),
}
IMAGES: Mapping[str, Key] = {
    "count": Key(TEXT.read, "lengths", "images a prompt: `2`, `uniform:1,4` (default 1)"),
    "size": Key(
        TEXT.read,
        "text",
        "width and height in pixels, `1024x768`, or a mixture, `0.7*512x512 + 0.3*1280x720`; required",
    ),
    "distinct": Key(
        TEXT.read, "integer", "all are of this many different images (default: no two are alike)"
    ),
}
