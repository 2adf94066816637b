"""Both ends of the guarded channel over ZeroMQ; run by test_hostile_proof.py in a process of its own."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import gevent
import msgpack  # type: ignore[import-untyped]
import pytest
import zmq.green as zmq
from hypothesis import given, settings
from hypothesis import strategies as st
from locust.exception import RPCReceiveError
from locust.rpc import Message

from llm_locust.swarm.channel import securing
from llm_locust.swarm.channel.channel import (
    REFUSED,
    UNPROVEN,
    Guard,
    GuardedClient,
    GuardedServer,
    OpenClient,
    check,
    unpacked,
)
from llm_locust.swarm.channel.messages import MessageError
from llm_locust.swarm.channel.proof import NONCE_BYTES, ProofSession, answer, hello, welcomed
from llm_locust.swarm.process import leaving

SECRET = b"sixteen bytes at least"
NONCE = b"n" * NONCE_BYTES

#: What ends a wait for a message that must not come.
QUIET = TimeoutError()


def options(**given: Any) -> argparse.Namespace:
    return argparse.Namespace(**{"swarm_secret_env": None, "processes": None, "worker": False, **given})


def test_processes_share_a_secret_of_their_own_unless_one_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S", SECRET.decode())
    family = securing.channel_secret(options(processes=2))
    assert family is not None
    assert len(family) == 32
    assert securing.channel_secret(options(processes=2, swarm_secret_env="S")) == SECRET
    assert securing.channel_secret(options()) is None
    assert securing.channel_secret(options(worker=True)) is None
    # As in a forked child: of a master, and of a process that was itself given --worker.
    monkeypatch.setattr(leaving, "_PARENT", 1)
    child = options(processes=2, worker=True)
    monkeypatch.setattr(securing, "_is_worker_by_command", lambda: False)
    assert securing.channel_secret(child) == family
    monkeypatch.setattr(securing, "_is_worker_by_command", lambda: True)
    assert securing.channel_secret(child) is None


# -- the two ends over ZeroMQ -----------------------------------------------------------------


@contextmanager
def master(secret: bytes | None = None) -> Iterator[tuple[GuardedServer, Guard]]:
    guard = Guard(secret, custom={"llm_batch"})
    server = GuardedServer("127.0.0.1", 0, guard)
    try:
        yield server, guard
    finally:
        server.socket.close(linger=0)


def raw(port: int, name: bytes) -> Any:
    socket: Any = zmq.Context.instance().socket(zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, name)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(f"tcp://127.0.0.1:{port}")
    return socket


def ready(name: str = "w") -> Message:
    return Message("client_ready", "2.47.0", name)


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


@pytest.mark.parametrize("secret", [None, SECRET], ids=["open", "with a secret"])
def test_garbage_at_the_masters_port_is_dropped_and_the_next_message_is_taken(secret: bytes | None) -> None:
    with master(secret) as (server, guard):
        attacker = raw(server.port, b"w")
        for parts in GARBAGE:
            attacker.send_multipart(parts)
        if secret is None:
            attacker.send(msgpack.dumps(("client_ready", "2.47.0", "w")))
            worker = None
        else:
            worker = GuardedClient("127.0.0.1", server.port, "good", secret)
            gevent.spawn(worker.recv)
            worker.send(ready("good"))
        with gevent.Timeout(10):
            sender, message = server.recv_from_client()
        assert (sender, message.type) == ("w" if secret is None else "good", "client_ready")
        taking = gevent.spawn(server.recv_from_client)  # what the stranger's connection still holds
        with gevent.Timeout(60):
            while guard.dropped.total < len(GARBAGE) - 1:
                gevent.sleep(0.01)
        taking.kill()
        attacker.close()
        if worker is not None:
            worker.socket.close(linger=0)


def test_a_worker_that_knows_the_secret_is_heard_and_answered() -> None:
    with master(SECRET) as (server, guard):
        worker = GuardedClient("127.0.0.1", server.port, "w", SECRET)
        heard = gevent.spawn(worker.recv)
        worker.send(ready())
        with gevent.Timeout(10):
            assert server.recv_from_client()[0] == "w"
            worker.send(Message("llm_batch", {"frame": b"\0\xff"}, "w"))
            assert server.recv_from_client()[1].data == {"frame": b"\0\xff"}
            server.send_to_client(Message("spawn", {"header": "secret"}, "w"))
            assert heard.get().data == {"header": "secret"}
        assert guard.dropped.total == 0
        worker.socket.close(linger=0)


@pytest.mark.parametrize("theirs", [None, b"another secret, long enough"], ids=["none", "another"])
def test_a_worker_without_the_masters_secret_is_not_heard_and_told_only_that(theirs: bytes | None) -> None:
    with master(SECRET) as (server, guard):
        stranger = raw(server.port, b"w")
        if theirs is None:
            stranger.send(msgpack.dumps(("client_ready", "2.47.0", "w")))
        else:
            stranger.send_multipart([b"", hello(theirs, b"w", NONCE)])
        with gevent.Timeout(0.5, QUIET), suppress(TimeoutError):
            server.recv_from_client()
        server.send_to_client(Message("spawn", {"header": "secret"}, "w"))
        gevent.sleep(0.1)
        assert stranger.recv_multipart() == [b"", REFUSED]
        assert not stranger.poll(100)
        assert guard.dropped.by_sender["w"] == {UNPROVEN: 1}
        stranger.close()


OTHER = b"the secret of another run"


@pytest.mark.parametrize(
    ("theirs", "ours", "why"),
    [
        (SECRET, OTHER, "the master has another secret than this worker, or none"),
        (None, OTHER, "the master has another secret than this worker, or none"),
        (SECRET, None, "the master has a secret, and this worker has none"),
    ],
)
def test_a_worker_of_another_run_ends_with_one_line(
    theirs: bytes | None, ours: bytes | None, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with master(theirs) as (server, _):
        listening = gevent.spawn(server.recv_from_client)
        if ours is None:
            worker: Any = OpenClient("127.0.0.1", server.port, "w")
        else:
            worker = GuardedClient("127.0.0.1", server.port, "w", ours)
        worker.send(ready())
        with gevent.Timeout(10), pytest.raises(SystemExit) as ended:
            worker.recv()
        assert ended.value.code == 2
        assert capsys.readouterr().err == (
            f"llm-locust: error: {why}: give both the same by --swarm-secret-env\n"
        )
        listening.kill()
        worker.socket.close(linger=0)


def test_a_refusal_does_not_end_a_worker_whose_master_has_proved_itself() -> None:
    with master(SECRET) as (server, _):
        worker = GuardedClient("127.0.0.1", server.port, "w", SECRET)
        heard = gevent.spawn(worker.recv)
        worker.send(ready())
        with gevent.Timeout(10):
            assert server.recv_from_client()[0] == "w"
            server.socket.send_multipart([b"w", b"", REFUSED])
            server.send_to_client(Message("spawn", {}, "w"))
            assert heard.get().type == "spawn"
        worker.socket.close(linger=0)


def test_a_worker_without_a_secret_drops_what_is_no_message() -> None:
    with master(None) as (server, _):
        worker = OpenClient("127.0.0.1", server.port, "w")
        worker.send(ready())
        with gevent.Timeout(10):
            assert server.recv_from_client()[0] == "w"
            server.socket.send_multipart([b"w", b"\xc1"])
            with pytest.raises(RPCReceiveError):
                worker.recv()
            server.send_to_client(Message("spawn", {}, "w"))
            assert worker.recv().type == "spawn"
        worker.socket.close(linger=0)


def test_what_was_overheard_cannot_be_sent_again_by_another_connection() -> None:
    with master(SECRET) as (server, guard):
        overheard = [b"", hello(SECRET, b"w", NONCE)]
        welcome, _ = answer(SECRET, b"w", hello(SECRET, b"w", NONCE))
        worker: ProofSession = welcomed(SECRET, b"w", NONCE, welcome)
        stranger = raw(server.port, b"w")
        stranger.send_multipart(overheard)  # answered, but the answer's key is not to be had from it
        payload = msgpack.dumps(("client_ready", "2.47.0", "w"))
        stranger.send_multipart([payload, worker.seal(payload)])
        with gevent.Timeout(0.5, QUIET), suppress(TimeoutError):
            server.recv_from_client()
            raise AssertionError("a message was taken again")
        assert guard.dropped.by_sender["w"] == {UNPROVEN: 1}
        stranger.close()


def test_a_worker_does_not_obey_a_master_without_the_secret() -> None:
    socket: Any = zmq.Context.instance().socket(zmq.ROUTER)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    worker = GuardedClient("127.0.0.1", port, "w", SECRET)
    heard = gevent.spawn(worker.recv)
    worker.send(ready())
    with gevent.Timeout(10):
        name, payload, _ = socket.recv_multipart()
    assert (name, payload) == (b"w", b"")
    socket.send_multipart([name, msgpack.dumps(("spawn", {}, "w"))])
    socket.send_multipart([name, b"", b"\0" * 96])
    gevent.sleep(0.2)
    assert not heard.ready()
    heard.kill()
    worker.socket.close(linger=0)
    socket.close(linger=0)


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
