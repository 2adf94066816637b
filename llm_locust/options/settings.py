"""The options of a run as checked values, and what is made of them and of the files that they name."""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from llm_locust.core.texts import nearest
from llm_locust.metrics.limits import parse_slo
from llm_locust.options.deployment import DeploymentSettings, parse_deployment
from llm_locust.options.load import LoadSettings, check_prompts, parse_load
from llm_locust.options.option import UP_TO, read_shape
from llm_locust.options.report import Keep, ReportSettings, keep_of
from llm_locust.options.requests import AccessSettings, RequestSettings, access_secrets
from llm_locust.options.run import RunSettings
from llm_locust.options.table import GRAMMAR, OPTION, OPTIONS, SCENARIO_TEXT, recorded
from llm_locust.roofline import roof_of_options
from llm_locust.scenario.document import Scenario, TrafficClass, sole_class, with_options
from llm_locust.scenario.readers import DatasetSource
from llm_locust.scenario.request_kind import (
    RequestKind,
    check_models,
    check_once,
    check_slo_headers,
    kinds_of,
    request_form,
    slo_headers,
)
from llm_locust.wire.foreign_text import key_texts
from llm_locust.wire.headers import secret_texts
from llm_locust.workload.datasets import LoadDataset, load_dataset
from llm_locust.workload.plan import DEFAULT_INPUT_TOKENS, DEFAULT_OUTPUT_TOKENS, WorkloadSpec
from llm_locust.workload.tokenizer import load_tokenizer
from llm_locust.workload.trajectories import TrajectoryPool, load_pool


def scenario_of(options: argparse.Namespace) -> Scenario | None:
    """The scenario of a run's options (raises ScenarioError)."""
    text = getattr(options, SCENARIO_TEXT, None)
    return None if not text else Scenario.from_text(text, GRAMMAR)


def classes_of(scenario: Scenario | None, options: argparse.Namespace) -> tuple[TrafficClass, ...]:
    """The classes of a run's requests: options win over the top level of the scenario, not over a class."""
    if scenario is None:
        return sole_class({})
    return with_options(
        scenario.classes, {row.name: row.value(options) for row in OPTIONS if row.scope == "classes"}
    )


T = TypeVar("T")


class UsageError(ValueError):
    """Something that the user has to change before any load is sent. One line, for a person."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of one run by their groups, and what is made of them and of the files that they name.

    Attributes:
        headers, api_key: of all requests; what is in the environment is read.
        workload: what is sent where no class says otherwise.
        kinds: the scenario's classes; without a scenario a nameless one, of what the options say.
        text: the options as they were given, without secrets.
    """

    requests: RequestSettings
    run: RunSettings
    access: AccessSettings
    report: ReportSettings
    load: LoadSettings
    deployment: DeploymentSettings
    headers: dict[str, str] = field(repr=False)
    api_key: str | None = field(repr=False)
    scenario: Scenario | None
    workload: WorkloadSpec
    pool: TrajectoryPool | None
    kinds: tuple[RequestKind, ...]
    keep: Keep | None
    text: dict[str, Any]

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts for no file, log or page: the API key, the values of headers, keys in bodies."""
        of_classes = () if self.scenario is None else self.scenario.secrets
        arms = self.deployment.arms
        bodies = (*(kind.spec.extra_body for kind in self.kinds), *(arm.body for arm in arms))
        of_bodies = dict.fromkeys(text for body in bodies for text in key_texts(body))
        of_arms = (text for arm in arms for text in secret_texts(arm.headers))
        return (*access_secrets(self.api_key, self.headers), *of_classes, *of_arms, *of_bodies)

    @property
    def restartable(self) -> bool:
        """The run may begin in the directory of an earlier part of it."""
        return self.run.restartable or self.load.resume

    @property
    def shared_warm_up(self) -> bool:
        """The warm-up sends the first of the run's own prompts."""
        return self.scenario is not None and self.scenario.warm_up.prompts == "shared"

    @property
    def warmup_gives_way(self) -> bool:
        """The warm-up is left out where every request began in it."""
        return str(self.text.get("warmup")).startswith(UP_TO)

    @property
    def class_slos(self) -> dict[str, dict[str, float]]:
        """Class -> metric -> limit in seconds, of the classes that have limits of their own."""
        return {kind.slo_class: kind.slo.limits for kind in self.kinds if kind.slo is not None}

    @property
    def models(self) -> tuple[str, ...]:
        """Models that kinds of requests ask for by themselves."""
        splits = (kind.spec.models for kind in self.kinds if kind.spec.models is not None)
        return tuple(dict.fromkeys(name for split in splits for name in split.names))

    @property
    def asks_for_one(self) -> bool:
        """Whether some requests ask for the run's own model."""
        return any(kind.spec.models is None for kind in self.kinds)

    def models_beside(self, model: str) -> tuple[str, ...]:
        """All models that requests ask for, given the run's."""
        return tuple(dict.fromkeys((*((model,) if self.asks_for_one else ()), *self.models)))

    def slo_headers(self, slo_class: str) -> dict[str, str]:
        """Headers with the limits of a class, as ``--slo-headers`` asks for them."""
        limits = self.class_slos.get(slo_class)
        limits = parse_slo(self.run.slo).limits if limits is None else limits
        return slo_headers(self.requests.slo_headers_prefix, limits)


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
    try:
        shape = _read(read_shape, text["model_shape"], "--model-shape")
        if shape is not None:
            text["model_shape"] = asdict(shape)
        roof_of_options(text)
    except ValueError as e:
        raise UsageError(str(e)) from e
    return replace(settings, text=text)


