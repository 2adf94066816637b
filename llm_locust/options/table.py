"""All options of a load test, a row each, and what is made of them for others.

Command line, environment and web UI's form (``parser.py``), the scenario's keys, the settings, the manifest's
record and ``docs/options.md`` (``reference.py``) come from these rows.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from llm_locust.options.access import AccessSettings
from llm_locust.options.arrivals import LoadSettings
from llm_locust.options.deployment import DeploymentSettings
from llm_locust.options.option import Group, Option
from llm_locust.options.report import ReportSettings, WebSettings
from llm_locust.options.requests import RequestSettings
from llm_locust.options.run import RunSettings
from llm_locust.scenario import readers
from llm_locust.scenario.readers import Form, Grammar

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
