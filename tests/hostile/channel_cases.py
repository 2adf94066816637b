"""Both ends of the guarded channel over ZeroMQ; run by test_hostile_curve.py in a process of its own."""

import argparse
import socket as sockets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import gevent
import msgpack  # type: ignore[import-untyped]
import pytest
import zmq.green as zmq
from gevent.server import StreamServer
from hypothesis import given, settings, strategies as st
from locust.exception import RPCError, RPCReceiveError
from locust.rpc import Message
from zmq.utils import z85

from llm_locust.swarm.channel import channel
from llm_locust.swarm.channel.channel import (
    MOST_BYTES,
    STRANGERS,
    UNPROVEN,
    Guard,
    GuardedClient,
    GuardedServer,
)
from llm_locust.swarm.channel.locust_messages import check, unpacked
from llm_locust.swarm.channel.messages import MessageError
from llm_locust.swarm.channel.trust import MOST_FAILURES, ChannelKeys, KeyPair, derive_keys, mechanism_at
from llm_locust.swarm.process import exits

SECRET = b"sixteen bytes at least"
KEYS = derive_keys(SECRET)
OTHER = derive_keys(b"the secret of another run")

#: Keys that nobody derived, as a stranger has.
OWN = KeyPair(*zmq.curve_keypair())


def options(**given: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"swarm_secret_env": None, "processes": None, "worker": False, **given})


def test_processes_share_a_secret_of_their_own_unless_one_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S", SECRET.decode())
    family = channel.channel_secret(options(processes=2))
    assert family is not None
    assert len(family) == 32
    assert channel.channel_secret(options(processes=2, swarm_secret_env="S")) == SECRET
    assert channel.channel_secret(options()) is None
    assert channel.channel_secret(options(worker=True)) is None
    # As in a forked child: of a master, and of a process that was itself given --worker.
    monkeypatch.setattr(exits, "_PARENT", 1)
    child = options(processes=2, worker=True)
    monkeypatch.setattr(channel, "_is_worker_by_command", lambda: False)
    assert channel.channel_secret(child) == family
    monkeypatch.setattr(channel, "_is_worker_by_command", lambda: True)
    assert channel.channel_secret(child) is None


# -- the two ends over ZeroMQ -----------------------------------------------------------------


def _served(port: int, guard: Guard) -> GuardedServer | None:
    try:
        return GuardedServer("127.0.0.1", port, guard)
    except RPCError:
        return None


@contextmanager
def master(keys: ChannelKeys | None = None, port: int = 0) -> Iterator[tuple[GuardedServer, Guard]]:
    guard = Guard(keys, custom={"llm_batch"})
    with gevent.Timeout(10):  # ZeroMQ may close the socket that had this port a little after the call
        while (server := _served(port, guard)) is None:
            gevent.sleep(0.01)
    try:
        yield server, guard
    finally:
        server.close(linger=0)


@contextmanager
def worker(port: int, keys: ChannelKeys | None, name: str = "w") -> Iterator[GuardedClient]:
    client = GuardedClient("127.0.0.1", port, name, keys)
    try:
        yield client
    finally:
        client.close(linger=0)


def raw(port: int, name: bytes, server: bytes | None = None, own: KeyPair = OWN) -> Any:
    """A stranger's socket; with the public key of a ``server`` it speaks CURVE."""
    socket: Any = zmq.Context.instance().socket(zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, name)
    socket.setsockopt(zmq.LINGER, 0)
    if server is not None:
        socket.setsockopt(zmq.CURVE_SERVERKEY, server)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, own.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, own.secret)
    socket.connect(f"tcp://127.0.0.1:{port}")
    return socket


def ready(name: str = "w") -> Message:
    return Message("client_ready", "2.47.0", name)


