"""Conversations: several turns with the history carried on, and think time between them.

``--header "X-Session-Id={session}"`` lets a gateway keep a conversation on one replica.
"""

from locust import task

from llm_locust import ConversationUser


class Talk(ConversationUser):
    turns = "uniform:3,8"
    think_time = "exponential:5s"
    patience = "lognormal:10s,0.5"  # a user who waits longer for a first token leaves

    @task
    def talk(self) -> None:
        self.converse()
