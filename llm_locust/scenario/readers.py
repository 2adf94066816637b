"""What reads the values of a class's keys."""

import re
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any, get_args

from llm_locust.core.durations import parse_time
from llm_locust.core.terms import listed
from llm_locust.metrics.requests.slo import Slo, parse_slo
from llm_locust.scenario import forms, values
from llm_locust.scenario.tree import Fields, Items, Node, Scalar, ScenarioError, TreeKey, plain
from llm_locust.scenario.values import Context, Key, checked, one_of
from llm_locust.wire.dialects.table import DIALECTS
from llm_locust.wire.headers import HeaderError, header_template
from llm_locust.workload.arrivals import parse_rate
from llm_locust.workload.body import parse_body
from llm_locust.workload.conversations import HISTORY_FORMS, parse_history
from llm_locust.workload.images.asked import ImagesAsked, ImagesError, images_asked, parse_images
from llm_locust.workload.lengths.times import parse_times
from llm_locust.workload.lengths.tokens import MAX_TOKENS, Lengths, parse_lengths
from llm_locust.workload.models import ModelSplit, parse_models
from llm_locust.workload.parts import (
    EXPECTATIONS,
    Conversation,
    DatasetSource,
    Expected,
    Validator,
)
from llm_locust.workload.text.shared_prefix import (
    Choice,
    SharedPrefix,
    SharedPrefixError,
    parse_shared_prefix,
)

MOST_WEIGHT = 1e9

_FUNCTION = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*")
_LAW = re.compile(r"[a-z]+:\S.*")


def weight(node: Node, name: str, context: Context) -> float:
    return values.number(node, name, 0, MOST_WEIGHT)


def rate(node: Node, name: str, context: Context) -> str:
    found = values.text(node, name, "a rate such as 5 or ramp:1..10,60s")
    checked(parse_rate, "request_rate", found, node.place)
    return found


def name(node: Node, key: str, context: Context) -> str:
    return values.printable(node, key)


endpoint = values.word(*DIALECTS)


def lengths(node: Node, name: str, context: Context) -> Lengths:
    return parse_lengths(forms.lengths(node, name, context))


def slo(node: Node, name: str, context: Context) -> Slo:
    return parse_slo(forms.slo(node, name, context))


def body(node: Node, name: str, context: Context) -> dict[str, Any]:
    return parse_body(forms.body(node, name, context))


def dataset(node: Node, name: str, context: Context) -> DatasetSource:
    """A file's path, or a mapping of ``file``, ``order`` and ``format``."""
    if not isinstance(node, Fields):
        return DatasetSource(file=values.path(node, name, context))
    return DatasetSource(**values.read(node, name, forms.DATASET_KEYS, context, required=("file",)))


def shared_prefix(node: Node, name: str, context: Context) -> SharedPrefix:
    """A mapping of the fields of :class:`SharedPrefix`, or its text."""
    try:
        if not isinstance(node, Fields):
            return parse_shared_prefix(
                values.text(node, name, "a mapping such as {groups: 10, tokens: 1000}")
            )
        return SharedPrefix(**values.read(node, name, SHARED_PREFIX, context))
    except SharedPrefixError as e:
        raise ScenarioError(node.place, str(e)) from e


def images(node: Node, name: str, context: Context) -> ImagesAsked:
    """A mapping of the settings of :class:`ImagesAsked`, or its text."""
    try:
        if not isinstance(node, Fields):
            return parse_images(values.text(node, name, "a mapping such as {count: 2, size: 1024x768}"))
        found = values.read(node, name, IMAGES, context, required=("size",))
        return images_asked(name, *(found.get(key) for key in IMAGES))
    except ImagesError as e:
        raise ScenarioError(node.place, str(e)) from e


def _setting(node: Node, name: str, context: Context) -> str:
    return values.text(node, name, "a text")


def models(node: Node, name: str, context: Context) -> ModelSplit:
    """A text as the option has it, a list of names, or a mapping of names to weights."""
    if isinstance(node, Fields):
        read = {model: f"{model}={weight(e.node, name, context)!r}" for model, e in node.entries.items()}
        found = ",".join(read.values())
    else:
        found = ",".join(values.texts(node, name))
    return checked(parse_models, name, found, node.place)


def headers(node: Node, name: str, context: Context) -> dict[str, str]:
    """Header names in lower case -> templates. No message shows a value: it may be a secret."""
    found: dict[str, str] = {}
    for header, entry in values.mapping(node, name, "a mapping of header names and values").entries.items():
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


def conversation(node: Node, name: str, context: Context) -> Conversation:
    return Conversation(**values.read(node, name, CONVERSATION, context, required=("turns",)))


def _time_law(node: Node, name: str, context: Context) -> str:
    """``5s``, or the text of a distribution (``NAME:...``)."""
    found = values.text(node, name, "a time such as 5s")
    checked(parse_times if _LAW.fullmatch(found) else parse_time, name, found, node.place)
    return found


