"""Worker and master meet in any order; run by test_swarm_joining.py in a process of its own.

Both real ends of the channel, with a scripted network between them: no socket, and no time but the script's.
What Locust says over the channel, and what a worker does about a master that does not know it, is as in
Locust's runners and in roles/worker.py.
"""

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import zmq.green as zmq
from hypothesis import given, settings
from hypothesis import strategies as st
from locust.exception import RPCError
from locust.rpc import Message
from zmq.error import ZMQError

from llm_locust.swarm.channel.channel import Guard, GuardedClient, GuardedServer, OpenClient

SECRET = b"sixteen bytes at least"

#: Locust's interval of ``client_ready``, and its runner's of heartbeats.
READY_S, HEARTBEAT_S = 5, 1

#: An end that could join has joined after this: one interval for each of ready, and a word that was lost.
WITHIN_S = 12

Parts = list[bytes]


class Network:
    """What is under way. It keeps what workers send while nobody listens, as ZeroMQ does."""

    def __init__(self) -> None:
        self.up: deque[tuple[bytes, Parts]] = deque()
        self.down: deque[tuple[bytes, Parts]] = deque()
        self.at_master: deque[tuple[bytes, Parts]] = deque()
        self.at_worker: dict[bytes, deque[Parts]] = {}

    def deliver(self) -> None:
        self.at_master.extend(self.up)
        self.up.clear()
        for name, parts in self.down:
            self.at_worker.setdefault(name, deque()).append(parts)
        self.down.clear()


class Socket:
    """A ROUTER or DEALER of the network, without waiting: what has nothing to receive raises."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._name = b""

    def setsockopt(self, option: int, value: Any) -> None:
        if isinstance(value, bytes):
            self._name = value

    def bind(self, address: str) -> None: ...

    def connect(self, address: str) -> None: ...

    def send(self, payload: bytes, flags: int = 0) -> None:
        self.send_multipart([payload])

    def send_multipart(self, parts: Parts, flags: int = 0) -> None:
        if self._name:
            self._network.up.append((self._name, parts))
        else:
            self._network.down.append((parts[0], parts[1:]))

    def recv(self) -> bytes:
        return self.recv_multipart()[0]

    def recv_multipart(self) -> Parts:
        try:
            if self._name:
                return self._network.at_worker.setdefault(self._name, deque()).popleft()
            name, parts = self._network.at_master.popleft()
            return [name, *parts]
        except IndexError:
            raise ZMQError from None


class Master:
    """Locust's master as far as joining goes."""

    numbers = itertools.count()

    def __init__(self, secret: bytes | None) -> None:
        self.number = next(self.numbers)
        self.guard = Guard(secret, custom={"llm_counted"})
        self.clients: set[str] = set()
        self.counted: Counter[tuple[str, int]] = Counter()
        self._server = GuardedServer("127.0.0.1", 1, self.guard)

    def read(self) -> None:
        while True:
            try:
                sender, message = self._server.recv_from_client()
            except RPCError:
                return
            if message.type == "client_ready":
                self.clients.add(sender)
                self._say("ack", sender)
            elif message.type == "heartbeat":
                self._say("heartbeat" if sender in self.clients else "stranger", sender)
            else:
                self.counted[sender, message.data] += 1

    def _say(self, kind: str, worker: str) -> None:
        self._server.send_to_client(Message(kind, self.number, worker))


class Worker:
    """Locust's worker as far as joining goes, and its start anew when a master does not know it."""

    numbers = itertools.count()

    def __init__(self, secret: bytes | None, clock: Callable[[], float]) -> None:
        self._secret, self._clock = secret, clock
        self._said = itertools.count()
        self._begin()

    def _begin(self) -> None:
        self.name = f"w{next(self.numbers)}"
        self.master: int | None = None
        self._due_s = self._clock()
        self._client: Any
        if self._secret is None:
            self._client = OpenClient("127.0.0.1", 1, self.name)
        else:
            self._client = GuardedClient("127.0.0.1", 1, self.name, self._secret, self._clock)

    def read(self) -> None:
        while True:
            try:
                message = self._client.recv()
            except RPCError:
                return
            if message.type == "stranger":
                self._begin()
                return
            self.master = message.data

    def speak(self) -> None:
        if self._clock() < self._due_s:
            return
        self._client.send(Message("llm_counted", next(self._said), self.name))
        if self.master is None:
            self._client.send(Message("client_ready", "2.47.0", self.name))
            self._due_s = self._clock() + READY_S
        else:
            self._client.send(Message("heartbeat", {"state": "ready", "current_cpu_usage": 1}, self.name))
            self._due_s = self._clock() + HEARTBEAT_S


