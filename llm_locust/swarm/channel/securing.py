"""The channel between workers and master, guarded before Locust opens it; and the children of one master."""

import logging
import os
import secrets
import signal
from collections.abc import Callable
from functools import partial
from ipaddress import ip_address
from typing import Any

import gevent
from locust import argument_parser
from locust.env import Environment
from locust.rpc import zmqrpc
from locust.runners import MasterRunner, WorkerRunner

from llm_locust.options.settings import UsageError
from llm_locust.swarm.channel.channel import Guard, GuardedClient, GuardedServer
from llm_locust.swarm.channel.proof import secret_of
from llm_locust.swarm.process.leaving import leave
from llm_locust.swarm.process.loops import spawn_loop

logger = logging.getLogger(__name__)

#: Where an environment keeps its guard. Locust's environments are the only state that outlives a call.
_ATTRIBUTE = "llm_locust_guard"

#: Processes that ``--processes`` forks have this module as it was in their parent.
_PARENT = os.getpid()
_FAMILY_SECRET = secrets.token_bytes(32)

_LOOK_INTERVAL_S = 1.0
_LOOPBACK = ("127.", "localhost", "::1", "[::1]")


def guard_channels() -> None:
    """Have the channel of every runner guarded that Locust makes from here on.

    Before a runner is there: it opens its channel, and listens, as it is made.
    """
    create: Callable[..., Any] = Environment._create_runner

    def create_guarded(environment: Environment, runner_class: type, *args: Any, **kwargs: Any) -> Any:
        if issubclass(runner_class, MasterRunner | WorkerRunner):
            try:
                _open(environment, channel_secret(environment.parsed_options))
            except UsageError as e:
                leave(e)
        return create(environment, runner_class, *args, **kwargs)

    patched: Any = Environment
    patched._create_runner = create_guarded


def guard_of(environment: Environment) -> Guard:
    """The guard of an environment's channel; a new one where there is no channel."""
    guard: Guard = vars(environment).setdefault(_ATTRIBUTE, Guard())
    return guard


def channel_secret(options: Any) -> bytes | None:
    """The secret that this process shares with the others of its run; None for none.

    It is that of ``--swarm-secret-env``. Without one, a master and the workers that it forked by
    ``--processes`` share one that nobody else has.

    Raises:
        UsageError: the environment variable has none.
    """
    name = getattr(options, "swarm_secret_env", None)
    if name:
        return secret_of(name)
    if not getattr(options, "processes", None):
        return None
    if options.worker and (not forked() or _is_worker_by_command()):
        return None
    return _FAMILY_SECRET


def forked() -> bool:
    """Whether this process was forked by another one, as ``--processes`` does."""
    return os.getpid() != _PARENT


def end_with_parent() -> None:
    """Let a forked worker end when its parent has ended, and not join another master in its place."""
    if forked():
        spawn_loop(_follow_parent, "the watch on the parent process")


def warn_of_strangers(environment: Environment, guard: Guard) -> None:
    """Say so where anyone who reaches the master's port can take part in the run."""
    host = getattr(environment.parsed_options, "master_bind_host", None) or "*"
    if guard.secret is None and not host.startswith(_LOOPBACK):
        logger.warning(
            "the master listens on %s without a secret: whoever reaches its port can join the run and is "
            "sent its options; give master and workers --swarm-secret-env, or the master "
            "--master-bind-host 127.0.0.1",
            "all interfaces" if _is_any(host) else host,
        )


def _is_any(host: str) -> bool:
    try:
        return host == "*" or ip_address(host).is_unspecified
    except ValueError:
        return False


def _open(environment: Environment, secret: bytes | None) -> None:
    guard = Guard(secret)
    vars(environment)[_ATTRIBUTE] = guard
    patched: Any = zmqrpc
    patched.Server = partial(GuardedServer, guard=guard)
    patched.Client = _CLIENT if secret is None else partial(GuardedClient, secret=secret)


def _is_worker_by_command() -> bool:
    """Whether ``--worker`` was given: a forked process has the option in any case."""
    parser = argument_parser.get_empty_argument_parser()
    argument_parser.setup_parser_arguments(parser)
    options, _ = parser.parse_known_args()
    return bool(options.worker)


def _follow_parent() -> None:
    while os.getppid() == _PARENT:
        gevent.sleep(_LOOK_INTERVAL_S)
    logger.warning("the process that started this worker has ended: it ends too")
    os.kill(os.getpid(), signal.SIGTERM)


_CLIENT = zmqrpc.Client
