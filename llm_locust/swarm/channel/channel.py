"""Locust's channel between workers and master, guarded against strangers.

With a secret nobody else takes part in it (:mod:`.trust`): Locust's own messages, the options and the header
values in them reach only workers that have the secret. With or without one, the master's end drops a message
that is malformed, that names a sender other than its connection, or that would end Locust's listener.
"""

import logging
import secrets
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from typing import Any

import gevent
import msgspec
import zmq.green as zmq
from locust import argument_parser
from locust.env import Environment
from locust.exception import RPCError, RPCReceiveError
from locust.rpc import Message, zmqrpc
from locust.runners import MasterRunner, WorkerRunner
from zmq.error import ZMQError

from llm_locust.options.settings import UsageError
from llm_locust.swarm.channel.locust_messages import KINDS, check, unpacked
from llm_locust.swarm.channel.messages import (
    MOST_FRAME_BYTES,
    DroppedMessages,
    M,
    MessageError,
    plain,
    printable,
    read,
)
from llm_locust.swarm.channel.trust import (
    CURVE,
    PLAIN,
    ChannelKeys,
    Refusals,
    close,
    derive_keys,
    mechanism_at,
    secret_of,
    secure_master,
    secure_worker,
    watch_connections,
)
from llm_locust.swarm.process.event_loop import RateLimiter
from llm_locust.swarm.process.exits import forked, leave

logger = logging.getLogger(__name__)

#: Largest message in bytes. ZeroMQ closes a connection that sends more, before the message is in memory.
MOST_BYTES = MOST_FRAME_BYTES + (1 << 20)

#: Kinds under which messages are counted whose own kind is unknown or untrusted.
UNREADABLE = "unreadable"
UNPROVEN = "unproven"
UNKNOWN = "unknown"

#: Sender under which connections are counted that do not have the master's secret.
STRANGERS = "strangers"

#: Events of such connections. One that breaks has another.
_STRANGE = (zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.EVENT_HANDSHAKE_FAILED_AUTH)


@dataclass(slots=True)
class Guard:
    """State that the master's end of the channel shares with the rest of the process.

    Attributes:
        keys: of the run's secret; None without one.
        custom: kinds of messages, in addition to Locust's own, that have a listener.
    """

    keys: ChannelKeys | None = None
    dropped: DroppedMessages = field(default_factory=DroppedMessages)
    custom: Container[str] = frozenset()


class GuardedServer(zmqrpc.Server):
    """Master's end of the channel. The guard counts what is dropped."""

    def __init__(self, host: str, port: int, guard: Guard) -> None:
        self._guard = guard
        # As in Locust, except for what must be set before the socket is bound.
        zmqrpc.BaseSocket.__init__(self, zmq.ROUTER, self.ipv4_only(host, port))
        self.socket.setsockopt(zmq.MAXMSGSIZE, MOST_BYTES)
        self._more: list[Any] = []
        if guard.keys is not None:
            why = "a connection has another secret than this master, or none"
            note_stranger = partial(guard.dropped.note, STRANGERS, UNPROVEN, why)
            self._more = [
                secure_master(self.socket, guard.keys),
                watch_connections(self.socket, dict.fromkeys(_STRANGE, note_stranger)),
            ]
        try:
            if port == 0:
                self.port = self.socket.bind_to_random_port(f"tcp://{host}")
            else:
                self.socket.bind(f"tcp://{host}:{port}")
                self.port = port
        except ZMQError as e:
            self.close(linger=0)
            raise RPCError(f"Socket bind failure: {e}") from e

    def recv_from_client(self) -> tuple[str, Message]:
        """Return the next valid message and its sender (raises RPCError)."""
        while True:
            try:
                frames = self.socket.recv_multipart()
            except ZMQError as e:
                raise RPCError("ZMQ network broken") from e
            sender = frames[0].decode(errors="replace")
            kind = UNREADABLE
            try:
                message = unpacked(frames[1] if len(frames) > 1 else b"")
                listened = message.type in KINDS or message.type in self._guard.custom
                kind = message.type if listened else UNKNOWN
                self._check(sender, message, kind)
            except MessageError as e:
                self._guard.dropped.note(sender, kind, str(e))
            else:
                return sender, message
            gevent.sleep(0)  # a flood of messages must not starve other greenlets

    def close(self, linger: int | None = None) -> None:
        """Close the socket as Locust does."""
        close(self.socket, self._more, linger)

    def _check(self, sender: str, message: Message, kind: str) -> None:
        if message.node_id != sender:
            raise MessageError(f"it claims to come from {printable(message.node_id)}")
        if kind == UNKNOWN:
            raise MessageError(f"there is no listener for {printable(message.type)!r}")
        if kind in KINDS:
            check(message)


