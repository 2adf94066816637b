"""Deployment profiles: an engine's figures computed from a model and GPUs; see ``examples/deployments``.

The file names a model's shape and a GPU, or contains their values. The cost of a step follows from them by
:mod:`llm_locust.roofline`; other values are under ``engine`` with the names of the options, such as
``max_num_seqs``. An overhead that the file does not state is 0: the engine then runs at its roofline.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from llm_locust.core.durations import parse_time_ns
from llm_locust.core.small_yaml import SmallYamlError, read_small_yaml
from llm_locust.roofline.error import RooflineError
from llm_locust.roofline.gpus import Gpu
from llm_locust.roofline.model import ModelShape
from llm_locust.roofline.profile import StepCosts, gpu_named, read_model, step_costs
from llm_locust.sim.engine.gpu_page import GpuKind
from llm_locust.sim.settings.deployment import SettingsError

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
            raise SettingsError(f"profile {path}: {key} is missing; see the files of examples/deployments")
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
    _check_keys(content, tuple(_STATED), where)
    stated = {}
    for key, value in content.items():
        field, reader = _STATED[key]
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
_STATED: dict[str, tuple[str, Callable[[Any, str], Any]]] = {
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
    "max_model_len": ("max_model_len", _whole),
}
