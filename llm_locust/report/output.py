"""Standard output as commands use it."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import msgspec

from llm_locust.figures.text import clean, short
from llm_locust.wire.foreign_text import CONTROL

#: Of an error, which may quote a file.
_MOST_CHARACTERS = 3_000


@contextmanager
def printing() -> Iterator[None]:
    """Let the reader of standard output, such as head, leave when it has seen enough."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def one_line(error: Exception | str) -> str:
    """The text of an error as one line that a terminal can show (:func:`~llm_locust.figures.text.clean`)."""
    return short(clean(error), _MOST_CHARACTERS) or type(error).__name__


def shown_json(value: Any, *, indent: int | None = None) -> str:
    """A value as JSON that a terminal can show, without a line end.

    Control and format characters in texts are written as ``\\uXXXX``: the value read back is the same.
    """
    data = msgspec.json.encode(value)
    text = (data if indent is None else msgspec.json.format(data, indent=indent)).decode()
    # The encoder escapes those of ASCII but DEL; a line feed stands between the parts only.
    return CONTROL.sub(lambda found: "\n" if found[0] == "\n" else f"\\u{ord(found[0]):04x}", text)


# --------------------
# A process without pandas, which pyarrow's conversions import wherever it is installed.
#
# That import takes a third of a second and 54 MiB, and reports and commands have no other use for it.
# --------------------


class _Refusal:
    """Finder of modules that finds none, and says of pandas that there is none."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not used in this process", name=name)
        return None


def block_pandas_import() -> None:
    """Refuse each import of pandas from now on: pyarrow then goes on as where it is not installed."""
    sys.meta_path.insert(0, _Refusal())
