"""Upper bounds of a model on GPUs: bytes over bandwidth, operations over peak. Pure functions.

GPUs are those of their makers' data sheets: peaks that no program exceeds, and few reach. Bounds are of a
deployment's steps and of its throughput, with a profile of them for the simulator."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from llm_locust.core.files import SmallYamlError, read_small_yaml
from llm_locust.core.texts import nearest


class RooflineError(ValueError):
    """A GPU, a model or a question without a roofline; one line that says what to write."""


_GIB = 1 << 30
_TERA = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU: its memory in bytes, its bandwidth per second, and its dense matrix operations per second.

    ``fp8_flops`` and ``int8_flops`` are None if it has no such units: it then computes in 16 bits.

    Raises:
        RooflineError: a figure is not above 0, or not finite.
    """

    name: str
    memory_bytes: float
    bandwidth_bytes_per_s: float
    bf16_flops: float
    fp8_flops: float | None = None
    int8_flops: float | None = None

    def __post_init__(self) -> None:
        for key in ("memory_bytes", "bandwidth_bytes_per_s", "bf16_flops", "fp8_flops", "int8_flops"):
            value = getattr(self, key)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise RooflineError(f"{key} of {self.name} is {value:g}: write a number above 0")

    def peak_flops(self, arithmetic: str) -> float:
        """Dense operations per second in ``fp8``, ``int8``, or else in 16 bits."""
        peaks = {"fp8": self.fp8_flops, "int8": self.int8_flops}
        return peaks.get(arithmetic) or self.bf16_flops


def _gpu(
    name: str, memory_gib: float, bandwidth_tb: float, bf16: float, fp8: float | None, int8: float | None
) -> Gpu:
    """A row of the table. Data sheets write GB of memory and mean GiB, because chips come in powers of two;
    for bandwidth they mean 10⁹."""
    return Gpu(
        name=name,
        memory_bytes=memory_gib * _GIB,
        bandwidth_bytes_per_s=bandwidth_tb * _TERA,
        bf16_flops=bf16 * _TERA,
        fp8_flops=None if fp8 is None else fp8 * _TERA,
        int8_flops=None if int8 is None else int8 * _TERA,
    )


#: GiB, TB/s, dense TFLOP/s in bf16, fp8 and int8: half of a data sheet's figure if that is with sparsity.
GPUS: dict[str, Gpu] = {
    # NVIDIA A100 Tensor Core GPU data sheet (2021)
    "a100-40gb": _gpu("A100 40GB", 40, 1.555, 312, None, 624),
    "a100-80gb-pcie": _gpu("A100 80GB PCIe", 80, 1.935, 312, None, 624),
    "a100-80gb": _gpu("A100 80GB SXM", 80, 2.039, 312, None, 624),
    # NVIDIA A10 data sheet; AWS's A10G has 70 in its own data sheet (140 with sparsity), where A10 has 125
    "a10g": _gpu("A10G", 24, 0.600, 70, None, 140),
    "a10": _gpu("A10", 24, 0.600, 125, None, 250),
    # NVIDIA L4 data sheet (242 bf16, 485 fp8 and int8 with sparsity); NVIDIA L40S data sheet
    "l4": _gpu("L4", 24, 0.300, 121, 242.5, 242.5),
    "l40s": _gpu("L40S", 48, 0.864, 362.05, 733, 733),
    # NVIDIA H100 Tensor Core GPU data sheet (1,979, 1,513 and 1,671 bf16 with sparsity)
    "h100": _gpu("H100 SXM", 80, 3.35, 989.5, 1979, 1979),
    "h100-pcie": _gpu("H100 PCIe", 80, 2.0, 756.5, 1513, 1513),
    "h100-nvl": _gpu("H100 NVL", 94, 3.9, 835.5, 1670.5, 1670.5),
    # NVIDIA H200 Tensor Core GPU data sheet
    "h200": _gpu("H200 SXM", 141, 4.8, 989.5, 1979, 1979),
    "h200-nvl": _gpu("H200 NVL", 141, 4.8, 835.5, 1670.5, 1670.5),
    # NVIDIA DGX B200 data sheet (8 GPUs: 1,440 GB, 64 TB/s, 72 PFLOP/s fp8 with sparsity)
    "b200": _gpu("B200", 180, 8.0, 2250, 4500, 4500),
    # NVIDIA GB200 NVL72 data sheet, for one of its GPUs
    "gb200": _gpu("GB200", 186, 8.0, 2500, 5000, 5000),
    # AMD Instinct MI300X, MI325X and MI355X data sheets
    "mi300x": _gpu("MI300X", 192, 5.3, 1307.4, 2614.9, 2614.9),
    "mi325x": _gpu("MI325X", 256, 6.0, 1307.4, 2614.9, 2614.9),
    "mi355x": _gpu("MI355X", 288, 8.0, 2516.6, 5033.2, 5033.2),
}