@contextmanager
def listening(handle: Callable[[Any, Any], object]) -> Iterator[Any]:
    """A program that is no master."""
    server = StreamServer(("127.0.0.1", 0), handle)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def hears_only(server: GuardedServer, name: str = "good") -> Any:
    """The next message that the master takes, which is of a worker that has just joined."""
    with worker(server.port, server._guard.keys, name) as client, gevent.Timeout(10):
        client.send(ready(name))
        sender, message = server.recv_from_client()
        assert (sender, message.type) == (name, "client_ready")


def until_refused(guard: Guard, times: int = 1) -> None:
    with gevent.Timeout(10):
        while guard.dropped.by_sender.get(STRANGERS, {}).get(UNPROVEN, 0) < times:
            gevent.sleep(0.01)


GARBAGE: list[list[bytes]] = [
    [b""],
    [b"\xc1"],
    [b"\xff\xff\xff"],
    [b"garbage"],
    [b"", b"garbage"],
    [b"x"] * 50,
    [msgpack.dumps(("heartbeat", {}, "w"))],
    [msgpack.dumps(("heartbeat", None, "w"))],
    [msgpack.dumps(("heartbeat", {"state": "odd", "current_cpu_usage": 1}, "w"))],
    [msgpack.dumps(("heartbeat", {"state": "running", "current_cpu_usage": "x"}, "w"))],
    [msgpack.dumps(("stats", {}, "w"))],
    [msgpack.dumps(("stats", {"user_classes_count": {"C": -1}}, "w"))],
    [msgpack.dumps(("spawning_complete", 3, "w"))],
    [msgpack.dumps(("exception", "x", "w"))],
    [msgpack.dumps(("logs", {"worker_id": "v", "logs": []}, "w"))],
    [msgpack.dumps(("locustfile", {}, "w"))],
    [msgpack.dumps(("client_ready", 7, "w"))],
    [msgpack.dumps(("quit", None, "v"))],
    [msgpack.dumps(([], None, "w"))],
    [msgpack.dumps(("heartbeat", None, []))],
    [msgpack.dumps(("x" * 1000, None, "w"))],
    [msgpack.dumps(("nobody_listens", None, "w"))],
    [msgpack.dumps(1)],
    [msgpack.dumps({"__datetime__": 1, "as_str": "yesterday"})],
    [msgpack.dumps(("a", "b", "c", "d"))],
]


@pytest.mark.parametrize("keys", [None, KEYS], ids=["open", "with a secret"])
def test_garbage_at_the_masters_port_is_dropped_and_the_next_message_is_taken(
    keys: ChannelKeys | None,
) -> None:
    """With a secret its sender knows it, and misbehaves."""
    with master(keys) as (server, guard):
        name = None if keys is None else keys.master.public
        attacker = raw(server.port, b"w", name, OWN if keys is None else keys.worker)
        for parts in GARBAGE:
            attacker.send_multipart(parts)
        attacker.send(msgpack.dumps(("client_ready", "2.47.0", "w")))
        with gevent.Timeout(10):
            sender, message = server.recv_from_client()
        assert (sender, message.type) == ("w", "client_ready")
        assert guard.dropped.total == len(GARBAGE)
        attacker.close()


def test_a_message_beyond_the_bound_ends_its_connection_with_a_secret_too() -> None:
    with master(KEYS) as (server, guard):
        assert server.socket.getsockopt(zmq.MAXMSGSIZE) == MOST_BYTES
        server.socket.setsockopt(zmq.MAXMSGSIZE, 1 << 16)
        bounded = server.socket.bind_to_random_port("tcp://127.0.0.1")
        giant = raw(bounded, b"w", KEYS.master.public, KEYS.worker)
        giant.send(b"x" * (1 << 17))
        hears_only(server)
        assert guard.dropped.total == 0
        giant.close()


def test_a_worker_that_knows_the_secret_is_heard_and_answered() -> None:
    with master(KEYS) as (server, guard), worker(server.port, KEYS) as client, gevent.Timeout(10):
        heard = gevent.spawn(client.recv)
        client.send(ready())
        assert server.recv_from_client()[0] == "w"
        client.send(Message("llm_batch", {"frame": b"\0\xff"}, "w"))
        assert server.recv_from_client()[1].data == {"frame": b"\0\xff"}
        server.send_to_client(Message("spawn", {"header": "secret"}, "w"))
        assert heard.get().data == {"header": "secret"}
        assert guard.dropped.total == 0


