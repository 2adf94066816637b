"""Locust's channel between workers and master, guarded against strangers.

The master's end drops a message that is malformed, that names a sender other than its connection, or that
would end Locust's listener. With a secret, both ends accept only messages sealed with it (:mod:`.proof`),
Locust's own included. So options, and the header values in them, reach only workers that have proved the
secret. The seal is a second part of the ZeroMQ message.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass, field

import gevent
import zmq.green as zmq
from locust.exception import RPCError, RPCReceiveError, RPCSendError
from locust.rpc import Message, zmqrpc
from zmq.error import ZMQError

from llm_locust.options.settings import UsageError
from llm_locust.swarm.channel.dropped import DroppedMessages, printable
from llm_locust.swarm.channel.locust_messages import KINDS, check, unpacked
from llm_locust.swarm.channel.messages import MOST_FRAME_BYTES, MessageError
from llm_locust.swarm.channel.proof import ProofError
from llm_locust.swarm.channel.sessions import MasterSessions, UnknownSessionError, WorkerSession
from llm_locust.swarm.process.leaving import leave
from llm_locust.swarm.process.throttle import Throttle

logger = logging.getLogger(__name__)

#: Largest message in bytes. ZeroMQ closes a connection that sends more, before the message is in memory.
MOST_BYTES = MOST_FRAME_BYTES + (1 << 20)

#: Most messages that a worker queues until the master's welcome, and the interval of its hellos until then.
_MOST_WAITING = 100
_HELLO_INTERVAL_S = 1.0

#: A worker that has no welcome after this time logs a warning.
_SAY_AFTER_S = 10.0

_GIVE_BOTH = "give both the same by --swarm-secret-env"

#: Kinds under which messages are counted whose own kind is unknown or untrusted.
UNREADABLE = "unreadable"
UNPROVEN = "unproven"
UNKNOWN = "unknown"

#: In place of a welcome: the worker has another secret than the master, or one of them has none. It is not
#: signed, so it ends a worker only until a master has proved itself: whoever has its port can keep it away.
REFUSED = b"refused"


@dataclass(slots=True)
class Guard:
    """State that the master's end of the channel shares with the rest of the process.

    Attributes:
        custom: kinds of messages, in addition to Locust's own, that have a listener.
    """

    secret: bytes | None = None
    dropped: DroppedMessages = field(default_factory=DroppedMessages)
    custom: Container[str] = frozenset()


class GuardedServer(zmqrpc.Server):
    """Master's end of the channel. The guard counts what is dropped."""

    def __init__(self, host: str, port: int, guard: Guard) -> None:
        self._guard = guard
        self._sessions = None if guard.secret is None else MasterSessions(guard.secret)
        # As in Locust, except for the size limit, which must be set before the socket is bound.
        zmqrpc.BaseSocket.__init__(self, zmq.ROUTER, self.ipv4_only(host, port))
        self.socket.setsockopt(zmq.MAXMSGSIZE, MOST_BYTES)
        try:
            if port == 0:
                self.port = self.socket.bind_to_random_port(f"tcp://{host}")
            else:
                self.socket.bind(f"tcp://{host}:{port}")
                self.port = port
        except ZMQError as e:
            raise RPCError(f"Socket bind failure: {e}") from e

    def recv_from_client(self) -> tuple[str, Message]:
        """Return the next valid message and its sender (raises RPCError)."""
        while True:
            try:
                parts = self.socket.recv_multipart()
            except ZMQError as e:
                raise RPCError("ZMQ network broken") from e
            sender = parts[0].decode(errors="replace")
            kind = UNREADABLE
            try:
                if not self._prove(sender, parts):
                    continue
                message = unpacked(parts[1] if len(parts) > 1 else b"")
                known = message.type in KINDS or message.type in self._guard.custom
                kind = message.type if known else UNKNOWN
                self._check(sender, message, kind)
            except UnknownSessionError as e:
                self._guard.dropped.note(sender, UNPROVEN, str(e))
                self._send(sender, b"", e.word)
            except ProofError as e:
                self._guard.dropped.note(sender, UNPROVEN, str(e))
                self._send(sender, b"", REFUSED)
            except MessageError as e:
                self._guard.dropped.note(sender, kind, str(e))
            else:
                return sender, message
            gevent.sleep(0)  # a flood of messages must not starve other greenlets

    def send_to_client(self, msg: Message) -> None:
        """Send a message as Locust does; with a secret, only to a worker that has proved it."""
        if self._sessions is None:
            super().send_to_client(msg)
            return
        payload: bytes = msg.serialize()
        seal = self._sessions.seal(msg.node_id, payload)
        if seal is None:
            logger.debug("worker %s has no session: nothing is sent to it", printable(msg.node_id))
            return
        self._send(msg.node_id, payload, seal)

    def _check(self, sender: str, message: Message, kind: str) -> None:
        if message.node_id != sender:
            raise MessageError(f"it claims to come from {printable(message.node_id)}")
        if kind == UNKNOWN:
            raise MessageError(f"there is no listener for {printable(message.type)!r}")
        if kind in KINDS:
            check(message)

    def _prove(self, sender: str, parts: list[bytes]) -> bool:
        """Whether there is a message to handle; False after a hello (raises ProofError)."""
        if self._sessions is None:
            if len(parts) > 2:
                raise ProofError("it has a secret and this master has none: give both --swarm-secret-env")
            return True
        payload, seal = (parts[1], parts[2]) if len(parts) == 3 else (b"", b"")
        if payload:
            self._sessions.check(sender, payload, seal)
            return True
        self._send(sender, b"", self._sessions.welcome(sender, seal))
        return False

    def _send(self, name: str, payload: bytes, seal: bytes) -> None:
        try:
            self.socket.send_multipart([name.encode(), payload, seal])
        except ZMQError as e:
            raise RPCSendError("ZMQ sent failure") from e


