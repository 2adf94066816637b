"""Open loop: requests come at --request-rate, however slow the server is. Without it -u is the rate."""

from llm_locust import OpenLoopUser


class OpenLoop(OpenLoopUser):
    pass
