"""Conversations: several turns with the history carried on, and think time between them."""

from llm_locust.locustfiles.conversation import Talk

__all__ = ["Talk"]
