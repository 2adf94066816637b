"""What users send with: at the times of a schedule, by the classes of a scenario, along a trajectory."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count

from gevent import GreenletExit
from gevent.pool import Group
from locust.exception import StopUser

from llm_locust.client.recording import Answer
from llm_locust.core.record import Outcome
from llm_locust.figures.agents import walk_name
from llm_locust.figures.sessions import session_name
from llm_locust.scenario.document import Mix
from llm_locust.scenario.request_kind import RequestKind
from llm_locust.swarm.users.open_loop import Item, ScheduleClock
from llm_locust.swarm.users.requester import Dialogue, Prepared, Requester
from llm_locust.swarm.users.session import LoadSession
from llm_locust.swarm.users.waits import pauses
from llm_locust.wire.dialects.dialect import Message
from llm_locust.workload.arrivals import ClassArrival
from llm_locust.workload.prompts import Prompt
from llm_locust.workload.trace_formats import TraceEntry
from llm_locust.workload.trajectories import TrajectoryPool
from llm_locust.workload.trajectory_formats import Trajectory, Turn, answered, marked

# --- One kind of request, at the times of a schedule


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
    waited = entry is not None and entry.after  # for others that it depends on
    requester.send(
        prepared,
        clock.realtime_ns(arrival.at_s),
        session_id=session_of_arrival(arrival),
        turn=None if entry is None else entry.turn,
        blocked_ns=round((due_s - arrival.at_s) * 1e9) if waited else None,
    )


# --- The classes of a scenario, in a closed or an open loop


class Classes:
    """Classes of the run's scenario, for one user, by its number."""

    def __init__(self, session: LoadSession, number: int) -> None:
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


# --- One walk of an agent through a trajectory: its turns, the pauses of its tools, its sub-agents


class Walk:
    """One trajectory, walked once.

    Args:
        mark: stands after the system prompt of every turn; empty for none.
        parent: name of the session whose sub-agent this is.
    """

    def __init__(
        self,
        requester: Requester,
        pool: TrajectoryPool,
        trajectory: Trajectory,
        mark: str,
        parent: str | None = None,
    ) -> None:
        self._requester = requester
        self._pool = pool
        self._trajectory = trajectory
        self._mark = mark
        session = requester.session
        self._phase = session.gate.phase
        unique = walk_name(session.client.new_request_id(), trajectory.index)
        self._id = session_name(unique, len(trajectory.turns))
        self._forks = Group()
        self._ended_ns = self._forks_ended_ns = 0  # ends of the last answers: its own, and its sub-agents'
        if parent is not None:
            requester.follow(self._id, parent)

    def hold(self) -> int:
        """Walk to the end, that of the sub-agents included; return when the last answer ended, or the present
        time if nothing was sent.

        It ends with its last turn, with the first one that is not answered ``ok``, or with the stage of a
        sweep in which it began: what a cache has of it belongs to that load.
        """
        try:
            self._walk()
            self._forks.join()
        finally:
            self._forks.kill()
        return max(self._ended_ns, self._forks_ended_ns) or time.time_ns()

    def _walk(self) -> None:
        turns = self._trajectory.turns
        messages, due_ns = turns[0].content(), 0
        if self._trajectory.delay_s:
            due_ns = time.time_ns() + round(self._trajectory.delay_s * 1e9)
        for number, turn in enumerate(turns):
            # What can be done before its time is done in the pause.
            prompt = self._requester.bounded(self._prompt(turn, messages))
            ready = self._requester.prepared(prompt, self._id)
            self._forks.join()
            due_ns = max(due_ns, self._forks_ended_ns)
            pauses().until(due_ns)
            scheduled_ns = self._requester.admitted(due_ns or time.time_ns())
            if self._requester.session.gate.phase != self._phase:
                return
            answer = self._requester.send(ready, scheduled_ns, session_id=self._id, turn=number)
            self._ended_ns = answer.record.ended_ns
            if answer.record.outcome is not Outcome.OK or number + 1 == len(turns):
                self._fork(turn if answer.record.outcome is Outcome.OK else None)
                return
            self._fork(turn)
            due_ns = self._ended_ns + round(turn.pause_s * 1e9)
            following = turns[number + 1]
            if self._pool.history == "own":
                messages = answered(messages, turn, following, answer.reply.text)
            else:
                messages = following.content()

    def _prompt(self, turn: Turn, messages: tuple[Message, ...]) -> Prompt:
        return Prompt(
            messages=marked(messages, self._mark) if self._mark else messages,
            asked_input_tokens=None if turn.hashed is None else turn.hashed.tokens,
            asked_output_tokens=turn.asked_output_tokens,
            extra=turn.extra,
        )

    def _fork(self, turn: Turn | None) -> None:
        for fork in () if turn is None else turn.forks:
            self._forks.spawn(self._hold_fork, fork)

    def _hold_fork(self, trajectory: Trajectory) -> None:
        # The load is over, or this worker's requests are used up: the agent itself finds that too.
        with suppress(StopUser, GreenletExit):
            ended_ns = Walk(self._requester, self._pool, trajectory, self._mark, self._id).hold()
            self._forks_ended_ns = max(self._forks_ended_ns, ended_ns)
