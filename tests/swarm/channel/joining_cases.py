"""Worker and master meet in any order; run by test_swarm_joining.py in a process of its own.

Both real ends of the channel over loopback, with a second of Locust's intervals made short. What Locust says
over the channel is as in its runners; a worker whose master does not know it ends, and is started again.
"""

import itertools
import socket as sockets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import gevent
import pytest
from locust.exception import RPCError
from locust.rpc import Message

from llm_locust.swarm.channel.channel import Guard, GuardedClient, GuardedServer
from llm_locust.swarm.channel.trust import ChannelKeys, derive_keys

KEYS, OTHER = derive_keys(b"sixteen bytes at least"), derive_keys(b"the secret of another run")

#: Length of a second here, and Locust's intervals of ``client_ready`` and of heartbeats, in such seconds.
SECOND_S = 0.01
READY, HEARTBEAT = 5, 1

#: An end that could join, or has to end, has done so after this.
WITHIN_S = 20.0


class Master:
    """Locust's master as far as joining goes."""

    def __init__(self, port: int, keys: ChannelKeys | None) -> None:
        self.guard = Guard(keys)
        self.clients: set[str] = set()
        self._server = GuardedServer("127.0.0.1", port, self.guard)
        self._reader = gevent.spawn(self._read)

    def _read(self) -> None:
        while True:
            sender, message = self._server.recv_from_client()
            if message.type == "client_ready":
                self.clients.add(sender)
            known = "ack" if message.type == "client_ready" else "heartbeat"
            kind = known if sender in self.clients else "stranger"
            self._server.send_to_client(Message(kind, None, sender))

    def end(self) -> None:
        self._reader.kill()
        self._server.close(linger=0)


class Worker:
    """Locust's worker as far as joining goes, and a supervisor that starts it again."""

    numbers = itertools.count()

    def __init__(self, port: int, keys: ChannelKeys | None) -> None:
        self._port, self._keys = port, keys
        self.name, self.joined = "", False
        self.life = gevent.spawn(self._live)

    def _live(self) -> None:
        while True:
            self.name, self.joined = f"w{next(self.numbers)}", False
            client = GuardedClient("127.0.0.1", self._port, self.name, self._keys)
            speaker = gevent.spawn(self._speak, client)
            try:
                while (message := client.recv()).type != "stranger":
                    self.joined = self.joined or message.type == "ack"
            finally:
                speaker.kill()
                client.close(linger=0)

    def _speak(self, client: GuardedClient) -> None:
        while True:
            load = {"state": "ready", "current_cpu_usage": 1}
            kind, data = ("heartbeat", load) if self.joined else ("client_ready", "2.47.0")
            with suppress(RPCError):
                client.send(Message(kind, data, self.name))
            gevent.sleep((HEARTBEAT if self.joined else READY) * SECOND_S)

    def end(self) -> None:
        self.life.kill()


class World:
    """At most one master and one worker, at a port."""

    def __init__(self, keys: ChannelKeys | None) -> None:
        self.keys = keys
        self.master: Master | None = None
        self.worker: Worker | None = None
        with sockets.create_server(("127.0.0.1", 0)) as place:
            self.port = place.getsockname()[1]

    def start_master(self) -> None:
        self.master = Master(self.port, self.keys)

    def start_worker(self) -> None:
        self.worker = Worker(self.port, self.keys)

    def end_master(self) -> None:
        if self.master is not None:
            self.master.end()
        self.master = None

    def end_worker(self) -> None:
        if self.worker is not None:
            self.worker.end()
        self.worker = None

    def joins(self) -> None:
        with gevent.Timeout(WITHIN_S):
            while True:
                assert self.master is not None
                assert self.worker is not None
                if self.worker.name in self.master.clients and self.worker.joined:
                    return
                gevent.sleep(SECOND_S)


@contextmanager
def world(keys: ChannelKeys | None) -> Iterator[World]:
    made = World(keys)
    try:
        yield made
    finally:
        made.end_worker()
        made.end_master()


SECRETS = pytest.mark.parametrize("keys", [KEYS, None], ids=["with a secret", "open"])

#: What happens, before both have to join: names of methods of World, and seconds.
MEET: dict[str, Sequence[str | int]] = {
    "master first": ["start_master", 3, "start_worker"],
    "worker first": ["start_worker", "start_master"],
    "master 1 s late": ["start_worker", 1, "start_master"],
    "master 10 s late": ["start_worker", 10, "start_master"],
    "master 60 s late": ["start_worker", 60, "start_master"],
    "worker 60 s late": ["start_master", 60, "start_worker"],
    "master again at once": ["start_master", "start_worker", "joins", "end_master", "start_master"],
    "master again 20 s later": ["start_master", "start_worker", "joins", "end_master", 20, "start_master"],
    "master again and again": [
        *("start_master", "start_worker", "joins", "end_master", 3, "start_master", 1, "end_master", 3),
        *("start_master", 1, "end_master", "start_master"),
    ],
    "worker again": ["start_master", "start_worker", "joins", "end_worker", 3, "start_worker"],
    "both again, worker first": [
        *("start_master", "start_worker", "joins", "end_master", "end_worker"),
        *("start_worker", 8, "start_master"),
    ],
    "both again, master first": [
        *("start_master", "start_worker", "joins", "end_worker", "end_master"),
        *("start_master", 8, "start_worker"),
    ],
}


@SECRETS
@pytest.mark.parametrize("steps", MEET.values(), ids=MEET)
def test_worker_and_master_join_whoever_comes_first_or_again(
    steps: Sequence[str | int], keys: ChannelKeys | None
) -> None:
    with world(keys) as met:
        for step in (*steps, "joins"):
            if isinstance(step, int):
                gevent.sleep(step * SECOND_S)
            else:
                getattr(met, step)()
        assert met.master is not None
        assert met.master.guard.dropped.total == 0


#: A master's keys, and those of a worker of another run at its port.
MISMATCHES = {
    "another secret": (KEYS, OTHER),
    "a secret at the worker only": (None, OTHER),
    "a secret at the master only": (KEYS, None),
}


@pytest.mark.parametrize("is_master_first", [True, False], ids=["master first", "worker first"])
@pytest.mark.parametrize(("theirs", "ours"), MISMATCHES.values(), ids=MISMATCHES)
def test_a_worker_of_another_run_ends_and_the_runs_own_joins(
    theirs: ChannelKeys | None,
    ours: ChannelKeys | None,
    is_master_first: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with world(theirs) as met:
        stray = Worker(met.port, ours) if not is_master_first else None
        gevent.sleep(SECOND_S)
        met.start_master()
        stray = stray or Worker(met.port, ours)
        with gevent.Timeout(WITHIN_S), pytest.raises(SystemExit) as ended:
            stray.life.join()
        assert ended.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("llm-locust: error: the master has ")
        stray.end()
        met.start_worker()
        met.joins()


def test_the_port_of_another_program_is_refused_at_the_master() -> None:
    with sockets.create_server(("127.0.0.1", 0)) as place, pytest.raises(RPCError, match="in use"):
        GuardedServer("127.0.0.1", place.getsockname()[1], Guard(KEYS))
