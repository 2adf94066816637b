"""Settings of a run whose options are given, and what a master tells its workers of it."""

import argparse
import time
from typing import Any

from llm_locust.options.settings import Settings, parse_settings
from llm_locust.options.table import GRAMMAR, SCENARIO_TEXT
from llm_locust.scenario.document import parse_scenario
from llm_locust.swarm.channel.messages import PACKAGE, PROTOCOL, RunInfo


def run_settings(environ: dict[str, str] | None = None, /, **given: Any) -> Settings:
    """The settings of a run with these options."""
    return parse_settings(argparse.Namespace(**given), environ or {})


def settings_of(text: str, environ: dict[str, str] | None = None, /, **given: Any) -> Settings:
    """The settings of a run with a scenario's text, whose options those that are given win over."""
    scenario = parse_scenario(text, "s.yaml", GRAMMAR)
    told = {**scenario.options, **given, SCENARIO_TEXT: scenario.text_for_workers()}
    return run_settings(environ, **told)


def run_info(**fields: Any) -> RunInfo:
    """A run of one worker; ``fields`` are what matters to a test."""
    info = RunInfo(
        id="r",
        protocol=PROTOCOL,
        version=PACKAGE,
        seed=3,
        host="http://h",
        base="",
        targets=[],
        arms=[],
        arm_models=[],
        model="m",
        replica_header="",
        salt="s",
        path="p",
        manifest="",
        places=[],
        starters=1,
        origin_ns=time.time_ns(),
        rate=0.0,
        trace_scale=None,
    )
    info.update(fields)  # type: ignore[typeddict-item]
    return info
