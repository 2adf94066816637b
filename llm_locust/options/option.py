"""An option of a load test: a field of a group, with the one row that all which is known of it comes from.

A group is a struct with a field an option, and the value of a field is the option's::

    class RunSettings(Group, frozen=True, kw_only=True):
        drain_s: float = option("--drain", "how long to wait for ...", parse_time, "TIME", default="60s")

Its flag, environment variable, key in a scenario, field in the web UI, entry in the manifest and line in
``docs/options.md`` come from that row; ``drain_s`` is what ``--drain`` says, parsed.
"""

import argparse
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self

from msgspec import Struct, field
from msgspec.structs import fields

from llm_locust.client.http.timers import Timeouts
from llm_locust.core.texts import argument, parse_time, plain_number
from llm_locust.roofline import ModelShape, read_model
from llm_locust.scenario import readers
from llm_locust.scenario.readers import Form
from llm_locust.scenario.tree import Check, word
from llm_locust.wire.headers import header_template, shown_name
from llm_locust.workload.draws import parse_lengths

ENV_PREFIX = "LLM_LOCUST_"

#: Where a process's options have the ``--spool`` of its own command line.
OWN_SPOOL = "llm_own_spool"

#: Where a scenario may have an option: among the run's options, as a key that the top level gives to every
#: class, or nowhere.
Scope = Literal["run", "classes", None]


def as_given(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a load test. Called, it gives the value where nothing is said of it.

    Attributes:
        flag: on the command line; the environment variable and the scenario's key have its name.
        help: in a line or two; says the default, where there is one, in parentheses at its end.
        parse: makes the value of the text, or raises ValueError. Command line, scenario, web UI and settings
            all check by it.
        check: what command line and scenario hold the text against instead, where the value stays the text:
            it is read later, by a process that may not have the file.
        kind: ``text``, ``list`` (a text that may be given several times), ``whole`` (a whole number),
            ``truth`` (a switch), ``path``.
        default: of the command line, as text.
        otherwise: the value where nothing is given, and there is no ``default``.
        join: makes the value of the values of a ``list``.
        ui: whether the web UI's form has it.
        record: makes of the given value what the manifest keeps; None keeps nothing.
        is_load: whether runs that differ in it were asked for different things, which ``compare`` reports.
            False too where ``compare`` has a sentence of its own.
        secret: its texts are ``NAME=VALUE`` with a value that may be a secret.
        scope: where a scenario may have it.
        form: of its value in a scenario, where ``kind``, ``choices`` and ``parse`` do not tell.
    """

    flag: str
    help: str
    parse: Callable[[Any], Any] | None = None
    metavar: str | None = None
    kind: Literal["text", "list", "whole", "truth", "path"] = "text"
    choices: tuple[str, ...] = ()
    default: str | None = None
    otherwise: Any = None
    join: Callable[[Any], Any] = tuple
    check: Check | None = None
    action: type[argparse.Action] | None = None
    ui: bool = False
    record: Callable[[Any], Any] | None = as_given
    is_load: bool = True
    secret: bool = False
    scope: Scope = "run"
    form: Form | None = None

    @property
    def name(self) -> str:
        """In the options of a process, in a scenario and in the manifest."""
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return ENV_PREFIX + self.name.upper()

    @property
    def argument(self) -> dict[str, Any]:
        """Keyword arguments of argparse's ``add_argument``."""
        found: dict[str, Any] = {"help": self.help.replace("%", "%%"), "env_var": self.variable}
        if self.kind == "truth":
            return found | {"action": "store_true"}
        found |= {"metavar": self.metavar, "default": self.default}
        if self.kind == "list":
            found |= {"action": Append, "default": []}
        elif self.action is not None:
            found |= {"action": self.action}
        if self.kind == "whole":
            found |= {"type": int}
        elif (check := self.check or self.parse) is not None and not self.choices:
            found |= {"type": checked(check)}
        return found | ({"choices": self.choices} if self.choices else {})

    @property
    def scenario_form(self) -> Form:
        """The form of its value in a scenario."""
        if self.form is not None:
            return self.form
        if self.choices:
            return Form("a name", word(*self.choices))
        match self.kind:
            case "list":
                return Form("text, or list of texts", partial(readers.texts, parse=self.parse))
            case "whole":
                return readers.WHOLE
            case "truth":
                return readers.TRUTH
            case "path":
                return readers.PATH
        return FORMS.get(self.parse) or Form("text", partial(readers.text, parse=self.parse))

    def __call__(self) -> Any:
        return self.value(argparse.Namespace())

    def value(self, options: argparse.Namespace) -> Any:
        """What ``options`` say of it: a parsed value, of a list a tuple of them; None where nothing is given.

        An empty text, as the web UI's form leaves it, counts as not given.

        Raises:
            ValueError: a value that cannot be used, led by the flag.
        """
        given = getattr(options, self.name, None)
        if self.kind == "list":
            words = (given,) if isinstance(given, str) else given or ()
            return self.join(tuple(self.parsed(word) for word in words if word))
        if self.kind == "truth":
            return bool(given)
        if given in (None, ""):
            given = self.default
        return self.otherwise if given is None else self.parsed(given)

    def parsed(self, given: Any) -> Any:
        if self.parse is None:
            return given
        try:
            return self.parse(given if self.kind == "whole" else str(given))
        except ValueError as e:
            raise ValueError(f"{self.flag}: {e}") from e


class Group(Struct, frozen=True, kw_only=True):
    """Options by what they are about, with their values; made without any, with their defaults.

    Its repr leaves out what may be a secret.
    """

    @classmethod
    @cache
    def rows(cls) -> Mapping[str, Option]:
        """The row of each field that is an option, in the order of the help."""
        rows = {each.name: each.default_factory for each in fields(cls)}
        return MappingProxyType({name: row for name, row in rows.items() if isinstance(row, Option)})

    @classmethod
    def of(cls, options: argparse.Namespace) -> Self:
        """What a process's options say (raises ValueError, led by the flag)."""
        return cls(**{name: row.value(options) for name, row in cls.rows().items()})

    def __repr__(self) -> str:
        hidden = {name for name, row in self.rows().items() if row.secret or row.record is not as_given}
        shown = (name for name in self.__struct_fields__ if name not in hidden)
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


def option(
    flag: str, help: str, parse: Callable[[Any], Any] | None = None, metavar: str | None = None, **more: Any
) -> Any:
    """A field of a group that is an option, with the attributes of :class:`Option`."""
    return field(default_factory=Option(flag, help, parse, metavar, **more))


def checked(parse: Check) -> Callable[[str], str]:
    """An argparse type that keeps the text, having seen that it parses.

    The text, not the value, stays in the options: Locust sends them to its workers as they are.
    """

    read = argument(verbatim(parse))
    return lambda text: read(text) if text else text


def verbatim(parse: Check) -> Callable[[str], str]:
    """What gives the text itself if it parses."""

    def check(text: str) -> str:
        parse(text)
        return text

    return check


class Append(argparse.Action):
    """A repeatable option whose words replace what a scenario says, instead of coming after it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest, None)
        setattr(namespace, self.dest, [values] if before is self.default else [*(before or []), values])


class OwnSpool(argparse.Action):
    """Keeps the value under a second name, which the master's options do not replace on a worker."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values)
        setattr(namespace, OWN_SPOOL, values)


# --- Options' texts as values, one by one


#: ``auto`` is ``rich`` on a terminal, ``plain`` elsewhere; ``locust`` leaves Locust's own table.
ProgressMode = Literal["auto", "rich", "plain", "locust"]
PROGRESS_MODES: tuple[ProgressMode, ...] = ("auto", "rich", "plain", "locust")

_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?) ?(KiB|MiB|GiB)", re.IGNORECASE | re.ASCII)
_UNITS = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_LEAST_SIZE, _MOST_SIZE = 64 << 10, 4 << 30


