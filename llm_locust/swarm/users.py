"""Locust users that speak to a language model."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from locust import User
from locust.env import Environment
from locust.exception import StopUser

from llm_locust.client.stream import Answer, Call
from llm_locust.swarm.plugin import session_of
from llm_locust.swarm.session import Session
from llm_locust.wire.reply import Endpoint
from llm_locust.workload.body import path_of
from llm_locust.workload.prompts import Prompt


class LlmUser(User):
    """What all users of this package have in common: the run's session and a number of their own.

    Attributes:
        request_name: the name of this user's requests in every table; default: the endpoint's.
        slo_class: the class that its requests are counted in.
    """

    abstract = True
    request_name: str | None = None
    slo_class: str = ""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._session = session_of(environment)
        self.number = self._session.new_user() if self._session is not None else 0

    @property
    def session(self) -> Session:
        """The run that this user takes part in; a user without one, or whose run is over, stops."""
        if self._session is None or self._session.closed:
            raise StopUser
        return self._session


class PromptUser(LlmUser):
    """A user that sends prompts of the workload to one endpoint."""

    abstract = True
    endpoint = Endpoint.CHAT

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._prompts: Iterator[Prompt] | None = None
        self._output_lengths: Iterator[int | None] | None = None

    def next_prompt(self) -> Prompt:
        """The next prompt of this user's workload."""
        if self._prompts is None:
            self._prompts = self.session.workload(self.endpoint).prompts(self.number)
        return next(self._prompts)

    def bounded(self, prompt: Prompt) -> Prompt:
        """A prompt of one's own with the answer's length that the workload asks for, if it has none."""
        if prompt.asked_output_tokens is not None:
            return prompt
        if self._output_lengths is None:
            self._output_lengths = self.session.workload(self.endpoint).output_lengths(self.number)
        return replace(prompt, asked_output_tokens=next(self._output_lengths))

    def ask(self, prompt: Prompt | None = None, *, name: str | None = None) -> Answer:
        """Send one prompt (default: the workload's next), wait for the whole answer, record it.

        A prompt without a bound of its answer's length gets one from ``--output-tokens``.
        A request that fails is told by ``answer.record.outcome``; nothing is raised.
        """
        session = self.session
        scheduled_ns = time.time_ns()
        prompt = self.next_prompt() if prompt is None else self.bounded(prompt)
        template = session.template(self.endpoint)
        call = Call(
            request_id=session.client.new_request_id(),
            name=name or prompt.name or self.request_name or self.endpoint.value,
            scheduled_ns=scheduled_ns,
            endpoint=self.endpoint,
            slo_class=prompt.slo_class or self.slo_class,
            model=session.run["model"],
            streamed=template.streamed,
            user=self.number,
            asked_input_tokens=prompt.asked_input_tokens,
            asked_output_tokens=prompt.asked_output_tokens,
        )
        return session.client.post(path_of(self.endpoint), template.encode(prompt), call)


class ChatUser(PromptUser):
    """Sends chat completions.

    ::

        class Chat(ChatUser):
            @task
            def ask_one(self) -> None:
                self.chat()
    """

    abstract = True

    def chat(
        self, messages: Sequence[Mapping[str, Any]] | str | None = None, *, name: str | None = None
    ) -> Answer:
        """One chat completion: of the given messages or text, else of the workload's next prompt."""
        return self.ask(None if messages is None else _chat_prompt(messages), name=name)


class CompletionUser(PromptUser):
    """Sends text completions."""

    abstract = True
    endpoint = Endpoint.COMPLETIONS

    def complete(self, text: str | None = None, *, name: str | None = None) -> Answer:
        """One completion: of the given text, else of the workload's next prompt."""
        return self.ask(None if text is None else Prompt(text=text), name=name)


def _chat_prompt(messages: Sequence[Mapping[str, Any]] | str) -> Prompt:
    if isinstance(messages, str):
        return Prompt(text=messages)
    return Prompt(messages=tuple(dict(message) for message in messages))
