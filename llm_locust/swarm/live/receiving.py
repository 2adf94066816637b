"""The master's live numbers, received from the workers."""

from collections.abc import Callable

from locust.env import Environment
from locust.runners import MasterRunner

from llm_locust.live.messages import ReportError
from llm_locust.live.state import WorkerState
from llm_locust.live.store import LiveStore
from llm_locust.swarm.channel.mailbox import STRANGER, MasterMailbox
from llm_locust.swarm.channel.messages import LIVE, RESET, CountsMessage, LiveMessage, ResetMessage
from llm_locust.swarm.channel.securing import guard_of
from llm_locust.swarm.live.watch import Watch

#: Longest time after a request's end until its report has arrived: Locust's interval is 3 s.
MASTER_SETTLE_S = 4.0


class LiveReceiver:
    """Merges the live counts of the workers."""

    def __init__(
        self,
        environment: Environment,
        runner: MasterRunner,
        mail: MasterMailbox,
        stopped_ago_s: Callable[[], float | None],
    ) -> None:
        self._runner = runner
        self._mail = mail
        self._watch = Watch(environment, MASTER_SETTLE_S, self._workers, self._tell_all, stopped_ago_s)
        self._known: dict[str, CountsMessage] = {}  # by worker, for those that are listed
        self._dropped = guard_of(environment).dropped
        mail.listen(LIVE, LiveMessage, self.take)

    @property
    def store(self) -> LiveStore:
        return self._watch.store

    def note(self, worker: str, counts: CountsMessage) -> None:
        """Keep a worker's counts for display."""
        if counts.run == self.store.run.id:
            self._known[worker] = counts

    def take(self, worker: str, message: LiveMessage) -> None:
        """Merge a worker's report; drop an invalid one."""
        if worker not in self._runner.clients:  # it has left, and its records are complete without this
            self._dropped.note(worker, LIVE, STRANGER)
            return
        try:
            taken = self.store.take(worker, message.report)
        except ReportError as e:
            self._dropped.note(worker, LIVE, f"{e}; does it run another version of llm_locust?")
            return
        if taken == "stale":
            self._tell(worker)

    def _tell_all(self) -> None:
        for client in self._runner.clients.all:
            self._tell(client.id)

    def _tell(self, worker: str) -> None:
        """Send the reset to a worker; sent again if the worker reports the old epoch."""
        if not self.store.run.id:  # no run yet: there is nothing to reset
            return
        self._mail.send(RESET, ResetMessage(run=self.store.run.id, epoch=self.store.epoch), worker)

    def _workers(self) -> dict[str, WorkerState]:
        clients = self._runner.clients.all
        self._known = {client.id: self._known[client.id] for client in clients if client.id in self._known}
        return {client.id: self._worker(client.id) for client in clients}

    def _worker(self, worker: str) -> WorkerState:
        client, counts = self._runner.clients[worker], self._known.get(worker)
        ours = counts is not None and counts.run == self.store.run.id
        state = WorkerState(
            id=worker,
            state=client.state,
            users=client.user_count,
            in_flight=counts.in_flight if counts is not None and ours else None,
            cpu_percent=float(client.cpu_usage) or None,  # 0: not measured yet
        )
        return state.measured(counts.health) if counts is not None and ours else state
