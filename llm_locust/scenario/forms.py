"""Forms that the values of a run's options have in a scenario.

What a form reads is what argparse would hold: a text, a whole number, a truth value, a list of texts.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from llm_locust.core.durations import parse_time
from llm_locust.metrics.gates import parse_gates
from llm_locust.metrics.requests.slo import SLO_METRICS, parse_slo
from llm_locust.scenario import values
from llm_locust.scenario.tree import Fields, Items, Node, ScenarioError, plain
from llm_locust.scenario.values import Check, Context, Key, Reader, checked, one_of
from llm_locust.workload.arrivals import parse_arrival
from llm_locust.workload.body import parse_body
from llm_locust.workload.lengths.tokens import parse_lengths
from llm_locust.workload.ordering import ORDERS
from llm_locust.workload.parts import FORMATS

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
    found = values.text(node, name, allowed)
    if parse is not None:
        checked(parse, name, found, node.place)
    return found


def texts(node: Node, name: str, context: Context, *, parse: Check | None) -> list[str]:
    """The same of a text, or of a list of texts."""
    found = values.texts(node, name)
    if parse is not None:
        for item, at in zip(found, node.nodes if isinstance(node, Items) else (node,), strict=True):
            checked(parse, name, item, at.place)
    return found


def of_file(node: Node, name: str, context: Context, *, parse: Check) -> str:
    """A text whose ``file:PATH`` or ``trace:PATH`` starts at the scenario's folder."""
    found = values.with_file(node, name, context)
    checked(parse, name, found, node.place)
    return found


lengths = partial(of_file, parse=parse_lengths)
duration = partial(text, parse=parse_time, allowed="a time such as 30s")


def body(node: Node, name: str, context: Context) -> str:
    """The JSON text of a mapping's fields."""
    fields = json.dumps(plain(values.mapping(node, name, "a mapping of body fields, as {temperature: 0}")))
    checked(parse_body, name, fields, node.place)
    return fields


def slo(node: Node, name: str, context: Context) -> str:
    """``ttft=500ms tpot=50ms`` as a text, or as a mapping of metrics."""
    if isinstance(node, Fields):
        return " ".join(values.read(node, name, dict.fromkeys(SLO_METRICS, _limit), context).values())
    return text(node, name, context, parse=parse_slo, allowed="limits such as ttft=500ms")


def _limit(node: Node, name: str, context: Context) -> str:
    limit = f"{name}={values.text(node, name, 'a time such as 500ms')}"
    checked(parse_slo, name, limit, node.place)
    return limit


def _gates(node: Node, name: str, context: Context) -> str:
    """``goodput>=95% p99_ttft<800ms``; a list of them is joined."""
    return " ".join(texts(node, name, context, parse=parse_gates))


def bounds(node: Node, name: str, context: Context, *, parse: Check) -> str:
    """``first=60s gap=30s`` as a text, or as a mapping."""
    if not isinstance(node, Fields):
        return text(node, name, context, parse=parse)
    found = values.read(node, name, dict.fromkeys(("first", "gap", "total"), duration), context)
    written = " ".join(f"{bound}={limit}" for bound, limit in found.items())
    checked(parse, name, written, node.place)
    return written


def _dataset(node: Node, name: str, context: Context) -> str:
    """The path alone; what a mapping says besides is in :attr:`Scenario.dataset`."""
    if isinstance(node, Fields):
        return str(values.read(node, name, DATASET_KEYS, context, required=("file",))["file"])
    return values.path(node, name, context)


def _run_time(node: Node, name: str, context: Context) -> str:
    """Locust's ``--run-time``, which takes whole numbers only; another duration is written in seconds."""
    found = values.text(node, name, "a time such as 90s, 20m or 1h30m")
    if _RUN_TIME.fullmatch(found):
        return found
    seconds = checked(parse_time, name, found, node.place)
    if not seconds.is_integer():
        raise ScenarioError(node.place, f"{name} {found!r}: a run lasts whole seconds, such as 90s or 1h30m")
    return f"{seconds:.0f}s"


def _whole(node: Node, name: str, context: Context, *, least: int) -> int:
    return values.whole(node, name, least, 2**63 - 1)


def _spawn_rate(node: Node, name: str, context: Context) -> float:
    rate = values.number(node, name, 0, 1e6)
    if rate == 0:
        raise values.wrong(node, name, "a number of users per second above 0")
    return rate


def _price(node: Node, name: str, context: Context) -> str:
    return f"{values.number(node, name, 0, 1e12):.12g}"


def truth(node: Node, name: str, context: Context) -> bool:
    return values.truth(node, name)


#: What a dataset may say besides its file's name.
DATASET_KEYS: Mapping[str, Key] = {
    "file": Key(values.path, "path", "required"),
    "order": Key(values.word(*ORDERS), "a name", one_of(ORDERS, "sequential")),
    "format": Key(
        values.word(*FORMATS),
        "a name",
        f"{one_of(FORMATS)}; default: inferred from the file's name and first bytes",
    ),
}

TEXT = Form("text", partial(text, parse=None))
WHOLE = Form("whole number", partial(_whole, least=1))
WHOLE_FROM_0 = Form("whole number from 0", partial(_whole, least=0))
NUMBER = Form("number", _price)
TRUTH = Form("true or false", truth)
PATH = Form("path", values.path)
TIME = Form("time", duration)
LENGTHS = Form("lengths", lengths)
LIMITS = Form("limits", slo)
GATES = Form("text, or list of texts", _gates)
BODY = Form("mapping", body)
DATASET = Form("path, or [mapping](scenario.md#dataset)", _dataset)
ARRIVAL = Form("text", partial(of_file, parse=parse_arrival))
RUN_TIME = Form("time", _run_time)
SPAWN_RATE = Form("number", _spawn_rate)