class GuardedClient(zmqrpc.Client):
    """Worker's end of the channel. A worker that will not be let in ends with one line."""

    def __init__(self, host: str, port: int, identity: str, keys: ChannelKeys | None = None) -> None:
        own = PLAIN if keys is None else CURVE
        refusals = Refusals(own, partial(mechanism_at, host, port))

        def ended() -> None:
            try:
                refusals.failed()
            except UsageError as e:
                leave(e)

        # As in Locust, except for what must be set before the socket is connected.
        zmqrpc.BaseSocket.__init__(self, zmq.DEALER, self.ipv4_only(host, port))
        self.socket.setsockopt(zmq.IDENTITY, identity.encode())
        if keys is not None:
            secure_worker(self.socket, keys)
        heard: dict[int, Callable[[], None]] = {
            zmq.EVENT_HANDSHAKE_SUCCEEDED: refusals.succeeded,
            zmq.EVENT_DISCONNECTED: ended,
        }
        self._more = [watch_connections(self.socket, heard)]
        self.socket.connect(f"tcp://{host}:{port}")

    def recv(self) -> Message:
        """Return the next message of the master (raises RPCError)."""
        try:
            payload = self.socket.recv_multipart()[0]
        except ZMQError as e:
            raise RPCError("ZMQ network broken") from e
        try:
            return unpacked(payload)
        except MessageError as e:
            raise RPCReceiveError("ZMQ interrupted or corrupted message") from e

    def close(self, linger: int | None = None) -> None:
        """Close the socket as Locust does."""
        close(self.socket, self._more, linger)


# --- This package's messages over Locust's channel: typed when sent, checked when received


NOT_A_WORKER = "its sender is not a worker of this master"


class WorkerMailbox:
    """Messages between a worker and its master, at the worker."""

    def __init__(self, runner: WorkerRunner) -> None:
        self._runner = runner
        self._dropped_limit = RateLimiter()

    def send(self, kind: str, message: msgspec.Struct) -> None:
        """Send a message (raises RPCError)."""
        self._runner.send_message(kind, plain(message))

    def listen(self, kind: str, struct: type[M], act: Callable[[M], None], concurrent: bool = False) -> None:
        """Call ``act`` with each valid message of this kind; drop the others."""

        def take(msg: Message, **_: object) -> None:
            try:
                message = read(msg.data, struct)
            except MessageError as e:
                if self._dropped_limit.ready():
                    logger.warning("a message from the master was dropped (%s): %s", kind, e)
                return
            act(message)

        self._runner.register_message(kind, take, concurrent=concurrent)


class MasterMailbox:
    """Messages between a master and its workers, at the master.

    Args:
        is_worker: whether a sender takes part in the run, or may be added to it.
        drop: called with sender, kind and reason of an invalid message.
    """

    def __init__(
        self,
        runner: MasterRunner,
        dropped: DroppedMessages,
        is_worker: Callable[[str], bool],
        drop: Callable[[str, str, str], None],
    ) -> None:
        self._runner = runner
        self._dropped = dropped
        self._is_worker = is_worker
        self._drop = drop

    def send(self, kind: str, message: msgspec.Struct, worker: str) -> None:
        """Send a message to one worker; it is lost if the channel does not accept it."""
        try:
            self._runner.send_message(kind, plain(message), worker)
        except RPCError as e:
            logger.warning("could not send worker %s %s: %s", worker, kind, e)

    def listen(self, kind: str, struct: type[M], act: Callable[[str, M], None]) -> None:
        """Call ``act`` with sender and message for each valid message of this kind; drop the others."""

        def take(msg: Message, **_: object) -> None:
            message = self.read(msg.node_id, kind, msg.data, struct)
            if message is not None:
                act(msg.node_id, message)

        self._runner.register_message(kind, take)

    def read(self, worker: str, kind: str, data: object, struct: type[M]) -> M | None:
        """Return the message if its sender is known and it is valid, else None."""
        if not self._is_worker(worker):
            self._dropped.note(worker, kind, NOT_A_WORKER)
            return None
        try:
            return read(data, struct)
        except MessageError as e:
            self._drop(worker, kind, str(e))
            return None


