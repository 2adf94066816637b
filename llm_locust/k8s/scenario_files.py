"""Files of a scenario for a ConfigMap."""

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

#: Most bytes in a ConfigMap, less the space for keys and metadata.
MOST_BYTES = 1_000_000

#: Keys whose value is a path, and those whose value has a path after a prefix.
_PATHS = {"dataset", "file", "tokenizer", "ca_cert", "client_cert"}
_PREFIXES = {"input_tokens": "file:", "output_tokens": "file:", "arrival": "trace:"}


class RenderError(ValueError):
    """Manifests that cannot be made; the text says in one line why, and what to do."""


def files_of(document: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """Files that a scenario's document names, by their paths relative to its folder.

    A path that starts with ``/`` is in the image, and is ignored.

    Raises:
        RenderError: a file cannot be included.
    """
    found: dict[str, Path] = {}
    for key, text in _paths(document):
        if text.startswith("/"):
            continue
        path = folder / text
        if key == "client_cert":
            raise RenderError(
                f"client_cert {text!r} holds a key: mount it from a Secret and name it by /path"
            )
        if ".." in PurePosixPath(text).parts:
            raise RenderError(
                f"{key} {text!r} lies outside of the scenario's folder: put it there, or into the image"
            )
        if path.is_dir():
            raise RenderError(f"{key} {text!r} is a folder: put it into the image and name it by /path")
        if not path.is_file():
            raise RenderError(f"{key} {text!r}: there is no file {str(path)!r}")
        found[text] = path
    size = sum(path.stat().st_size for path in found.values())
    if size > MOST_BYTES:
        raise RenderError(
            f"the files that the scenario names have {size} bytes together, a ConfigMap holds {MOST_BYTES}: "
            f"put them into the image, or on a volume, and name them by /path: {', '.join(found)}"
        )
    return found


def _paths(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _paths(item, str(name).replace("-", "_"))
    elif isinstance(value, list):
        for item in value:
            yield from _paths(item, key)
    elif isinstance(value, str):
        prefix = _PREFIXES.get(key)
        if key in _PATHS:
            yield key, value
        elif prefix is not None and value.startswith(prefix):
            yield key, value.removeprefix(prefix).strip()
