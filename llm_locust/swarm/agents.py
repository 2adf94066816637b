"""Agents: users that walk through recorded trajectories, with the pauses of tools."""

import time
from contextlib import suppress
from itertools import count

from gevent import GreenletExit
from gevent.pool import Group
from locust import task
from locust.env import Environment
from locust.exception import StopUser

from llm_locust.core.record import Outcome
from llm_locust.figures.agents import walk_name
from llm_locust.figures.sessions import session_name
from llm_locust.swarm.pauses import pauses
from llm_locust.swarm.users.requester import Requester
from llm_locust.swarm.users.users import PromptUser
from llm_locust.wire.dialects.dialect import Message
from llm_locust.workload.prompts import Prompt
from llm_locust.workload.trajectories import TrajectoryPool, mark_of
from llm_locust.workload.trajectory_formats import Trajectory, Turn, answered, marked

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


# --- User of a pool of trajectories


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
