"""Requests of --scenario: its classes, in a closed or an open loop."""

from llm_locust.locustfiles.scenario import Scenario

__all__ = ["Scenario"]
