"""A worker's live counts, sent to the master.

They are added to Locust's own report, every 3 s. When a test stops, Locust sends no report: the last counts
are sent in a message of their own, before the worker's final counts of the run.
"""

import logging

from locust.env import Environment
from locust.exception import RPCError

from llm_locust.swarm.channel.mailbox import WorkerMailbox
from llm_locust.swarm.channel.messages import LIVE, RESET, LiveMessage, ResetMessage
from llm_locust.swarm.live.counting import RequestCounter

logger = logging.getLogger(__name__)


class LiveSender:
    """Counts a worker's requests, and reports them."""

    def __init__(self, environment: Environment, mail: WorkerMailbox) -> None:
        self._mail = mail
        self._counter = RequestCounter(environment)
        mail.listen(RESET, ResetMessage, self._on_reset)
        environment.events.test_stop.add_listener(lambda **_: self._send_last())

    def add_to(self, data: dict[str, object]) -> None:
        """Add the counts since the last report to Locust's report."""
        report = self._counter.report()
        if report is not None:
            data[LIVE] = report

    def _send_last(self) -> None:
        report = self._counter.report()
        if report is None:
            return
        try:
            self._mail.send(LIVE, LiveMessage(report=report))
        except RPCError as e:
            logger.warning("could not send the last live numbers; the records are not affected: %s", e)

    def _on_reset(self, reset: ResetMessage) -> None:
        counts = self._counter.counts
        if counts is not None and counts.run.id == reset.run and counts.epoch != reset.epoch:
            counts.reset(reset.epoch)
