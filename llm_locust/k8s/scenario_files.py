"""Files of a scenario for a ConfigMap."""

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from llm_locust.options.table import OPTIONS

#: Most bytes in a ConfigMap, less the space for keys and metadata.
MOST_BYTES = 1_000_000

#: Keys whose value is a path, and those whose value has a path after a prefix.
_PATHS = {"file", *(row.name for row in OPTIONS if row.kind == "path" and row.scope is not None)}
_PREFIXES = {"input_tokens": "file:", "output_tokens": "file:", "arrival": "trace:"}


class RenderError(ValueError):
    """Manifests that cannot be made; the text says in one line why, and what to do."""


def files_of(document: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """Files that a scenario's document names, by their paths relative to its folder: data, and the modules
    of validators' functions.

    A path that starts with ``/`` is in the image, and is ignored, as is a module that is not in the folder.

    Raises:
        RenderError: a file cannot be included.
    """
    found: dict[str, Path] = {}
    for key, text in _named(document):
        if key == "function":
            found |= _module_files(text, folder)
        elif not text.startswith("/"):
            found[text] = _included(key, text, folder)
    check_size(found)
    return found


def check_size(files: Mapping[str, Path]) -> None:
    """Check that a ConfigMap holds the files (raises RenderError)."""
    size = sum(path.stat().st_size for path in files.values())
    if size > MOST_BYTES:
        raise RenderError(
            f"the files of the load have {size} bytes together, a ConfigMap holds {MOST_BYTES}: "
            f"put them into the image, or on a volume, and name them by /path: {', '.join(files)}"
        )


def _included(key: str, text: str, folder: Path) -> Path:
    path = folder / text
    if key == "client_cert":
        raise RenderError(f"client_cert {text!r} holds a key: mount it from a Secret and name it by /path")
    if ".." in PurePosixPath(text).parts:
        raise RenderError(
            f"{key} {text!r} lies outside of the scenario's folder: put it there, or into the image"
        )
    if path.is_dir():
        raise RenderError(f"{key} {text!r} is a folder: put it into the image and name it by /path")
    if not path.is_file():
        raise RenderError(f"{key} {text!r}: there is no file {str(path)!r}")
    return path


def _module_files(function: str, folder: Path) -> dict[str, Path]:
    """A module of the scenario's folder, and of packages on the way to it what makes them such."""
    module = PurePosixPath(*function.partition(":")[0].split("."))
    parents = [parent / "__init__.py" for parent in module.parents if parent.name]
    wanted = [module.with_suffix(".py"), module / "__init__.py", *parents]
    return {str(name): folder / name for name in wanted if (folder / name).is_file()}


def _named(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """What names files: paths under the keys of options, and ``function`` with its module."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _named(item, str(name).replace("-", "_"))
    elif isinstance(value, list):
        for item in value:
            yield from _named(item, key)
    elif isinstance(value, str):
        prefix = _PREFIXES.get(key)
        if key in _PATHS or (key == "function" and ":" in value):
            yield key, value
        elif prefix is not None and value.startswith(prefix):
            yield key, value.removeprefix(prefix).strip()