def _settings(options: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    requests, run = RequestSettings.of(options), RunSettings.of(options)
    access, report = AccessSettings.of(options), ReportSettings.of(options)
    scenario = scenario_of(options)
    _check_needs(scenario, options)
    workload = _workload(requests, run.seed, None if scenario is None else scenario.dataset)
    classes = classes_of(scenario, options)
    kinds = kinds_of(classes, workload, _loader(requests))
    rates = {kind.slo_class: kind.rate for kind in kinds if kind.rate is not None}
    load = parse_load(options, rates, requests.skip_bad_lines)
    check_prompts(load.sweep, options, classes, kinds)
    text = recorded(options)
    found = Settings(
        requests=requests,
        run=run,
        access=access,
        report=report,
        load=load,
        deployment=_deployment(options, environ, scenario, kinds, load),
        headers=access.headers(environ),
        api_key=access.api_key(environ),
        scenario=scenario,
        workload=workload,
        pool=_pool(requests, load.trace_block),
        kinds=kinds,
        keep=keep_of(report, run, load, str(text["keep"])),
        text=text,
    )
    return _checked(found)


def _checked(found: Settings) -> Settings:
    """Check the models, and the headers that are made of other options (raises ValueError)."""
    check_models(found.kinds, found.requests.model, found.deployment.arms)
    given = (*found.headers, *(name for arm in found.deployment.arms for name in arm.headers))
    if found.requests.session_header is not None:
        check_once("--session-header", {found.requests.session_header.sends.decode()}, found.kinds, given)
    if found.requests.slo_headers_prefix is not None:
        limits = {**found.class_slos, "": parse_slo(found.run.slo).limits}
        check_slo_headers(found.requests.slo_headers_prefix, found.kinds, limits, given)
    return found


def _check_needs(scenario: Scenario | None, options: argparse.Namespace) -> None:
    """Check that what a scenario cannot say itself is given, and what does not go together is not (raises
    ValueError)."""
    given = vars(options)
    if given.get("restartable") and (given.get("sweep") or given.get("find")):
        raise ValueError("--restartable beside --sweep or --find: write --resume, which repeats no stage")
    for name in () if scenario is None else scenario.needs:
        row = OPTION.get(name.replace("-", "_"))
        of = f"--scenario: {Path(scenario.path).stem}" if scenario else ""
        if row is None:
            raise ValueError(f"{of}: needs {name!r}: {nearest(name, OPTION)}write the name of an option")
        if not given.get(row.name):
            raise ValueError(f"{of} needs {row.flag} {row.metavar or 'VALUE'}: {row.help}")


def _deployment(
    options: argparse.Namespace,
    environ: Mapping[str, str],
    scenario: Scenario | None,
    kinds: Sequence[RequestKind],
    load: LoadSettings,
) -> DeploymentSettings:
    """The deployment, with arms that can ask for every kind of request (raises ValueError)."""
    found = parse_deployment(options, environ, () if scenario is None else scenario.arms)
    shares = any(kind.spec.shared_prefix or not kind.spec.unique_head or kind.plan for kind in kinds)
    shares = shares or load.trace is not None or bool(getattr(options, "trajectories", None))
    for arm in found.arms:
        if arm.prefix == "warm" and not shares:
            raise ValueError(
                f"arm {arm.name!r}: its prompts share nothing that a cache could have: add shared_prefix, or "
                "unique_head: false"
            )
        try:
            for kind in kinds:
                request_form(kind, "", arm)
        except ValueError as e:
            raise ValueError(f"arm {arm.name!r}: {e}") from e
    return found


def _loader(requests: RequestSettings) -> LoadDataset:
    """What reads datasets as the options say."""
    return partial(load_dataset, sent=requests.dataset_keys, most_skipped=requests.skip_bad_lines)


def _workload(requests: RequestSettings, seed: int | None, source: DatasetSource | None) -> WorkloadSpec:
    """What is sent where no class says otherwise; ``source`` is what a scenario says of its dataset."""
    if source is not None and source.file != requests.dataset:
        source = None  # the command line has another one
    load = partial(_loader(requests), format=source.format if source else None)
    dataset = _read(load, requests.dataset, "--dataset")
    input_tokens, output_tokens = requests.input_tokens, requests.output_tokens
    if dataset is None:  # which brings its own prompts, and perhaps its own bounds of the answers
        input_tokens = input_tokens or DEFAULT_INPUT_TOKENS
        output_tokens = output_tokens or DEFAULT_OUTPUT_TOKENS
    corrects = requests.correct_lengths
    return WorkloadSpec(
        order=requests.dataset_order or ("sequential" if source is None else source.order),
        tokenizer=_read(load_tokenizer, requests.tokenizer, "--tokenizer"),
        images=requests.images,
        shared_prefix=requests.shared_prefix,
        models=requests.models,
        unique_head=requests.unique_head is not False,
        calibrate=corrects == "on" or (corrects != "off" and seed is None),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        dataset=dataset,
        extra_body=requests.body or {},
    )


def _pool(requests: RequestSettings, block_tokens: int | None) -> TrajectoryPool | None:
    file = requests.trajectories
    trajectories = _read(partial(load_pool, block_tokens=block_tokens), file, "--trajectories")
    if trajectories is None:
        return None
    history = requests.agent_history
    if history == "own" and any(turn.hashed for found in trajectories for turn in found.turns):
        why = f"{file!r} has hashes instead of messages, into which no answer fits"
        raise UsageError(f"--agent-history own: {why}; write recorded")
    return TrajectoryPool(trajectories, history, requests.cache_bust)


def _read(read: Callable[[str], T], path: str | None, flag: str) -> T | None:
    """What is in the file of an option; an error is led by the flag."""
    try:
        return read(path) if path else None
    except ValueError as e:
        raise UsageError(f"{flag}: {e}") from e
