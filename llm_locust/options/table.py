"""All options of a load test, a row each, Locust's command line with them, and their pages.

Command line, environment and web UI's form, the scenario's keys, the manifest's record and
``docs/options.md`` come from these rows.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from llm_locust.options.deployment import DeploymentSettings
from llm_locust.options.load import LoadSettings
from llm_locust.options.option import Group, Option
from llm_locust.options.report import DEFAULT_WEB_HOST, ReportSettings, WebSettings
from llm_locust.options.requests import AccessSettings, RequestSettings
from llm_locust.options.run import RunSettings
from llm_locust.scenario import readers
from llm_locust.scenario.document import (
    ARM,
    OF_CLASSES,
    OF_RUN,
    PRESETS,
    SHARED,
    About,
    Stop,
    WarmUp,
    load_scenario,
)
from llm_locust.scenario.readers import (
    IMAGES,
    SHARED_PREFIX,
    VALIDATORS,
    Conversation,
    DatasetSource,
    Expected,
    Form,
    Grammar,
)
from llm_locust.scenario.tree import Key

if TYPE_CHECKING:  # importing Locust patches sockets
    from locust.argument_parser import LocustArgumentParser


#: The options by what they are about, in the order of the help.
GROUPS: Mapping[str, type[Group]] = MappingProxyType(
    {
        "what is sent": RequestSettings,
        "the run": RunSettings,
        "access": AccessSettings,
        "the report": ReportSettings,
        "when it is sent": LoadSettings,
        "the deployment": DeploymentSettings,
        "the web UI": WebSettings,
    }
)

OPTIONS: tuple[Option, ...] = tuple(row for group in GROUPS.values() for row in group.rows().values())

#: Name -> row.
OPTION: Mapping[str, Option] = MappingProxyType({row.name: row for row in OPTIONS})


@dataclass(frozen=True, slots=True)
class LocustOption:
    """An option of Locust's own that the manifest keeps.

    Attributes:
        name: in the options of a process.
        form: of its value in a scenario; None: it cannot stand there.
        key: in a scenario, where it is not ``name``.
        meaning: of the key, in ``docs/scenario.md``; in Markdown.
        is_load: as in :class:`Option`.
    """

    name: str
    form: Form | None = None
    key: str = ""
    meaning: str = ""
    is_load: bool = False


LOCUST_OPTIONS = (
    LocustOption("host", readers.TEXT, meaning="the server, `http://127.0.0.1:8000`"),
    LocustOption("num_users", readers.WHOLE, key="users", meaning="`--users`", is_load=True),
    LocustOption("spawn_rate", readers.SPAWN_RATE, meaning="`--spawn-rate`, users per second", is_load=True),
    LocustOption("run_time", readers.RUN_TIME, meaning="`--run-time`: `90s`, `20m`, `1h30m`", is_load=True),
    LocustOption("stop_timeout"),
    LocustOption("processes"),
    LocustOption("expect_workers"),
)

#: Key of a scenario -> the option's name.
KEYS: Mapping[str, str] = MappingProxyType(
    {row.key or row.name: row.name for row in LOCUST_OPTIONS if row.form is not None}
    | {row.name: row.name for row in OPTIONS if row.scope == "run"}
)

#: What a scenario may say of the options.
GRAMMAR = Grammar(
    {row.key or row.name: row.form.read for row in LOCUST_OPTIONS if row.form is not None}
    | {row.name: row.scenario_form.read for row in OPTIONS if row.scope == "run"},
    frozenset(row.name for row in OPTIONS if row.secret),
)

#: Options in which runs may differ that are compared.
NOT_LOAD = frozenset(row.name for row in OPTIONS if not row.is_load).union(
    row.name for row in LOCUST_OPTIONS if not row.is_load
)


def recorded(options: argparse.Namespace) -> dict[str, Any]:
    """What the manifest keeps of a process's options, by name; None where one is not given."""
    kept: dict[str, Any] = {}
    for row in OPTIONS:
        if row.record is not None:
            given = getattr(options, row.name, None)
            kept[row.name] = given if given is None else row.record(given)
    return kept | {row.name: getattr(options, row.name, None) for row in LOCUST_OPTIONS}


#: Where a process's options have the scenario's text: Locust sends it to workers, which have no file.
SCENARIO_TEXT = "llm_scenario"


def add_arguments(parser: "LocustArgumentParser") -> None:
    """Add the options; each can also be given as an environment variable ``LLM_LOCUST_<NAME>``, and in
    the file of ``--scenario``."""
    _add_options(parser)
    if any(action.dest == "web_host" for action in parser._actions):
        parser.set_defaults(web_host=DEFAULT_WEB_HOST)  # Locust's own is all interfaces
    parser.epilog = f"{parser.epilog or ''}\n\n`llm-locust options` lists the options of a load test alone."
    take_scenario(parser)


def options_help() -> str:
    """The options as a person reads them. (Locust prints its help before it loads a locustfile.)"""
    from locust.argument_parser import LocustArgumentParser

    parser = LocustArgumentParser(
        usage="llm-locust run URL [options]\n       locust -f FILE [options]",
        description="Options of a load test, in addition to Locust's own.",
        add_help=False,
    )
    _add_options(parser)
    return str(parser.format_help())


def _add_options(parser: "LocustArgumentParser") -> None:
    for title, settings in GROUPS.items():
        group = parser.add_argument_group(title)
        for row in settings.rows().values():
            action = group.add_argument(row.flag, **row.argument)
            # A group's add_argument does not know these attributes, which Locust's own reads of every option.
            action.include_in_web_ui = row.ui
            action.is_secret = False
            action.is_required = False
            action.is_multiple = False


# --- How a scenario file gets into the options: after the command line and the environment, before defaults