#: What a stranger's socket knows: the server key and its own keys.
STRANGE: dict[str, tuple[bytes | None, KeyPair]] = {
    "no secret": (None, OWN),
    "another secret": (OTHER.master.public, OTHER.worker),
    "the workers' keys of the right secret, and a server key of another": (OTHER.master.public, KEYS.worker),
    "the master's public key, and keys of its own": (KEYS.master.public, OWN),
    "the master's public key, and another run's keys": (KEYS.master.public, OTHER.worker),
    "the workers' public key as the master's": (KEYS.worker.public, KEYS.worker),
    "the master's keys as its own": (KEYS.master.public, KEYS.master),
}


@pytest.mark.parametrize(("server_key", "own"), STRANGE.values(), ids=STRANGE)
def test_whoever_lacks_the_secret_is_neither_heard_nor_told_anything(
    server_key: bytes | None, own: KeyPair
) -> None:
    with master(KEYS) as (server, guard):
        stranger = raw(server.port, b"w", server_key, own)
        stranger.send(msgpack.dumps(("client_ready", "2.47.0", "w")))
        if server_key is not None:
            until_refused(guard)
        server.send_to_client(Message("spawn", {"header": "secret"}, "w"))
        hears_only(server)
        assert not stranger.poll(50)
        assert set(guard.dropped.by_sender) <= {STRANGERS}
        stranger.close()


def test_no_connection_is_taken_while_nobody_answers_for_its_key() -> None:
    with master(KEYS) as (server, _):
        server._more[0].close(0)  # the ZAP handler
        stranger = raw(server.port, b"w", KEYS.master.public, KEYS.worker)
        stranger.send(msgpack.dumps(("client_ready", "2.47.0", "w")))
        assert not server.socket.poll(300)
        stranger.close()


GIVE_BOTH = ": give both the same by --swarm-secret-env"


@pytest.mark.parametrize(
    ("theirs", "ours", "why"),
    [
        (KEYS, OTHER, "the master has another secret than this worker" + GIVE_BOTH),
        (None, OTHER, "the master has no secret, and this worker has one" + GIVE_BOTH),
        (KEYS, None, "the master has a secret, and this worker has none" + GIVE_BOTH),
    ],
    ids=["another", "none there", "none here"],
)
def test_a_worker_of_another_run_ends_with_one_line(
    theirs: ChannelKeys | None, ours: ChannelKeys | None, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with master(theirs) as (server, _), worker(server.port, ours) as client:
        client.send(ready())
        with gevent.Timeout(5), pytest.raises(SystemExit) as ended:
            client.recv()
        assert ended.value.code == 2
        assert capsys.readouterr().err == f"llm-locust: error: {why}\n"


def test_a_worker_at_the_port_of_another_program_ends_with_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with listening(lambda s, _: s.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9)) as other:
        assert mechanism_at("127.0.0.1", other.server_port) == b""
        with worker(other.server_port, KEYS) as client, gevent.Timeout(5), pytest.raises(SystemExit):
            client.recv()
    assert "is no master: look at --master-port" in capsys.readouterr().err


def test_a_place_that_takes_connections_and_closes_them_ends_no_worker() -> None:
    """As a proxy does whose master has not been started yet."""
    closed: list[int] = []
    with listening(lambda *_: closed.append(1)) as proxy:
        port = proxy.server_port
        with worker(port, KEYS) as client, gevent.Timeout(20):
            client.send(ready())
            while len(closed) < 4 * MOST_FAILURES:
                gevent.sleep(0.01)
            proxy.stop()
            with master(KEYS, port) as (server, _):
                assert server.recv_from_client()[0] == "w"


