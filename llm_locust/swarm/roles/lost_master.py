"""A worker without its master: it ends its load, delivers what it holds, and ends.

Whoever started it starts it again (a Job, a Deployment, a service). A new process has prompts, random
streams, connections and numbers of batches of its own, so that none is used twice in a run.
"""

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import gevent

from llm_locust.core import EXIT_INCOMPLETE
from llm_locust.swarm.channel import messages
from llm_locust.swarm.channel.messages import StrangerMessage
from llm_locust.swarm.process.event_loop import every

if TYPE_CHECKING:
    from locust.env import Environment
    from locust.runners import WorkerRunner

    from llm_locust.swarm.channel.channel import WorkerMailbox
    from llm_locust.swarm.roles.worker import WorkerRole

logger = logging.getLogger(__name__)

#: A worker that has heard nothing of its master for this long ends its load. A master answers every second.
SILENT_S = 8.0

#: Interval of looks at what is to be done.
LOOK_INTERVAL_S = 0.5

#: Silence after which a worker gives up.
GIVE_UP_S = 30.0

#: Interval of the steps, at most.
STEP_S = 1.0

#: ``load``: the load may go on; ``stop``: it ends now; ``deliver``: a master is there again, which takes what
#: is held; ``leave``: give up. ZeroMQ connects again by itself, and looks the address up.
Step = Literal["load", "stop", "wait", "deliver", "leave"]


class MasterWatch:
    """Decides what a silence of the master means for its worker.

    Nothing is decided before the first sign of life: how long a worker looks for its first master is
    Locust's own limit (5 min). Between two steps at most :data:`STEP_S` of silence counts, so that a process
    that was stopped, or had no CPU, first reads what has arrived meanwhile.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stepped_s = clock()
        self.silent_s = 0.0
        self._met = self._stopped = self._is_stranger = False

    def heard(self) -> None:
        """Note a sign of life of a master that knows this worker."""
        self._met = True
        self.silent_s = 0.0

    def unknown(self) -> None:
        """Note the answer of a master that does not know this worker: it is another one than before."""
        self.heard()
        self._is_stranger = True

    def step(self) -> Step:
        """The next thing to do; ``stop`` is returned once."""
        now_s = self._clock()
        if self._met:
            self.silent_s += min(now_s - self._stepped_s, STEP_S)
        self._stepped_s = now_s
        silent_s = self.silent_s
        if silent_s >= GIVE_UP_S:
            return "leave"
        if (silent_s >= SILENT_S or self._is_stranger) and not self._stopped:
            self._stopped = True
            return "stop"
        if not self._stopped:
            return "load"
        return "deliver" if silent_s < SILENT_S else "wait"


class LostMaster:
    """Watches a worker's master, and acts as :class:`MasterWatch` decides.

    The process then ends with exit code 4: its part of the run was cut short.
    """

    def __init__(
        self, environment: "Environment", runner: "WorkerRunner", mail: "WorkerMailbox", role: "WorkerRole"
    ) -> None:
        self._environment = environment
        self._runner = runner
        self._role = role
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
            self._ending = gevent.spawn(self._role.end_load)
        elif step == "deliver" and (self._ending is None or self._ending.dead):
            self._over = True
            gevent.spawn(self._deliver)
        elif step == "leave":
            self._leave(f"nothing was heard of the master for {GIVE_UP_S:g} s")

    def _deliver(self) -> None:
        self._role.deliver(self._takes)
        self._leave("a master is there again, and takes a worker that is started anew")

    def _leave(self, why: str) -> None:
        self._over = True
        logger.error("this worker ends: %s", why)
        self._environment.process_exit_code = EXIT_INCOMPLETE
        gevent.spawn(self._runner.quit)
