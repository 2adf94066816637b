"""Closed loop: each of -u users sends a chat completion, waits for its end, and sends the next."""

from llm_locust.locustfiles.chat import Chat

__all__ = ["Chat"]