@pytest.mark.parametrize("theirs", [None, OTHER], ids=["none", "another"])
def test_whoever_takes_the_port_of_a_master_hears_nothing_from_its_workers_and_cannot_end_them(
    theirs: ChannelKeys | None,
) -> None:
    with master(KEYS) as (server, _):
        port = server.port
        client = GuardedClient("127.0.0.1", port, "w", KEYS)
        client.send(ready())
        with gevent.Timeout(10):
            assert server.recv_from_client()[0] == "w"
    with master(theirs, port) as (impostor, _):
        heard = gevent.spawn(client.recv)
        client.send(Message("llm_batch", {"frame": b"x"}, "w"))
        with suppress(RPCError):
            impostor.send_to_client(Message("spawn", {}, "w"))
        assert not impostor.socket.poll(500)
        assert not heard.ready()
    heard.kill()
    client.close(linger=0)


#: Greetings of ZeroMQ's protocol before it had keys, each with a message: versions 1, 2 and 3 without them.
SIGNATURE = bytes.fromhex("ff00000000000000017f")
EARLIER = {
    "1": b"\x01\x00" + b"\x0c\x00client_ready",
    "2": SIGNATURE + b"\x01\x06" + b"\x00\x00" + b"\x00\x0cclient_ready",
    "3": SIGNATURE + b"\x03\x00NULL".ljust(54, b"\0") + b"\x04\x06\x05READY" + b"\x00\x0cclient_ready",
}


@pytest.mark.parametrize("said", EARLIER.values(), ids=EARLIER)
def test_no_end_with_a_secret_is_talked_into_a_protocol_without_keys(said: bytes) -> None:
    with (
        master(KEYS) as (server, _),
        sockets.create_connection(("127.0.0.1", server.port), 5) as stranger,
    ):
        stranger.sendall(said)
        hears_only(server)
    heard: list[bytes] = []

    def talk(peer: Any, _: object) -> None:
        peer.sendall(said)
        with suppress(OSError):
            while part := peer.recv(1 << 12):
                heard.append(part)

    with (
        listening(talk) as impostor,
        suppress(SystemExit, gevent.Timeout),
        worker(impostor.server_port, KEYS) as client,
        gevent.Timeout(0.3),
    ):
        client.send(Message("llm_batch", {"header": "sk-of-the-run"}, "w"))
        client.recv()
    assert heard[0][:1] == SIGNATURE[:1]
    assert not [part for part in heard if b"llm_batch" in part or b"sk-of" in part]


def test_a_worker_without_a_secret_drops_what_is_no_message() -> None:
    with master(None) as (server, _), worker(server.port, None) as client, gevent.Timeout(10):
        client.send(ready())
        assert server.recv_from_client()[0] == "w"
        server.socket.send_multipart([b"w", b"\xc1"])
        with pytest.raises(RPCReceiveError):
            client.recv()
        server.send_to_client(Message("spawn", {}, "w"))
        assert client.recv().type == "spawn"


