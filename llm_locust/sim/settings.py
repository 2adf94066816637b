"""Settings of the simulated deployment: options, profiles of deployments."""

import argparse
import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from llm_locust.core.files import SmallYamlError, read_small_yaml
from llm_locust.core.texts import argument, is_on, parse_time_ns, positive
from llm_locust.roofline import Gpu, ModelShape, RooflineError, StepCosts, gpu_named, read_model, step_costs
from llm_locust.sim.engine import EngineProfile
from llm_locust.sim.faults import TRANSFER_FAULT, FaultPlan, PlanStep, check_plan, parse_factor
from llm_locust.sim.jobs import ModelLimits
from llm_locust.sim.replica import POLICIES, PREFIX_IMBALANCE
from llm_locust.sim.telemetry import GpuKind
from llm_locust.wire.headers import SessionHeader

# --- Configuration of a simulated deployment


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSettings:
    """The plan, and the parameters of its faults."""

    plan: FaultPlan = field(default_factory=FaultPlan)
    after_tokens: int = 3  # position of a fault within a stream; before the last token of a shorter answer
    stall_ns: int = 3_600_000_000_000
    slow_factor: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSettings:
    """One gateway and its replicas.

    ``session_header`` names a session's replica in answers and in requests. The first ``prefill_replicas``
    compute prompts, whose KV cache takes ``kv_transfer_ns`` to the others, which decode; 0: each replica does
    both. ``replica_ports`` is the first of their own ports, None for none. ``speeds`` maps a replica's index
    to a factor on the duration of its steps. ``health_interval_ns`` is the interval of the gateway's health
    checks. ``profile`` says what the engine's figures were computed from, None if they were given.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    replicas: int = 4
    prefill_replicas: int = 0
    kv_transfer_ns: int = 10_000_000
    replica_ports: int | None = None
    routing: str = "round_robin"
    session_header: SessionHeader | None = None
    prefix_imbalance: int = PREFIX_IMBALANCE
    speeds: Mapping[int, float] = field(default_factory=dict)
    plan: tuple[PlanStep, ...] = ()  # in order of time
    health_interval_ns: int = 2_000_000_000
    seed: int = 0
    engine: EngineProfile = field(default_factory=EngineProfile)
    limits: ModelLimits = field(default_factory=ModelLimits)
    gpu: GpuKind = field(default_factory=GpuKind)
    profile: str | None = None
    faults: FaultSettings = field(default_factory=FaultSettings)
    api_key: str | None = None
    truth: Path | None = None
    early_role: bool = False
    keep_alive_s: float = 3_600.0

    def role(self, index: int) -> str:
        """What the name of a replica begins with."""
        if not self.prefill_replicas:
            return "replica"
        return "prefill" if index < self.prefill_replicas else "decode"


class SettingsError(ValueError):
    """Settings that contradict each other; the text says which and what to do."""


def check(settings: SimSettings) -> None:
    """Check that a deployment with these settings can work (raises SettingsError or PlanError)."""
    engine, limits = settings.engine, settings.limits
    if engine.max_num_batched_tokens < engine.max_num_seqs:
        raise SettingsError(
            f"--max-num-batched-tokens {engine.max_num_batched_tokens} is less than --max-num-seqs "
            f"{engine.max_num_seqs}: a step could not hold a token of each; raise it or lower the other"
        )
    if limits.max_model_len > engine.longest_sequence_tokens:
        raise SettingsError(
            f"--max-model-len {limits.max_model_len} is more than --kv-cache-tokens "
            f"{engine.kv_cache_tokens} holds in blocks of {engine.kv_block_tokens}: a longest sequence would "
            "never run; lower it or raise the other"
        )
    for model in limits.models:
        if not model or not model.isprintable():
            raise SettingsError(f"--model {model!r} is not a name: write at least one printable character")
    if settings.replica_ports and settings.replica_ports + settings.replicas - 1 > 65_535:
        raise SettingsError(
            f"--replica-ports {settings.replica_ports} leaves no room for {settings.replicas} ports "
            "below 65536; choose a lower one"
        )
    if settings.health_interval_ns <= 0:
        raise SettingsError("--health-interval 0 is not an interval; write such as 2s")
    for index in settings.speeds:
        if index >= settings.replicas:
            raise SettingsError(
                f"--replica-speed names replica {index}, but --replicas {settings.replicas} counts from 0"
            )
    check_plan(settings.plan, settings.replicas)
    _check_pools(settings)


def _check_pools(settings: SimSettings) -> None:
    if settings.prefill_replicas >= settings.replicas:
        raise SettingsError(
            f"--prefill-replicas {settings.prefill_replicas} of --replicas {settings.replicas} leaves none "
            "that decodes; raise --replicas, which counts both"
        )
    if not settings.prefill_replicas and TRANSFER_FAULT in dict(settings.faults.plan.rates):
        raise SettingsError(
            f"--faults {TRANSFER_FAULT}: nothing is transferred without --prefill-replicas; give it, or "
            "leave the fault out"
        )


# --------------------
# Deployment profiles: an engine's figures computed from a model and GPUs; see ``examples/deployments``.
#
# The file names a model's shape and a GPU, or contains their values. The cost of a step follows from them
# by :mod:`llm_locust.roofline`; other values are under ``engine`` with the names of the options, such as
# ``max_num_seqs``. An overhead that the file does not state is 0: the engine then runs at its roofline.
# --------------------


_MIB = 1 << 20
_KEYS = (
    *("name", "source", "model", "gpu", "gpus", "memory_efficiency", "compute_efficiency"),
    *("memory_utilization", "engine"),
)
_SHARES = ("memory_efficiency", "compute_efficiency", "memory_utilization")

_Kind = TypeVar("_Kind", ModelShape, Gpu)


@dataclass(frozen=True, slots=True)
class DeploymentProfile:
    """``engine``: fields of :class:`EngineProfile`; ``source``: one line on what they were computed from."""

    engine: Mapping[str, Any]
    max_model_len: int | None
    gpu: GpuKind
    source: str


def read_profile(path: Path) -> DeploymentProfile:
    """Read the profile in a YAML file.

    Raises:
        SettingsError: it cannot be read, or a key or a value is invalid; names file and key.
    """
    content = _document(path)
    _check_keys(content, _KEYS, f"profile {path}")
    for key in ("model", "gpu"):
        if content.get(key) is None:
            raise SettingsError(f"profile {path}: {key} is missing; documentation: simulator.md, Profiles")
    try:
        model = _model(path, content["model"])
        gpu = _gpu(path, content["gpu"])
        gpus = _whole(content.get("gpus", 1), f"profile {path}: gpus")
        shares = {key: _share(content[key], f"profile {path}: {key}") for key in _SHARES if key in content}
        costs = step_costs(model, gpu, gpus=gpus, **shares)
    except RooflineError as e:
        raise SettingsError(f"profile {path}: {e}") from e
    stated = _engine(content.get("engine") or {}, f"profile {path}: engine")
    max_model_len = stated.pop("max_model_len", None)
    engine = _computed(costs) | stated
    kind = GpuKind(
        model=gpu.name,
        count=gpus,
        weights_mib=costs.weights_bytes / gpus / _MIB,
        kv_cache_mib=engine["kv_cache_tokens"] * model.kv_bytes_per_token / gpus / _MIB,
    )
    return DeploymentProfile(engine, max_model_len, kind, costs.source)


def _computed(costs: StepCosts) -> dict[str, Any]:
    return {
        "ttft_base_ns": 0,
        "step_per_sequence_ns": 0,
        "step_base_ns": round(costs.step_base_ns),
        "prefill_per_token_ns": costs.prefill_per_token_ns,
        "context_per_token_ns": costs.context_per_token_ns,
        "kv_cache_tokens": costs.kv_cache_tokens,
        "overlap": True,
    }


def _document(path: Path) -> Mapping[str, Any]:
    try:
        content = read_small_yaml(path)
    except SmallYamlError as e:
        raise SettingsError(f"profile {path}: {e}") from e
    if not isinstance(content, dict):
        raise SettingsError(f"profile {path}: not a mapping: write lines such as gpu: h100")
    return content


def _model(path: Path, value: Any) -> ModelShape:
    if isinstance(value, str):
        return read_model(path.parent / value)
    return _values(ModelShape, value, f"profile {path}: model")


def _gpu(path: Path, value: Any) -> Gpu:
    return gpu_named(value) if isinstance(value, str) else _values(Gpu, value, f"profile {path}: gpu")


def _values(kind: type[_Kind], value: Any, where: str) -> _Kind:
    if not isinstance(value, dict):
        raise SettingsError(f"{where} is {value!r}: write a name, or a mapping of its values")
    _check_keys(value, [field.name for field in fields(kind)], where)
    try:
        # Not strict: YAML 1.1 reads 8.03e9 as text.
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as e:
        raise SettingsError(f"{where}: {e}") from e


def _engine(content: Any, where: str) -> dict[str, Any]:
    """Fields in the section, including ``max_model_len``, which is not the engine's."""
    if not isinstance(content, dict):
        raise SettingsError(f"{where} is {content!r}: write a mapping such as max_num_seqs: 256")
    readers = {**ENGINE_KEYS, "max_model_len": ("max_model_len", _whole)}
    _check_keys(content, tuple(readers), where)
    stated = {}
    for key, value in content.items():
        field, reader = readers[key]
        stated[field] = reader(value, f"{where}: {key}")
    return stated


