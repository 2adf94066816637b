"""User whose requests follow a schedule, whatever the server does."""

from collections.abc import Callable, Iterator
from itertools import count

from locust import task
from locust.env import Environment

from llm_locust.client.recording import Answer
from llm_locust.options.settings import Settings
from llm_locust.scenario import Mix
from llm_locust.scenario.request_kind import RequestKind
from llm_locust.swarm.open_loop.dispatch import ScheduleClock
from llm_locust.swarm.open_loop.load import Item
from llm_locust.swarm.users.conversation import Dialogue
from llm_locust.swarm.users.requester import Prepared, Requester
from llm_locust.swarm.users.users import LlmUser, PromptUser
from llm_locust.workload.arrivals import ClassArrival
from llm_locust.workload.text.prompts import Prompt
from llm_locust.workload.traces import TraceEntry

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

    def follow(self, clock: ScheduleClock) -> "ScheduledSender":
        """Create what sends the requests of this process's part of the schedule."""
        return ScheduledSender(self.requester, clock, self.prompt_of)


class ScheduledSender:
    """Sends a user's requests at the times of a schedule."""

    def __init__(
        self, requester: Requester, clock: ScheduleClock, prompt_of: Callable[[Item], Prompt]
    ) -> None:
        self._requester = requester
        self._clock = clock
        self._prompt_of = prompt_of

    def prepare(self, arrival: Item) -> Prepared:
        prompt = self._requester.bounded(self._requester.illustrated(self._prompt_of(arrival)))
        return self._requester.prepared(prompt, session_of_arrival(arrival))

    def slo_class(self, arrival: Item) -> str:
        return self._requester.traffic.kind.slo_class

    def send(self, arrival: Item, prepared: Prepared, due_s: float) -> None:
        send_scheduled(self._requester, self._clock, arrival, prepared, due_s)


def scheduled_prompt(requester: Requester, arrival: Item) -> Prompt:
    """Prompt of an arrival: as a trace's row asks for, else the workload's next."""
    if isinstance(arrival, TraceEntry):
        # Requests that failed when the trace was recorded have 0 tokens: such a prompt cannot be sent.
        return requester.traffic.workload.replayed(
            arrival.k,
            max(1, arrival.input_tokens),
            max(1, arrival.output_tokens),
            arrival.hash_ids,
            arrival.block_tokens,
        )
    return requester.next_prompt(requester.session.gate.is_warm_up_at(arrival.at_s))


def session_of_arrival(arrival: Item) -> str | None:
    """The session of a trace's row, if it is of one."""
    return arrival.session if isinstance(arrival, TraceEntry) else None


def send_scheduled(
    requester: Requester, clock: ScheduleClock, arrival: Item, prepared: Prepared, due_s: float
) -> None:
    """Send what was prepared for an arrival, and wait for its end."""
    entry = arrival if isinstance(arrival, TraceEntry) else None
    requester.send(
        prepared,
        clock.realtime_ns(arrival.at_s),
        session_id=session_of_arrival(arrival),
        turn=None if entry is None else entry.turn,
        blocked_ns=_blocked_ns(arrival, due_s),
    )


def _blocked_ns(arrival: Item, due_s: float) -> int | None:
    """How long the arrival waited for others that it depends on; None if it depends on none."""
    if not isinstance(arrival, TraceEntry) or not arrival.after:
        return None
    return round((due_s - arrival.at_s) * 1e9)


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
    def classes(self) -> "Classes":
        if self._classes is None:
            self._classes = Classes(self)
        return self._classes

    @task
    def send_next(self) -> None:
        """Send one request, or one conversation; nothing if a schedule sets the times."""
        if self.session.load is None:
            self.classes.send_next()

    def wait_time(self) -> float:
        return 0.0 if self.session.load is None else STANDING_S

    def follow(self, clock: ScheduleClock) -> "MixedSender":
        """Create what sends the requests of this process's part of the schedule."""
        return MixedSender(self.classes, clock)


class Classes:
    """Classes of the run's scenario, for one user."""

    def __init__(self, user: ScenarioUser) -> None:
        session, number = user.session, user.number
        self.session = session
        kinds = session.settings.kinds
        self.requesters = {kind.slo_class: Requester(session, kind, number) for kind in kinds}
        seed = session.run["seed"]
        self._mix = None if any(kind.rate for kind in kinds) else Mix(kinds)
        self._drawn: Iterator[RequestKind] = (
            iter(()) if self._mix is None else self._mix.of_user(seed, session.worker_index, number)
        )
        self._seed = seed
        self._dialogues = count()

    def send_next(self) -> None:
        """Send a request of the next class, in a closed loop."""
        requester = self.requesters[next(self._drawn).slo_class]
        plan = requester.traffic.kind.plan
        if plan is None:
            requester.ask()
        else:
            self.dialogue(requester).hold()

    def of_arrival(self, arrival: Item) -> Requester:
        """Requester of an arrival: of its schedule's class, else drawn, the same on any worker."""
        if isinstance(arrival, ClassArrival):
            return self.requesters[arrival.of]
        assert self._mix is not None
        return self.requesters[self._mix.of_arrival(self._seed, arrival.k).slo_class]

    def dialogue(self, requester: Requester, warm_up: bool | None = None) -> Dialogue:
        plan = requester.traffic.kind.plan
        assert plan is not None
        return Dialogue(requester, plan, next(self._dialogues), warm_up=warm_up)


class MixedSender:
    """Sends requests of several classes at the times of a schedule."""

    def __init__(self, classes: Classes, clock: ScheduleClock) -> None:
        self._classes = classes
        self._clock = clock

    def prepare(self, arrival: Item) -> tuple[Requester, Prepared, Dialogue | None]:
        requester = self._classes.of_arrival(arrival)
        if requester.traffic.kind.plan is None or isinstance(arrival, TraceEntry):
            prompt = requester.bounded(scheduled_prompt(requester, arrival))
            return requester, requester.prepared(prompt, session_of_arrival(arrival)), None
        dialogue = self._classes.dialogue(requester, self._classes.session.gate.is_warm_up_at(arrival.at_s))
        return requester, dialogue.opening(), dialogue

    def slo_class(self, arrival: Item) -> str:
        return self._classes.of_arrival(arrival).traffic.kind.slo_class

    def send(
        self, arrival: Item, prepared: tuple[Requester, Prepared, Dialogue | None], due_s: float
    ) -> None:
        requester, ready, dialogue = prepared
        if dialogue is None:
            send_scheduled(requester, self._clock, arrival, ready, due_s)
            return

        def open_with(session_id: str, patience_s: float | None) -> Answer:
            at_ns = self._clock.realtime_ns(arrival.at_s)
            return requester.send(ready, at_ns, session_id=session_id, turn=0, patience_s=patience_s)

        dialogue.hold(open_with=open_with)
