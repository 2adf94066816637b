"""Locust's command line widened by the load test's own options."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from llm_locust.options.report import DEFAULT_WEB_HOST
from llm_locust.options.settings import SCENARIO_TEXT
from llm_locust.options.table import GRAMMAR, GROUPS, KEYS, OPTION
from llm_locust.scenario import Stop, load_scenario

if TYPE_CHECKING:  # importing Locust patches sockets
    from locust.argument_parser import LocustArgumentParser


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
