"""Agents: each walks through recorded trajectories, with the pauses of their tools."""

from llm_locust.locustfiles.agents import Agent

__all__ = ["Agent"]
