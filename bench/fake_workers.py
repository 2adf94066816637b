"""Workers that make no load: they use Locust's channel and ship prepared batches.

Many in one process, each with a socket, heartbeats, reports, a spool and the package's own shipping. Ends
when the master tells all of them to quit, and prints one line of JSON (:class:`harness.Tally`).
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import msgspec
import numpy as np
import zmq.green as zmq
from harness import Tally
from locust import __version__, runners
from locust.rpc import Message
from locust.rpc.zmqrpc import Client
from locust.stats import RequestStats

from llm_locust.core.batch import RecordBatch
from llm_locust.core.record import Outcome, RequestRecord, TokenSource
from llm_locust.store import FrameHeader, Spool, encode_frame
from llm_locust.swarm.channel import messages
from llm_locust.swarm.channel.messages import BatchMessage, CountsMessage, RunInfo, plain
from llm_locust.swarm.channel.shipping import BATCH_ROWS, Shipper

# --- Data of a worker under load, made without any load


TOKENS = 100


def made_batch(worker: str, rng: np.random.Generator, ended_ns: int, span_s: float) -> bytes:
    """A batch of streams of :data:`TOKENS` tokens that ended in the ``span_s`` before ``ended_ns``."""
    gaps = rng.exponential(0.005, (BATCH_ROWS, TOKENS)) + 0.015
    gaps[:, 0] = rng.exponential(0.02, BATCH_ROWS) + 0.04
    arrivals = np.cumsum(np.round(gaps * 1e9).astype(np.int64), axis=1)
    sent = ended_ns - arrivals[:, -1] - np.sort(rng.integers(0, round(span_s * 1e9), BATCH_ROWS))[::-1]
    lags, rtts = rng.integers(10_000, 100_000, (2, BATCH_ROWS))
    records = [
        RequestRecord(
            request_id=rng.bytes(16).hex(),
            name="chat",
            outcome=Outcome.OK,
            scheduled_ns=int(sent[i]) - 40_000,
            started_ns=int(sent[i]) - 30_000,
            connected_ns=int(sent[i]) - 30_000,
            sent_ns=int(sent[i]),
            headers_ns=int(sent[i] + arrivals[i, 0]) - 100_000,
            ended_ns=int(sent[i] + arrivals[i, -1]) + 200_000,
            arrivals_ns=arrivals[i],
            first_answer_ns=int(arrivals[i, 0]),
            model="sim",
            user=i % 4,
            status=200,
            finish_reason="length",
            input_tokens=int(rng.integers(100, 1000)),
            output_tokens=TOKENS,
            token_source=TokenSource.USAGE,
            asked_output_tokens=TOKENS,
            output_chars=4 * TOKENS,
            replica=f"replica-{i % 8}",
            peer="10.0.0.1:8000",
            reused=True,
            kernel_stamps=True,
            client_lag_ns=int(lags[i]),
            clock_step_ns=0,
            rtt_ns=int(rtts[i]),
            reads=TOKENS + 1,
            bytes_received=250 * TOKENS,
        )
        for i in range(BATCH_ROWS)
    ]
    return RecordBatch.from_records(records, worker).to_bytes()


def made_report(rng: np.random.Generator, requests: int) -> dict[str, Any]:
    """Locust's own statistics of an interval, as a worker reports them."""
    stats = RequestStats()
    for elapsed_ms in rng.normal(2_000, 50, requests):
        stats.log_request("chat", "chat", elapsed_ms, 250 * TOKENS)
    return {
        "stats": stats.serialize_stats(),
        "stats_total": stats.total.get_stripped_report(),
        "errors": stats.serialize_errors(),
        "user_classes_count": {"Chat": 1},
        "user_count": 1,
    }


# --- The workers


FLUSH_S = 60.0