#: Before a warm-up that gives way if every request begins in it.
UP_TO = "up to "


def parse_warmup(text: str) -> float:
    """The warm-up in seconds, of a time such as 30s or ``up to 30s`` (raises ValueError)."""
    return parse_time(text.removeprefix(UP_TO))


def parse_timeouts(text: str) -> Timeouts:
    """``first=60s gap=30s total=600s``, any of the three; raises ValueError with the wrong word."""
    bounds: dict[str, float] = {}
    for part in text.replace(",", " ").split():
        name, equals, value = part.partition("=")
        if name not in ("first", "gap", "total") or not equals:
            raise ValueError(f"{part!r} in {text!r}: use first=TIME, gap=TIME or total=TIME, such as gap=30s")
        bounds[f"{name}_s"] = parse_time(value)
        if bounds[f"{name}_s"] <= 0:
            raise ValueError(f"{part!r} in {text!r}: a bound must be longer than 0")
    return Timeouts(**bounds)


def parse_size(text: str) -> int:
    """A size such as ``64MiB`` in bytes, at least 64 KiB; raises ValueError, which names the text."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a size: write a number with KiB, MiB or GiB, such as 64MiB")
    size = int(float(found[1]) * _UNITS[found[2].lower()])
    if not _LEAST_SIZE <= size <= _MOST_SIZE:
        raise ValueError(f"{text!r} must be between 64KiB and 4GiB")
    return size


def parse_header(text: str) -> tuple[str, str]:
    """``Name=value`` as a pair, the value a template; raises ValueError, which never shows the value."""
    name, equals, value = text.partition("=")
    colon = name.find(":")
    if colon > 0:  # as curl writes it, with an '=' in the value; what is behind the colon is not shown
        raise ValueError(f"{shown_name(name)} has a colon: write NAME=VALUE")
    if not equals:  # the whole text may be a value
        raise ValueError("a header has no '=': write NAME=VALUE")
    header_template(name, value)
    return name, value


def read_shape(path: str) -> ModelShape:
    """The model of a file; raises ValueError, which names the file."""
    return read_model(Path(path))


def whole_from(least: int) -> Callable[[int], int]:
    """What takes a whole number from ``least`` on."""

    def parse(number: int) -> int:
        if number < least:
            raise ValueError(f"{number} is too small; give a whole number from {least}")
        return number

    return parse


def parse_count(text: str) -> int:
    """A whole number from 1 (raises ValueError)."""
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise ValueError(f"{text!r} is no whole number from 1")
    return count


def parse_price(text: str) -> float:
    """A number from 0 (raises ValueError)."""
    value = plain_number(text)
    if not value >= 0:
        raise ValueError(f"{text!r} is no number from 0")
    return value


#: Forms in a scenario that what parses a value tells.
FORMS: Mapping[object, Form] = {
    parse_count: readers.WHOLE,
    parse_price: readers.NUMBER,
    parse_time: readers.TIME,
    parse_lengths: readers.LENGTHS,
}
