"""Closed loop of the responses API (/v1/responses)."""

from locust import task

from llm_locust import ResponsesUser


class Responses(ResponsesUser):
    @task
    def respond_once(self) -> None:
        self.respond()
