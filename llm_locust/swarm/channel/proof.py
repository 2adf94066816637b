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
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from secrets import token_bytes
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


# --------------------
# Sessions of a master and its workers that know the run's secret: both ends come to use the same one.
#
# ZeroMQ keeps a worker's hellos while there is no master, and a master may read many at once, or one twice.
# So the same hello always has the same welcome, and a master uses a session once its worker does. Each seal
# names its session (:mod:`.proof`). A master that was sent a message of a session which it does not know,
# as after its restart, says so with that session's name, and the worker says a new hello. That word is not
# signed: it costs a round trip, and the session stays in use until the new one has been proved.
# --------------------


#: Most workers kept that have sent a hello and nothing else yet, and most such hellos of one worker.
MOST_WELCOMED: Final = 10_000
MOST_HELLOS: Final = 8


class UnknownSessionError(ProofError):
    """A message of a session that this master does not know.

    Attributes:
        word: what tells the worker so.
    """

    def __init__(self, word: bytes) -> None:
        super().__init__("it has not sent a hello to this master, and is asked for one")
        self.word = word


@dataclass(frozen=True, slots=True)
class _Welcome:
    word: bytes
    session: ProofSession


class MasterSessions:
    """The master's sessions, by worker."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._used: dict[str, tuple[bytes, _Welcome]] = {}  # with the hello that it answers
        self._welcomed: OrderedDict[str, dict[bytes, _Welcome]] = OrderedDict()

    def welcome(self, worker: str, word: bytes) -> bytes:
        """Return the answer to a worker's hello: the same one each time (raises ProofError)."""
        said, used = self._used.get(worker, (None, None))
        if used is not None and said == word:
            return used.word
        known = self._welcomed.get(worker, {})
        if word not in known:
            known[word] = _Welcome(*answer(self._secret, worker.encode(), word))
            if len(known) > MOST_HELLOS:
                del known[next(iter(known))]
            self._welcomed[worker] = known
            if len(self._welcomed) > MOST_WELCOMED:
                self._welcomed.popitem(last=False)
        return known[word].word

    def check(self, worker: str, message: bytes, seal: bytes) -> None:
        """Verify a worker's message; the first of a session makes that session the one in use.

        Raises:
            UnknownSessionError: the worker has to say hello (again).
            ProofError: the message is not the worker's, or is a replay.
        """
        name = session_of(seal)
        _, used = self._used.get(worker, (None, None))
        if used is not None and used.session.name == name:
            used.session.check(message, seal)
            return
        known = self._welcomed.get(worker, {})
        for word, made in known.items():
            if made.session.name == name:
                made.session.check(message, seal)
                self._used[worker] = word, made
                del known[word]
                if not known:
                    del self._welcomed[worker]
                return
        raise UnknownSessionError(name)

    def seal(self, worker: str, message: bytes) -> bytes | None:
        """Seal of a message to a worker; None if it has not proved that it knows the secret."""
        _, used = self._used.get(worker, (None, None))
        return None if used is None else used.session.seal(message)


class WorkerSession:
    """A worker's session with its master.

    Attributes:
        is_open: whether messages can be sealed; otherwise the worker has to say :meth:`hello`.
        is_proved: whether a master has proved so far that it knows the secret.
    """

    def __init__(self, secret: bytes, name: bytes) -> None:
        self._secret = secret
        self._name = name
        self._nonce = token_bytes(NONCE_BYTES)
        self._session: ProofSession | None = None
        self._earlier: ProofSession | None = None  # the master may have sent under it before the change
        self.is_open = False

    @property
    def is_proved(self) -> bool:
        return self._session is not None

    def hello(self) -> bytes:
        """What to say to the master while the session is not open."""
        return hello(self._secret, self._name, self._nonce)

    def hear(self, word: bytes) -> None:
        """Take a welcome, or the word that the master does not know the session (raises ProofError)."""
        session = self._session
        if len(word) == SESSION_BYTES:
            if self.is_open and session is not None and session.name == word:
                self._nonce = token_bytes(NONCE_BYTES)  # an old welcome must not open a session again
                self.is_open = False
        elif not self.is_open:  # otherwise the answer to a hello that was sent twice
            self._session = welcomed(self._secret, self._name, self._nonce, word)
            self._earlier = session
            self.is_open = True

    def seal(self, message: bytes) -> bytes:
        """Seal of a message to the master, while the session is open."""
        assert self._session is not None
        return self._session.seal(message)

    def check(self, message: bytes, seal: bytes) -> None:
        """Verify a message of the master (raises ProofError)."""
        if self._session is None:
            raise ProofError("the master has not proved that it knows the run's secret")
        name = session_of(seal)
        earlier = self._earlier
        of = earlier if earlier is not None and earlier.name == name else self._session
        of.check(message, seal)
