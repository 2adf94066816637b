"""A locustfile whose users send the messages of ``question.json`` just as they are, over and over.

A workload's prompts begin with a run-unique head, and so have no answer that is known beforehand.
"""

import json
from pathlib import Path

from locust import task

from llm_locust import ChatUser

MESSAGES = json.loads(Path(__file__).with_name("question.json").read_text(encoding="utf-8"))


class OneQuestion(ChatUser):
    @task
    def ask_it(self) -> None:
        self.chat(MESSAGES)
