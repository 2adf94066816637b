"""What a worker does without its master: it ends its load, delivers what it holds, and ends.

Whoever started it starts it again (a Job, a Deployment, a service). A new process has prompts, random
streams, connections and numbers of batches of its own, so that none is used twice in a run.
"""

import logging
from typing import Protocol

import gevent
from locust.env import Environment
from locust.runners import WorkerRunner

from llm_locust.core.exit_codes import EXIT_INCOMPLETE
from llm_locust.swarm.channel import messages
from llm_locust.swarm.channel.messages import StrangerMessage
from llm_locust.swarm.channel.securing import WorkerMailbox
from llm_locust.swarm.process.loops import GIVE_UP_S, MasterWatch, every

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.5


class WorkerLoad(Protocol):
    """The part of a worker that this module ends and delivers."""

    def end_load(self) -> None:
        """End the load; keep its records until :meth:`deliver`."""

    def deliver(self, takes: list[str] | None) -> None:
        """Send what is not acknowledged, of the runs in ``takes`` if given; the rest stays in the spool."""


class LostMaster:
    """Watches a worker's master, and acts as :class:`MasterWatch` decides.

    The process then ends with exit code 4: its part of the run was cut short.
    """

    def __init__(self, environment: Environment, mail: WorkerMailbox, load: WorkerLoad) -> None:
        runner = environment.runner
        assert isinstance(runner, WorkerRunner)
        self._environment = environment
        self._runner = runner
        self._load = load
        self._watch = MasterWatch()
        self._takes: list[str] | None = None
        self._ending: gevent.Greenlet[[], None] | None = None
        self._over = False  # the process is ending
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
        elif step == "deliver" and (self._ending is None or self._ending.dead):
            self._over = True
            gevent.spawn(self._deliver)
        elif step == "leave":
            self._leave(f"nothing was heard of the master for {GIVE_UP_S:g} s")

    def _deliver(self) -> None:
        self._load.deliver(self._takes)
        self._leave("a master is there again, and takes a worker that is started anew")

    def _leave(self, why: str) -> None:
        self._over = True
        logger.error("this worker ends: %s", why)
        self._environment.process_exit_code = EXIT_INCOMPLETE
        gevent.spawn(self._runner.quit)