_ALIASES = {
    "a100": "a100-80gb",
    "a100-sxm": "a100-80gb",
    "a100-80gb-sxm": "a100-80gb",
    "a100-pcie": "a100-80gb-pcie",
    "h100-sxm": "h100",
    "h200-sxm": "h200",
}


#: Keys of a GPU given by its values.
_VALUES = ("memory", "bandwidth", "bf16", "fp8", "int8")
_BY_VALUES = "memory=80,bandwidth=3.35,bf16=989.5,fp8=1979 (GiB, TB/s, dense TFLOP/s)"


def gpu_named(name: str) -> Gpu:
    """Find a GPU by name, as ``h100``, ``H100 PCIe``, ``A100_40GB``; or make one from values in the units of
    data sheets, as ``memory=80,bandwidth=3.35,bf16=989.5,fp8=1979``.

    Raises:
        RooflineError: there is none; suggests a similar name, or lists all.
    """
    if "=" in name:
        return _by_values(name)
    key = "-".join(name.lower().replace("_", " ").replace("-", " ").split())
    gpu = GPUS.get(_ALIASES.get(key, key))
    if gpu is None:
        hint = nearest(key, [*GPUS, *_ALIASES])
        raise RooflineError(f'there is no GPU "{name}": {hint}known are {", ".join(GPUS)}; or {_BY_VALUES}')
    return gpu


def _by_values(text: str) -> Gpu:
    values: dict[str, float] = {}
    for pair in text.split(","):
        key, _, value = (part.strip() for part in pair.partition("="))
        if key not in _VALUES or key in values:
            what = "is given twice" if key in values else f"is not one of {', '.join(_VALUES)}"
            raise RooflineError(f'GPU "{text}": "{key}" {what}: write {_BY_VALUES}')
        try:
            values[key] = float(value)
        except ValueError:
            raise RooflineError(f'GPU "{text}": {key} is "{value}": write a number') from None
    missing = [key for key in _VALUES[:3] if key not in values]
    if missing:
        raise RooflineError(f'GPU "{text}": {missing[0]} is missing: write {_BY_VALUES}')
    memory, bandwidth, bf16 = (values[key] for key in _VALUES[:3])
    return _gpu("GPU by its values", memory, bandwidth, bf16, values.get("fp8"), values.get("int8"))


# --- Memory and arithmetic of a decoder-only transformer


#: Bytes per value. Scales and zero points of quantised formats are left out: a few per cent.
BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5, "int4": 0.5}

#: Number formats of matrix multiplication.
ARITHMETICS = ("bf16", "fp8", "int8")

