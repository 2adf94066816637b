"""Locust's command line widened by the load test's own options."""

from locust.argument_parser import LocustArgumentParser

from llm_locust.options.report import DEFAULT_WEB_HOST
from llm_locust.options.settings import take_scenario
from llm_locust.options.table import GROUPS


def add_arguments(parser: LocustArgumentParser) -> None:
    """Add the options; each can also be given as an environment variable ``LLM_LOCUST_<NAME>``, and in
    the file of ``--scenario``."""
    _add_options(parser)
    if any(action.dest == "web_host" for action in parser._actions):
        parser.set_defaults(web_host=DEFAULT_WEB_HOST)  # Locust's own is all interfaces
    parser.epilog = f"{parser.epilog or ''}\n\n`llm-locust options` lists the options of a load test alone."
    take_scenario(parser)


def options_help() -> str:
    """The options as a person reads them. (Locust prints its help before it loads a locustfile.)"""
    parser = LocustArgumentParser(
        usage="llm-locust run URL [options]\n       locust -f FILE [options]",
        description="Options of a load test, in addition to Locust's own.",
        add_help=False,
    )
    _add_options(parser)
    return str(parser.format_help())


def _add_options(parser: LocustArgumentParser) -> None:
    for title, settings in GROUPS.items():
        group = parser.add_argument_group(title)
        for row in settings.rows().values():
            action = group.add_argument(row.flag, **row.argument)
            # A group's add_argument does not know these attributes, which Locust's own reads of every option.
            action.include_in_web_ui = row.ui
            action.is_secret = False
            action.is_required = False
            action.is_multiple = False
