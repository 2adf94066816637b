"""Protocols that the package ships: the run of each can be set up, and its first requests made."""

import argparse
import json
from pathlib import Path

import numpy as np
import pytest
from protocol_files import needed_files, needs

from llm_locust.options.settings import Settings, UsageError, parse_settings
from llm_locust.options.table import GRAMMAR, KEYS, OPTION
from llm_locust.scenario import load_scenario
from llm_locust.scenario.classes import protocol_names, scenario_path
from llm_locust.workload.plan import Workload


def settings(name: str, **given: str) -> Settings:
    """Of a run with nothing but the protocol's scenario, and what it needs besides."""
    scenario = load_scenario(scenario_path(name), GRAMMAR)
    options = {KEYS[key]: value for key, value in scenario.options.items()}
    text = scenario.text_for_workers()
    return parse_settings(argparse.Namespace(**options, **given, llm_scenario=text), {})


@pytest.mark.parametrize("name", protocol_names())
def test_the_run_of_a_protocol_can_be_set_up_and_its_requests_be_made(name: str, tmp_path: Path) -> None:
    given = needed_files(name, tmp_path)
    found = settings(name, **given)
    assert (found.pool is None) == ("trajectories" not in given)
    for kind in found.kinds:
        workload = Workload(kind.spec, seed=1, worker_index=0, worker_count=1, salt="s")
        template = kind.spec.body_template("m")
        for _, prompt in zip(range(3), workload.prompts(0), strict=False):
            assert json.loads(template.encode(prompt))["model"] == "m"
        if kind.plan is not None and kind.plan.turns is not None:
            assert kind.plan.turns.draw(np.random.default_rng(1), 9).min() >= 1


@pytest.mark.parametrize("name", [name for name in protocol_names() if needs(name)])
def test_a_protocol_that_needs_a_file_is_refused_without_it_by_its_name(name: str) -> None:
    (option,) = needs(name)
    with pytest.raises(UsageError) as error:
        settings(name)
    assert f"--scenario: {name} needs {OPTION[option].flag} FILE: " in str(error.value)


def test_an_option_that_is_none_is_named_with_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("needs: [trajectorys]\n")
    with pytest.raises(UsageError, match="needs 'trajectorys': did you mean \"trajectories\""):
        settings(str(path))
