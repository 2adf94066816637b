"""Memory and arithmetic of a decoder-only transformer."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from llm_locust.core.files import SmallYamlError, read_small_yaml
from llm_locust.core.texts import nearest
from llm_locust.roofline.gpus import RooflineError

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
