"""End of a load that cannot be held up by its users' code.

Locust's ``runner.stop()`` waits for users, and for everything that listens to the end of a test. A user who
calls it waits for itself; one that catches every exception, or whose ``on_stop`` never returns, is waited for
without end. Here a stop that a user asks for is done by another greenlet, and users that do not end are left
behind.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import gevent
from greenlet import getcurrent, greenlet

from llm_locust.host import exhausted
from llm_locust.swarm.process.event_loop import wait_until
from llm_locust.swarm.process.exits import place_of

if TYPE_CHECKING:
    from locust.env import Environment
    from locust.runners import Runner


# --------------------
# The run time (``-t``), counted from the first moment of the load.
#
# Locust arms its timer when a run is asked for: the checks before the load, and the delay after which an
# open loop's schedule begins on all workers, would be part of the run time. So its timers are taken over
# here. With a load shape the run time stays Locust's, which ends such a run by its shape.
# --------------------


class RunTime:
    """Run time of the runs of one process.

    Args:
        on_web_timer: called when the timer of a run from the web UI has elapsed, which Locust armed.
    """

    def __init__(self, environment: "Environment", on_web_timer: Callable[[], None]) -> None:
        self._environment = environment
        self._taken: Any = None  # as Locust has it: the manifest keeps the options
        if environment.web_ui is not None:
            vars(environment.web_ui)["_stop_runners"] = on_web_timer

    def take(self) -> None:
        """Hide the run time from Locust, which is about to arm its timer for a run that starts at once."""
        options = self._environment.parsed_options
        if self._environment.shape_class is None and options is not None and options.run_time:
            self._taken, options.run_time = options.run_time, None

    def give_back(self) -> float | None:
        """Put the run time back into the options; return that of the run which begins now, or None.

        None also for runs from the web UI, whose timer is armed, and ends in ``on_web_timer``.
        """
        if self._taken is None or self._environment.parsed_options is None:
            return None
        found, self._taken = self._taken, None
        self._environment.parsed_options.run_time = found
        return float(found)

    @property
    def of_web_run_s(self) -> float | None:
        """The run time of the form, which Locust keeps in the options."""
        found = getattr(self._environment.parsed_options, "run_time", None)
        return float(found) if isinstance(found, int | float) else None


logger = logging.getLogger(__name__)

#: Longest time, after ``--stop-timeout``, that users have to end once they are told to.
LEAVE_WITHIN_S = 10.0

Method = Callable[[], None]

#: Greenlets that send the requests of a schedule, for no user in particular.
SENDERS: "WeakSet[greenlet]" = WeakSet()


class Stopping:
    """Takes over ``stop`` and ``quit`` of a runner, and ``stop_users`` where its users are in this process.

    Attributes:
        is_overdue: the end of the load is not waited for any more.

    Args:
        on_own: called in a greenlet of its own when a user has called one of the two. It ends the load, by
            the method that it is given if there is no other way.
        is_settled: whether the runner may end, once its load has ended.
    """

    def __init__(
        self,
        runner: "Runner",
        on_own: Callable[[Method], None] = lambda end: end(),
        is_settled: Callable[[], bool] = lambda: True,
    ) -> None:
        self._runner = runner
        self._on_own = on_own
        self._is_settled = is_settled
        self.is_overdue = False
        self._stop, self._quit, self._stop_users = runner.stop, runner.quit, runner.stop_users
        self._stopping: set[greenlet] = set()  # greenlets inside of ``stop``
        self._handed_over: gevent.Greenlet[..., None] | None = None
        vars(runner).update(stop=self.stop, quit=self.quit, stop_users=self._stop_in_time)
        hub = gevent.get_hub()
        self._handle_error = hub.handle_error
        vars(hub)["handle_error"] = self._on_error

    def stop(self, **how: Any) -> None:
        """End the load. A user, or a listener to its start or its end, returns at once."""
        me = getcurrent()
        if self._is_of_load(me):
            self._hand_over(self.stop)
        elif me in self._stopping or self.is_overdue:
            return
        elif self._stopping:  # by another greenlet
            wait_until(lambda: not self._stopping or self.is_overdue, math.inf)
        else:
            self._stopping.add(me)
            try:
                self._stop(**how)
            except Exception as e:  # a process that did not end for it would be worse
                if (reason := exhausted(e)) is None:
                    logger.exception("the end of the load failed: this is a defect of llm-locust")
                else:
                    logger.error("the end of the load failed: %s", reason)
            finally:
                self._stopping.discard(me)

    def quit(self) -> None:
        """End the load, and then the runner. A user, or a listener to the load's start or end, returns at
        once."""
        me = getcurrent()
        if self._is_of_load(me):
            self._hand_over(self.quit)
        elif me in self._stopping:
            gevent.spawn(self._quit_after)
        else:
            self._quit()

    def _on_error(self, context: Any, kind: Any, error: Any, trace: Any) -> None:
        """Let ``sys.exit`` of a user end the load. It would end the process without a report."""
        if not (isinstance(error, SystemExit) and self._is_of_load(context)):
            self._handle_error(context, kind, error, trace)
            return
        environment = self._runner.environment
        code = error.code if isinstance(error.code, int) else int(error.code is not None)  # as Python has it
        if code and environment.process_exit_code is None:
            environment.process_exit_code = code
        self._hand_over(self.quit, f"sys.exit({error.code!r})")

    def _quit_after(self) -> None:
        wait_until(lambda: (not self._stopping and self._is_settled()) or self.is_overdue, math.inf)
        self._quit()

    def overdue(self, what: str) -> None:
        """Do not wait any more for the end of a load, and say where it is held up."""
        self.is_overdue = True
        places = ", ".join(place_of(getattr(each, "gr_frame", None)) for each in self._stopping)
        logger.error("the end of the load is held up%s: %s", f" at {places}" if places else "", what)

    def begin(self) -> None:
        """A new load begins."""
        self.is_overdue = False

    def _hand_over(self, method: Method, by: str = "") -> None:
        """Let another greenlet stop the load, and return at once: the caller is one that must end."""
        if self._handed_over is None or self._handed_over.dead:
            logger.info("the locustfile ends the load (%s)", by or f"runner.{method.__name__}")
            self._handed_over = gevent.spawn(self._on_own, method)
        gevent.sleep(0)  # from here on no request starts

    def _is_of_load(self, who: Any) -> bool:
        """Whether this greenlet is a user, was started by one, or sends requests of a schedule; or starts the
        users, and so the listeners to that: Locust would kill it before it has ended the load."""
        if who is self._runner.spawning_greenlet:
            return True
        seen = 0
        while who is not None and who is not self._handed_over and seen < 100:
            if who in SENDERS or who in self._runner.user_greenlets:
                return True
            spawner = getattr(who, "spawning_greenlet", None)
            who, seen = None if spawner is None else spawner(), seen + 1
        return False

    def _stop_in_time(self, counts: dict[str, int]) -> None:
        """Stop users as Locust does, for as long as they may take."""
        users = self._runner.user_greenlets
        for user in [each for each in users if each.dead]:  # Locust logs an error for each of them
            users.discard(user)
        work = gevent.spawn(self._stop_users, counts)
        work.join(float(self._runner.environment.stop_timeout or 0) + LEAVE_WITHIN_S)
        if work.ready():
            work.get()
            return
        left = [user for user in users if not user.dead]
        work.kill(block=False)
        logger.error(
            "%d users have not ended %g s after they were told to, and are left behind: %s",
            len(left),
            LEAVE_WITHIN_S,
            _places(left),
        )
        for user in left:
            users.discard(user)


def _places(users: list[Any]) -> str:
    """Where greenlets stand, most frequent first: the innermost line of the locustfile's."""
    places = Counter(place_of(user.gr_frame) for user in users)
    return ", ".join(f"{count} at {place}" for place, count in places.most_common(3))
