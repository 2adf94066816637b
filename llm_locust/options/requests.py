"""Options that say what is sent, and those that give access to the server: keys, headers, certificates."""

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from re import fullmatch
from typing import Any

from llm_locust.core.texts import ON_OFF, is_on
from llm_locust.options.option import Group, option, parse_header, whole_from
from llm_locust.scenario import readers
from llm_locust.scenario.request_kind import parse_prefix
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.foreign_text import (
    is_key_name,
    is_variable,
    key_texts,
    public_url,
    shown_variable,
    without_keys,
)
from llm_locust.wire.headers import SessionHeader, header_template, secret_texts
from llm_locust.workload.body import parse_body
from llm_locust.workload.datasets import parse_keys
from llm_locust.workload.draws import ORDERS, Lengths, Order, parse_lengths
from llm_locust.workload.plan import ModelSplit, parse_models
from llm_locust.workload.prompts import ImagesAsked, parse_images
from llm_locust.workload.synthetic import SharedPrefix, parse_shared_prefix
from llm_locust.workload.trajectories import HISTORIES, History


def recorded_body(text: str) -> str:
    """The text as it is, or without the values of fields that have the name of a key."""
    fields = parse_body(text) if text else {}
    return json.dumps(without_keys(fields), ensure_ascii=False) if any(key_texts(fields)) else text


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
        parse=whole_from(0),
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


# --- Access to the server


#: Where SDKs and their users have the key.
DEFAULT_KEY_ENV = "OPENAI_API_KEY"


def headers_from(pairs: Iterable[tuple[str, str]], environ: Mapping[str, str]) -> dict[str, str]:
    """Headers whose values are in environment variables; raises ValueError, which never shows a value."""
    headers = {}
    for name, variable in pairs:
        value = environ.get(variable, "").strip()
        if not value:
            raise ValueError(f"the environment variable {shown_variable(variable)} is not set, or empty")
        header_template(name, value)
        headers[name] = value
    return headers


def parse_header_env(text: str) -> tuple[str, str]:
    """``Name=VARIABLE`` as a pair; raises ValueError, which does not show what may be a secret."""
    name, equals, variable = text.partition("=")
    if not equals or not is_variable(variable):
        raise ValueError("write NAME=VARIABLE, a header and the environment variable that holds its value")
    header_template(name, "")
    return name, variable


def parse_host_name(text: str) -> str:
    """A host name of a certificate (raises ValueError)."""
    name = text.strip().rstrip(".")
    if not fullmatch(r"[A-Za-z0-9*]([A-Za-z0-9_.:-]{0,252})", name):
        raise ValueError(f"{public_url(text)[:60]!r} is no host name: write one such as llm.example.org")
    return name


class AccessSettings(Group, frozen=True, kw_only=True):
    """How the server lets requests in. The values of ``header`` may be secrets."""

    api_key_env: str | None = option(
        "--api-key-env",
        "environment variable that holds the API key (default OPENAI_API_KEY, if it is set and no header "
        "has a key; empty: none)",
        metavar="NAME",
        is_load=False,
    )
    header: tuple[tuple[str, str], ...] = option(
        "--header",
        "request header (repeatable)",
        parse_header,
        "K=V",
        kind="list",
        secret=True,
        record=None,
    )
    header_env: tuple[tuple[str, str], ...] = option(
        "--header-env",
        "request header whose value each process reads from an environment variable (repeatable)",
        parse_header_env,
        "K=NAME",
        kind="list",
        record=None,
    )
    ca_cert: Path | None = option(
        "--ca-cert",
        "CA certificates (PEM) to trust instead of the system's",
        metavar="FILE",
        kind="path",
        is_load=False,
        parse=Path,
    )
    client_cert: Path | None = option(
        "--client-cert",
        "client certificate and key in one PEM file",
        metavar="FILE",
        kind="path",
        is_load=False,
        parse=Path,
    )
    tls_name: str | None = option(
        "--tls-name",
        "host name that the server's certificate has, where the URL has another one, or an address",
        parse_host_name,
        "NAME",
        is_load=False,
    )
    insecure: bool = option(
        "--insecure",
        "accept any certificate of the server: who is on the way can read the API key; the report says so",
        kind="truth",
        is_load=False,
    )

    def headers(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The values of ``--header``, and of ``--header-env`` from ``environ``; of equal names the latter's.

        Raises:
            ValueError: one that cannot be used. It names the option and the header, and never shows a value.
        """
        try:
            return dict(self.header) | headers_from(self.header_env, environ)
        except ValueError as e:
            raise ValueError(f"--header-env: {e}") from e

    def api_key(self, environ: Mapping[str, str]) -> str | None:
        """The key in the variable of ``--api-key-env``; raises ValueError, which names the option."""
        name = self.api_key_env
        if not name:
            return None
        key = environ.get(name, "").strip()
        if not key:
            raise ValueError(
                f"--api-key-env: the environment variable {shown_variable(name)} is not set, or empty"
            )
        if len(key) > 1 and key[0] == key[-1] and key[0] in "\"'":  # files of variables read as they stand
            raise ValueError(f"--api-key-env: the value of {name!r} stands in quotes: leave them out")
        if key.lower().startswith("bearer "):
            raise ValueError(
                f"--api-key-env: the value of {name!r} begins with Bearer: leave it out, the client adds it"
            )
        if not all((" " <= c <= "\xff" and c != "\x7f") or c == "\t" for c in key):
            raise ValueError(
                f"--api-key-env: the value of {name!r} holds a line break or a character that no header can "
                "hold"
            )
        return key


def access_headers(
    api_key: str | None, headers: Mapping[str, str], dialects: Iterable[Dialect], *, versioned: bool = False
) -> dict[str, str]:
    """Headers of every request: the API key as a bearer token, those of the dialects, the user's own.

    Args:
        versioned: the target has an ``api-version``; it takes the key in ``api-key`` too, as Azure does.
    """
    key = None if api_key is None else api_key.replace("{", "{{")  # a template of exactly this text
    ours = {} if key is None else {"Authorization": f"Bearer {key}"}
    if versioned and key is not None:
        ours["api-key"] = key
    for dialect in dialects:
        ours |= dialect.headers
        if dialect.key_header and key is not None:
            ours[dialect.key_header] = key
    return {**ours, **headers}


def access_secrets(api_key: str | None, headers: Mapping[str, str]) -> tuple[str, ...]:
    """Texts of the API key and the headers that must not stand in any file, log or page."""
    return (*((api_key,) if api_key and len(api_key) >= 4 else ()), *secret_texts(headers))


def take_default_key(options: argparse.Namespace, environ: Mapping[str, str]) -> bool:
    """Take ``OPENAI_API_KEY`` as ``--api-key-env`` if it is set and nothing is said of a key; return whether.

    An empty ``--api-key-env`` says that there is none. It is for the process that starts a run: its workers
    get the name with the options.
    """
    given = AccessSettings.of(options)
    names = [name for name, _ in (*given.header, *given.header_env)]
    said = getattr(options, "api_key_env", None) is not None or any(map(is_key_name, names))
    if said or not environ.get(DEFAULT_KEY_ENV, "").strip():
        return False
    options.api_key_env = DEFAULT_KEY_ENV
    return True
