"""Who is trusted: with a run's secret, whoever has it; without one, no code but the worker's own.

The channel is secured by ZeroMQ's CURVE (RFC 26), with keys that only the run's secret gives. Two key
pairs are derived from the secret by scrypt: the master's and the workers'. A process that knows the secret
has both; nobody else has any key of them, public ones included, and none is ever sent in the clear.

- The worker connects to the master's public key. CURVE lets nobody answer who lacks the secret key to it: a
  worker sends nothing to, and hears nothing from, a master without the secret.
- The master takes only connections whose long-term key is the workers', by ZAP (RFC 27), in this process.
  CURVE alone lets in everyone who knows the server's public key. That it is secret here does not suffice:
  CURVE does not promise to hide it, and with a library that computes with points of low order (tweetnacl) it
  is not needed at all. Without an answer of ZAP, a connection is refused.
- Each connection has keys of its own, made of random numbers of both ends, and its messages are numbered. So
  nothing that was recorded can be sent again, changed, reordered, or read by who learns the secret later.
- An end with a secret speaks CURVE and nothing else: it cannot be talked into the plain channel, or into the
  earlier versions of ZeroMQ's protocol, which have no keys.

What remains: whoever records a connection can try secrets on it, at the price of one scrypt each; the secret
must not be guessable. Whoever knows the secret can be master or any worker. Connections can be cut.
"""

import hmac
import importlib
import importlib.util
import os
import socket as sockets
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import scrypt
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING, Any, Final

import gevent
import zmq.green as zmq
from zmq.error import ZMQError
from zmq.utils import z85

from llm_locust.options.settings import UsageError
from llm_locust.scenario.request_kind import RequestKind
from llm_locust.workload.answers import Validator

if TYPE_CHECKING:
    from locust.env import Environment

#: Shortest secret in characters.
LEAST_SECRET: Final = 16

_KEY_BYTES: Final = 32
_SALT: Final = b"llm-locust channel 1"
_DOMAIN: Final = b"llm-locust"
_ZAP_ADDRESS: Final = "inproc://zeromq.zap.01"

#: Events of connections that are kept while the event loop is held. ZeroMQ's own thread waits beyond them.
_MOST_EVENTS: Final = 100_000


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Public and secret key, as ZeroMQ's options take them."""

    public: bytes = field(repr=False)
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ChannelKeys:
    """The key pairs of a run."""

    master: KeyPair
    worker: KeyPair


def derive_keys(secret: bytes) -> ChannelKeys:
    """Derive the key pairs of a run from its secret.

    Takes 50 ms and 16 MiB, as must each guess at the secret.

    Raises:
        UsageError: this installation of ZeroMQ has no CURVE.
    """
    if not zmq.has("curve"):
        raise UsageError(
            f"master and workers cannot share a secret: ZeroMQ {zmq.zmq_version()} was built here "
            "without CURVE; pip install --force-reinstall --only-binary :all: pyzmq"
        )
    derived = scrypt(secret, salt=_SALT, n=1 << 14, r=8, p=1, dklen=2 * _KEY_BYTES)
    return ChannelKeys(_pair(derived[:_KEY_BYTES]), _pair(derived[_KEY_BYTES:]))


def _pair(key: bytes) -> KeyPair:
    secret = z85.encode(key)
    return KeyPair(zmq.curve_public(secret), secret)


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


def secure_master(socket: Any, keys: ChannelKeys) -> Any:
    """Let a master's socket, which is not bound yet, take only workers that know the secret.

    Returns:
        the socket of the ZAP handler, to be closed by :func:`close`.
    """
    zap = socket.context.socket(zmq.REP)
    zap.setsockopt(zmq.LINGER, 0)
    zap.bind(_ZAP_ADDRESS)
    gevent.spawn(_answer_zap, zap, z85.decode(keys.worker.public))
    socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # no handler, no connection
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.master.secret)
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    return zap


def secure_worker(socket: Any, keys: ChannelKeys) -> None:
    """Let a worker's socket, which is not connected yet, speak only to a master that knows the secret."""
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.worker.public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.worker.secret)
    socket.setsockopt(zmq.CURVE_SERVERKEY, keys.master.public)


