"""Closed loop: each of -u users sends a chat completion, waits for its end, and sends the next."""

from locust import task

from llm_locust import ChatUser


class Chat(ChatUser):
    @task
    def ask_one(self) -> None:
        self.chat()
