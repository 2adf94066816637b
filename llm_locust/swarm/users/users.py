"""Locust users for language models: the classes that a locustfile derives its own from."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import wraps
from itertools import count
from types import MappingProxyType
from typing import Any, Protocol

from locust import User, task
from locust.env import Environment
from locust.exception import StopUser

from llm_locust.client.recording import Answer
from llm_locust.options.settings import Settings
from llm_locust.scenario.request_kind import RequestKind
from llm_locust.swarm.users.open_loop import Item, ScheduleClock
from llm_locust.swarm.users.requester import Dialogue, Requester
from llm_locust.swarm.users.senders import Classes, MixedSender, ScheduledSender, Walk, scheduled_prompt
from llm_locust.swarm.users.session import LoadSession
from llm_locust.swarm.users.traffic import Judge
from llm_locust.wire.dialects import dialect_of
from llm_locust.wire.dialects.chat import CHAT, COMPLETIONS
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.dialects.messages import MESSAGES
from llm_locust.wire.dialects.responses import RESPONSES
from llm_locust.workload.answers import OwnFunction, Validator
from llm_locust.workload.conversations import ConversationPlan, ShareGptConversation, parse_plan
from llm_locust.workload.prompts import Prompt
from llm_locust.workload.trajectories import mark_of

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
        endpoint: a name of :data:`~llm_locust.wire.dialects.DIALECTS`, or a dialect of your own.
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


# --- User with conversations


class ConversationUser(PromptUser):
    """Holds conversations over chat completions.

    ::

        class Talk(ConversationUser):
            turns = "uniform:3,8"
            think_time = "exponential:5s"
            patience = "lognormal:8s,0.5"

            @task
            def talk(self) -> None:
                self.converse()

    The first message is the workload's next prompt; new texts of ``--input-tokens`` follow. With
    ``--dataset`` the user messages of a line are its turns; if lines have one question each, further turns
    use the next lines.

    Attributes:
        turns: number per conversation, in the grammar of ``--input-tokens``; None: as many as the
            dataset's has, else 5. A conversation of a dataset never has more than its own.
        think_time: between an answer's end and the next turn: ``2s``, ``uniform:1s,5s``,
            ``exponential:3s``, ``lognormal:MEDIAN,SIGMA``; None: no pause.
        patience: longest wait for a first token before the user leaves, drawn once a
            conversation; in the grammar of ``think_time``. None: unlimited.
        history: how much of the earlier turns each turn sends again: ``full``, ``last:N`` turns, or ``none``.
        dialogues: conversations whose questions are used, drawn at random with replacement, instead of
            the workload's prompts: ``load_conversations("sharegpt.json")``.
    """

    abstract = True
    turns: str | None = None
    think_time: str | None = None
    patience: str | None = None
    history: str = "full"
    dialogues: Sequence[ShareGptConversation] = ()
    plan = ConversationPlan()

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.plan = parse_plan(
            turns=cls.turns, think_time=cls.think_time, patience=cls.patience, history=cls.history
        )

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._conversations = count()

    def converse(self, *, name: str | None = None) -> list[Answer]:
        """Hold one conversation to its end; return the answers of its turns.

        It ends with its last turn, or with the first one that is not answered ``ok``: a request that failed,
        or a user who left.
        """
        number = next(self._conversations)
        return Dialogue(self.requester, self.plan, number, self.dialogues, ask=self.ask).hold(name)


# --- User whose requests follow a schedule, whatever the server does


#: A user that only stands for the load waits; Locust can end it at any time.
STANDING_S = 3600.0


class OpenLoopUser(PromptUser):
    """Sends a request at every arrival of ``--arrival`` and ``--request-rate``.

    ::

        class Chat(OpenLoopUser):
            pass

    One object of the class sends all requests of its process. The users that Locust spawns only stand for the
    load: without ``--request-rate`` their number is the rate, in requests per second of all workers together.
    To change what is sent, override :meth:`prompt_of` or, as in every user of prompts, set ``endpoint``,
    ``request_name`` and ``slo_class``.
    """

    abstract = True
    #: Whether a run without ``--arrival trace:FILE`` is refused.
    needs_trace = False

    @classmethod
    def follows_schedule(cls, settings: Settings) -> bool:
        return True

    @task
    def stand_for_load(self) -> None:
        """Idle: Locust counts it as a user, but it sends nothing itself."""

    def wait_time(self) -> float:
        return STANDING_S

    def prompt_of(self, arrival: Item) -> Prompt:
        """Prompt of an arrival; called ahead of its time. It must not block."""
        return scheduled_prompt(self.requester, arrival)

    def follow(self, clock: ScheduleClock) -> ScheduledSender:
        """Create what sends the requests of this process's part of the schedule."""
        return ScheduledSender(self.requester, clock, self.prompt_of)


# --- User of a scenario: sends the requests of its classes, in a closed or an open loop


class ScenarioUser(LlmUser):
    """Sends the requests of ``--scenario``.

    ::

        class Scenario(ScenarioUser):
            pass

    Without an arrival process each user sends one request after another (``wait_time`` as in every Locust
    user), of a class drawn each time by weight. With one, requests follow the schedule as those of
    :class:`OpenLoopUser`; an arrival of a class of conversations starts one. Without a scenario it sends what
    the options define.
    """

    abstract = True
    sends_scenario = True

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._classes: Classes | None = None

    @classmethod
    def follows_schedule(cls, settings: Settings) -> bool:
        return settings.load.open_loop_option is not None

    @property
    def classes(self) -> Classes:
        if self._classes is None:
            self._classes = Classes(self.session, self.number)
        return self._classes

    @task
    def send_next(self) -> None:
        """Send one request, or one conversation; nothing if a schedule sets the times."""
        if self.session.load is None:
            self.classes.send_next()

    def wait_time(self) -> float:
        return 0.0 if self.session.load is None else STANDING_S

    def follow(self, clock: ScheduleClock) -> MixedSender:
        """Create what sends the requests of this process's part of the schedule."""
        return MixedSender(self.classes, clock)


# --- Agents: users that walk through recorded trajectories, with the pauses of tools


class AgentUser(PromptUser):
    """Walks through one trajectory of ``--trajectories`` after the other.

    ::

        class Agent(AgentUser):
            pass
    """

    abstract = True
    needs_trajectories = True

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._walks = count()

    @task
    def walk(self) -> None:
        """Walk through the next trajectory."""
        session = self.session
        pool = session.settings.pool
        if pool is None:
            raise StopUser("no --trajectories")
        number = next(self._walks)
        key = (session.run["salt"], session.worker_index, self.number, number)
        trajectory = pool.walk_of(session.run["seed"], session.worker_index, self.number, number)
        Walk(self.requester, pool, trajectory, mark_of(*key) if pool.bust else "").hold()
