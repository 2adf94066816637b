"""User whose requests follow a schedule, whatever the server does."""

from collections.abc import Callable

from locust import task

from llm_locust.options.settings import Settings
from llm_locust.swarm.open_loop.load import Item
from llm_locust.swarm.open_loop.schedule_clock import ScheduleClock
from llm_locust.swarm.users.requester import Prepared, Requester
from llm_locust.swarm.users.users import PromptUser
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
