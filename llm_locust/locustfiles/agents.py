"""Agents: each walks through recorded trajectories of ``--trajectories``, with the pauses of tools."""

from llm_locust import AgentUser


class Agent(AgentUser):
    pass
