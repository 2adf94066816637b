"""Worker and master find each other in whatever order they start, and however often."""

from pathlib import Path

import pytest
from warm_process import warm_code

from llm_locust.swarm.channel.proof import (
    MOST_HELLOS,
    NONCE_BYTES,
    SESSION_BYTES,
    MasterSessions,
    ProofError,
    UnknownSessionError,
    WorkerSession,
    hello,
)

SECRET = b"sixteen bytes at least"

#: Locust patches the process that imports it: what is about its channel has a process of its own.
PATCHED = """
import contextlib, sys
import pytest
with contextlib.redirect_stdout(sys.stderr):
    sys.exit(pytest.main(["-q", "-x", "--noconftest", "-p", "no:cacheprovider", "-Wignore", *sys.argv[1:]]))
"""


def joined() -> tuple[WorkerSession, MasterSessions, bytes]:
    """Both ends after a worker's first message, and the welcome."""
    worker, master = WorkerSession(SECRET, b"w"), MasterSessions(SECRET)
    welcome = master.welcome("w", worker.hello())
    worker.hear(welcome)
    master.check("w", b"first", worker.seal(b"first"))
    return worker, master, welcome


def test_worker_and_master_join_in_any_order() -> None:
    warm_code(PATCHED, str(Path(__file__).parent / "joining_cases.py"))


def test_a_hello_has_the_same_welcome_each_time() -> None:
    worker, master = WorkerSession(SECRET, b"w"), MasterSessions(SECRET)
    word = worker.hello()
    welcome = master.welcome("w", word)
    assert master.welcome("w", word) == welcome
    worker.hear(welcome)
    seal = worker.seal(b"first")
    master.check("w", b"first", seal)
    assert master.welcome("w", word) == welcome
    with pytest.raises(ProofError, match="replay"):  # the hello began nothing anew
        master.check("w", b"first", seal)


def test_an_overheard_hello_and_its_messages_begin_nothing_after_another_session() -> None:
    worker, master = WorkerSession(SECRET, b"w"), MasterSessions(SECRET)
    word = worker.hello()
    worker.hear(master.welcome("w", word))
    seal = worker.seal(b"first")
    master.check("w", b"first", seal)
    again = WorkerSession(SECRET, b"w")
    again.hear(master.welcome("w", again.hello()))
    master.check("w", b"second", again.seal(b"second"))
    master.welcome("w", word)
    with pytest.raises(UnknownSessionError):
        master.check("w", b"first", seal)
    master.check("w", b"third", again.seal(b"third"))


def test_a_welcome_that_comes_again_begins_nothing_anew() -> None:
    worker, master, welcome = joined()
    worker.hear(welcome)
    master.check("w", b"second", worker.seal(b"second"))


def test_a_forged_word_that_the_session_is_unknown_ends_no_session() -> None:
    worker, master, old = joined()
    with pytest.raises(UnknownSessionError) as caught:
        MasterSessions(SECRET).check("w", b"x", worker.seal(b"x"))
    worker.hear(b"\0" * SESSION_BYTES)  # of no session of this worker
    assert worker.is_open
    worker.hear(caught.value.word)  # as anyone may send who listens
    assert not worker.is_open
    with pytest.raises(ProofError, match="another worker or hello"):
        worker.hear(old)
    down = master.seal("w", b"down")
    assert down is not None
    worker.check(b"down", down)
    welcome = master.welcome("w", worker.hello())
    late = master.seal("w", b"late")
    assert late is not None
    worker.hear(welcome)
    worker.check(b"late", late)  # sent before the master knew that the worker has the welcome
    master.check("w", b"new", worker.seal(b"new"))
    with pytest.raises(ProofError, match="replay"):
        worker.check(b"late", late)


def test_no_number_of_hellos_fills_the_masters_memory_or_ends_a_session() -> None:
    worker, master, _ = joined()
    many = [hello(SECRET, b"w", bytes([i]) * NONCE_BYTES) for i in range(2 * MOST_HELLOS)]
    welcomes = [master.welcome("w", word) for word in many]
    assert [master.welcome("w", word) for word in many[-MOST_HELLOS:]] == welcomes[-MOST_HELLOS:]
    assert master.welcome("w", many[0]) != welcomes[0]  # it was forgotten
    master.check("w", b"second", worker.seal(b"second"))
