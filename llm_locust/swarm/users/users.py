"""Locust users for language models."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import wraps
from types import MappingProxyType
from typing import Any, Protocol

from locust import User
from locust.env import Environment
from locust.exception import StopUser

from llm_locust.client.recording import Answer
from llm_locust.options.settings import Settings
from llm_locust.scenario.request_kind import RequestKind
from llm_locust.swarm.users.judging import Judge
from llm_locust.swarm.users.requester import Requester
from llm_locust.swarm.users.session import LoadSession
from llm_locust.wire.dialects.chat import CHAT, COMPLETIONS
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.dialects.messages import MESSAGES
from llm_locust.wire.dialects.responses import RESPONSES
from llm_locust.wire.dialects.table import dialect_of
from llm_locust.workload.answers import OwnFunction
from llm_locust.workload.parts import Validator
from llm_locust.workload.text.prompts import Prompt

# --- Session that a new user joins, by which user classes need not import the roles of a process


#: Attribute of an environment that holds its role. Only Locust's environments outlive a call.
_ATTRIBUTE = "llm_locust"


class HasUsers(Protocol):
    """Role of a process whose users send requests: a worker, or the single-process mode."""

    @property
    def session(self) -> LoadSession | None: ...


def users_join(environment: Environment, role: HasUsers) -> None:
    """Let new users of an environment join the sessions of ``role``."""
    vars(environment)[_ATTRIBUTE] = role


def session_of(environment: Environment) -> LoadSession | None:
    """Session that a new user joins; None on a master, before a run, and once the run is stopping."""
    role: HasUsers | None = vars(environment).get(_ATTRIBUTE)
    session = None if role is None else role.session
    return None if session is None or session.stopping else session


# --- Check of the names that a user class defines against those of its base classes


#: Packages whose classes are the bases of a locustfile's.
_BASES = ("llm_locust.", "locust.")

#: Methods that exist to be replaced.
_HOOKS = frozenset(("on_start", "on_stop"))


def check_overrides(cls: type) -> None:
    """Refuse a class that replaces a method or attribute of its bases by something else.

    Extending a method is allowed: a function that takes the same arguments and is not a task.

    Raises:
        TypeError: a task has the name of a base's attribute; or a value, or a function that does not take
            the same arguments, has the name of one of this package's methods.
    """
    for name in dict.fromkeys(_own_names(cls)):
        base = next((b for b in cls.__mro__ if _is_base(b) and name in vars(b)), None)
        what = None if base is None else _replaced(cls, base, name)
        if base is not None and what is not None:
            raise TypeError(
                f"user class {cls.__name__}: {name!r} is {what}, but {base.__name__}.{name} has that name "
                f"and is needed: rename yours, for example to '{name}_once'"
            )


def _own_names(cls: type) -> Iterator[str]:
    """Names whose meaning for the class is not that of a base, with dunder names left out."""
    seen: set[str] = set()
    for each in cls.__mro__:
        names = {name for name in vars(each) if not name.startswith("__")} - seen - _HOOKS
        seen |= names
        if not _is_base(each):
            yield from sorted(names)


def _is_base(cls: type) -> bool:
    return cls.__module__.startswith(_BASES)


def _replaced(cls: type, base: type, name: str) -> str | None:
    """What the class has under a base's name, if it cannot stand in for the base's."""
    theirs, ours = (inspect.getattr_static(each, name) for each in (cls, base))
    if hasattr(theirs, "locust_task_weight"):
        return "a task"
    if not base.__module__.startswith("llm_locust."):
        return None
    if isinstance(ours, property):
        return None if isinstance(theirs, property) else "not a property"
    if not inspect.isroutine(ours):
        return "a function" if inspect.isfunction(theirs) else None
    if not inspect.isroutine(theirs):
        return "not a function"
    same = _takes_the_same(getattr(cls, name), getattr(base, name))
    return None if same else "a function with other arguments"


def _takes_the_same(theirs: Any, ours: Any) -> bool:
    """Whether one function can be called with the fewest and with all arguments of another."""
    parameters = inspect.signature(ours).parameters.values()
    needed = [each for each in parameters if each.default is each.empty]
    return all(_binds(theirs, each) for each in (needed, list(parameters)))


def _binds(function: Any, parameters: list[inspect.Parameter]) -> bool:
    by_name = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    try:
        inspect.signature(function).bind(*[None] * (len(parameters) - len(by_name)), **dict.fromkeys(by_name))
    except TypeError:
        return False
    return True


class LlmUser(User):
    """Base of all users of this package: the run's session, and a number per user.

    Attributes:
        request_name: the name of this user's requests in every table; default: the endpoint's.
        slo_class: the class that its requests are counted in.
        validators: what an answer must contain, otherwise it is ``rejected``: :class:`Validator` values, and
            functions of your own, called with (answer's text, prompt or None). They run in the event loop:
            they must neither block nor compute for long.
        expected: how the answers that a dataset expects are compared: ``exact`` (default), ``choice``,
            ``number`` or ``regex``.
        consistency: compare answers to equal prompts, also if the prompts have no id.
        sends_scenario: it sends the classes of ``--scenario``.
    """

    abstract = True
    sends_scenario = False
    request_name: str | None = None
    slo_class: str = ""
    validators: Sequence[Validator | OwnFunction] = ()
    expected: str | None = None
    consistency: bool = False

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        check_overrides(cls)
        if "on_stop" in vars(cls):
            cls.on_stop = _taking_leave(cls.on_stop)  # type: ignore[method-assign]

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._session = session_of(environment)
        self._number = self._session.new_user() if self._session is not None else 0

    @property
    def number(self) -> int:
        """Number of this user among those of its process, as its records have it."""
        return self._number

    @property
    def session(self) -> LoadSession:
        """The run that this user takes part in. A user without one, or whose run is over, stops.

        So does one whose worker has used up its share of ``--num-requests``.
        """
        if self._session is None:
            raise StopUser
        return self._session.enter()

    @classmethod
    def follows_schedule(cls, settings: Settings) -> bool:
        """Whether the users of this class only stand for the load: requests follow a schedule."""
        return False

    @property
    def judge(self) -> Judge:
        """Checks of this user's answers."""
        kind = type(self)
        return self.session.kinds.judge(kind, kind.validators, kind.expected, consistency=kind.consistency)


def _taking_leave(on_stop: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap a user's ``on_stop`` so that its requests are sent although the load has ended."""

    @wraps(on_stop)
    def leave(user: LlmUser) -> None:
        with nullcontext() if user._session is None else user._session.taking_leave():
            on_stop(user)

    return leave


class PromptUser(LlmUser):
    """A user that sends prompts of the workload to one endpoint.

    Attributes:
        endpoint: a name of :data:`~llm_locust.wire.dialects.table.DIALECTS`, or a dialect of your own.
        headers: of its requests; they override the run's of the same name. Values may be templates, such as
            ``{session}``; see :mod:`llm_locust.wire.headers`. A user may set its own, as after a login.
    """

    abstract = True
    endpoint: Dialect | str = CHAT
    headers: Mapping[str, str] = MappingProxyType({})

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._requester: Requester | None = None
        self._sent_headers: Mapping[str, str] | None = None

    @property
    def kind(self) -> RequestKind:
        """Kind of request that this user's class defines."""
        cls, endpoint = type(self), dialect_of(self.endpoint)
        return RequestKind(
            key=cls,
            spec=replace(self.session.settings.workload, endpoint=endpoint),
            source=endpoint,
            name=self.request_name,
            slo_class=self.slo_class,
            headers=self.headers,
            validators=self.validators,
            expected=self.expected,
            consistency=self.consistency,
        )

    @property
    def requester(self) -> Requester:
        """Sender of this user's requests."""
        if self._requester is None:
            self._requester = Requester(self.session, self.kind, self.number)
        elif self._sent_headers is not self.headers:  # a new token, for example
            self._requester.traffic = self.session.kinds.traffic(self.kind)
        self._sent_headers = self.headers
        return self._requester

    def next_prompt(self) -> Prompt:
        """The next prompt of this user's workload."""
        return self.requester.next_prompt()

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

        A prompt without a limit of its answer's length gets one from ``--output-tokens``, one without images
        those of ``--images``, unless it is a turn of a conversation. Nothing is raised for a request that
        fails: see ``answer.record.outcome``.

        Args:
            session_id, turn: the conversation that it belongs to, and its position in it, from 0.
            patience_s: see :meth:`~llm_locust.client.call.LlmClient.post`.
        """
        if prompt is not None and turn is None:
            prompt = self.requester.illustrated(prompt)
        return self.requester.ask(prompt, name=name, session_id=session_id, turn=turn, patience_s=patience_s)


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
        """Send one chat completion: the given messages or text, else the workload's next prompt."""
        return self.ask(None if messages is None else _prompt(messages), name=name)


class CompletionUser(PromptUser):
    """Sends text completions."""

    abstract = True
    endpoint = COMPLETIONS

    def complete(self, text: str | None = None, *, name: str | None = None) -> Answer:
        """Send one completion: the given text, else the workload's next prompt."""
        return self.ask(None if text is None else Prompt(text=text), name=name)


class ResponsesUser(PromptUser):
    """Sends to the responses API. Messages are in the chat API's form, and converted."""

    abstract = True
    endpoint = RESPONSES

    def respond(
        self, messages: Sequence[Mapping[str, Any]] | str | None = None, *, name: str | None = None
    ) -> Answer:
        """Send one responses request: the given messages or text, else the workload's next prompt."""
        return self.ask(None if messages is None else _prompt(messages), name=name)


class MessagesUser(PromptUser):
    """Sends to the Anthropic-style messages API. Messages are in the chat API's form, and converted.

    The API key (``--api-key-env``) is sent as ``x-api-key`` too.
    """

    abstract = True
    endpoint = MESSAGES

    def message(
        self, messages: Sequence[Mapping[str, Any]] | str | None = None, *, name: str | None = None
    ) -> Answer:
        """Send one messages request: the given messages or text, else the workload's next prompt."""
        return self.ask(None if messages is None else _prompt(messages), name=name)


def _prompt(messages: Sequence[Mapping[str, Any]] | str) -> Prompt:
    if isinstance(messages, str):
        return Prompt(text=messages)
    return Prompt(messages=tuple(dict(message) for message in messages))