#: One number, or one per request or step.
Amount = TypeVar("Amount", float, NDArray[np.float64])


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A model's size.

    ``parameters`` are all, ``active_parameters`` those that one token is multiplied with: fewer in a mixture
    of experts, where each token goes through ``experts_per_token`` of ``experts`` in each layer.
    ``kv_latent_dim`` is for multi-head latent attention: the number of values that a layer stores per token
    instead of keys and values per head. ``kv_bytes``, if given, is the size of a token's keys and values,
    instead of that from the shape. ``head_dim`` is the mean of a query's and a value's width if these differ.
    ``arithmetic`` is the number format of matrix multiplication; by default the one that fits the weights:
    four-bit weights are first widened to 16.

    Raises:
        RooflineError: inconsistent values.
    """

    name: str
    parameters: int
    layers: int
    hidden_size: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied_embeddings: bool = False
    active_parameters: int | None = None
    experts: int | None = None
    experts_per_token: int | None = None
    weights: str = "bf16"
    kv_cache: str = "bf16"
    arithmetic: str | None = None
    kv_latent_dim: int | None = None
    kv_bytes: float | None = None

    def __post_init__(self) -> None:
        for key in _COUNTS:
            value = getattr(self, key)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise RooflineError(f"{key} of {self.name} is {value:g}: write a number above 0")
        for key, known in (("weights", BYTES), ("kv_cache", BYTES), ("arithmetic", ARITHMETICS)):
            value = getattr(self, key)
            if value not in known and not (key == "arithmetic" and value is None):
                raise RooflineError(f'{key} of {self.name} is "{value}": write one of {", ".join(known)}')
        _check_mixture(self)

    @property
    def active(self) -> int:
        """Parameters that one token goes through."""
        return self.parameters if self.active_parameters is None else self.active_parameters

    @property
    def weights_bytes(self) -> float:
        """Memory of the weights: parameters × bytes of one."""
        return self.parameters * BYTES[self.weights]

    @property
    def embedding_bytes(self) -> float:
        """Size of the input embedding, if it is a separate table, of which a step only looks up rows."""
        return 0.0 if self.tied_embeddings else self.vocabulary * self.hidden_size * BYTES[self.weights]

    @property
    def multiplied(self) -> int:
        """Parameters that one token is multiplied with, without a separate input embedding."""
        return self.active - (0 if self.tied_embeddings else self.vocabulary * self.hidden_size)

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes stored per token of context: layers × (2 × KV heads × head_dim, or the latent) × bytes."""
        if self.kv_bytes is not None:
            return self.kv_bytes
        of_layer = 2 * self.kv_heads * self.head_dim if self.kv_latent_dim is None else self.kv_latent_dim
        return self.layers * of_layer * BYTES[self.kv_cache]

    @property
    def computed_in(self) -> str:
        """Number format of matrix multiplication."""
        if self.arithmetic is not None:
            return self.arithmetic
        return self.weights if self.weights in ("fp8", "int8") else "bf16"

    def experts_touched(self, tokens: Amount) -> Amount:
        """Mean number of experts of a layer that a step of that many tokens reads; 0 without experts.

        E × (1 − (1 − k / E)^tokens), if each token chooses k of E experts uniformly and independently. A
        skewed choice reads fewer.
        """
        experts, of_token = self.experts or 0, self.experts_per_token or 0
        missed: Amount = (1 - of_token / max(1, experts)) ** tokens
        return experts * (1 - missed)

    def read_bytes(self, tokens: Amount) -> Amount:
        """Weights that a step of that many tokens reads: only the chosen experts, and without the few rows of
        a separate input embedding."""
        read: Amount = (self._shared + self.experts_touched(tokens) * self._of_expert) * BYTES[self.weights]
        return read - self.embedding_bytes

    def flops_per_token(self, context: Amount) -> Amount:
        """Operations of one token after ``context`` others.

        2 × multiplied parameters + 4 × layers × attention heads × head_dim × context.

        Kaplan et al. 2020, section 2.1: a multiplication and an addition for each parameter, and as many
        for each value of the keys and of the values that the token attends to.
        """
        return 2.0 * self.multiplied + self.attention_flops * context

    @property
    def attention_flops(self) -> float:
        """Operations of one token per token of its context."""
        return 4.0 * self.layers * self.attention_heads * self.head_dim

    def prompt_flops(self, tokens: Amount, cached: Amount | float = 0.0) -> Amount:
        """Operations of a prompt whose first ``cached`` tokens need not be computed.

        Token i attends to i tokens, including itself: their sum is (n × (n + 1) − c × (c + 1)) / 2. Only the
        last token goes through the output head, because only its successor is sampled.
        """
        contexts = (tokens * (tokens + 1) - cached * (cached + 1)) / 2
        of_head = 2.0 * self._head * (tokens > cached)
        return self.prompt_token_flops * (tokens - cached) + of_head + self.attention_flops * contexts

    @property
    def prompt_token_flops(self) -> float:
        """Operations of one token of a prompt except the last, without attention."""
        return 2.0 * (self.multiplied - self._head)

    @property
    def _head(self) -> int:
        """Parameters of the output head, tied or not."""
        return self.vocabulary * self.hidden_size

    @property
    def _of_expert(self) -> float:
        """Parameters of one expert in all layers: the inactive ones are those of all others."""
        if self.experts is None or self.experts_per_token is None or self.experts == self.experts_per_token:
            return 0.0
        return (self.parameters - self.active) / (self.experts - self.experts_per_token)

    @property
    def _shared(self) -> float:
        return self.parameters - (self.experts or 0) * self._of_expert


