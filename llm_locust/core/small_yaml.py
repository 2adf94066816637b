"""Short YAML files written by people, read safely."""

from pathlib import Path
from typing import Any

import yaml

from llm_locust.core.input_files import SETTINGS, InputError, read_input

#: Most values and keys, with aliases replaced by their content.
MAX_VALUES = 10_000

_MOST_CHARS = 500


class SmallYamlError(ValueError):
    """A file that cannot be read; one line that says why, without its path."""

    def __init__(self, why: str) -> None:
        super().__init__("".join(c if c.isprintable() else "?" for c in " ".join(why.split())[:_MOST_CHARS]))


def read_small_yaml(path: Path) -> Any:
    """Read a YAML or JSON file as plain values.

    Raises:
        SmallYamlError: it cannot be read, is not YAML in UTF-8, is larger than
            :data:`~llm_locust.core.input_files.SETTINGS`, or has more than :data:`MAX_VALUES`.
    """
    text = _text(path)
    try:
        content = yaml.safe_load(text)
    except RecursionError:
        raise SmallYamlError("broken YAML: too deep") from None
    except (yaml.YAMLError, ValueError, OverflowError) as e:  # an escape or a number out of range
        raise SmallYamlError(f"broken YAML: {e}") from e
    if not _is_small(content):
        raise SmallYamlError(f"with its aliases replaced, it has more than {MAX_VALUES:,} values")
    return content


def _text(path: Path) -> str:
    try:
        return read_input(path, SETTINGS).decode()
    except InputError as e:
        raise SmallYamlError(e.why) from e
    except UnicodeDecodeError:
        raise SmallYamlError("cannot be read: it is not UTF-8") from None


def _is_small(content: Any) -> bool:
    waiting, seen = [content], 0
    while waiting:
        value = waiting.pop()
        seen += 1
        if seen + len(waiting) > MAX_VALUES:
            return False
        if isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set):
            waiting += value
    return True
