"""Session that a new user joins. Separate, so that user classes need not import the roles of a process."""

from typing import Protocol

from locust.env import Environment

from llm_locust.swarm.users.session import LoadSession

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