class Wire:
    """A relay that keeps what it passes on, can change it, and can send what came up again."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.up: list[bytes] = []
        self.down: list[bytes] = []
        self.change = False
        self.server = StreamServer(("127.0.0.1", 0), self._pass)
        self.server.start()

    def _pass(self, near: Any, _: object) -> None:
        far = sockets.create_connection(("127.0.0.1", self.target))
        ways = [gevent.spawn(self._copy, near, far, self.up), gevent.spawn(self._copy, far, near, self.down)]
        gevent.joinall(ways, count=1)
        near.close()
        far.close()
        gevent.killall(ways)

    def _copy(self, source: Any, to: Any, kept: list[bytes]) -> None:
        with suppress(OSError):
            while part := source.recv(1 << 16):
                kept.append(part)
                to.sendall(part[:-1] + bytes([part[-1] ^ 1]) if self.change and kept is self.up else part)

    def replay(self) -> bytes:
        """Send to the target what came up from a worker, as it came; return what it says."""
        with sockets.create_connection(("127.0.0.1", self.target), 5) as again, suppress(OSError):
            for part in self.up:
                again.sendall(part)
                gevent.sleep(0.02)
            again.settimeout(0.2)
            return again.recv(1 << 16)
        return b""


def test_what_was_recorded_shows_nothing_and_cannot_be_sent_again_or_changed() -> None:
    with master(KEYS) as (server, guard):
        wire = Wire(server.port)
        port: Any = wire.server.server_port
        with worker(port, KEYS) as client, gevent.Timeout(10):
            client.send(ready())
            assert server.recv_from_client()[0] == "w"
            server.send_to_client(Message("spawn", {"header": "sk-of-the-run"}, "w"))
            assert client.recv().data == {"header": "sk-of-the-run"}
            whole = b"".join(wire.up + wire.down)
            hidden = [KEYS.master, KEYS.worker]
            for text in (
                b"client_ready",
                b"sk-of",
                *(z85.decode(k) for p in hidden for k in (p.public, p.secret)),
            ):
                assert text not in whole
            wire.replay()
            wire.change = True
            client.send(Message("llm_batch", {"frame": b"changed"}, "w"))
            assert not server.socket.poll(300)
            wire.change = False
        wire.server.stop()
        hears_only(server)
        assert set(guard.dropped.by_sender) <= {STRANGERS}


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)
kinds = st.sampled_from(
    ["heartbeat", "stats", "logs", "exception", "spawning_complete", "client_ready", "quit"]
)


@settings(deadline=None)
@given(st.binary(max_size=100) | st.tuples(kinds, anything, st.text()).map(msgpack.dumps))
def test_no_bytes_raise_anything_but_a_message_error(data: bytes) -> None:
    try:
        check(unpacked(data))
    except MessageError:
        return


ENTRY: dict[str, Any] = {
    "name": "n",
    "method": "POST",
    "start_time": 1.8e9,
    "last_request_timestamp": 1.8e9,
    "num_requests": 1,
    "response_times": {5.0: 1},
}


@pytest.mark.parametrize(
    "changes",
    [
        {"response_times": {float("nan"): 1}},
        {"response_times": {float("inf"): 1}},
        {"response_times": {5.0: 1}, "num_requests": 0},
    ],
    ids=repr,
)
def test_statistics_that_locusts_tables_cannot_show_are_refused(changes: dict[str, Any]) -> None:
    """Locust makes them at the end of the run: an exception there was the master's last word."""

    def stats(entry: dict[str, Any]) -> Message:
        data = {"stats": [ENTRY, entry], "stats_total": ENTRY, "errors": {}, "user_classes_count": {}}
        return Message("stats", data, "w")

    check(stats(ENTRY))
    with pytest.raises(MessageError):
        check(stats(ENTRY | changes))


TIMES = {
    "stats_total": ("start_time", "last_request_timestamp"),
    "stats": ("start_time", "last_request_timestamp"),
    "errors": ("first_seen", "last_seen"),
}


@pytest.mark.parametrize("where", list(TIMES))
@pytest.mark.parametrize("time", [-1.0, 1e12, 1e300, -1e300])
def test_statistics_of_a_time_that_no_date_has_are_refused(where: str, time: float) -> None:
    """Locust's reports make dates of them: an exception there ended the process with another exit code."""
    entry = {"name": "n", "method": "POST", "start_time": 1.8e9, "last_request_timestamp": 1.8e9}
    error = {**entry, "error": "e", "occurrences": 1, "first_seen": 1.8e9, "last_seen": 1.8e9}

    def stats(**changes: float) -> Message:
        parts: dict[str, dict[str, Any]] = {"stats_total": dict(entry), "stats": dict(entry), "errors": error}
        parts[where] = parts[where] | changes
        shaped = {**parts, "stats": [parts["stats"]], "errors": {"k": parts["errors"]}}
        return Message("stats", shaped | {"user_classes_count": {}}, "w")

    check(stats())
    for name in TIMES[where]:
        with pytest.raises(MessageError, match=name):
            check(stats(**{name: time}))
