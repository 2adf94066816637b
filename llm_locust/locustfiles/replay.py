"""Replay of a trace: --arrival trace:FILE, with --trace-scale and --trace-slice."""

from llm_locust import OpenLoopUser


class Replay(OpenLoopUser):
    request_name = "replay"
    needs_trace = True