_COUNTS = (
    *("parameters", "active_parameters", "layers", "hidden_size", "attention_heads", "kv_heads", "head_dim"),
    *("vocabulary", "experts", "experts_per_token", "kv_latent_dim", "kv_bytes"),
)


def _check_mixture(model: ModelShape) -> None:
    given = (model.active_parameters, model.experts, model.experts_per_token)
    if all(value is None for value in given):
        return
    if model.active_parameters is None or model.experts is None or model.experts_per_token is None:
        raise RooflineError(
            f"{model.name} has some of active_parameters, experts and experts_per_token: "
            "a mixture of experts needs all three, any other model none"
        )
    if model.experts_per_token > model.experts:
        raise RooflineError(
            f"experts_per_token of {model.name} is {model.experts_per_token}: write no more than its "
            f"{model.experts} experts"
        )
    if model.active_parameters > model.parameters:
        raise RooflineError(
            f"active_parameters of {model.name} is {model.active_parameters:,}: write no more than its "
            f"{model.parameters:,} parameters"
        )
    if model._shared < 0:
        raise RooflineError(
            f"active_parameters of {model.name} is {model.active_parameters:,}: {model.experts_per_token} of "
            f"{model.experts} experts are more than that"
        )


# --- Model shapes from YAML files, as in ``examples/models``


_WHOLE = (
    *("parameters", "layers", "hidden_size", "attention_heads", "kv_heads", "head_dim", "vocabulary"),
    *("active_parameters", "experts", "experts_per_token", "kv_latent_dim"),
)
_REQUIRED = ("parameters", "layers", "hidden_size", "attention_heads", "vocabulary")
_CHOICES = {"weights": tuple(BYTES), "kv_cache": tuple(BYTES), "arithmetic": ARITHMETICS}
_KEYS = (*_WHOLE, *_CHOICES, "name", "source", "tied_embeddings", "kv_bytes")


def read_model(path: Path) -> ModelShape:
    """Read the shape in a YAML file; see :func:`model_of`. The default of ``name`` is the file's.

    Raises:
        RooflineError: it cannot be read, or a key or a value is invalid; names file and key.
    """
    document = _document(path)
    return model_of({**document, "name": document.get("name") or path.stem}, str(path))


def model_of(document: Mapping[Any, Any], where: str) -> ModelShape:
    """Shape from keys and values; :func:`dataclasses.asdict` of a shape is such a document, too.

    ``head_dim`` defaults to hidden_size / attention_heads, ``kv_heads`` to attention_heads; ``source`` is for
    people.

    Args:
        where: start of error messages: the file.

    Raises:
        RooflineError: a key or a value is invalid.
    """
    for key in document:
        if key not in _KEYS:
            hint = f"{nearest(str(key), _KEYS)}known are {', '.join(_KEYS)}"
            raise RooflineError(f"{where}: there is no key {_shown(key)}: {hint}")
    missing = [key for key in (*_REQUIRED, "name") if document.get(key) is None]
    if missing:
        raise RooflineError(f"{where}: {missing[0]} is missing: write it as in the model's config.json")
    values = {key: _value(where, key, value) for key, value in document.items() if value is not None}
    values.pop("source", None)
    values.setdefault("kv_heads", values["attention_heads"])
    if "head_dim" not in values:
        values["head_dim"] = _head_dim(where, values)
    try:
        return ModelShape(**values)
    except RooflineError as e:
        raise RooflineError(f"{where}: {e}") from None


