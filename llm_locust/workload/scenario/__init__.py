"""The scenario file: a run's options, its classes of requests, its warm-up and stop rules, checked."""

from llm_locust.workload.parts import (
    Conversation,
    DatasetSource,
    Expected,
    TrafficClass,
    Validator,
)
from llm_locust.workload.scenario.classes import sole_class
from llm_locust.workload.scenario.document import Scenario, Stop, WarmUp, load_scenario, parse_scenario
from llm_locust.workload.scenario.mix import Mix, choose
from llm_locust.workload.scenario.tree import ScenarioError

__all__ = [
    "Conversation",
    "DatasetSource",
    "Expected",
    "Mix",
    "Scenario",
    "ScenarioError",
    "Stop",
    "TrafficClass",
    "Validator",
    "WarmUp",
    "choose",
    "load_scenario",
    "parse_scenario",
    "sole_class",
]