def _check_keys(content: Mapping[Any, Any], known: Sequence[str], where: str) -> None:
    for key in content:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise SettingsError(f"{where}: there is no key {key!r}; {hint}")


def _duration(value: Any, where: str) -> int:
    try:
        return parse_time_ns(str(value))
    except ValueError as e:
        raise SettingsError(f"{where}: {e}") from e


def _whole(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SettingsError(f"{where} is {value!r}: write a whole number of at least 1")
    return value


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise SettingsError(f"{where} is {value!r}: write a number of at least 0")
    return float(value)


def _share(value: Any, where: str) -> float:
    share = _number(value, where)
    if not 0 < share <= 1:
        raise SettingsError(f"{where} is {value!r}: write a number above 0 and at most 1")
    return share


def _switch(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise SettingsError(f"{where} is {value!r}: write on or off")
    return value


#: Keys of ``engine``: the field of the engine's profile, and the parser of its value.
ENGINE_KEYS: dict[str, tuple[str, Callable[[Any, str], Any]]] = {
    "ttft_base": ("ttft_base_ns", _duration),
    "step_base": ("step_base_ns", _duration),
    "step_per_seq": ("step_per_sequence_ns", _duration),
    "prefill_per_token": ("prefill_per_token_ns", _duration),
    "context_per_token": ("context_per_token_ns", _duration),
    "max_num_seqs": ("max_num_seqs", _whole),
    "max_num_batched_tokens": ("max_num_batched_tokens", _whole),
    "kv_cache_tokens": ("kv_cache_tokens", _whole),
    "kv_block_tokens": ("kv_block_tokens", _whole),
    "prefix_cache": ("prefix_cache", _switch),
    "noise": ("noise", _number),
}


# --- Options of ``llm-locust sim`` and the parsers of their values


#: Defaults of the engine's options.
_ENGINE = EngineProfile()

_is_on = argument(is_on)
_time_ns = argument(parse_time_ns)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llm-locust sim``. Durations are written with a unit, such as 20ms."""
    _add_place_arguments(parser.add_argument_group("where and what"))
    _add_routing_arguments(parser.add_argument_group("gateway and replicas"))
    _add_engine_arguments(parser.add_argument_group("each replica's engine"))
    _add_fault_arguments(parser.add_argument_group("faults"))


def _add_place_arguments(place: argparse._ArgumentGroup) -> None:
    place.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    place.add_argument(
        "--port",
        type=_port,
        metavar="PORT",
        default=8000,
        help="the gateway's port, 0: a free one (%(default)s)",
    )
    place.add_argument(
        "--replicas", type=positive, metavar="N", default=4, help="number of replicas (%(default)s)"
    )
    place.add_argument(
        "--prefill-replicas",
        type=_count,
        default=0,
        metavar="N",
        help="the first N of them compute prompts and the others decode, as in disaggregated serving "
        "(%(default)s: each does both)",
    )
    place.add_argument(
        "--kv-transfer",
        type=_time_ns,
        metavar="TIME",
        default="10ms",
        help="time of a prompt's KV cache from a prefill to a decode replica (%(default)s)",
    )
    place.add_argument(
        "--replica-ports",
        type=_port,
        metavar="PORT",
        help="let each replica listen on a port of its own too, PORT being the first; 0: free ones",
    )
    place.add_argument("--model", action="append", metavar="NAME", help="a served model; repeatable (sim)")
    place.add_argument("--api-key", metavar="KEY", help="ask for this bearer token, or x-api-key, on /v1")
    place.add_argument(
        "--seed", type=int, metavar="N", default=0, help="of lengths, texts, noise and faults (%(default)s)"
    )
    place.add_argument(
        "--truth",
        type=Path,
        metavar="FILE",
        help="log of true times, JSON Lines; what happens to replicas goes to FILE.events.jsonl",
    )
    place.add_argument(
        "--keep-alive",
        type=_time_ns,
        metavar="TIME",
        default="3600s",
        help="of idle connections (%(default)s)",
    )
    place.add_argument(
        "--end-with-stdin",
        action="store_true",
        help="end when standard input is closed, as a pipe is when the program that started this one ends",
    )


def _add_routing_arguments(routing: argparse._ArgumentGroup) -> None:
    routing.add_argument(
        "--routing",
        choices=POLICIES,
        metavar="POLICY",
        default="round_robin",
        help=f"the gateway's policy: {', '.join(POLICIES)}; least_request is the less loaded of two "
        "drawn at random, sticky goes by X-Session-Id or else by "
        "connection, prefix by the longest common prefix (%(default)s)",
    )
    routing.add_argument(
        "--session-header",
        type=argument(SessionHeader.parse),
        metavar="NAME",
        help="name the replica in this response header, and send a request that gives it back to that "
        "replica, whatever the policy; x-session-token, or cookie:NAME",
    )
    routing.add_argument(
        "--prefix-imbalance",
        type=_count,
        metavar="N",
        default=PREFIX_IMBALANCE,
        help="requests in flight beyond the least loaded replica's from which one is not picked for its "
        "prefix (%(default)s)",
    )
    routing.add_argument(
        "--replica-speed",
        type=_speeds,
        action="append",
        metavar="N=FACTOR",
        help="replica N's steps last FACTOR times as long, such as 1=3x; repeatable, or with commas between",
    )
    routing.add_argument(
        "--plan",
        default="",
        help="what happens to replicas and when, such as '10s kill 2; 20s start 2; 30s slow 1 3x; "
        "40s normal 1; 50s drain 0', or a YAML file",
    )
    routing.add_argument(
        "--health-interval",
        type=_time_ns,
        metavar="TIME",
        default="2s",
        help="between two looks of the gateway at its replicas' health (%(default)s)",
    )


def _add_engine_arguments(engine: argparse._ArgumentGroup) -> None:
    """Add the engine's options. Their default is None, so that a profile can set them."""
    engine.add_argument(
        "--profile",
        type=Path,
        metavar="FILE",
        help="compute the engine's figures from a model and GPUs (documentation: simulator.md); options win",
    )

    def add(name: str, read: Callable[[str], object], default: str, text: str) -> None:
        value = "TIME" if read is _time_ns else "on|off" if read is _is_on else "N"
        engine.add_argument(name, type=read, metavar=value, help=f"{text} ({default})")

    def ms(ns: float) -> str:
        return f"{ns * 1e-6:g}ms"

    e = _ENGINE
    add("--ttft-base", _time_ns, ms(e.ttft_base_ns), "from arrival to the scheduler")
    add(
        "--prefill-per-token",
        _time_ns,
        ms(e.prefill_per_token_ns),
        "a step's time per prompt token",
    )
    add("--step-base", _time_ns, ms(e.step_base_ns), "a step's time with nothing in it")
    add("--step-per-seq", _time_ns, ms(e.step_per_sequence_ns), "a step's time per sequence")
    add(
        "--context-per-token",
        _time_ns,
        "0",
        "a step's time per token of context that it attends to",
    )
    add(
        "--overlap",
        _is_on,
        "off",
        "on: of memory and arithmetic time the longer counts, not the sum",
    )
    add("--max-num-seqs", positive, f"{e.max_num_seqs}", "batch limit")
    add("--max-num-batched-tokens", positive, f"{e.max_num_batched_tokens}", "tokens of one step")
    add("--kv-cache-tokens", positive, f"{e.kv_cache_tokens}", "tokens that fit into the KV cache")
    add("--kv-block-tokens", positive, f"{e.kv_block_tokens}", "tokens of one of its blocks")
    add("--prefix-cache", _is_on, "off", "on: blocks of prompts that begin alike are computed once")
    add("--max-model-len", positive, "32768", "tokens of the longest sequence")
    add("--noise", _not_negative, f"{e.noise:g}", "relative spread of a step's time")
    engine.add_argument(
        "--mean-output-tokens",
        type=_not_negative,
        metavar="N",
        default=200.0,
        help="mean length of an answer that ends by itself, without its end (%(default)s)",
    )
    engine.add_argument(
        "--eos",
        type=_is_on,
        metavar="on|off",
        default="on",
        help="on: an answer that ends by itself ends with one more token, which usage counts and which comes "
        "as an empty event with the finish reason, as vLLM does it; off: its last word is its end",
    )
    engine.add_argument(
        "--early-role",
        action="store_true",
        help="send a chat's role delta with the headers, not the first token",
    )


def _add_fault_arguments(faults: argparse._ArgumentGroup) -> None:
    faults.add_argument(
        "--faults",
        default="",
        metavar="PLAN",
        help="such as 'http_500=1%% reset=0.5%% refused=2s@10s', or a JSON or YAML file; "
        "http_400..http_599, close_before, reset, cut, truncated, stall, garbage, error_object, empty, slow, "
        "kv_transfer",
    )
    faults.add_argument(
        "--fault-after-tokens",
        type=_count,
        metavar="N",
        default=3,
        help="where a fault midway strikes (%(default)s)",
    )
    faults.add_argument(
        "--stall", type=_time_ns, metavar="TIME", default="3600s", help="length of a stall (%(default)s)"
    )
    faults.add_argument(
        "--slow-factor", type=positive, metavar="N", default=10, help="of slow answers (%(default)s)"
    )


def _speeds(text: str) -> dict[int, float]:
    """Parse ``1=3x`` or ``1=3x,2=0.5``."""
    speeds: dict[int, float] = {}
    for part in text.split(","):
        index, equals, factor = part.strip().partition("=")
        if not equals or not (index.isascii() and index.isdecimal()) or len(index) > 6:
            raise argparse.ArgumentTypeError(
                f"{part.strip()!r} is not a replica and its factor; write such as 1=3x"
            )
        if int(index) in speeds:
            raise argparse.ArgumentTypeError(f"{text!r} names replica {int(index)} twice")
        speeds[int(index)] = argument(parse_factor)(factor)
    return speeds


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 0 to 65535")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def _not_negative(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value