def _document(path: Path) -> Mapping[Any, Any]:
    try:
        document = read_small_yaml(path)
    except SmallYamlError as e:
        raise RooflineError(f"{path}: {e}; name a YAML file of a model's shape") from e
    if not isinstance(document, Mapping):
        raise RooflineError(f"{path}: not a mapping: write lines such as layers: 32")
    return document


def _value(where: str, key: str, value: Any) -> Any:
    if key in _CHOICES:
        if value not in _CHOICES[key]:
            allowed = ", ".join(_CHOICES[key])
            raise RooflineError(f"{where}: {key} is {_shown(value)}: write one of {allowed}")
        return value
    if key in ("name", "source"):
        if not isinstance(value, str) or not value.isprintable():
            raise RooflineError(f"{where}: {key} is {_shown(value)}: write a text of one line")
        return value
    if key == "tied_embeddings":
        if not isinstance(value, bool):
            raise RooflineError(f"{where}: {key} is {_shown(value)}: write true or false")
        return value
    number = _number(value)
    whole = key in _WHOLE
    if number is None or number <= 0 or (whole and number != int(number)):
        kind = "a whole number above 0, as 32 or 8.03e9" if whole else "a number above 0"
        raise RooflineError(f"{where}: {key} is {_shown(value)}: write {kind}")
    return int(number) if whole else number


def _shown(value: Any) -> str:
    """A value for an error message; lists and mappings by kind: aliases could unfold to any size."""
    if isinstance(value, list | dict | set | tuple):
        return f"a {'mapping' if isinstance(value, dict) else 'list'}"
    return repr(value) if len(str(value)) <= 60 else f"{str(value)[:60]!r}…"


def _number(value: Any) -> float | None:
    """A number; YAML 1.1 reads 8.03e9 as text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _head_dim(where: str, values: Mapping[str, Any]) -> int:
    size, heads = values["hidden_size"], values["attention_heads"]
    if size % heads:
        raise RooflineError(
            f"{where}: head_dim is missing, and hidden_size {size} is no multiple of "
            f"attention_heads {heads}: write it"
        )
    return int(size // heads)


# --- A model on its GPUs: upper bounds of a deployment


_OPTIONS = ("gpu_type", "model_shape", "gpus")


@dataclass(frozen=True, slots=True)
class Roof:
    """One model on ``gpus`` GPUs that divide its work without loss and without communication.

    Raises:
        RooflineError: no GPU.
    """

    model: ModelShape
    gpu: Gpu
    gpus: float = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.gpus) and self.gpus > 0):
            raise RooflineError(f"gpus is {self.gpus:g}: write how many GPUs serve")

    @property
    def bandwidth_bytes_per_s(self) -> float:
        return self.gpu.bandwidth_bytes_per_s * self.gpus

    @property
    def peak_flops(self) -> float:
        """Operations per second, in the arithmetic of the model."""
        return self.gpu.peak_flops(self.model.computed_in) * self.gpus

    @property
    def memory_bytes(self) -> float:
        return self.gpu.memory_bytes * self.gpus

    def __str__(self) -> str:
        return f"{self.model.name} ({self.model.weights}) on {self.gpus:g} × {self.gpu.name}"


def roof_of_options(options: Mapping[str, Any]) -> Roof | None:
    """Roofline from a run's options ``gpu_type``, ``model_shape`` and ``gpus``; None without the first two.

    ``model_shape`` is the document of a shape (see :func:`model_of`). It is
    never a path: the options may come from the manifest of a stranger's run, which names no file to open.

    Raises:
        RooflineError: one of the three is missing or invalid.
    """
    gpu_type, shape, gpus = (options.get(name) or None for name in _OPTIONS)
    if gpu_type is None and shape is None:
        return None
    missing = [name for name in _OPTIONS if not options.get(name)]
    if missing:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise RooflineError(f"a roofline needs --gpu-type, --model-shape and --gpus: give {flags} too")
    if not isinstance(shape, Mapping):
        raise RooflineError("model_shape is no model's shape: give the file of one by --model-shape")
    model = model_of(shape, "model_shape")
    try:
        number = float(str(gpus))
    except ValueError:
        raise RooflineError(f'gpus is "{gpus}": write how many GPUs serve, as 4') from None
    return Roof(model, gpu_named(str(gpu_type)), number)


# --- Lower bounds of an engine's step, in the form of the simulator's engines


_NS = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Cost of an engine's step:

        max(step_base + context_per_token · context tokens held by decoding sequences,
            prefill_per_token · tokens computed in the step)

    plus overheads, which no data sheet contains. ``step_base_ns`` is the time to read all weights; for a
    mixture of experts it applies to a step of many tokens. ``source`` says what it was computed from.
    """

    step_base_ns: float
    prefill_per_token_ns: float
    context_per_token_ns: float
    kv_cache_tokens: int
    weights_bytes: int
    source: str