class Channel(Client):
    """Locust's client, on a shared context: a separate one would take two threads each."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", port: int, identity: str) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.IDENTITY, identity.encode())
        self.socket.connect(f"tcp://127.0.0.1:{port}")


class FakeWorker:
    """One worker.

    Args:
        payload: its batch; ``made_ns`` is the end time of its records.
        interval_s: between two batches; the first is sent ``phase_s`` after the start of the run.
        report: its report, the same every time, without its counts.
    """

    def __init__(
        self,
        worker: str,
        channel: Channel,
        spools: Path,
        payload: bytes,
        made_ns: int,
        interval_s: float,
        phase_s: float,
        report: dict[str, Any],
        tally: Tally,
    ) -> None:
        self.id = worker
        self._channel = channel
        self._spools = spools
        self._payload, self._made_ns = payload, made_ns
        self._interval_s, self._phase_s = interval_s, phase_s
        self._report = report
        self._tally = tally
        self._state = runners.STATE_INIT
        self._run = ""
        self._seq = 0
        self._sizes: dict[int, int] = {}  # of frames without acknowledgement
        self._beat_at_s = 0.0
        self._shipper = Shipper(self._send_batch)
        self._making: gevent.Greenlet[[], None] = gevent.Greenlet(self._make_batches)

    def live(self) -> None:
        """Join, and follow the master until it says to quit."""
        self._send("client_ready", __version__)
        helpers = [
            gevent.spawn(each) for each in (self._beat, self._report_counts, self._shipper.ship_forever)
        ]
        message: Message = self._channel.recv()  # type: ignore[no-untyped-call]
        while message.type != "quit":
            self._hear(message.type, message.data)
            message = self._channel.recv()  # type: ignore[no-untyped-call]
        gevent.killall(helpers)

    def _send(self, kind: str, data: object) -> None:
        self._channel.send(Message(kind, data, self.id))

    def _send_batch(self, message: BatchMessage) -> None:
        self._send(messages.BATCH, plain(message))

    def _hear(self, kind: str, data: Any) -> None:
        if kind == "heartbeat":
            self._tally.heartbeats_ms.append((time.monotonic() - self._beat_at_s) * 1e3)
        elif kind == "spawn":
            self._send("spawning", None)
            self._begin(data["parsed_options"]["llm_run"])
            self._send("spawning_complete", {"user_classes_count": {"Chat": 1}, "user_count": 1})
        elif kind == messages.ACK:
            self._shipper.acknowledged(data["run"], data["seq"])
            if data["seq"] in self._sizes:
                self._tally.acknowledged(self._sizes.pop(data["seq"]))
        elif kind == messages.FLUSH:
            gevent.spawn(self._flush)

    def _begin(self, run: RunInfo) -> None:
        if self._run:
            return
        self._run, self._state = run["id"], runners.STATE_RUNNING
        self._shipper.begin(run["id"], Spool(self._spools / self.id, self._spools), run["manifest"])
        self._tally.began_s = time.monotonic()
        self._making.start()

    def _make_batches(self) -> None:
        due_s = time.monotonic() + self._phase_s
        while True:
            gevent.sleep(max(0.0, due_s - time.monotonic()))
            due_s += self._interval_s
            self._deliver_batch()

    def _deliver_batch(self) -> None:
        header = FrameHeader(
            run=self._run,
            worker=self.id,
            seq=self._seq,
            rows=BATCH_ROWS,
            finished=(self._seq + 1) * BATCH_ROWS,
            in_flight=0,
            # The same records each time: a clock offset by their age moves them to now.
            clock_offset_ns=time.time_ns() - self._made_ns,
            clock_error_ns=0,
        )
        frame = encode_frame(header, self._payload)
        self._seq += 1
        self._sizes[header.seq] = len(frame)
        self._tally.offered += 1
        self._tally.offered_bytes += len(frame)
        self._shipper.deliver(header, frame)

    def _flush(self) -> None:
        self._making.kill()
        self._tally.stopped_s = self._tally.stopped_s or time.monotonic()
        self._shipper.flush(FLUSH_S)
        self._tally.unacknowledged += self._shipper.unsent
        self._send(messages.DONE, plain(self._counts()))
        self._shipper.finish(self._run)
        self._state = runners.STATE_INIT

    def _counts(self) -> CountsMessage:
        return CountsMessage(
            run=self._run,
            finished=self._seq * BATCH_ROWS,
            in_flight=0,
            unsent=self._shipper.unsent,
            dropped=self._shipper.dropped,
        )

    def _beat(self) -> None:
        gevent.sleep(self._phase_s % runners.HEARTBEAT_INTERVAL)
        while True:
            self._beat_at_s = time.monotonic()
            costs = {"current_cpu_usage": 50.0, "current_memory_usage": 200 << 20}
            self._send("heartbeat", {"state": self._state, **costs})
            gevent.sleep(runners.HEARTBEAT_INTERVAL)

    def _report_counts(self) -> None:
        gevent.sleep(self._phase_s)
        while True:
            if self._state == runners.STATE_RUNNING:
                self._send("stats", {**self._report, "llm": plain(self._counts())})
            gevent.sleep(runners.WORKER_REPORT_INTERVAL)


def fake_workers(options: argparse.Namespace, tally: Tally) -> Iterator[FakeWorker]:
    """All workers of this process."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    interval_s = BATCH_ROWS * options.workers / options.rate
    per_report = round(options.rate / options.workers * runners.WORKER_REPORT_INTERVAL)
    for i in range(options.first, options.first + options.workers):
        rng = np.random.default_rng(i)
        worker, made_ns = f"fake-{i:04d}", time.time_ns()
        yield FakeWorker(
            worker,
            Channel(context, options.port, worker),
            options.spools,
            made_batch(worker, rng, made_ns, interval_s),
            made_ns,
            interval_s,
            rng.uniform(0, interval_s),
            made_report(rng, per_report),
            tally,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="the master's")
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--first", type=int, default=0, help="the first one's number")
    parser.add_argument("--rate", type=float, required=True, help="requests per second of all of them")
    parser.add_argument("--spools", type=Path, required=True)
    options = parser.parse_args()
    tally = Tally()
    gevent.joinall([gevent.spawn(w.live) for w in list(fake_workers(options, tally))], raise_error=True)
    print(msgspec.json.encode(tally).decode(), flush=True)


if __name__ == "__main__":
    main()
