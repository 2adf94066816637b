"""Closed loop of text completions (/v1/completions)."""

from llm_locust.locustfiles.completions import Completion

__all__ = ["Completion"]
