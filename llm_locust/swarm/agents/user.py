"""User of a pool of trajectories."""

from itertools import count

from locust import task
from locust.env import Environment
from locust.exception import StopUser

from llm_locust.swarm.agents.walk import Walk
from llm_locust.swarm.users.users import PromptUser
from llm_locust.workload.trajectories.pool import mark_of


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