class World:
    """A network with at most one master and one worker, and a clock."""

    def __init__(self, secret: bytes | None) -> None:
        self.secret = secret
        self.now_s = 0.0
        self.network = Network()
        self.master: Master | None = None
        self.worker: Worker | None = None
        self.held = False

    def start_master(self) -> None:
        self.network.at_master.clear()
        self.master = Master(self.secret)

    def kill_master(self) -> None:
        """What it has not read is lost."""
        self.master = None
        self.network.at_master.clear()

    def start_worker(self) -> None:
        self.worker = Worker(self.secret, lambda: self.now_s)

    def kill_worker(self) -> None:
        self.worker = None

    def hold_master(self) -> None:
        """Its loop does nothing, while ZeroMQ goes on receiving."""
        self.held = True

    def free_master(self) -> None:
        self.held = False

    def double(self) -> None:
        """A relay sends everything under way twice."""
        self.network.up.extend(list(self.network.up))
        self.network.down.extend(list(self.network.down))

    def reverse(self) -> None:
        self.network.up.reverse()
        self.network.down.reverse()

    def lose(self) -> None:
        self.network.up.clear()
        self.network.down.clear()

    def speak(self) -> None:
        if self.worker is not None:
            self.worker.speak()

    def read(self) -> None:
        """Both ends read what has arrived."""
        if self.master is not None:
            self.network.deliver()
            if not self.held:
                self.master.read()
        if self.worker is not None:
            self.worker.read()

    def second(self) -> None:
        """One second: each end speaks when it is due, and all words arrive."""
        self.speak()
        for _ in range(8):
            self.read()
        self.now_s += 1

    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.second()

    def has_joined(self) -> bool:
        """Whether the present worker and master have heard each other last."""
        assert self.worker is not None
        assert self.master is not None
        return self.worker.name in self.master.clients and self.worker.master == self.master.number

    def joins(self) -> None:
        """Both join, and stay so; no message was taken twice if it is signed."""
        self.wait(WITHIN_S)
        for _ in range(3):
            assert self.has_joined(), f"not within {WITHIN_S} s"
            self.second()
        assert self.master is not None
        if self.secret is not None:
            assert max(self.master.counted.values()) == 1


@contextmanager
def world(secret: bytes | None) -> Iterator[World]:
    made = World(secret)
    with pytest.MonkeyPatch.context() as patch:

        class Context:
            def socket(self, kind: int) -> Socket:
                return Socket(made.network)

        patch.setattr(zmq, "Context", Context)
        yield made


SECRETS = pytest.mark.parametrize("secret", [SECRET, None], ids=["with a secret", "open"])

#: After these a message may be dropped, and the worker says it again.
UNTIDY = {"kill_master", "double", "reverse"}

#: What happens, before both have to join: names of methods of World, and seconds.
MEET: dict[str, Sequence[str | int]] = {
    "master first": ["start_master", 3, "start_worker"],
    "worker first": ["start_worker", "start_master"],
    "master 1 s late": ["start_worker", 1, "start_master"],
    "master 10 s late": ["start_worker", 10, "start_master"],
    "master 60 s late": ["start_worker", 60, "start_master"],
    "worker 60 s late": ["start_master", 60, "start_worker"],
    "master again at once": ["start_master", "start_worker", 7, "kill_master", "start_master"],
    "master again 3 s later": ["start_master", "start_worker", 7, "kill_master", 3, "start_master"],
    "master again 20 s later": ["start_master", "start_worker", 7, "kill_master", 20, "start_master"],
    "master again and again": [
        *("start_master", "start_worker", 7, "kill_master", 3, "start_master", 1, "kill_master", 3),
        *("start_master", 1, "kill_master", "start_master"),
    ],
    "master again while it welcomes": [
        *("start_worker", 6, "start_master", "read", "kill_master", 2, "start_master"),
    ],
    "worker again": ["start_master", "start_worker", 7, "kill_worker", 3, "start_worker"],
    "both again, worker first": [
        *("start_master", "start_worker", 7, "kill_master", "kill_worker", "start_worker", 8, "start_master"),
    ],
    "both again, master first": [
        *("start_master", "start_worker", 7, "kill_worker", "kill_master", "start_master", 8, "start_worker"),
    ],
    "master held while the worker joins": [
        *("start_master", "hold_master", "start_worker", 23, "free_master"),
    ],
    "master held before it is started again": [
        *("start_master", "start_worker", 7, "hold_master", 9, "kill_master", "free_master", "start_master"),
    ],
    "a relay doubles the hellos": ["start_worker", 6, "double", "double", "start_master", "read", "double"],
    "a relay doubles the welcome": ["start_master", "start_worker", "speak", "read", "double", 1, "double"],
    "a relay turns the order round": ["start_worker", 12, "reverse", "start_master", "read", "reverse"],
}


@SECRETS
@pytest.mark.parametrize("steps", MEET.values(), ids=MEET)
def test_worker_and_master_join_whoever_comes_first_or_again(
    steps: Sequence[str | int], secret: bytes | None
) -> None:
    with world(secret) as met:
        for step in steps:
            if isinstance(step, int):
                met.wait(step)
            else:
                getattr(met, step)()
        met.joins()
        if not UNTIDY.intersection(steps):
            assert met.master is not None
            assert met.master.guard.dropped.total == 0


#: Each may happen at any time; the two processes that matter in the end are started by the test.
TROUBLE = st.lists(
    st.sampled_from(
        [
            *("start_master", "kill_master", "hold_master", "free_master", "start_worker", "kill_worker"),
            *("double", "reverse", "lose", "speak", "read", "second"),
        ]
    )
    | st.integers(1, 12),
    max_size=40,
)


@SECRETS
@settings(deadline=None)
@given(steps=TROUBLE, is_worker_first=st.booleans())
def test_after_any_trouble_the_present_worker_and_master_join(
    secret: bytes | None, steps: list[str | int], is_worker_first: bool
) -> None:
    with world(secret) as met:
        for step in steps:
            if isinstance(step, int):
                met.wait(step)
            else:
                getattr(met, step)()
        met.free_master()
        for role in sorted(("master", "worker"), reverse=is_worker_first):
            if getattr(met, role) is None:
                getattr(met, f"start_{role}")()
        met.joins()
