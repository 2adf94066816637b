"""Model shapes from YAML files, as in ``examples/models``."""

import difflib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_locust.core.small_yaml import SmallYamlError, read_small_yaml
from llm_locust.roofline.error import RooflineError
from llm_locust.roofline.model import ARITHMETICS, BYTES, ModelShape

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
            near = difflib.get_close_matches(str(key), _KEYS, n=1)
            hint = f'did you mean "{near[0]}"? ' if near else ""
            raise RooflineError(f"{where}: there is no key {_shown(key)}: {hint}known are {', '.join(_KEYS)}")
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
