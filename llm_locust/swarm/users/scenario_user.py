"""User of a scenario: sends the requests of its classes, in a closed or an open loop."""

from collections.abc import Iterator
from itertools import count

from locust import task
from locust.env import Environment

from llm_locust.client.stream import Answer
from llm_locust.options.settings import Settings
from llm_locust.scenario import Mix
from llm_locust.scenario.request_kind import RequestKind
from llm_locust.swarm.open_loop.load import Item
from llm_locust.swarm.open_loop.schedule_clock import ScheduleClock
from llm_locust.swarm.users.dialogue import Dialogue
from llm_locust.swarm.users.open_loop import STANDING_S, scheduled_prompt, send_scheduled, session_of_arrival
from llm_locust.swarm.users.requester import Prepared, Requester
from llm_locust.swarm.users.users import LlmUser
from llm_locust.workload.arrivals import ClassArrival
from llm_locust.workload.traces import TraceEntry


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