def _answer_zap(zap: Any, key: bytes) -> None:
    """Answer ZeroMQ's question about each connection: whether its long-term key is ``key``."""
    with suppress(ZMQError):  # the socket is closed
        while True:
            version, number, domain, _address, _identity, mechanism, *credentials = zap.recv_multipart()
            offered = credentials[0] if len(credentials) == 1 else b""
            accepted = mechanism == CURVE and domain == _DOMAIN and hmac.compare_digest(offered, key)
            status = [b"200", b"known"] if accepted else [b"400", b"unknown"]
            zap.send_multipart([version, number, *status, b"", b""])


def watch_connections(socket: Any, heard: Mapping[int, Callable[[], None]]) -> Any:
    """Follow the connections of a socket, which is neither bound nor connected yet.

    Args:
        heard: event of a connection, of those of ``zmq.EVENT_...``, and what it calls.

    Returns:
        the socket of the events, to be closed by :func:`close`.
    """
    address = f"inproc://connections-{socket.FD}"
    socket.monitor(address, sum(heard))
    events = socket.context.socket(zmq.PAIR)
    events.setsockopt(zmq.RCVHWM, _MOST_EVENTS)
    events.setsockopt(zmq.LINGER, 0)
    events.connect(address)

    def follow() -> None:
        with suppress(ZMQError):  # the socket is closed
            while act := heard.get(int.from_bytes(events.recv_multipart()[0][:2], sys.byteorder)):
                act()

    gevent.spawn(follow)
    return events


def close(socket: Any, more: Iterable[Any], linger: int | None) -> None:
    """Close a socket, and those that belong to it."""
    if not socket.closed:
        socket.monitor(None, 0)
    socket.close(linger)
    for each in more:
        each.close(0)


# --- Why a worker is not let in. A master that closes a connection gives no reason: its greeting is looked at


#: Bytes of a greeting (RFC 23), of its signature, and of the name of its mechanism.
_GREETING_BYTES: Final = 64
_SIGNATURE: Final = b"\xff\0\0\0\0\0\0\0\x01\x7f"
_VERSION: Final = b"\x03\x01"
_MECHANISM: Final = slice(12, 32)

_ASK_WITHIN_S: Final = 2.0

#: Handshakes of the same mechanism that have to fail in a row: one fails too if a master is ended just then.
MOST_FAILURES: Final = 3

CURVE: Final = b"CURVE"
PLAIN: Final = b"NULL"

_GIVE_BOTH = "give both the same by --swarm-secret-env"


class Refusals:
    """Decides from connections that failed that a worker will not be let in.

    Once a handshake has succeeded no failure counts: the master has proved itself, and whoever has its port
    later must not end its workers by a greeting, which proves nothing.

    Args:
        own: this worker's mechanism, :data:`CURVE` or :data:`PLAIN`.
        ask: returns the mechanism of whoever listens at the master's place, as :func:`mechanism_at`.
    """

    def __init__(self, own: bytes, ask: Callable[[], bytes | None]) -> None:
        self._own = own
        self._ask = ask
        self._failures = 0
        self._has_joined = False

    def succeeded(self) -> None:
        """Note a handshake with a master that has the same secret, or none as this worker."""
        self._has_joined = True

    def failed(self) -> None:
        """Note the end of a connection.

        Raises:
            UsageError: none will succeed; the text says why.
        """
        theirs = None if self._has_joined else self._ask()
        if theirs is None or self._has_joined:
            return
        if theirs == b"":
            raise UsageError("whoever listens at the master's port is no master: look at --master-port")
        if theirs != self._own:
            masters, ours = ("no secret", "one") if self._own == CURVE else ("a secret", "none")
            raise UsageError(f"the master has {masters}, and this worker has {ours}: {_GIVE_BOTH}")
        self._failures += 1
        if self._own == CURVE and self._failures >= MOST_FAILURES:
            raise UsageError(f"the master has another secret than this worker: {_GIVE_BOTH}")


def mechanism_at(host: str, port: int) -> bytes | None:
    """Return the mechanism in the greeting of a ZeroMQ socket.

    Empty if another program answers; None if nobody does.
    """
    greeting = b""
    with (
        suppress(OSError, gevent.Timeout),
        gevent.Timeout(_ASK_WITHIN_S),
        sockets.create_connection((host, port), _ASK_WITHIN_S) as peer,
    ):
        peer.sendall(_SIGNATURE + _VERSION)  # no more: it would close a connection of another mechanism
        while len(greeting) < _GREETING_BYTES and (more := peer.recv(_GREETING_BYTES - len(greeting))):
            greeting += more
    if len(greeting) == _GREETING_BYTES and greeting[0] == _SIGNATURE[0] and greeting[9] == _SIGNATURE[9]:
        return greeting[_MECHANISM].rstrip(b"\0")
    return b"" if greeting and greeting[0] != _SIGNATURE[0] else None