def step_costs(
    model: ModelShape,
    gpu: Gpu,
    *,
    gpus: int = 1,
    memory_efficiency: float = 1.0,
    compute_efficiency: float = 1.0,
    memory_utilization: float = 0.9,
) -> StepCosts:
    """Costs of one replica's steps, on ``gpus`` GPUs that divide the work without loss.

    step_base = weights / bandwidth; context_per_token = KV bytes of a token / bandwidth; prefill_per_token =
    2 · (multiplied parameters − output head) / peak, without attention, which grows with the context;
    kv_cache_tokens = (memory · memory_utilization − weights) / KV bytes of a token.

    Args:
        memory_efficiency: achieved share of the bandwidth, above 0 and at most 1.
        compute_efficiency: achieved share of the peak.
        memory_utilization: share of memory that the engine uses for weights and KV cache.

    Raises:
        RooflineError: no GPU, a share out of range, or weights that leave no room for a KV cache.
    """
    for name, share in (
        ("memory_efficiency", memory_efficiency),
        ("compute_efficiency", compute_efficiency),
        ("memory_utilization", memory_utilization),
    ):
        if not 0 < share <= 1:
            raise RooflineError(f"{name} is {share:g}: write a number above 0 and at most 1")
    bandwidth = gpu.bandwidth_bytes_per_s * gpus * memory_efficiency
    peak = gpu.peak_flops(model.computed_in) * gpus * compute_efficiency
    held = kv_cache_tokens(model, gpu, gpus=gpus, memory_utilization=memory_utilization)
    return StepCosts(
        step_base_ns=(model.weights_bytes - model.embedding_bytes) / bandwidth * _NS,
        prefill_per_token_ns=model.prompt_token_flops / peak * _NS,
        context_per_token_ns=model.kv_bytes_per_token / bandwidth * _NS,
        kv_cache_tokens=held,
        weights_bytes=round(model.weights_bytes),
        source=(
            f"roofline of {model.name} ({model.weights}) on {gpus} × {gpu.name} by data sheet, at "
            f"{memory_efficiency:.0%} of its bandwidth and {compute_efficiency:.0%} of its FLOP/s"
        ),
    )


def kv_cache_tokens(model: ModelShape, gpu: Gpu, *, gpus: float = 1, memory_utilization: float = 0.9) -> int:
    """Number of tokens whose keys and values fit into memory with the weights.

    Raises:
        RooflineError: no GPU, or not even one token fits.
    """
    if not (math.isfinite(gpus) and gpus > 0):
        raise RooflineError(f"gpus is {gpus:g}: write how many GPUs one copy of the model has")
    free = gpu.memory_bytes * gpus * memory_utilization - model.weights_bytes
    tokens = math.floor(free / model.kv_bytes_per_token)
    if tokens < 1:
        needed = math.ceil(model.weights_bytes / (gpu.memory_bytes * memory_utilization))
        raise RooflineError(
            f"the {model.weights_bytes / _NS:.1f} GB of {model.name} do not fit into "
            f"{memory_utilization:.0%} of {gpus:g} × {gpu.name} ({gpu.memory_bytes * gpus / _NS:.1f} GB): "
            f"give {needed} GPUs or more, or weights of fewer bytes"
        )
    return tokens


