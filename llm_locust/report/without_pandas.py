"""A process without pandas, which pyarrow's conversions import wherever it is installed.

That import takes a third of a second and 54 MiB, and reports and commands have no other use for it.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Refusal:
    """Finder of modules that finds none, and says of pandas that there is none."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not used in this process", name=name)
        return None


def forgo_pandas() -> None:
    """Refuse each import of pandas from now on: pyarrow then goes on as where it is not installed."""
    sys.meta_path.insert(0, _Refusal())
