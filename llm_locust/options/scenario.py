"""How a scenario file gets into the options: after the command line and the environment, before defaults."""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llm_locust.options.option import Values
from llm_locust.options.table import GRAMMAR, KEYS, OPTION
from llm_locust.scenario import Scenario, Stop, TrafficClass, load_scenario, sole_class, with_options

if TYPE_CHECKING:
    from locust.argument_parser import LocustArgumentParser

#: Where a process's options have the scenario's text: Locust sends it to workers, which have no file.
SCENARIO_TEXT = "llm_scenario"


def take_scenario(parser: "LocustArgumentParser", arguments: Sequence[str] | None = None) -> None:
    """Make what ``--scenario`` says the defaults of ``parser``, which has all options by now.

    On a worker nothing: its options are the master's.

    Args:
        arguments: of the command line; default: this process's own.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    path = _named(parser, given)
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


def scenario_of(options: argparse.Namespace) -> Scenario | None:
    """The scenario of a run's options (raises ScenarioError)."""
    text = getattr(options, SCENARIO_TEXT, None)
    return None if not text else Scenario.from_text(text, GRAMMAR)


def classes_of(scenario: Scenario | None, given: Values) -> tuple[TrafficClass, ...]:
    """The classes of a run's requests: options win over the top level of the scenario, not over a class."""
    if scenario is None:
        return sole_class({})
    said = {row.name: given[row.name] for row in OPTION.values() if row.scope == "classes"}
    unique = said["unique_head"]
    return with_options(scenario.classes, said | {"unique_head": None if unique is None else unique == "on"})


def stop_rules(stop: Stop) -> str:
    """The rules as ``--stop-when`` has them; an empty text for none."""
    words = []
    if stop.error_rate is not None:
        words.append(f"error_rate>{stop.error_rate * 100:.12g}% over {stop.error_rate_over_s:.12g}s")
    if stop.oversaturation:
        words.append("oversaturation")
    return ", ".join(words)


def _named(parser: "LocustArgumentParser", arguments: list[str]) -> str | None:
    """The path that the command line, the environment or a configuration file gives."""
    # Here and not above: settings are read in processes too that must not load Locust, which patches.
    from locust.argument_parser import get_empty_argument_parser

    finder = get_empty_argument_parser(add_help=False, default_config_files=parser._default_config_files)
    finder.add_argument(OPTION["scenario"].flag, env_var=OPTION["scenario"].variable)
    finder.add_argument("--worker", action="store_true", env_var="LOCUST_MODE_WORKER")
    found: Any
    found, _ = finder.parse_known_args(arguments)
    return None if found.worker else found.scenario or None
