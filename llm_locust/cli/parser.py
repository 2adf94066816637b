"""Parser of a command's arguments: what is wrong with them, in one line, and what may have been meant."""

import argparse
import shutil
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any, NoReturn

#: Lines of help longer than this are hard to read, however wide the terminal is.
_WIDEST_HELP = 100

_UNKNOWN = "unrecognized arguments: "


class CommandParser(argparse.ArgumentParser):
    """Reports in one line what is wrong with the arguments; ``--help`` has the usage.

    Args:
        hint: ends the error about an unknown option.
    """

    def __init__(self, *args: Any, hint: str = "see --help", **kwargs: Any) -> None:
        super().__init__(*args, **{"formatter_class": _HelpFormatter, "allow_abbrev": False, **kwargs})
        self._hint = hint

    def error(self, message: str) -> NoReturn:
        if message.startswith(_UNKNOWN):
            message = self._unknown(message.removeprefix(_UNKNOWN))
        self.exit(2, f"{self.prog}: {message}\n")

    def _unknown(self, words: str) -> str:
        word = next((each for each in words.split() if each.startswith("-")), "")
        if not word:
            return f"unexpected {words!r}; {self._hint}"
        flag = word.partition("=")[0]
        return f"unknown option {flag}; {did_you_mean(flag, _flags(self))}{self._hint}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``did you mean X? ``, or an empty text if nothing known is similar to ``word``."""
    close = get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]}? " if close else ""


def _flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _flags(inner)


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Wraps the description, and keeps the lines of the epilog."""

    def __init__(self, prog: str, **kwargs: Any) -> None:
        super().__init__(prog, max_help_position=26, width=help_width(), **kwargs)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)


def help_width() -> int:
    """Columns of a help text: the terminal's, if it is not too wide."""
    return min(_WIDEST_HELP, shutil.get_terminal_size().columns - 1)
