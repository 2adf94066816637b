"""The user whose requests come when a schedule wants them, whatever the server does."""

from locust import task

from llm_locust.arrivals import Arrival
from llm_locust.swarm.arrivals_dispatch import ScheduleClock
from llm_locust.swarm.arrivals_load import Item
from llm_locust.swarm.users import Prepared, PromptUser
from llm_locust.workload.prompts import Prompt
from llm_locust.workload.traces import TraceEntry


class OpenLoopUser(PromptUser):
    """Sends a request at every arrival of ``--arrival`` and ``--request-rate``.

    ::

        class Chat(OpenLoopUser):
            pass

    One object of the class sends all requests of its process. The users that Locust spawns only stand
    for the load: without ``--request-rate`` their number is the rate, requests per second of all
    workers together. What is sent may be changed by :meth:`prompt_of`, and as in every user of prompts by
    ``endpoint``, ``request_name`` and ``slo_class``.
    """

    abstract = True
    open_loop = True

    @task
    def stand_for_load(self) -> None:
        """What Locust counts as a user: it sends nothing itself."""

    def wait_time(self) -> float:
        """Locust ends a user that waits at once."""
        return 3600.0

    def prompt_of(self, arrival: Item) -> Prompt:
        """What is sent at an arrival; called ahead of its time. It must not wait."""
        if isinstance(arrival, TraceEntry):
            # Requests that failed when the trace was recorded have no tokens: none can be sent so.
            return self.session.workload(self.endpoint).replayed(
                arrival.k, max(1, arrival.input_tokens), max(1, arrival.output_tokens), arrival.hash_ids
            )
        return self.next_prompt()

    def follow(self, clock: ScheduleClock) -> "ScheduledSender":
        """What sends the requests of this process's part of the schedule."""
        return ScheduledSender(self, clock)


class ScheduledSender:
    """Sends a user's requests at the times of a schedule."""

    def __init__(self, user: OpenLoopUser, clock: ScheduleClock) -> None:
        self._user = user
        self._clock = clock

    def prepare(self, arrival: Item) -> Prepared:
        user = self._user
        return user.prepared(user.bounded(user.prompt_of(arrival)))

    def send(self, arrival: Item, prepared: Prepared, due_s: float) -> None:
        entry = None if isinstance(arrival, Arrival) else arrival
        self._user.send_prepared(
            prepared,
            self._clock.realtime_ns(arrival.at_s),
            session_id=None if entry is None else entry.session,
            turn=None if entry is None else entry.turn,
            blocked_ns=_blocked_ns(arrival, due_s),
        )


def _blocked_ns(arrival: Item, due_s: float) -> int | None:
    """How long the arrival waited for others that it depends on; None where it depends on none."""
    if isinstance(arrival, Arrival) or not arrival.after:
        return None
    return round((due_s - arrival.at_s) * 1e9)
