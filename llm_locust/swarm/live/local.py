"""Live numbers of a process that is master and worker in one: it reports to itself."""

from collections.abc import Callable

from locust.env import Environment
from locust.runners import LocalRunner

from llm_locust.client.http.turns import TURN
from llm_locust.live.state import WorkerState
from llm_locust.live.store import LiveStore
from llm_locust.swarm.live.counting import RequestCounter
from llm_locust.swarm.live.watch import Watch
from llm_locust.swarm.process.loops import every

#: Interval at which the counts are merged.
COUNT_INTERVAL_S = 1.0

#: Longest time after a request's end until it is in the store.
LOCAL_SETTLE_S = 1.5


class LocalLive:
    """Counts this process's requests, and merges the counts.

    Args:
        worker: returns the current state of this process.
    """

    def __init__(
        self,
        environment: Environment,
        runner: LocalRunner,
        worker: Callable[[], WorkerState],
        stopped_ago_s: Callable[[], float | None],
    ) -> None:
        self._runner = runner
        self._watch = Watch(
            environment, LOCAL_SETTLE_S, lambda: {runner.client_id: worker()}, self._on_reset, stopped_ago_s
        )
        self._counter = RequestCounter(environment)
        # At once: the run's last live figures may be read as soon as this greenlet waits.
        environment.events.test_stop.add_listener(lambda **_: self._report())
        every(COUNT_INTERVAL_S, self._report_in_turns, "the live numbers' report")

    @property
    def store(self) -> LiveStore:
        return self._watch.store

    def _report_in_turns(self) -> None:
        self._counter.count()
        TURN.wait_for_next()  # the report, too, takes a millisecond
        self._report(whole=False)

    def _report(self, *, whole: bool = True) -> None:
        report = self._counter.report(whole=whole)
        if report is not None:
            self.store.take(self._runner.client_id, report)

    def _on_reset(self) -> None:
        if self._counter.counts is not None:
            self._counter.counts.reset(self.store.epoch)
