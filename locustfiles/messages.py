"""Closed loop of Anthropic-style messages (/v1/messages)."""

from llm_locust.locustfiles.messages import Messages

__all__ = ["Messages"]
