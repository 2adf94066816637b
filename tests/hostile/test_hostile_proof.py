"""The run's secret: who does not know it is not heard, and nothing that was sent once counts twice."""

import hashlib
import hmac
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from warm_process import warm_code

from llm_locust.options.settings import UsageError
from llm_locust.swarm.channel.proof import (
    NONCE_BYTES,
    ProofError,
    ProofSession,
    answer,
    hello,
    secret_of,
    session_key,
    welcomed,
)

SECRET = b"sixteen bytes at least"
NONCE = b"n" * NONCE_BYTES


def sessions(name: bytes = b"w", nonce: bytes = NONCE) -> tuple[ProofSession, ProofSession]:
    """A worker's session and its master's."""
    welcome, masters = answer(SECRET, name, hello(SECRET, name, nonce))
    return welcomed(SECRET, name, nonce, welcome), masters


@given(st.lists(st.binary(max_size=50), max_size=5), st.lists(st.binary(max_size=50), max_size=5))
def test_what_one_end_seals_the_other_takes(up: list[bytes], down: list[bytes]) -> None:
    worker, master = sessions()
    for message in up:
        master.check(message, worker.seal(message))
    for message in down:
        worker.check(message, master.seal(message))


def test_a_message_is_taken_once_and_in_its_direction_only() -> None:
    worker, master = sessions()
    first, second = worker.seal(b"first"), worker.seal(b"second")
    master.check(b"second", second)
    for message, seal in ((b"second", second), (b"first", first)):
        with pytest.raises(ProofError, match="replay"):
            master.check(message, seal)
    with pytest.raises(ProofError, match="wrong"):
        worker.check(b"first", first)


@given(st.integers(0, 47), st.integers(1, 255))
def test_any_changed_byte_of_a_seal_is_noticed(place: int, change: int) -> None:
    worker, master = sessions()
    seal = bytearray(worker.seal(b"message"))
    seal[place] ^= change
    with pytest.raises(ProofError):
        master.check(b"message", bytes(seal))


def test_a_seal_is_of_one_message_one_worker_and_one_session() -> None:
    worker, master = sessions()
    seal = worker.seal(b"message")
    with pytest.raises(ProofError):
        master.check(b"massage", seal)
    for other in (sessions(b"v")[1], sessions()[1], sessions(nonce=b"m" * NONCE_BYTES)[1]):
        with pytest.raises(ProofError):
            other.check(b"message", seal)


@pytest.mark.parametrize(
    "word", [b"", b"x", hello(b"another secret", b"w", NONCE), hello(SECRET, b"v", NONCE)]
)
def test_a_hello_without_the_secret_is_not_answered(word: bytes) -> None:
    with pytest.raises(ProofError):
        answer(SECRET, b"w", word)


def test_a_master_without_the_secret_is_not_believed() -> None:
    welcome, _ = answer(SECRET, b"w", hello(SECRET, b"w", NONCE))
    forged = welcome[: 2 * NONCE_BYTES] + b"\0" * 32
    for bad in (b"", forged, welcome[:-1], b"m" * NONCE_BYTES + welcome[NONCE_BYTES:]):
        with pytest.raises(ProofError):
            welcomed(SECRET, b"w", NONCE, bad)


def test_the_key_of_a_session_is_the_hmac_that_the_module_says() -> None:
    parts = (b"session", b"w", NONCE, b"o" * NONCE_BYTES)
    text = b"".join(struct.pack(">Q", len(p)) + p for p in parts)
    assert session_key(SECRET, *parts[1:]) == hmac.digest(SECRET, text, hashlib.sha256)


def test_a_secret_comes_from_the_environment_and_is_never_shown() -> None:
    assert secret_of("S", {"S": " 0123456789abcdef\n"}) == b"0123456789abcdef"
    for environ in ({}, {"S": ""}, {"S": "tooshortsecret"}):
        with pytest.raises(UsageError, match="swarm-secret-env") as caught:
            secret_of("S", environ)
        assert "tooshortsecret" not in str(caught.value)


#: Locust patches the process that imports it: what is about its channel has a process of its own.
PATCHED = """
import contextlib, sys
import pytest
with contextlib.redirect_stdout(sys.stderr):
    sys.exit(pytest.main(["-q", "-x", "--noconftest", "-p", "no:cacheprovider", "-Wignore", *sys.argv[1:]]))
"""


def test_both_ends_of_the_channel() -> None:
    warm_code(PATCHED, str(Path(__file__).parent / "channel_cases.py"))
