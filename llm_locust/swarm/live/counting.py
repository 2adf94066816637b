"""The live counts of a process with users."""

import time

import gevent
from locust.env import Environment

from llm_locust.client.http.turns import TURN
from llm_locust.core.record import RequestRecord
from llm_locust.live.reporting import PASS_ARRIVALS, LiveCounts
from llm_locust.swarm.live.watch import EPOCH_OPTION, live_run
from llm_locust.swarm.process.hooks import events


class RequestCounter:
    """Counts the requests of this process's current run."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.counts: LiveCounts | None = None
        self._pass: gevent.Greenlet[..., None] | None = None
        environment.events.test_start.add_listener(lambda **_: self._begin())
        events.llm_request.add_listener(self._on_request)
        self._begin()  # a worker may join in the middle of a run

    def report(self) -> bytes | None:
        """Return the counts since the last report; None before the first run."""
        return None if self.counts is None else self.counts.report()

    def count(self) -> None:
        """Count what has ended, in a turn for each second: :meth:`report` need not do it then."""
        counts = self.counts
        while counts is not None and counts.is_waiting:
            TURN.take(counts.count_second)

    def _begin(self) -> None:
        run = live_run(self._environment)
        if run is not None:
            epoch = getattr(self._environment.parsed_options, EPOCH_OPTION, 0)
            self.counts = LiveCounts(run, time.monotonic_ns, epoch)

    def _on_request(self, record: RequestRecord, **_: object) -> None:
        if self.counts is None:
            return
        is_due = self.counts.add(record)
        if (is_due or len(record.arrivals_ns) > PASS_ARRIVALS) and (self._pass is None or self._pass.ready()):
            self._pass = gevent.spawn(TURN.take, self.counts.count_second)  # as for the record's batch
