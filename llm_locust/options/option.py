"""An option of a load test: the one row that all which is known of it comes from."""

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from llm_locust.scenario import forms
from llm_locust.scenario.forms import Form
from llm_locust.scenario.values import Check, word

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
    """An option of a load test.

    Attributes:
        flag: on the command line; the environment variable and the scenario's key have its name.
        help: in a line or two; says the default, where there is one, in parentheses at its end.
        parse: makes the value of the text, or raises ValueError. Command line, scenario, web UI and settings
            all check by it.
        kind: ``text``, ``list`` (a text that may be given several times), ``whole`` (a whole number),
            ``truth`` (a switch), ``path``.
        default: of the command line, as text.
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
        elif self.parse is not None:
            found |= {"type": checked(self.parse)}
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
                return Form("text, or list of texts", partial(forms.texts, parse=self.parse))
            case "whole":
                return forms.WHOLE
            case "truth":
                return forms.TRUTH
            case "path":
                return forms.PATH
        return Form("text", partial(forms.text, parse=self.parse))

    def value(self, options: argparse.Namespace) -> Any:
        """What ``options`` say of it: a parsed value, of a list a tuple of them; None where nothing is given.

        An empty text, as the web UI's form leaves it, counts as not given.

        Raises:
            ValueError: a value that cannot be used, led by the flag.
        """
        given = getattr(options, self.name, None)
        if self.kind == "list":
            words = (given,) if isinstance(given, str) else given or ()
            return tuple(self.parsed(word) for word in words if word)
        if self.kind == "truth":
            return bool(given)
        if given in (None, ""):
            given = self.default
        return None if given is None else self.parsed(given)

    def parsed(self, given: Any) -> Any:
        if self.parse is None:
            return given
        try:
            return self.parse(given if self.kind == "whole" else str(given))
        except ValueError as e:
            raise ValueError(f"{self.flag}: {e}") from e


class Values:
    """The values of the options of some rows, by their names; see :meth:`Option.value`."""

    def __init__(self, rows: Iterable[Option], options: argparse.Namespace) -> None:
        self._rows = {row.name: row for row in rows}
        self._options = options

    def __getitem__(self, name: str) -> Any:
        return self._rows[name].value(self._options)

    def text(self, name: str) -> str:
        """The text of an option whose value can be used; empty where it is not given."""
        self[name]
        return str(getattr(self._options, name, None) or "")


def checked(parse: Check) -> Callable[[str], str]:
    """An argparse type that keeps the text, having seen that it parses.

    The text, not the value, stays in the options: Locust sends them to its workers as they are.
    """

    def check(text: str) -> str:
        if text:
            try:
                parse(text)
            except ValueError as e:
                raise argparse.ArgumentTypeError(str(e)) from e
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