# --------------------
# Restriction of the Python code that a master may name to a worker: that of the worker's own locustfile.
#
# A master that has not proved that it knows the run's secret may be anybody. It names validators
# (``module:function``), and importing a module runs it. So a module must lie next to the locustfile, and the
# function must be written there: a locustfile that imports ``os.system`` does not expose it to the master.
# --------------------


_WHAT_TO_DO = "; or give master and workers the same --swarm-secret-env"


def own_folders(locustfiles: Sequence[str], working_folder: str) -> tuple[str, ...]:
    """Folders of the locustfiles, and the working directory if one of them lies in or below it."""
    folders = [os.path.realpath(os.path.dirname(os.path.abspath(path))) for path in locustfiles]
    working = os.path.realpath(working_folder)
    if any(os.path.commonpath((working, folder)) == working for folder in folders):
        folders.append(working)
    return tuple(dict.fromkeys(folders))


def check_named_functions(kinds: Iterable[RequestKind], folders: Sequence[str]) -> None:
    """Check that each validator function that ``kinds`` name is code of the ``folders``.

    No other module is imported for that.

    Raises:
        UsageError: one is not; the text names it.
    """
    for kind in kinds:
        for validator in kind.validators:
            if isinstance(validator, Validator) and validator.kind == "function":
                _check(str(validator.argument), folders)


def _check(named: str, folders: Sequence[str]) -> None:
    module, _, name = named.partition(":")
    if not _is_own(module, folders):
        raise UsageError(
            f"validator {named!r} of the master's scenario is not imported: {module!r} is not a module in "
            f"{' or '.join(folders)}, and the master has not proved that it knows the run's secret; put the "
            f"module next to the locustfile{_WHAT_TO_DO}"
        )
    try:
        own = getattr(importlib.import_module(module), name, None)
    except Exception as e:  # a module of the user may raise anything
        raise UsageError(f"validator {named!r}: importing {module!r} failed: {e!r}") from e
    home = getattr(own, "__module__", None)
    if callable(own) and not (isinstance(home, str) and _is_own(home, folders)):
        raise UsageError(
            f"validator {named!r} of the master's scenario is not used: it is not written in {module!r} but "
            f"comes from {str(home)!r}; write a function of its own there{_WHAT_TO_DO}"
        )


def check_own_code(environment: "Environment", kinds: Iterable[RequestKind]) -> None:
    """As :func:`check_named_functions`, unless the master has sent the locustfile itself."""
    if getattr(environment.parsed_options, "locustfile", None) != "-":
        check_named_functions(kinds, own_folders(environment.parsed_locustfiles or (), os.getcwd()))


def _is_own(module: str, folders: Sequence[str]) -> bool:
    """Whether importing ``module`` reads a file of the folders, or of a package in them."""
    top, *rest = module.split(".")
    spec = _found(top)
    folder = _folder(spec)
    if spec is None or folder is None or folder not in folders:
        return False
    for i in range(len(rest)):
        if spec.submodule_search_locations is None:
            return False
        spec = _submodule(".".join((top, *rest[: i + 1])), spec)
        home = _folder(spec)
        if spec is None or home is None or os.path.commonpath((home, folder)) != folder:
            return False
    return True


def _found(top: str) -> ModuleSpec | None:
    """Return the spec of a top-level module without importing it."""
    try:
        return importlib.util.find_spec(top)
    except (ImportError, ValueError):  # a module without a spec, such as __main__
        return None


def _submodule(name: str, package: ModuleSpec) -> ModuleSpec | None:
    """Spec of a submodule, which :func:`importlib.util.find_spec` finds only by importing its package."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        return loaded.__spec__
    return PathFinder.find_spec(name, package.submodule_search_locations)


def _folder(spec: ModuleSpec | None) -> str | None:
    """Folder of the module's file, or of its package; None without a file, as for a namespace.

    A link counts where it lies, not where it points: files of a ConfigMap are links into another folder.
    """
    if spec is None or not spec.has_location or spec.origin is None:
        return None
    folder = os.path.dirname(os.path.abspath(spec.origin))
    return os.path.realpath(folder if spec.submodule_search_locations is None else os.path.dirname(folder))
