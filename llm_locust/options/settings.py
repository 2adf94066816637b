"""The options of a run as checked values."""

import argparse
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from llm_locust.client.http.connection import Timeouts
from llm_locust.core.durations import parse_time
from llm_locust.metrics.gates import parse_gates
from llm_locust.metrics.requests.slo import parse_slo
from llm_locust.options.access import parse_api_key, parse_headers
from llm_locust.options.arrivals import LOAD_OPTIONS, LoadSettings, parse_load
from llm_locust.options.deployment import DEPLOYMENT_OPTIONS, DeploymentSettings, parse_deployment
from llm_locust.options.scenario import scenario_of
from llm_locust.options.types import (
    parse_price,
    parse_size,
    parse_timeouts,
    read_shape,
)
from llm_locust.roofline.roof import roof_of_options
from llm_locust.scenario import DatasetSource, Scenario, sole_class
from llm_locust.scenario.request_kind import (
    DEFAULT_INPUT_TOKENS,
    DEFAULT_OUTPUT_TOKENS,
    RequestKind,
    kinds_of,
)
from llm_locust.wire.headers import secret_texts
from llm_locust.wire.secrecy import key_texts, without_keys
from llm_locust.workload.body import parse_body
from llm_locust.workload.datasets.load import load_dataset
from llm_locust.workload.lengths.times import DEFAULT_DRAIN
from llm_locust.workload.lengths.tokens import parse_lengths
from llm_locust.workload.plan import WorkloadSpec
from llm_locust.workload.text.shared_prefix import parse_shared_prefix
from llm_locust.workload.text.tokenizer import load_tokenizer

#: What a report of costs needs.
PRICE_OPTIONS = ("gpu_hour_cost", "gpus", "input_token_price", "output_token_price")

#: What the manifest keeps of the command line. Not --header: its values may be secrets.
RECORDED_OPTIONS = (
    "scenario", "model", "input_tokens", "output_tokens", "dataset", "dataset_order", "tokenizer",
    "shared_prefix", "unique_head", "calibrate", "body", "slo", "slo_from", "gate", "warmup", "out", "spool",
    "seed", "timeouts", "max_answer", "drain", "flush_timeout", "replica_header", "api_key_env", "ca_cert",
    "client_cert", "require_valid", "allow_incomplete", "host", "num_users", "spawn_rate", "run_time",
    "stop_timeout", "processes", "expect_workers", "upload", "gpu_type", "model_shape",
    *PRICE_OPTIONS, *LOAD_OPTIONS, *DEPLOYMENT_OPTIONS,
)  # fmt: skip

T = TypeVar("T")


class UsageError(ValueError):
    """Something that the user has to change before any load is sent. One line, for a person."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of one run, parsed. ``text`` holds them as given, without secrets.

    ``kinds`` are the scenario's classes; without a scenario a nameless one, of what the options say.
    """

    model: str | None
    workload: WorkloadSpec
    load: LoadSettings
    deployment: DeploymentSettings
    slo: str
    gates: str
    warmup_s: float
    out: Path | None
    seed: int | None
    timeouts: Timeouts
    max_answer_bytes: int
    drain_s: float
    flush_timeout_s: float
    replica_headers: tuple[str, ...]
    headers: dict[str, str] = field(repr=False)
    api_key: str | None = field(repr=False)
    ca_cert: Path | None
    client_cert: Path | None
    require_valid: bool
    allow_incomplete: bool
    upload: str | None
    print_summary: bool
    text: dict[str, Any]
    scenario: Scenario | None
    kinds: tuple[RequestKind, ...]

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must not stand in any file, log or page: the API key, the values of all headers, and of
        the fields of a body that have the name of a key."""
        key = (self.api_key,) if self.api_key and len(self.api_key) >= 4 else ()
        of_classes = () if self.scenario is None else self.scenario.secrets
        of_bodies = dict.fromkeys(t for kind in self.kinds for t in key_texts(kind.spec.extra_body))
        return (*key, *secret_texts(self.headers), *of_classes, *of_bodies)

    @property
    def shared_warm_up(self) -> bool:
        """The warm-up sends the first of the run's own prompts."""
        return self.scenario is not None and self.scenario.warm_up.prompts == "shared"

    @property
    def class_slos(self) -> dict[str, dict[str, float]]:
        """Class -> metric -> limit in seconds, of the classes that have limits of their own."""
        return {kind.slo_class: kind.slo.limits for kind in self.kinds if kind.slo is not None}


