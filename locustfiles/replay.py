"""Replay of a trace: --arrival trace:FILE, with --trace-scale and --trace-slice."""

from llm_locust.locustfiles.replay import Replay

__all__ = ["Replay"]
