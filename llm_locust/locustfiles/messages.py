"""Closed loop of Anthropic-style messages (/v1/messages)."""

from locust import task

from llm_locust import MessagesUser


class Messages(MessagesUser):
    @task
    def message_once(self) -> None:
        self.message()