def validators(node: Node, name: str, context: Context) -> tuple[Validator, ...]:
    """A list of mappings with one key each."""
    nodes = node.nodes if isinstance(node, Items) else (node,)
    return tuple(_validator(item, name, context) for item in nodes)


def _validator(node: Node, name: str, context: Context) -> Validator:
    entries = values.known(node, name, VALIDATORS)
    if len(entries) != 1:
        raise ScenarioError(
            node.place, f"{name}: an item of the list has one of {listed(VALIDATORS)}, not {len(entries)}"
        )
    ((kind, argument),) = values.read_entries(entries, VALIDATORS, context).items()
    return Validator(kind, argument)


def _regex(node: Node, name: str, context: Context) -> str:
    pattern = values.text(node, name, "a regular expression")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # what Python will read otherwise one day
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError, Warning) as e:
        shown = values.shown(node)
        raise ScenarioError(
            node.place, f"{name} {shown}: {e}; allowed is a regular expression of Python"
        ) from e
    return pattern


def _contains(node: Node, name: str, context: Context) -> tuple[str, ...]:
    found = tuple(values.texts(node, name))
    if not found:
        raise values.wrong(node, name, "a text or a list of texts")
    return found


def _json_schema(node: Node, name: str, context: Context) -> Any:
    return plain(values.mapping(node, name, "a mapping, as {type: object}"))


def _max_repetition(node: Node, name: str, context: Context) -> float:
    return values.number(node, name, 0, 1)


def _function(node: Node, name: str, context: Context) -> str:
    found = values.text(node, name, "module:function")
    if not _FUNCTION.fullmatch(found):
        raise values.wrong(node, name, "module:function, as mychecks:is_sql")
    return found


#: Kind of validator -> what reads its argument.
VALIDATORS: Mapping[str, Key] = {
    "regex": Key(_regex, "text", "matches somewhere in the answer"),
    "contains": Key(_contains, "text, or list of texts", "the answer contains all of them"),
    "json_schema": Key(_json_schema, "mapping", "the answer is JSON that matches it"),
    "max_repetition": Key(
        _max_repetition, "number 0 .. 1", "the largest share of the answer that may be repetition"
    ),
    "function": Key(_function, "`module:function`", "your own Python function returns true"),
}


def expected(node: Node, name: str, context: Context) -> Expected:
    """How to compare, or a mapping of ``match`` and ``field``."""
    if not isinstance(node, Fields):
        return Expected(match=EXPECTED["match"](node, name, context))
    return Expected(**values.read(node, name, EXPECTED, context, required=("match",)))


def _whole(node: Node, name: str, context: Context) -> int:
    return values.whole(node, name, 1, MAX_TOKENS)


_USUAL_PREFIX = SharedPrefix()
_USUAL_EXPECTED = Expected(match=EXPECTATIONS[0])

SHARED_PREFIX: Mapping[str, Key] = {
    "groups": Key(_whole, "integer", f"number of prefixes (default {_USUAL_PREFIX.groups})"),
    "tokens": Key(
        _whole,
        "integer",
        f"their length (default {_USUAL_PREFIX.tokens}), "
        "added to that of `input_tokens` or the dataset's line",
    ),
    "choice": Key(
        values.word(*get_args(Choice)),
        "a name",
        f"how prefixes are chosen: {one_of(get_args(Choice), _USUAL_PREFIX.choice)}",
    ),
    "run_unique": Key(forms.truth, "true or false", "each run has its own prefixes (default)"),
}
IMAGES: Mapping[str, Key] = {
    "count": Key(_setting, "lengths", "images a prompt: `2`, `uniform:1,4` (default 1)"),
    "size": Key(
        _setting,
        "text",
        "width and height in pixels, `1024x768`, or a mixture, `0.7*512x512 + 0.3*1280x720`; required",
    ),
    "distinct": Key(_setting, "integer", "all are of this many different images (default: no two are alike)"),
}
CONVERSATION: Mapping[str, Key] = {
    "turns": Key(lengths, "lengths", "number of turns per session: `5`, `uniform:3,8`; required"),
    "think_time": Key(
        _time_law, "time, or a distribution", "between an answer and the next turn (default: none)"
    ),
    "patience": Key(
        _time_law,
        "time, or a distribution",
        "a user who waits longer for a first token leaves (default: never)",
    ),
    "history": Key(
        partial(forms.text, parse=parse_history, allowed=HISTORY_FORMS),
        "text",
        "`full` (default): each request includes the previous turns; `none`; `last:3`: the last 3 turns",
    ),
}
EXPECTED: Mapping[str, Key] = {
    "match": Key(
        values.word(*EXPECTATIONS), "a name", f"{one_of(EXPECTATIONS)}; `choice` is a letter; required"
    ),
    "field": Key(
        name,
        "text",
        f"the field of the dataset's lines with the correct answer (default `{_USUAL_EXPECTED.field}`)",
    ),
}
