"""Answers to workers that Locust's master does not list."""

from collections.abc import Callable

from locust.rpc import Message
from locust.runners import MasterRunner

from llm_locust.swarm.channel import messages
from llm_locust.swarm.channel.messages import StrangerMessage
from llm_locust.swarm.channel.securing import MasterMailbox

#: Most workers remembered after they have left.
MOST_MET = 10_000


class Strangers:
    """Tells apart workers that are between two loads, and those of an earlier master.

    Locust answers no heartbeat of a worker that it does not list. It lists none that sleeps through
    ``--stop-timeout``, so that silence alone would not mean that the master is gone.

    Args:
        takes: runs whose batches this master accepts from an earlier master's workers.
    """

    def __init__(self, runner: MasterRunner, mail: MasterMailbox, takes: Callable[[], list[str]]) -> None:
        self._runner = runner
        self._mail = mail
        self._takes = takes
        self._met: dict[str, None] = {}  # the latest last

    def met(self, worker: str) -> None:
        """Note that a worker has joined this master."""
        self._met[worker] = None
        if len(self._met) > MOST_MET:
            del self._met[next(iter(self._met))]

    def answer(self, worker: str) -> None:
        """Answer the heartbeat of a worker that Locust does not list."""
        if worker in self._met:
            self._runner.server.send_to_client(Message("heartbeat", None, worker))
        else:
            self._mail.send(messages.STRANGER, StrangerMessage(takes=self._takes()), worker)
