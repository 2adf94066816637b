"""Closed loop of the responses API (/v1/responses)."""

from llm_locust.locustfiles.responses import Responses

__all__ = ["Responses"]