# --------------------
# Lower bounds of step times on these GPUs for any engine: bytes over bandwidth, operations over peak.
#
# A step has to read its weights and its sequences' keys and values, and to do its operations. Both can run
# in parallel, so it lasts at least as long as the longer of them (Williams et al. 2009, Pope et al. 2022).
# Communication between GPUs, activations, and the launch of kernels are left out: these are bounds.
# --------------------


#: Largest batch considered.
_MOST_BATCH = 1 << 40


@dataclass(frozen=True, slots=True)
class Bound:
    """Lower bound of a step: bytes that must be read, operations that must be done."""

    weights_bytes: float
    kv_bytes: float
    flops: float
    memory_s: float
    compute_s: float

    @property
    def seconds(self) -> float:
        return max(self.memory_s, self.compute_s)

    @property
    def binds(self) -> str:
        """``memory`` or ``compute``, whichever takes longer."""
        return "memory" if self.memory_s >= self.compute_s else "compute"


@dataclass(frozen=True, slots=True)
class Saturation:
    """Upper bound of a deployment: ``batch`` sequences, all that fit, and their mean step."""

    batch: int
    kv_cache_tokens: int
    step: Bound
    output_tokens_per_s: float
    requests_per_s: float


def decode_bound(roof: Roof, batch: float, context: float) -> Bound:
    """One decode step of ``batch`` sequences of ``context`` tokens each: a lower bound of TPOT."""
    model = roof.model
    return _bound(
        roof,
        model.read_bytes(batch),
        batch * context * model.kv_bytes_per_token,
        batch * model.flops_per_token(context),
    )


def prefill_bound(roof: Roof, tokens: float) -> Bound:
    """A prompt of ``tokens`` that must be computed, alone: a lower bound of TTFT."""
    return _bound(roof, roof.model.read_bytes(tokens), 0.0, roof.model.prompt_flops(tokens))


def mean_context(input_tokens: float, output_tokens: float) -> float:
    """Mean number of tokens that a token of an answer attends to: the prompt and half of the answer."""
    return input_tokens + output_tokens / 2


def ridge_batch(roof: Roof, context: float) -> int | None:
    """Smallest batch whose operations take as long as its reads.

    Below it a larger batch takes hardly longer, above it tokens/s do not grow. None if there is no such
    batch: each sequence's own keys and values take longer to read than to compute with.
    """

    def computes(batch: int) -> bool:
        bound = decode_bound(roof, batch, context)
        return bound.compute_s >= bound.memory_s

    # Reads grow ever more slowly with the batch, operations linearly: beyond the ridge this does not change.
    high = 1
    while not computes(high):
        high *= 2
        if high > _MOST_BATCH:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if computes(middle) else (middle, high)
    return high


def saturation(
    roof: Roof, input_tokens: float, output_tokens: float, *, memory_utilization: float = 0.9
) -> Saturation:
    """A continuous stream of requests of one length, as many at a time as fit into the memory besides the
    weights.

    They are at different positions in their answers, so that one takes input + output / 2 tokens of the KV
    cache. Each step gives each of them a token: the first of an answer by computing its whole prompt at the
    same time.

    Raises:
        RooflineError: the weights, or one request, do not fit.
    """
    model = roof.model
    held = kv_cache_tokens(model, roof.gpu, gpus=roof.gpus, memory_utilization=memory_utilization)
    if input_tokens + output_tokens > held:
        raise RooflineError(
            f"a request of {input_tokens + output_tokens:,.0f} tokens does not fit into the KV cache of "
            f"{held:,} tokens: give more GPUs, or fewer tokens"
        )
    context = mean_context(input_tokens, output_tokens)
    batch = math.floor(held / context)
    begun = batch / output_tokens
    decoding = batch - begun
    step = _bound(
        roof,
        model.read_bytes(decoding + begun * input_tokens),
        decoding * context * model.kv_bytes_per_token,
        decoding * model.flops_per_token(context) + begun * model.prompt_flops(input_tokens),
    )
    rate = batch / step.seconds
    return Saturation(batch, held, step, rate, rate / output_tokens)


