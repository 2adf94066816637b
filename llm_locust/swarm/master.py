"""Locust's master: users elsewhere, the run directory here."""

import logging

from locust.env import Environment
from locust.exception import RPCError
from locust.runners import STATE_MISSING, STATE_STOPPING, MasterRunner

from llm_locust.swarm import messages
from llm_locust.swarm.messages import (
    AckMessage,
    BatchMessage,
    CountsMessage,
    Received,
    RefusedMessage,
    RunMessage,
)
from llm_locust.swarm.run import Run, wait_until
from llm_locust.swarm.run_side import RunSide

logger = logging.getLogger(__name__)


class MasterSide:
    """The run's side, its workers reached by messages."""

    def __init__(self, environment: Environment) -> None:
        runner = environment.runner
        assert isinstance(runner, MasterRunner)
        self._environment = environment
        self._runner = runner
        self._runs = RunSide(environment, self._acknowledge)
        runner.register_message(messages.BATCH, self._on_batch)
        runner.register_message(messages.DONE, self._on_done)
        runner.register_message(messages.REFUSED, self._on_refused)
        events = environment.events
        events.test_start.add_listener(self._on_test_start)
        events.worker_report.add_listener(self._on_worker_report)
        events.test_stopping.add_listener(self._on_test_stopping)
        events.test_stop.add_listener(lambda **_: self._runs.finish())
        events.quitting.add_listener(lambda **_: self._runs.on_quitting(self._stop_load))
        events.quit.add_listener(lambda **_: self._runs.print_once())
        self._runs.check()

    def _on_test_start(self, **_: object) -> None:
        options = self._environment.parsed_options
        clients = self._runner.clients
        run = self._runs.begin(workers=max(getattr(options, "expect_workers", 1), len(clients.ready)))
        for client in clients.ready:
            run.heard(client.id, self._runner.get_worker_index(client.id))

    def _current(self, run_id: str) -> Run | None:
        run = self._runs.run
        return run if run is not None and run.info["id"] == run_id else None

    def _on_worker_report(self, client_id: str, data: dict[str, object], **_: object) -> None:
        counts: CountsMessage | None = data.get("llm")  # type: ignore[assignment]
        run = None if counts is None else self._current(counts["run"])
        if run is not None:
            run.heard(client_id, self._runner.get_worker_index(client_id), counts)

    def _on_batch(self, msg: Received[BatchMessage], **_: object) -> None:
        run = self._current(msg.data["run"])
        if run is None:
            logger.error("worker %s sent a batch of run %s, which is over", msg.node_id, msg.data["run"])
            return
        run.heard(msg.node_id, self._runner.get_worker_index(msg.node_id))
        run.collector.accept(msg.node_id, msg.data["seq"], msg.data["rows"], msg.data["frame"])

    def _acknowledge(self, run: str, worker: str, seq: int) -> None:
        # One that gets lost does no harm: the worker sends the batch again, and is answered then.
        self._send(messages.ACK, AckMessage(run=run, seq=seq), worker)

    def _send(self, kind: str, data: AckMessage | RunMessage, worker: str) -> None:
        try:
            self._runner.send_message(kind, dict(data), worker)
        except RPCError as e:
            logger.warning("worker %s could not be sent %s: %s", worker, kind, e)

    def _on_done(self, msg: Received[CountsMessage], **_: object) -> None:
        run = self._current(msg.data["run"])
        if run is not None:
            index = self._runner.get_worker_index(msg.node_id)
            run.heard(msg.node_id, index, msg.data).done = True

    def _on_refused(self, msg: Received[RefusedMessage], **_: object) -> None:
        if self._current(msg.data["run"]) is not None:
            self._runs.refuse(msg.data["reason"])

    def _on_test_stopping(self, **_: object) -> None:
        """End the load on all workers and wait for their last records.

        Here, because after it Locust either tells its workers to quit, or lets them sleep
        through --stop-timeout without reading messages.
        """
        run = self._runs.run
        if run is None or run.stopped_ns is not None:
            return
        run.stopped()
        # No ramp or shape may spawn users from here on; Locust sets the same state right after.
        self._runner.update_state(STATE_STOPPING)
        for client in self._runner.clients.all:
            if client.state != STATE_MISSING:  # one that has just joined may not have been heard of yet
                run.heard(client.id, self._runner.get_worker_index(client.id))
            self._send(messages.FLUSH, RunMessage(run=run.info["id"]), client.id)
        patience_s = float(self._environment.stop_timeout or 0) + run.patience_s
        if not wait_until(lambda: not self._awaited(run), patience_s):
            logger.error("no last word within %g s from: %s", patience_s, ", ".join(self._awaited(run)))

    def _awaited(self, run: Run) -> list[str]:
        """Workers that are there and have not said that they are done."""
        clients = self._runner.clients
        return [
            worker
            for worker, participant in run.participants.items()
            if not participant.done and worker in clients and clients[worker].state != STATE_MISSING
        ]

    def _stop_load(self) -> None:
        self._runner.stop(send_stop_to_client=False)
