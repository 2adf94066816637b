"""The live counts of a process with users."""

import time

import gevent
from locust.env import Environment

from llm_locust.client.http.turns import DECODING_S, TURN
from llm_locust.core.record import RequestRecord
from llm_locust.live.counting import STEPS
from llm_locust.live.reporting import LiveCounts
from llm_locust.swarm.live.watch import EPOCH_OPTION, live_run
from llm_locust.swarm.process.hooks import events


class RequestCounter:
    """Counts the requests of this process's current run."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.counts: LiveCounts | None = None
        self._pass: gevent.Greenlet[[], None] | None = None
        environment.events.test_start.add_listener(lambda **_: self._begin())
        events.llm_request.add_listener(self._on_request)
        self._begin()  # a worker may join in the middle of a run

    def report(self, *, whole: bool = True) -> bytes | None:
        """Return the counts since the last report; None before the first run."""
        return None if self.counts is None else self.counts.report(whole=whole)

    def count(self) -> None:
        """Count what has ended in several turns of the loop, so that little is left to :meth:`report`."""
        self._catch_up()
        for _ in range(STEPS):  # of the second that goes on
            TURN.wait_for_next()
            if self.counts is not None:
                self.counts.step()

    def _begin(self) -> None:
        run = live_run(self._environment)
        if run is not None:
            epoch = getattr(self._environment.parsed_options, EPOCH_OPTION, 0)
            self.counts = LiveCounts(run, time.monotonic_ns, epoch)

    def _on_request(self, record: RequestRecord, **_: object) -> None:
        if self.counts is None:
            return
        self.counts.add(record)
        if self.counts.is_due and (self._pass is None or self._pass.ready()):
            self._pass = gevent.spawn(self._catch_up)

    def _catch_up(self) -> None:
        """Count the seconds that have passed, each step in a turn of its own, as for the record's batch."""
        while (counts := self.counts) is not None and counts.is_due:
            TURN.wait()
            TURN.spend(DECODING_S)
            counts.step()
