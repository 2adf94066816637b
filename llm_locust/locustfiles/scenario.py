"""Requests of --scenario: its classes, in a closed or an open loop."""

from llm_locust import ScenarioUser


class Scenario(ScenarioUser):
    pass
