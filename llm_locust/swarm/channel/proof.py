"""Proof that a message comes from a process that knows the run's secret, and is not a replay.

Worker and master each draw a nonce. The session key is made of both nonces, the secret and the worker's name,
so that nothing from an earlier session, or for another worker, can be replayed. Within a session each
direction numbers its messages, and the receiver accepts ascending numbers only.

    hello     worker to master   worker's nonce | HMAC(secret, "hello", name, worker's nonce)
    welcome   master to worker   both nonces    | HMAC(session key, "welcome")
    seal      with each message  session's name | number | HMAC(session key, direction, number, message)

A session's name is the first 8 bytes of HMAC(session key, "name").

HMAC is HMAC-SHA256 (RFC 2104, FIPS 198-1). Nothing is encrypted.
"""

import hmac
import os
import secrets
import struct
from collections.abc import Mapping
from typing import Final, Literal

from llm_locust.options.settings import UsageError

NONCE_BYTES: Final = 32
MAC_BYTES: Final = 32
SESSION_BYTES: Final = 8

#: Shortest secret in characters. A shorter one could be guessed from a single intercepted message.
LEAST_SECRET = 16

_NUMBER = struct.Struct(">Q")

Direction = Literal[b"to master", b"to worker"]
TO_MASTER: Final = b"to master"
TO_WORKER: Final = b"to worker"

_HELLO_BYTES = NONCE_BYTES + MAC_BYTES
_WELCOME_BYTES = 2 * NONCE_BYTES + MAC_BYTES
_SEAL_BYTES = SESSION_BYTES + _NUMBER.size + MAC_BYTES


class ProofError(ValueError):
    """A message without valid proof; the text says what is wrong with it."""


def mac(key: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA256 of the parts, each preceded by its length, which makes their boundaries unambiguous."""
    made = hmac.new(key, digestmod="sha256")
    for part in parts:
        made.update(_NUMBER.pack(len(part)))
        made.update(part)
    return made.digest()


class ProofSession:
    """Session between two processes that know the secret, as seen by one of them.

    Args:
        key: result of :func:`session_key`.
        sends: the direction of this process's messages.

    Attributes:
        name: the same at both ends, and of no other session.
    """

    __slots__ = ("_heard", "_hears", "_key", "_said", "_sends", "name")

    def __init__(self, key: bytes, sends: Direction) -> None:
        self._key = key
        self.name = mac(key, b"name")[:SESSION_BYTES]
        self._sends = sends
        self._hears = TO_WORKER if sends == TO_MASTER else TO_MASTER
        self._said = 0
        self._heard = 0

    def seal(self, message: bytes) -> bytes:
        """Seal to send with a message of this process."""
        self._said += 1
        number = _NUMBER.pack(self._said)
        return self.name + number + mac(self._key, self._sends, number, message)

    def check(self, message: bytes, seal: bytes) -> None:
        """Verify a message of the other process.

        Raises:
            ProofError: the seal does not belong to this message, or the message is a replay.
        """
        if session_of(seal) != self.name:
            raise ProofError("its signature is wrong: it is of another session")
        number, claimed = seal[SESSION_BYTES:-MAC_BYTES], seal[-MAC_BYTES:]
        if not hmac.compare_digest(claimed, mac(self._key, self._hears, number, message)):
            raise ProofError("its signature is wrong")
        (counted,) = _NUMBER.unpack(number)
        if counted <= self._heard:
            raise ProofError("it is a replay of an earlier message")
        self._heard = counted


def session_of(seal: bytes) -> bytes:
    """Return the name of the session that a seal claims to be of (raises ProofError)."""
    if len(seal) != _SEAL_BYTES:
        raise ProofError("it is not signed as this version of llm-locust does")
    return seal[:SESSION_BYTES]


def session_key(secret: bytes, name: bytes, worker_nonce: bytes, master_nonce: bytes) -> bytes:
    return mac(secret, b"session", name, worker_nonce, master_nonce)


def hello(secret: bytes, name: bytes, nonce: bytes) -> bytes:
    """First message of a worker."""
    return nonce + mac(secret, b"hello", name, nonce)


def answer(secret: bytes, name: bytes, word: bytes) -> tuple[bytes, ProofSession]:
    """Return the master's welcome to a worker's hello, and the new session.

    Raises:
        ProofError: the hello was not made with this secret.
    """
    if len(word) != _HELLO_BYTES:
        raise ProofError("it does not know the run's secret")
    nonce = word[:NONCE_BYTES]
    if not hmac.compare_digest(word, hello(secret, name, nonce)):
        raise ProofError("it has another secret than this master")
    own = secrets.token_bytes(NONCE_BYTES)
    key = session_key(secret, name, nonce, own)
    return nonce + own + mac(key, b"welcome"), ProofSession(key, TO_WORKER)


def welcomed(secret: bytes, name: bytes, nonce: bytes, welcome: bytes) -> ProofSession:
    """Return the session opened by a master's welcome, for the worker whose hello had this nonce.

    Raises:
        ProofError: the welcome was not made with this secret, or answers another hello.
    """
    own = welcome[NONCE_BYTES : 2 * NONCE_BYTES]
    key = session_key(secret, name, nonce, own)
    if len(welcome) != _WELCOME_BYTES or welcome[:NONCE_BYTES] != nonce:
        raise ProofError("the master's answer is for another worker or hello")
    if not hmac.compare_digest(welcome[2 * NONCE_BYTES :], mac(key, b"welcome")):
        raise ProofError("the master has another secret than this worker")
    return ProofSession(key, TO_MASTER)


def secret_of(name: str, environ: Mapping[str, str] = os.environ) -> bytes:
    """Return the secret in an environment variable.

    Raises:
        UsageError: the variable is not set, or too short.
    """
    value = environ.get(name, "").strip()
    if not value:
        raise UsageError(f"--swarm-secret-env: the environment variable {name!r} is not set, or empty")
    if len(value) < LEAST_SECRET:
        raise UsageError(
            f"--swarm-secret-env: the value of {name!r} has {len(value)} characters; it needs at least "
            f"{LEAST_SECRET}, for example from `openssl rand -hex 32`"
        )
    return value.encode()