def parse_settings(options: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Settings:
    """The options' values.

    Raises:
        UsageError: one that cannot be used; the text names the option and what is wrong with it.
    """
    try:
        return _settings(options, environ)
    except ValueError as e:  # settings that are fine alone and contradict each other
        raise UsageError(str(e)) from e


def with_roofline(settings: Settings) -> Settings:
    """The settings with the content of ``--model-shape`` instead of its path: the file need be neither on a
    worker nor where the report is made again.

    Raises:
        UsageError: a file that is no model's, or one of the options that a roofline needs is missing.
    """
    text = dict(settings.text)
    if text["model_shape"]:
        text["model_shape"] = asdict(_parsed(read_shape, text["model_shape"], "--model-shape"))
    try:
        roof_of_options(text)
    except ValueError as e:
        raise UsageError(str(e)) from e
    return replace(settings, text=text)


def _settings(options: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    text = {name: getattr(options, name, None) for name in RECORDED_OPTIONS}
    for name in PRICE_OPTIONS:
        if text[name] not in (None, ""):
            _parsed(parse_price, str(text[name]), f"--{name.replace('_', '-')}")
    scenario = scenario_of(options)
    workload = _workload(options, None if scenario is None else scenario.dataset)
    if any(key_texts(workload.extra_body)):
        text["body"] = json.dumps(without_keys(workload.extra_body), ensure_ascii=False)
    kinds = kinds_of(sole_class({}) if scenario is None else scenario.classes, workload)
    return Settings(
        model=options.model or None,
        workload=workload,
        load=parse_load(options, {kind.slo_class: kind.rate for kind in kinds if kind.rate is not None}),
        deployment=parse_deployment(options),
        slo=_text(parse_slo, options.slo, "--slo"),
        gates=_text(parse_gates, options.gate, "--gate"),
        warmup_s=_parsed(parse_time, options.warmup or "0s", "--warmup"),
        out=Path(options.out) if options.out else None,
        seed=_seed(options.seed),
        timeouts=_parsed(parse_timeouts, options.timeouts, "--timeouts"),
        max_answer_bytes=_parsed(parse_size, options.max_answer, "--max-answer"),
        drain_s=_parsed(parse_time, options.drain or DEFAULT_DRAIN, "--drain"),
        flush_timeout_s=_parsed(parse_time, options.flush_timeout, "--flush-timeout"),
        replica_headers=tuple(options.replica_header or ()),
        headers=parse_headers(options, environ),
        api_key=parse_api_key(options.api_key_env, environ),
        ca_cert=Path(options.ca_cert) if options.ca_cert else None,
        client_cert=Path(options.client_cert) if options.client_cert else None,
        require_valid=bool(options.require_valid),
        allow_incomplete=bool(options.allow_incomplete),
        upload=options.upload or None,
        print_summary=bool(options.print_summary),
        text=text,
        scenario=scenario,
        kinds=kinds,
    )


def _workload(options: argparse.Namespace, source: DatasetSource | None) -> WorkloadSpec:
    """What is sent where no class says otherwise; ``source`` is what a scenario says of its dataset."""
    if source is not None and source.file != options.dataset:
        source = None  # the command line has another one
    read = partial(load_dataset, format=None if source is None else source.format)
    dataset = _parsed(read, options.dataset, "--dataset") if options.dataset else None
    order = options.dataset_order or ("sequential" if source is None else source.order)
    # A dataset brings its own prompts, and perhaps its own bounds of the answers.
    default_input, default_output = (
        (None, None) if dataset is not None else (DEFAULT_INPUT_TOKENS, DEFAULT_OUTPUT_TOKENS)
    )
    input_tokens = options.input_tokens or default_input
    output_tokens = options.output_tokens or default_output
    shared = options.shared_prefix
    tokenizer = _parsed(load_tokenizer, options.tokenizer, "--tokenizer") if options.tokenizer else None
    return WorkloadSpec(
        order=order,
        tokenizer=tokenizer,
        shared_prefix=_parsed(parse_shared_prefix, shared, "--shared-prefix") if shared else None,
        unique_head=options.unique_head != "off",
        calibrate=options.calibrate == "on" or (options.calibrate != "off" and options.seed is None),
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


def _text(parse: Callable[[str], object], text: str | None, flag: str) -> str:
    """The text as it is, having seen that it parses: the web UI's form has no such check."""
    if text:
        _parsed(parse, text, flag)
    return text or ""


def _seed(seed: int | None) -> int | None:
    if seed is not None and seed < 0:
        raise UsageError(f"--seed: {seed} is negative; give a whole number from 0")
    return seed
