"""The scenario file: a run's options, its classes of requests, its warm-up and stop rules, checked."""

from llm_locust.scenario.classes import Mix, TrafficClass, choose, sole_class, with_options
from llm_locust.scenario.document import Scenario, Stop, WarmUp, load_scenario, parse_scenario
from llm_locust.scenario.readers import Conversation, DatasetSource, Expected
from llm_locust.scenario.tree import ScenarioError
from llm_locust.workload.parts import Validator

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
    "with_options",
]