def take_scenario(parser: "LocustArgumentParser") -> None:
    """Make what ``--scenario`` says the defaults of ``parser``, which has all options by now.

    On a worker nothing: its options are the master's.
    """
    path = _named(parser, sys.argv[1:])
    if path is None:
        return
    try:
        scenario = load_scenario(path, GRAMMAR)
    except ValueError as e:
        parser.error(f"--scenario: {e}")
    known = {action.dest for action in parser._actions}
    defaults = {KEYS[key]: value for key, value in scenario.options.items()}
    rules = stop_rules(scenario.stop)
    if rules and "stop_when" not in defaults:
        defaults["stop_when"] = rules
    assert defaults.keys() <= known, defaults.keys() - known
    parser.set_defaults(**defaults, **{SCENARIO_TEXT: scenario.text_for_workers()})


def stop_rules(stop: Stop) -> str:
    """The rules as ``--stop-when`` has them; an empty text for none."""
    words = []
    if stop.error_rate is not None:
        share, over_s = stop.error_rate
        words.append(f"error_rate>{share * 100:.12g}% over {over_s:.12g}s")
    if stop.oversaturation:
        words.append("oversaturation")
    return ", ".join(words)


def _named(parser: "LocustArgumentParser", arguments: list[str]) -> str | None:
    """The path that the command line, the environment or a configuration file gives."""
    from locust.argument_parser import get_empty_argument_parser

    finder = get_empty_argument_parser(add_help=False, default_config_files=parser._default_config_files)
    finder.add_argument(OPTION["scenario"].flag, env_var=OPTION["scenario"].variable)
    finder.add_argument("--worker", action="store_true", env_var="LOCUST_MODE_WORKER")
    found: Any
    found, _ = finder.parse_known_args(arguments)
    return None if found.worker else found.scenario or None


# --- ``docs/options.md``, and the tables of ``docs/scenario.md``: made of the rows of options and keys


_HEAD = """# Options

All options of a load test, in addition to Locust's own. `make docs` writes this page from the rows in
`llm_locust/options/`.

The command line wins over the environment, the environment over the [scenario](scenario.md), the scenario
over the default. *Scenario* is the form of the value under the key of the option's name; *of classes* are
keys in [a table of their own](scenario.md#top-level-given-to-every-class). An option under *web UI* is in the
form that starts a run, one under *recorded* is in the manifest and in the report.

| option | environment | scenario | web UI | recorded | default | meaning |
|---|---|---|---|---|---|---|
"""

_DEFAULT = re.compile(r"(?: \(|; )default:? (?P<default>.*?)\)?$")

#: What stands around a generated table in ``docs/scenario.md``: its name.
SCENARIO_TABLE = re.compile(r"(<!-- table of ([a-z_ ]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)

#: Name of a table -> the keys that it has.
SCENARIO_KEYS: Mapping[str, Mapping[str, Key]] = {
    "the run": OF_RUN,
    "every class": SHARED,
    "a class": OF_CLASSES,
    "arms": ARM,
    "dataset": DatasetSource.keys(),
    "images": IMAGES,
    "shared_prefix": SHARED_PREFIX,
    "conversation": Conversation.keys(),
    "validators": VALIDATORS,
    "expected": Expected.keys(),
    "warm_up": WarmUp.keys(),
    "about": About.keys(),
    "stop": Stop.keys(),
}


def reference() -> str:
    """The text of ``options.md``."""
    return _HEAD + "".join(f"| {' | '.join(_cells(row))} |\n" for row in OPTIONS)


def with_scenario_tables(text: str) -> str:
    """``docs/scenario.md`` with its tables made again."""
    return SCENARIO_TABLE.sub(lambda found: f"{found[1]}{_scenario_table(found[2])}{found[3]}", text)


def _scenario_table(name: str) -> str:
    if name == "presets":
        return _table("preset | input tokens | output tokens | limits", _preset_rows())
    if name == "locust options":
        rows: Iterable[tuple[str, ...]] = (
            (f"`{row.key or row.name}`", row.form.says, row.meaning) for row in LOCUST_OPTIONS if row.form
        )
    else:
        rows = ((f"`{name}`", key.value, key.meaning) for name, key in SCENARIO_KEYS[name].items())
    return _table("key | value | meaning", rows)


def _preset_rows() -> Iterable[tuple[str, ...]]:
    for name, preset in PRESETS.items():
        limits = f"`{preset.slo}`" if preset.slo else "none: throughput counts"
        yield f"`{name}`", f"`{preset.input_tokens}`", f"`{preset.output_tokens}`", limits


def _table(head: str, rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {head} |", f"|{'---|' * len(head.split('|'))}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows), ""])


def _cells(row: Option) -> tuple[str, ...]:
    default = _DEFAULT.search(row.help)
    meaning = row.help if default is None else row.help[: default.start()]
    value = row.metavar or ("" if row.kind == "truth" else "|".join(row.choices) or row.name.upper())
    forms = {"run": row.scenario_form.says, "classes": "of classes", None: ""}
    return (
        f"`{_cell(f'{row.flag} {value}'.strip())}`",
        f"`{row.variable}`",
        forms[row.scope],
        "yes" if row.ui else "",
        "" if row.record is None else "yes",
        "" if default is None else _text(default["default"]),
        _text(meaning),
    )


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def _text(text: str) -> str:
    return re.sub(r"([<>*])", r"\\\1", _cell(text))


if __name__ == "__main__":
    options = Path(sys.argv[1])
    options.write_text(reference(), encoding="utf-8")
    scenario = options.with_name("scenario.md")
    scenario.write_text(with_scenario_tables(scenario.read_text(encoding="utf-8")), encoding="utf-8")
