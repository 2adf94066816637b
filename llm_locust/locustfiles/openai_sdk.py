"""Code written for the openai SDK, measured with the same time stamps as ChatUser."""

from locust import task

from llm_locust import OpenAIUser


class Sdk(OpenAIUser):
    @task
    def ask(self) -> None:
        stream = self.client.chat.completions.create(
            model=self.model,
            messages=[{"role": "user", "content": "Name three uses of a paper clip."}],
            max_tokens=64,
            stream=True,
            stream_options={"include_usage": True},
        )
        for _chunk in stream:
            pass
