"""Sessions of a master and its workers that know the run's secret: both ends come to use the same one.

ZeroMQ keeps a worker's hellos while there is no master, and a master may read many at once, or one twice.
So the same hello always has the same welcome, and a master uses a session once its worker does. Each seal
names its session (:mod:`.proof`). A master that was sent a message of a session which it does not know, as
after its restart, says so with that session's name, and the worker says a new hello. That word is not
signed: it costs a round trip, and the session stays in use until the new one has been proved.
"""

from collections import OrderedDict
from dataclasses import dataclass
from secrets import token_bytes
from typing import Final

from llm_locust.swarm.channel.proof import (
    NONCE_BYTES,
    SESSION_BYTES,
    ProofError,
    ProofSession,
    answer,
    hello,
    session_of,
    welcomed,
)

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