class OpenClient(zmqrpc.Client):
    """Worker's end of the channel, without a secret."""

    def __init__(self, host: str, port: int, identity: str) -> None:
        super().__init__(host, port, identity)  # type: ignore[no-untyped-call]

    def recv(self) -> Message:
        """Return the next message of the master (raises RPCError)."""
        try:
            payload, *rest = self.socket.recv_multipart()
        except ZMQError as e:
            raise RPCError("ZMQ network broken") from e
        if not payload and rest == [REFUSED]:
            leave(UsageError("the master has a secret, and this worker has none: " + _GIVE_BOTH))
        try:
            return unpacked(payload)
        except MessageError as e:
            raise RPCReceiveError("ZMQ interrupted or corrupted message") from e


class GuardedClient(zmqrpc.Client):
    """Worker's end of the channel, with a secret."""

    def __init__(
        self, host: str, port: int, identity: str, secret: bytes, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._session = WorkerSession(secret, identity.encode())
        self._clock = clock
        self._waiting: deque[bytes] = deque(maxlen=_MOST_WAITING)
        self._began_s = clock()
        self._hello_due_s = self._began_s
        self._may_say = Throttle()
        super().__init__(host, port, identity)  # type: ignore[no-untyped-call]

    def send(self, msg: Message) -> None:
        """Send a message as Locust does; queue it until the master has proved that it knows the secret."""
        payload: bytes = msg.serialize()
        if self._session.is_open:
            self._send(payload, self._session.seal(payload))
        else:
            self._waiting.append(payload)
            self._say_hello()

    def recv(self) -> Message:
        """Return the next message of a master that knows the secret (raises RPCError)."""
        while True:
            try:
                payload, *rest = self.socket.recv_multipart()
            except ZMQError as e:
                raise RPCError("ZMQ network broken") from e
            seal = rest[0] if rest else b""
            try:
                if payload:
                    self._session.check(payload, seal)
                    return unpacked(payload)
                if seal == REFUSED:
                    self._end_if_unproved()
                else:
                    self._hear(seal)
            except (ProofError, MessageError) as e:
                if self._may_say():
                    logger.warning("a message from the master was dropped: %s", e)
                gevent.sleep(0)

    def _end_if_unproved(self) -> None:
        if not self._session.is_proved:
            leave(UsageError("the master has another secret than this worker, or none: " + _GIVE_BOTH))

    def _hear(self, word: bytes) -> None:
        was_open = self._session.is_open
        self._session.hear(word)
        if was_open and not self._session.is_open:
            logger.info("the master does not know this worker's session: a new one is made")
            self._began_s = self._clock()
            self._say_hello()
        while self._session.is_open and self._waiting:
            payload = self._waiting.popleft()
            self._send(payload, self._session.seal(payload))

    def _say_hello(self) -> None:
        now_s = self._clock()
        if now_s >= self._hello_due_s:
            self._hello_due_s = now_s + _HELLO_INTERVAL_S
            self._send(b"", self._session.hello())
        if now_s - self._began_s > _SAY_AFTER_S and self._may_say():
            logger.warning(
                "the master does not answer, or does not know this worker's secret: give it the same by "
                "--swarm-secret-env"
            )

    def _send(self, payload: bytes, seal: bytes) -> None:
        try:
            self.socket.send_multipart([payload, seal], zmq.NOBLOCK)
        except ZMQError as e:
            raise RPCSendError("ZMQ sent failure") from e
