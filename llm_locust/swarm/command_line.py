"""What a run was started with: the command line, and the versions of the packages."""

import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path

from llm_locust.options.settings import Settings
from llm_locust.options.table import OPTIONS
from llm_locust.wire.foreign_text import blanked

_VERSIONED = ("llm-locust", "locust", "gevent", "numpy", "pyarrow", "openai")


@cache
def versions() -> dict[str, str]:
    """Versions of the packages that take part, and of Python."""
    return {name: version(name) for name in _VERSIONED} | {"python": sys.version.split()[0]}


def command_line(settings: Settings) -> list[str]:
    """Command line, with the values of headers and other secrets blanked out."""
    secret = [row.flag for row in OPTIONS if row.secret]
    words: list[str] = []
    hide = False
    for word in [_program(sys.argv[0]), *sys.argv[1:]]:
        if hide:
            word = word.partition("=")[0] + "=***"
        elif word.partition("=")[0] in secret and "=" in word:
            word = "=".join(word.split("=")[:2]) + "=***"
        hide = word in secret
        words.append(blanked(word, settings.secrets))
    return words


def _program(path: str) -> str:
    """The command without its folders; what Python was given as a module is Locust."""
    name = Path(path).name
    return "locust" if name in ("__main__.py", "main.py") else name
