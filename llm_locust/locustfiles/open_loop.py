"""Open loop: requests follow --request-rate, however slow the server is. Without it -u is the rate."""

from llm_locust import OpenLoopUser


class OpenLoop(OpenLoopUser):
    pass
