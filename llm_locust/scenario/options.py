"""The run's options as a scenario may give them: under their names, in the form of the command line.

What comes out is what argparse would hold: texts, whole numbers, truth values, lists of texts.
"""

import json
import re
from collections.abc import Mapping
from functools import partial

from llm_locust.core.durations import parse_time
from llm_locust.metrics.gates import parse_gates
from llm_locust.metrics.requests.slo import SLO_METRICS, parse_slo
from llm_locust.scenario import values
from llm_locust.scenario.tree import Fields, Items, Node, ScenarioError, plain
from llm_locust.scenario.values import Context, Reader, checked
from llm_locust.workload.body import parse_body
from llm_locust.workload.lengths.tokens import parse_lengths
from llm_locust.workload.ordering import ORDERS
from llm_locust.workload.parts import FORMATS

_RUN_TIME = re.compile(r"[0-9]{1,9}s?|(?=.)(?:[0-9]{1,6}h)?(?:[0-9]{1,6}m)?(?:[0-9]{1,9}s)?")


def text(node: Node, name: str, context: Context) -> str:
    return context.check(name, values.text(node, name), node.place)


def texts(node: Node, name: str, context: Context) -> list[str]:
    found = values.texts(node, name)
    nodes = node.nodes if isinstance(node, Items) else (node,)
    return [context.check(name, item, at.place) for item, at in zip(found, nodes, strict=True)]


def duration(node: Node, name: str, context: Context) -> str:
    found = values.text(node, name, "a time such as 30s")
    checked(parse_time, name, found, node.place)
    return found


def lengths(node: Node, name: str, context: Context) -> str:
    """The text of a distribution that has been read once; the path of a file from the scenario's folder."""
    found = values.with_file(node, name, context)
    checked(parse_lengths, name, found, node.place)
    return found


def body(node: Node, name: str, context: Context) -> str:
    """The JSON text of a mapping's fields."""
    fields = json.dumps(plain(values.mapping(node, name, "a mapping of body fields, as {temperature: 0}")))
    checked(parse_body, name, fields, node.place)
    return fields


def slo(node: Node, name: str, context: Context) -> str:
    """``ttft=500ms tpot=50ms`` as a text, or as a mapping of metrics."""
    if isinstance(node, Fields):
        return " ".join(values.read(node, name, dict.fromkeys(SLO_METRICS, _limit), context).values())
    found = values.text(node, name, "limits such as ttft=500ms")
    checked(parse_slo, name, found, node.place)
    return found


def _limit(node: Node, name: str, context: Context) -> str:
    limit = f"{name}={values.text(node, name, 'a time such as 500ms')}"
    checked(parse_slo, name, limit, node.place)
    return limit


def gates(node: Node, name: str, context: Context) -> str:
    """``goodput>=95% p99_ttft<800ms``; a list of them is joined."""
    nodes = node.nodes if isinstance(node, Items) else (node,)
    for item, found in zip(nodes, values.texts(node, name), strict=True):
        checked(parse_gates, name, found, item.place)
    return " ".join(values.texts(node, name))


def timeouts(node: Node, name: str, context: Context) -> str:
    """``first=60s gap=30s`` as a text, or as a mapping."""
    if not isinstance(node, Fields):
        return text(node, name, context)
    bounds = values.read(node, name, dict.fromkeys(("first", "gap", "total"), duration), context)
    return context.check(name, " ".join(f"{bound}={limit}" for bound, limit in bounds.items()), node.place)


def arrival(node: Node, name: str, context: Context) -> str:
    return context.check(name, values.with_file(node, name, context), node.place)


def dataset(node: Node, name: str, context: Context) -> str:
    """The path alone; what a mapping says besides is in :attr:`Scenario.dataset`."""
    if isinstance(node, Fields):
        return str(values.read(node, name, DATASET, context, required=("file",))["file"])
    return values.path(node, name, context)


def run_time(node: Node, name: str, context: Context) -> str:
    """Locust's ``--run-time``, which takes whole numbers only; another duration is written in seconds."""
    found = values.text(node, name, "a time such as 90s, 20m or 1h30m")
    if _RUN_TIME.fullmatch(found):
        return found
    seconds = checked(parse_time, name, found, node.place)
    if not seconds.is_integer():
        raise ScenarioError(node.place, f"{name} {found!r}: a run lasts whole seconds, such as 90s or 1h30m")
    return f"{seconds:.0f}s"


def whole(node: Node, name: str, context: Context, *, least: int = 1) -> int:
    return values.whole(node, name, least, 2**63 - 1)


def spawn_rate(node: Node, name: str, context: Context) -> float:
    rate = values.number(node, name, 0, 1e6)
    if rate == 0:
        raise values.wrong(node, name, "a number of users per second above 0")
    return rate


def price(node: Node, name: str, context: Context) -> str:
    return f"{values.number(node, name, 0, 1e12):.12g}"


def path(node: Node, name: str, context: Context) -> str:
    return values.path(node, name, context)


def truth(node: Node, name: str, context: Context) -> bool:
    return values.truth(node, name)


#: What a dataset may say besides its file's name.
DATASET: Mapping[str, Reader] = {
    "file": path,
    "order": values.word(*ORDERS),
    "format": values.word(*FORMATS),
}

#: Key -> what reads it.
OPTIONS: Mapping[str, Reader] = {
    "host": text,
    "model": text,
    "input_tokens": lengths,
    "output_tokens": lengths,
    "dataset": dataset,
    "body": body,
    "dataset_order": values.word(*ORDERS),
    "tokenizer": path,
    "calibrate": values.word("auto", "on", "off"),
    "slo_from": values.word("sent", "scheduled"),
    "arrival": arrival,
    "request_rate": text,
    "num_requests": whole,
    "max_in_flight": whole,
    "trace_scale": text,
    "trace_slice": text,
    "stop_when": text,
    "users": whole,
    "spawn_rate": spawn_rate,
    "run_time": run_time,
    "slo": slo,
    "gate": gates,
    "warmup": duration,
    "seed": partial(whole, least=0),
    "timeouts": timeouts,
    "max_answer": text,
    "drain": duration,
    "flush_timeout": duration,
    "out": text,
    "spool": text,
    "replica_header": texts,
    "api_key_env": text,
    "header": texts,
    "header_env": texts,
    "ca_cert": path,
    "client_cert": path,
    "require_valid": truth,
    "allow_incomplete": truth,
    "progress": values.word("auto", "rich", "plain", "locust"),
    "upload": text,
    "print_summary": truth,
    "rolling_summary": duration,
    "targets": texts,
    "target_policy": values.word("round_robin", "random", "least_inflight", "sticky"),
    "connection_reuse": text,
    "replica_url": texts,
    "expect_replicas": whole,
    "ready_timeout": duration,
    "metrics_url": texts,
    "metrics_interval": duration,
    "metrics_map": texts,
    "metrics_api_key_env": text,
    "profile_server": text,
    "reset_prefix_cache": values.word("start", "measured", "both"),
    "metrics_port": whole,
    "metrics_host": text,
    "gpu_hour_cost": price,
    "gpus": price,
    "gpu_type": text,
    "model_shape": path,
    "input_token_price": price,
    "output_token_price": price,
}

#: Options that the namespace of Locust's parser has under another name.
DESTINATIONS: Mapping[str, str] = {"users": "num_users"}


def destination(key: str) -> str:
    """The name under which Locust's options hold the value of ``key``."""
    return DESTINATIONS.get(key, key)
