"""Locust's command line widened by the load test's own options, and their checked values."""

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from locust.argument_parser import LocustArgumentParser

from llm_locust.client.connection import Timeouts
from llm_locust.metrics.gates import parse_gates
from llm_locust.metrics.slo import parse_duration, parse_slo
from llm_locust.workload.body import parse_body
from llm_locust.workload.dataset import load_dataset
from llm_locust.workload.lengths import parse_lengths
from llm_locust.workload.plan import WorkloadSpec

ENV_PREFIX = "LLM_LOCUST_"

#: What the manifest keeps of the command line. Not --header: its values may be secrets.
RECORDED_OPTIONS = (
    "model", "input_tokens", "output_tokens", "dataset", "body", "slo", "gate", "warmup", "out", "seed",
    "timeouts", "flush_timeout", "replica_header", "api_key_env", "ca_cert", "client_cert",
    "require_valid", "allow_incomplete", "host", "num_users", "spawn_rate", "run_time", "stop_timeout",
    "processes", "expect_workers",
)  # fmt: skip

T = TypeVar("T")


class UsageError(ValueError):
    """Something that the user has to change before any load is sent. One line, for a person."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of one run, parsed. ``text`` holds them as given, without secrets."""

    model: str | None
    workload: WorkloadSpec
    slo: str
    gates: str
    warmup_s: float
    out: Path | None
    seed: int | None
    timeouts: Timeouts
    flush_timeout_s: float
    replica_headers: tuple[str, ...]
    headers: dict[str, str]
    api_key: str | None = field(repr=False)
    ca_cert: Path | None
    client_cert: Path | None
    require_valid: bool
    allow_incomplete: bool
    text: dict[str, Any]

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must not stand in any file, log or page."""
        bearer = [v.removeprefix("Bearer ") for v in self.headers.values()]
        return tuple(s for s in (self.api_key, *bearer) if s and len(s) >= 4)


def checked(parse: Callable[[str], object]) -> Callable[[str], str]:
    """An argparse type that keeps the text, having seen that it parses.

    The text, not the value, stays in the options: Locust sends them to its workers as they are.
    """

    def check(text: str) -> str:
        if text:
            try:
                parse(text)
            except ValueError as e:
                raise argparse.ArgumentTypeError(str(e).replace("%", "%%")) from e
        return text

    return check


def add_arguments(parser: LocustArgumentParser) -> None:
    """Add the options; each can also be given as an environment variable ``LLM_LOCUST_<NAME>``."""
    group = parser.add_argument_group("LLM load", "What is sent to the model, and what is asked of it.")

    def add(flag: str, *, ui: bool = False, **settings: Any) -> None:
        name = flag.removeprefix("--").replace("-", "_").upper()
        action = group.add_argument(flag, env_var=ENV_PREFIX + name, **settings)
        # A group's add_argument does not know these attributes, which Locust's own reads of every option.
        action.include_in_web_ui = ui
        action.is_secret = False
        action.is_required = False
        action.is_multiple = False

    add("--model", ui=True, help="model name; default: the only one that the server lists")
    add(
        "--input-tokens",
        ui=True,
        type=checked(parse_lengths),
        metavar="D",
        help="length of synthetic prompts in tokens: 512, uniform:100,1000, normal:512,64, "
        "lognormal:512,1.2, file:lengths.csv (default 512)",
    )
    add(
        "--output-tokens",
        ui=True,
        type=checked(parse_lengths),
        metavar="D",
        help="max_tokens of the answers, a distribution as for --input-tokens (default 128; "
        "with --dataset what its lines say)",
    )
    add("--dataset", ui=True, metavar="FILE", help="JSON Lines of messages, instead of synthetic prompts")
    add(
        "--body",
        type=checked(parse_body),
        metavar="JSON",
        help='fields added to every request body, such as \'{"temperature": 0, "ignore_eos": true}\'',
    )
    add(
        "--slo",
        ui=True,
        type=checked(parse_slo),
        metavar="LIMITS",
        help='limits per request, for goodput: "ttft=500ms tpot=50ms e2el=10s"',
    )
    add(
        "--gate",
        ui=True,
        type=checked(parse_gates),
        metavar="GATES",
        help='limits for the run: "goodput>=95%% p99_ttft<800ms error_rate<1%%"; '
        "a broken one gives exit code 1",
    )
    add(
        "--warmup",
        ui=True,
        type=checked(parse_duration),
        default="0s",
        metavar="TIME",
        help="left out of the measured window, such as 30s (default 0s)",
    )
    add("--out", metavar="DIR", help="run directory (default runs/<time>-<name>)")
    add(
        "--seed", type=int, metavar="N", help="reproducible lengths and prompts (default: drawn and recorded)"
    )
    add(
        "--timeouts",
        type=checked(parse_timeouts),
        default="first=60s gap=30s total=600s",
        metavar="BOUNDS",
        help='bounds of one request (default "first=60s gap=30s total=600s")',
    )
    add(
        "--flush-timeout",
        type=checked(parse_duration),
        default="30s",
        metavar="TIME",
        help="how long the workers' last records are waited for (default 30s)",
    )
    add(
        "--replica-header",
        action="append",
        default=[],
        metavar="NAME",
        help="response header that names the replica (repeatable; common ones are known)",
    )
    add("--api-key-env", metavar="NAME", help="environment variable that holds the API key")
    add(
        "--header",
        action="append",
        default=[],
        type=checked(parse_header),
        metavar="K=V",
        help="request header (repeatable)",
    )
    add("--ca-cert", metavar="FILE", help="CA certificates (PEM) to trust instead of the system's")
    add("--client-cert", metavar="FILE", help="client certificate and key in one PEM file")
    add("--require-valid", action="store_true", help="exit code 3 when the client's verdict is 'invalid'")
    add("--allow-incomplete", action="store_true", help="no exit code 2 when records are missing")


def options_help() -> str:
    """The options as a person reads them. (Locust prints its help before it loads a locustfile.)"""
    parser = LocustArgumentParser(prog="locust -f FILE", usage="%(prog)s [options]", add_help=False)
    add_arguments(parser)
    return str(parser.format_help())


def parse_timeouts(text: str) -> Timeouts:
    """``first=60s gap=30s total=600s``, any of the three; raises ValueError with the wrong word."""
    bounds: dict[str, float] = {}
    for word in text.replace(",", " ").split():
        name, equals, value = word.partition("=")
        if name not in ("first", "gap", "total") or not equals:
            raise ValueError(f"{word!r} in {text!r}: use first=TIME, gap=TIME or total=TIME, such as gap=30s")
        bounds[f"{name}_s"] = parse_duration(value)
        if bounds[f"{name}_s"] <= 0:
            raise ValueError(f"{word!r} in {text!r}: a bound must be longer than 0")
    return Timeouts(**bounds)


def parse_header(text: str) -> tuple[str, str]:
    """``Name=value`` as a pair; raises ValueError, which never shows the value."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or set(name) & set(": \t\r\n") or set(value) & set("\r\n\0"):
        raise ValueError(f"{name[:40]!r}: write NAME=VALUE, the name without spaces and colons")
    return name.strip(), value