# --- The guard of every channel that Locust opens


#: Attribute of an environment that holds its guard. Only Locust's environments outlive a call.
_ATTRIBUTE = "llm_locust_guard"

#: Set at import: processes forked by ``--processes`` inherit the parent's value.
_FAMILY_SECRET = secrets.token_bytes(32)

_LOOPBACK = ("127.", "localhost", "::1", "[::1]")


def guard_channels() -> None:
    """Guard the channel of every runner that Locust creates from now on.

    Must run before the runner exists: a runner opens its channel, and listens, when it is created.
    """
    create: Callable[..., Any] = Environment._create_runner

    def create_guarded(environment: Environment, runner_class: type, *args: Any, **kwargs: Any) -> Any:
        if issubclass(runner_class, MasterRunner | WorkerRunner):
            try:
                _open(environment, channel_secret(environment.parsed_options))
            except UsageError as e:
                leave(e)
        try:
            return create(environment, runner_class, *args, **kwargs)
        except RPCError as e:
            if not issubclass(runner_class, MasterRunner):
                raise
            place = ":".join(str(kwargs.get(name)) for name in ("master_bind_host", "master_bind_port"))
            leave(UsageError(f"--master-bind-port: {place} cannot be listened at: {_reason(e)}"))

    patched: Any = Environment
    patched._create_runner = create_guarded


def guard_of(environment: Environment) -> Guard:
    """Return the guard of an environment's channel; a new one if there is no channel."""
    guard: Guard = vars(environment).setdefault(_ATTRIBUTE, Guard())
    return guard


def channel_secret(options: Any) -> bytes | None:
    """Return the secret that this process shares with the others of its run; None without one.

    It is that of ``--swarm-secret-env``. Without that option, a master and the workers that it forked by
    ``--processes`` share a random one.

    Raises:
        UsageError: the environment variable holds no usable secret.
    """
    name = getattr(options, "swarm_secret_env", None)
    if name:
        return secret_of(name)
    if not getattr(options, "processes", None):
        return None
    if options.worker and (not forked() or _is_worker_by_command()):
        return None
    return _FAMILY_SECRET


def warn_of_strangers(environment: Environment, guard: Guard) -> None:
    """Warn if anyone who can reach the master's port can join the run."""
    host = getattr(environment.parsed_options, "master_bind_host", None) or "*"
    if guard.keys is None and not host.startswith(_LOOPBACK):
        logger.warning(
            "the master listens on %s without a secret: anyone who can reach its port can join the run and "
            "receives its options; give master and workers --swarm-secret-env, or the master "
            "--master-bind-host 127.0.0.1",
            "all interfaces" if _is_any(host) else host,
        )


def _reason(error: RPCError) -> str:
    text = str(error)
    if "in use" in text:
        return "it is in use by another process; give another --master-bind-port, and workers --master-port"
    return text


def _is_any(host: str) -> bool:
    try:
        return host == "*" or ip_address(host).is_unspecified
    except ValueError:
        return False


def _open(environment: Environment, secret: bytes | None) -> None:
    keys = None if secret is None else derive_keys(secret)
    guard = Guard(keys)
    vars(environment)[_ATTRIBUTE] = guard
    patched: Any = zmqrpc
    patched.Server = partial(GuardedServer, guard=guard)
    patched.Client = partial(GuardedClient, keys=keys)


def _is_worker_by_command() -> bool:
    """Whether ``--worker`` was given on the command line: a forked process has the option in any case."""
    parser = argument_parser.get_empty_argument_parser()
    argument_parser.setup_parser_arguments(parser)
    options, _ = parser.parse_known_args()
    return bool(options.worker)
