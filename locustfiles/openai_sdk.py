"""Code written for the openai SDK, measured with the same time stamps as ChatUser."""

from llm_locust.locustfiles.openai_sdk import Sdk

__all__ = ["Sdk"]
