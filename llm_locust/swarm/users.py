"""Locust users that speak to a language model."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from locust import User
from locust.env import Environment
from locust.exception import StopUser

from llm_locust.client.stream import Answer, Call
from llm_locust.record import RequestRecord
from llm_locust.swarm.judging import Judge, prompt_key
from llm_locust.swarm.plugin import session_of
from llm_locust.swarm.session import Session
from llm_locust.wire.reply import Endpoint
from llm_locust.workload.body import path_of
from llm_locust.workload.prompts import Prompt
from llm_locust.workload.scenario.parts import Validator
from llm_locust.workload.validators import OwnFunction


class LlmUser(User):
    """What all users of this package have in common: the run's session and a number of their own.

    Attributes:
        request_name: the name of this user's requests in every table; default: the endpoint's.
        slo_class: the class that its requests are counted in.
        validators: what an answer must hold, lest it be ``rejected``: :class:`Validator` values, and
            functions of one's own, called with (answer's text, prompt or None). They run in the event
            loop: they must neither wait nor compute for long.
        expected: how the answers that a dataset expects are compared: ``exact`` (where nothing is said),
            ``choice``, ``number`` or ``regex``.
        consistency: tell equal answers to equal prompts, also where the prompts have no id.
    """

    abstract = True
    request_name: str | None = None
    slo_class: str = ""
    validators: Sequence[Validator | OwnFunction] = ()
    expected: str | None = None
    consistency: bool = False

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._session = session_of(environment)
        self.number = self._session.new_user() if self._session is not None else 0

    @property
    def session(self) -> Session:
        """The run that this user takes part in; a user without one, or whose run is over, stops.

        So does one whose worker has begun its share of ``--num-requests``.
        """
        if self._session is None or self._session.closed or self._session.exhausted:
            raise StopUser
        return self._session

    @property
    def judge(self) -> Judge:
        """What this user's answers are held against."""
        kind = type(self)
        return self.session.judge(kind, kind.validators, kind.expected, consistency=kind.consistency)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that is ready to be sent."""

    prompt: Prompt
    body: bytes
    prompt_id: str | None
    check: Callable[[Answer], RequestRecord] | None


class PromptUser(LlmUser):
    """A user that sends prompts of the workload to one endpoint.

    Attributes:
        headers: of its requests, over the run's of the same name. Values may be templates, such as
            ``{session}``; see :mod:`llm_locust.wire.headers`.
    """

    abstract = True
    endpoint = Endpoint.CHAT
    headers: Mapping[str, str] = MappingProxyType({})

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

    def ask(
        self,
        prompt: Prompt | None = None,
        *,
        name: str | None = None,
        session_id: str | None = None,
        turn: int | None = None,
        patience_s: float | None = None,
    ) -> Answer:
        """Send one prompt (default: the workload's next), wait for the whole answer, record it.

        A prompt without a bound of its answer's length gets one from ``--output-tokens``.
        A request that fails is told by ``answer.record.outcome``; nothing is raised.

        Args:
            session_id, turn: the conversation that it belongs to, and its place in it, from 0.
            patience_s: see :meth:`~llm_locust.client.stream.LlmClient.post`.
        """
        scheduled_ns = time.time_ns()
        prompt = self.next_prompt() if prompt is None else self.bounded(prompt)
        return self.send_prepared(
            self.prepared(prompt),
            scheduled_ns,
            name=name,
            session_id=session_id,
            turn=turn,
            patience_s=patience_s,
        )

    def prepared(self, prompt: Prompt) -> Prepared:
        """All of a request that can be made before its time."""
        body, judge = self.session.template(self.endpoint).encode(prompt), self.judge
        prompt_id = prompt.id or (prompt_key(body) if judge.consistency else None)
        check = judge.check(prompt, prompt.expected, hashed=prompt_id is not None)
        return Prepared(prompt, body, prompt_id, check)

    def send_prepared(
        self,
        ready: Prepared,
        scheduled_ns: int,
        *,
        name: str | None = None,
        session_id: str | None = None,
        turn: int | None = None,
        blocked_ns: int | None = None,
        patience_s: float | None = None,
    ) -> Answer:
        """Send it now, wait for the whole answer, record it; ``blocked_ns`` as in the record."""
        session, prompt = self.session, ready.prompt
        call = Call(
            request_id=session.client.new_request_id(),
            name=name or prompt.name or self.request_name or self.endpoint.value,
            scheduled_ns=scheduled_ns,
            endpoint=self.endpoint,
            slo_class=prompt.slo_class or self.slo_class,
            model=session.run["model"],
            streamed=session.template(self.endpoint).streamed,
            user=self.number,
            asked_input_tokens=prompt.asked_input_tokens,
            asked_output_tokens=prompt.asked_output_tokens,
            session=session_id,
            turn=turn,
            blocked_ns=blocked_ns,
            prompt_id=ready.prompt_id,
            check=ready.check,
        )
        head = session.head(self.endpoint, self.headers)
        return session.client.post(path_of(self.endpoint), ready.body, call, head, patience_s=patience_s)


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
        return self.ask(None if messages is None else _prompt(messages), name=name)


class CompletionUser(PromptUser):
    """Sends text completions."""

    abstract = True
    endpoint = Endpoint.COMPLETIONS

    def complete(self, text: str | None = None, *, name: str | None = None) -> Answer:
        """One completion: of the given text, else of the workload's next prompt."""
        return self.ask(None if text is None else Prompt(text=text), name=name)


class ResponsesUser(PromptUser):
    """Sends to the responses API. Messages are in the chat API's form, and translated."""

    abstract = True
    endpoint = Endpoint.RESPONSES

    def respond(
        self, messages: Sequence[Mapping[str, Any]] | str | None = None, *, name: str | None = None
    ) -> Answer:
        """One response: to the given messages or text, else to the workload's next prompt."""
        return self.ask(None if messages is None else _prompt(messages), name=name)


class MessagesUser(PromptUser):
    """Sends to the Anthropic-style messages API. Messages are in the chat API's form, and translated.

    The API key (``--api-key-env``) goes out as ``x-api-key`` too.
    """

    abstract = True
    endpoint = Endpoint.MESSAGES

    def message(
        self, messages: Sequence[Mapping[str, Any]] | str | None = None, *, name: str | None = None
    ) -> Answer:
        """One message in answer to the given ones or a text, else to the workload's next prompt."""
        return self.ask(None if messages is None else _prompt(messages), name=name)


def _prompt(messages: Sequence[Mapping[str, Any]] | str) -> Prompt:
    if isinstance(messages, str):
        return Prompt(text=messages)
    return Prompt(messages=tuple(dict(message) for message in messages))
