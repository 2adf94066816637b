"""Options that say what is sent."""

import json
from typing import Any

from llm_locust.core.texts import ON_OFF, is_on
from llm_locust.options.option import Group, option
from llm_locust.scenario import readers
from llm_locust.scenario.request_kind import parse_prefix
from llm_locust.wire.foreign_text import key_texts, without_keys
from llm_locust.wire.headers import SessionHeader
from llm_locust.workload.body import parse_body
from llm_locust.workload.datasets.load import parse_keys
from llm_locust.workload.draws import ORDERS, Order
from llm_locust.workload.images import ImagesAsked, parse_images
from llm_locust.workload.lengths import Lengths, parse_lengths
from llm_locust.workload.parts import ModelSplit, parse_models
from llm_locust.workload.text.synthetic import SharedPrefix, parse_shared_prefix
from llm_locust.workload.trajectories.pool import HISTORIES, History


def recorded_body(text: str) -> str:
    """The text as it is, or without the values of fields that have the name of a key."""
    fields = parse_body(text) if text else {}
    return json.dumps(without_keys(fields), ensure_ascii=False) if any(key_texts(fields)) else text


def parse_skipped(lines: int) -> int:
    """A number of lines from 0 (raises ValueError)."""
    if lines < 0:
        raise ValueError(f"{lines} lines: a whole number from 0")
    return lines


class RequestSettings(Group, frozen=True, kw_only=True):
    """What is sent."""

    scenario: str | None = option(
        "--scenario",
        "YAML file with all of these options and more, such as classes of requests; what the command "
        "line or the environment says wins",
        metavar="FILE",
        kind="path",
        scope=None,
        is_load=False,
    )
    model: str | None = option(
        "--model",
        "model name; default: the only one that the server lists",
        ui=True,
        is_load=False,
    )
    models: ModelSplit | None = option(
        "--models",
        "several models or LoRA adapters, instead of --model: base=1,lora-a=2 with weights, "
        "zipf:1.1 base,lora-a, or round_robin lora-a,lora-b; all requests of a session ask for one",
        parse_models,
        "M",
        scope="classes",
        ui=True,
    )
    input_tokens: Lengths | None = option(
        "--input-tokens",
        "length of synthetic prompts in tokens: 512, uniform:100,1000, normal:512,64, "
        "lognormal:512,1.2, file:lengths.csv, and more: documentation, scenario.md (default 512)",
        parse_lengths,
        "D",
        ui=True,
    )
    output_tokens: Lengths | None = option(
        "--output-tokens",
        "max_tokens of the answers, a distribution as for --input-tokens (default 128; "
        "with --dataset what its lines say)",
        parse_lengths,
        "D",
        ui=True,
    )
    dataset: str | None = option(
        "--dataset",
        "prompts instead of synthetic ones: JSON Lines of messages, ShareGPT's JSON, a CSV with a "
        "column named prompt, plain text with one prompt a line",
        metavar="FILE",
        kind="path",
        form=readers.DATASET,
        ui=True,
    )
    trajectories: str | None = option(
        "--trajectories",
        "recorded tasks of agents, a file or a folder of JSON lines (documentation: agents.md): each user "
        "walks through one after the other, with the pauses of their tools; requires an AgentUser",
        metavar="FILE",
        kind="path",
    )
    agent_history: History = option(
        "--agent-history",
        "earlier answers that an agent's turn repeats: the recorded ones, or the server's own "
        "(default recorded)",
        choices=HISTORIES,
        otherwise="recorded",
    )
    cache_bust: bool = option(
        "--cache-bust",
        "on: each walk has a mark of its own after the system prompt, so that prefix caches miss "
        "those of other walks (default on)",
        parse=is_on,
        choices=ON_OFF,
        otherwise=True,
    )
    dataset_keys: frozenset[str] | None = option(
        "--dataset-keys",
        "keys of a dataset's lines that go into the request's body, beside the fields of the APIs "
        "(documentation: data-files.md): names with commas between, or all; other keys are not sent",
        parse_keys,
        "NAMES",
        otherwise=frozenset(),
    )
    skip_bad_lines: int = option(
        "--skip-bad-lines",
        "skip up to N lines of a dataset, and N of a trace, that cannot be read; their number is said before "
        "the load (default 0)",
        metavar="N",
        kind="whole",
        parse=parse_skipped,
        form=readers.WHOLE_FROM_0,
        otherwise=0,
    )
    dataset_order: Order | None = option(
        "--dataset-order",
        "order of the dataset's lines (default sequential)",
        choices=ORDERS,
    )
    tokenizer: str | None = option(
        "--tokenizer",
        "Hugging Face folder or tokenizer.json: prompts then have exactly the requested lengths, and "
        "answers whose usage the server does not report are counted by it",
        metavar="PATH",
        kind="path",
    )
    shared_prefix: SharedPrefix | None = option(
        "--shared-prefix",
        'prefixes shared by many prompts: "groups=10 tokens=1000 choice=uniform|zipf run_unique=yes|no"',
        parse_shared_prefix,
        "P",
        scope="classes",
        ui=True,
    )
    images: ImagesAsked | None = option(
        "--images",
        'images of noise in every prompt of chat, responses and messages: "count=2 size=1024x768"; count is '
        "a number or a distribution, size one or a mixture (0.7*512x512+0.3*1280x720), distinct=N lets all "
        "be of N images (default: no two are alike)",
        parse_images,
        "I",
        scope="classes",
        ui=True,
    )
    unique_head: bool | None = option(
        "--unique-head",
        "on: every prompt begins with words of its own, so that prefix caches miss (default on)",
        parse=is_on,
        choices=ON_OFF,
        scope="classes",
    )
    correct_lengths: str = option(
        "--correct-lengths",
        "correct the lengths of synthetic prompts by the server's own first counts, where no tokenizer "
        "is given; texts then depend on when answers came (default auto: unless --seed is given)",
        choices=("auto", "on", "off"),
        otherwise="auto",
    )
    body: dict[str, Any] | None = option(
        "--body",
        'fields added to every request body, such as \'{"temperature": 0, "ignore_eos": true}\'',
        parse_body,
        "JSON",
        form=readers.BODY,
        record=recorded_body,
    )
    session_header: SessionHeader | None = option(
        "--session-header",
        "response header that the next request of the same conversation, agent or session of a trace gives "
        "back, for gateways that keep a session at a replica: x-session-token, or cookie:NAME",
        SessionHeader.parse,
        "NAME",
    )
    slo_headers_prefix: str | None = option(
        "--slo-headers",
        "send the limits of each request's class for TTFT and TPOT in headers whose names begin with this: "
        "x-slo is x-slo-ttft-ms and x-slo-tpot-ms, in milliseconds, for gateways that route by them",
        parse_prefix,
        "PREFIX",
    )
