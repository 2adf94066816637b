"""Settings of a run whose options are given, without a command line."""

import argparse
from typing import Any

from llm_locust.options.settings import SCENARIO_TEXT, Settings, parse_settings
from llm_locust.options.table import GRAMMAR
from llm_locust.scenario import parse_scenario


def run_settings(environ: dict[str, str] | None = None, /, **given: Any) -> Settings:
    """The settings of a run with these options."""
    return parse_settings(argparse.Namespace(**given), environ or {})


def settings_of(text: str, environ: dict[str, str] | None = None, /, **given: Any) -> Settings:
    """The settings of a run with a scenario's text, whose options those that are given win over."""
    scenario = parse_scenario(text, "s.yaml", GRAMMAR)
    told = {**scenario.options, **given, SCENARIO_TEXT: scenario.text_for_workers()}
    return run_settings(environ, **told)