def parse_settings(options: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Settings:
    """The options' values.

    Raises:
        UsageError: one that cannot be used; the text names the option and what is wrong with it.
    """
    try:
        return _settings(options, environ)
    except ValueError as e:  # settings that are fine alone and contradict each other
        raise UsageError(str(e)) from e


def _settings(options: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    text = {name: getattr(options, name, None) for name in RECORDED_OPTIONS}
    header_pairs = [_parsed(parse_header, h, "--header") for h in options.header or []]
    return Settings(
        model=options.model or None,
        workload=_workload(options),
        slo=options.slo or "",
        gates=options.gate or "",
        warmup_s=_parsed(parse_duration, options.warmup or "0s", "--warmup"),
        out=Path(options.out) if options.out else None,
        seed=options.seed,
        timeouts=_parsed(parse_timeouts, options.timeouts, "--timeouts"),
        flush_timeout_s=_parsed(parse_duration, options.flush_timeout, "--flush-timeout"),
        replica_headers=tuple(options.replica_header or ()),
        headers=dict(header_pairs),
        api_key=_api_key(options.api_key_env, environ),
        ca_cert=Path(options.ca_cert) if options.ca_cert else None,
        client_cert=Path(options.client_cert) if options.client_cert else None,
        require_valid=bool(options.require_valid),
        allow_incomplete=bool(options.allow_incomplete),
        text=text,
    )


def _workload(options: argparse.Namespace) -> WorkloadSpec:
    dataset = _parsed(load_dataset, options.dataset, "--dataset") if options.dataset else None
    # A dataset brings its own prompts, and perhaps its own bounds of the answers.
    default_input, default_output = (None, None) if dataset is not None else ("512", "128")
    input_tokens = options.input_tokens or default_input
    output_tokens = options.output_tokens or default_output
    return WorkloadSpec(
        input_tokens=_parsed(parse_lengths, input_tokens, "--input-tokens") if input_tokens else None,
        output_tokens=_parsed(parse_lengths, output_tokens, "--output-tokens") if output_tokens else None,
        dataset=dataset,
        extra_body=_parsed(parse_body, options.body, "--body") if options.body else {},
    )


def _parsed(parse: Callable[[str], T], text: str, flag: str) -> T:
    try:
        return parse(text)
    except ValueError as e:
        raise UsageError(f"{flag}: {e}") from e


def _api_key(name: str | None, environ: Mapping[str, str]) -> str | None:
    if not name:
        return None
    key = environ.get(name, "").strip()
    if not key:
        raise UsageError(f"--api-key-env: the environment variable {name!r} is not set, or empty")
    return key
