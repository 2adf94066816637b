"""Closed loop of text completions (/v1/completions)."""

from locust import task

from llm_locust import CompletionUser


class Completion(CompletionUser):
    @task
    def complete_one(self) -> None:
        self.complete()