def _bound(roof: Roof, weights_bytes: float, kv_bytes: float, flops: float) -> Bound:
    memory_s = (weights_bytes + kv_bytes) / roof.bandwidth_bytes_per_s
    return Bound(weights_bytes, kv_bytes, flops, memory_s, flops / roof.peak_flops)


# --- Bounds of one deployment at one load, with all their terms


DEFAULT_BATCHES = (1, 8, 32, 128)


def answer(
    roof: Roof,
    *,
    input_tokens: int = 512,
    output_tokens: int = 128,
    batches: Sequence[int] = DEFAULT_BATCHES,
    memory_utilization: float = 0.9,
) -> dict[str, Any]:
    """Result of ``llm-locust roofline``, JSON-ready.

    ``decode`` has for each batch one step at the mean context, and whether the batch fits into memory;
    ``prefill`` one prompt alone; ``saturated`` as many requests as fit, with their prompts computed at the
    same time.

    Raises:
        RooflineError: invalid numbers, or a model or a request that does not fit.
    """
    for name, value in (("input_tokens", input_tokens), ("output_tokens", output_tokens)):
        if value < 1:
            raise RooflineError(f"{name} is {value}: write 1 or more")
    if not batches or min(batches) < 1:
        raise RooflineError(
            f"batch is {', '.join(map(str, batches)) or 'empty'}: write numbers from 1, as 1,8"
        )
    if not 0 < memory_utilization <= 1:
        raise RooflineError(
            f"memory_utilization is {memory_utilization:g}: write a number above 0 and at most 1"
        )
    full = saturation(roof, input_tokens, output_tokens, memory_utilization=memory_utilization)
    context = mean_context(input_tokens, output_tokens)
    return {
        "model": _model(roof),
        "gpu": {
            "name": roof.gpu.name,
            "gpus": roof.gpus,
            "memory_bytes": roof.memory_bytes,
            "bandwidth_bytes_per_s": roof.bandwidth_bytes_per_s,
            "peak_flops": roof.peak_flops,
        },
        "load": {"input_tokens": input_tokens, "output_tokens": output_tokens, "context": context},
        "kv_cache": {"memory_utilization": memory_utilization, "tokens": full.kv_cache_tokens},
        "prefill": {"tokens": input_tokens, **_step("ttft", prefill_bound(roof, input_tokens))},
        "decode": [_decode(roof, batch, context, full.batch) for batch in batches],
        "ridge_batch": ridge_batch(roof, context),
        "saturated": {
            "batch": full.batch,
            **_step("tpot", full.step),
            "output_tokens_per_s": full.output_tokens_per_s,
            "requests_per_s": full.requests_per_s,
        },
    }


def _model(roof: Roof) -> dict[str, Any]:
    model = roof.model
    return {
        "name": model.name,
        "parameters": model.parameters,
        "active_parameters": model.active,
        "weights": model.weights,
        "weights_bytes": model.weights_bytes,
        "embedding_bytes": model.embedding_bytes,
        "kv_cache": model.kv_cache,
        "kv_bytes_per_token": model.kv_bytes_per_token,
        "arithmetic": model.computed_in,
        "flops_per_token": model.flops_per_token(0.0),
        "flops_per_context_token": model.attention_flops,
        "experts": model.experts,
        "experts_per_token": model.experts_per_token,
    }


def _decode(roof: Roof, batch: int, context: float, most: int) -> dict[str, Any]:
    bound = decode_bound(roof, batch, context)
    return {
        "batch": batch,
        "fits": batch <= most,
        "experts_touched": roof.model.experts_touched(float(batch)) if roof.model.experts else None,
        **_step("tpot", bound),
        "user_tps": 1 / bound.seconds,
        "output_tokens_per_s": batch / bound.seconds,
    }


def _step(name: str, bound: Bound) -> dict[str, Any]:
    return {
        "weights_bytes": bound.weights_bytes,
        "kv_bytes": bound.kv_bytes,
        "flops": bound.flops,
        "memory_ms": bound.memory_s * 1e3,
        "compute_ms": bound.compute_s * 1e3,
        f"{name}_ms": bound.seconds * 1e3,
        "bound_by": bound.binds,
    }
