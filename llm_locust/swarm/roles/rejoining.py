"""What a worker does when its master is gone: it ends its load, delivers what it holds, and starts anew.

A worker whose master is there again, or is another one, replaces itself by a new process with its own
command (``exec``): prompts, random streams, connections and numbers of batches are those of a worker that has
just been started, so that none is used twice in a run.
"""

import logging
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import gevent
from locust import runners
from locust.env import Environment
from locust.runners import WorkerRunner

from llm_locust.core.exit_codes import EXIT_INCOMPLETE
from llm_locust.swarm.channel import messages
from llm_locust.swarm.channel.messages import StrangerMessage
from llm_locust.swarm.channel.securing import WorkerMailbox
from llm_locust.swarm.process.leaving import forked
from llm_locust.swarm.process.loops import GIVE_UP_S, MasterWatch, every

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.5

#: In the environment of a worker that has started itself anew: records that it left in its spool before.
HELD_VARIABLE = "_LLM_LOCUST_HELD_RECORDS"


class WorkerLoad(Protocol):
    """The part of a worker that this module ends and delivers."""

    def end_load(self) -> None:
        """End the load; keep its records until :meth:`deliver`."""

    def deliver(self, takes: list[str] | None) -> None:
        """Send what is not acknowledged, of the runs in ``takes`` if given; the rest stays in the spool."""

    @property
    def held(self) -> int:
        """Records left in the spool, or lost, so far."""


def held_before() -> int:
    """Records that this worker held when it last started itself anew; 0 in a first process."""
    text = os.environ.get(HELD_VARIABLE, "")
    return int(text) if text.isdecimal() and len(text) < 16 else 0


def limit_search() -> None:
    """Let a worker that has started itself anew look for its master for :data:`GIVE_UP_S` only.

    Must run before Locust creates the runner, which waits for the master. The exit code says whether records
    are held here that no master took.
    """
    if HELD_VARIABLE not in os.environ:
        return
    runners.CONNECT_RETRY_COUNT = round(GIVE_UP_S / runners.CONNECT_TIMEOUT) - 1
    create: Callable[..., Any] = Environment.create_worker_runner

    def create_or_leave(environment: Environment, *args: Any) -> Any:
        try:
            return create(environment, *args)
        except OSError:
            held = held_before()
            logger.error(
                "no master was found within %g s: this worker ends, and holds %d records", GIVE_UP_S, held
            )
            raise SystemExit(EXIT_INCOMPLETE if held else 0) from None

    patched: Any = Environment
    patched.create_worker_runner = create_or_leave


class Rejoining:
    """Watches a worker's master, and acts as :class:`MasterWatch` decides.

    Args:
        start_anew: replaces this process (raises OSError).
    """

    def __init__(
        self,
        environment: Environment,
        mail: WorkerMailbox,
        load: WorkerLoad,
        start_anew: Callable[[int], NoReturn] | None = None,
    ) -> None:
        runner = environment.runner
        assert isinstance(runner, WorkerRunner)
        self._runner = runner
        self._load = load
        self._start_anew = start_anew or _exec
        self._watch = MasterWatch()
        self._takes: list[str] | None = None
        self._ending: gevent.Greenlet[[], None] | None = None
        self._over = False  # the process is ending, or being replaced
        environment.events.heartbeat_received.add_listener(lambda **_: self._watch.heard())
        environment.events.quitting.add_listener(lambda **_: self._end())
        mail.listen(messages.STRANGER, StrangerMessage, self._on_stranger)
        every(LOOK_INTERVAL_S, self._look, "the watch on the master")

    def _end(self) -> None:
        self._over = True

    def _on_stranger(self, message: StrangerMessage) -> None:
        self._takes = message.takes
        self._watch.unknown()

    def _look(self) -> None:
        if self._over:
            return
        step = self._watch.step()
        if step == "stop":
            why = "is gone" if self._takes is None else "is another one than before"
            logger.warning("the master %s: this worker's load ends", why)
            self._ending = gevent.spawn(self._load.end_load)
        elif step == "rejoin" and (self._ending is None or self._ending.dead):
            self._over = True
            gevent.spawn(self._rejoin)
        elif step == "leave":
            self._leave(f"nothing was heard of the master for {GIVE_UP_S:g} s: this worker ends")

    def _rejoin(self) -> None:
        self._load.deliver(self._takes)
        if forked() or "locust.main" not in sys.modules:  # it has no command of its own
            self._leave("the master is there again: this worker ends, and cannot start itself anew")
            return
        logger.warning("the master is there again: this worker starts anew to join it")
        try:
            self._start_anew(self._load.held)
        except OSError as e:
            self._leave(f"this worker cannot start anew, and ends: {e.strerror or e}")

    def _leave(self, reason: str) -> None:
        self._over = True
        logger.error("%s", reason)
        gevent.spawn(self._runner.quit)


def _exec(held: int) -> NoReturn:
    environ = dict(os.environ) | {HELD_VARIABLE: str(held)}
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environ)
