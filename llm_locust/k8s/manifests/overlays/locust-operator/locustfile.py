"""What --scenario says: its classes of requests, in a closed or an open loop."""

from llm_locust import ScenarioUser


class Scenario(ScenarioUser):
    pass
