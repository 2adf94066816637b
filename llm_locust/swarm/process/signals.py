"""How a Locust process is interrupted and leaves, made safe for the last words of a run."""

import inspect
import signal
from collections.abc import Callable

import gevent
from greenlet import greenlet
from locust.env import Environment


class Interrupts:
    """Takes Ctrl-C and raises it where Locust expects it, in the main greenlet.

    Python's own handler raises in whatever greenlet is running: the one that stops the load, for one,
    which then never ends it. A handler that the user has installed stays.

    Attributes:
        take: called with the number of interrupts so far, this one included; gives whether that was all to
            be done. Else KeyboardInterrupt is raised.
    """

    def __init__(self) -> None:
        self.take: Callable[[int], bool] = lambda _: False
        self._count = 0
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            gevent.signal_handler(signal.SIGINT, self._on_interrupt)

    def _on_interrupt(self) -> None:
        self._count += 1
        if not self.take(self._count):
            gevent.get_hub().handle_system_error(KeyboardInterrupt, KeyboardInterrupt())


def leave_once(environment: Environment) -> None:
    """Let one greenlet at a time shut the process down. To be called after all other listeners are added.

    On SIGTERM Locust shuts down in a greenlet of its own, and, as that ends the runner, once more in
    the main one: the one would exit under the other's feet.
    """
    leaving: list[greenlet] = []

    def wait_for_the_first(**_: object) -> None:
        leaving.append(gevent.getcurrent())
        first = leaving[0]
        # Its SystemExit is thrown into the main greenlet, out of this wait.
        while first is not gevent.getcurrent() and not first.dead:
            gevent.sleep(0.05)

    environment.events.quitting.add_listener(wait_for_the_first)


def look_at_the_stack() -> None:
    """Let Python find out once which file each module is of.

    Locust's ``stop`` looks at its callers for the sake of a debug message, and the first such look
    reads the paths of some 2,000 modules: 100 ms, in which the streams that end then would wait.
    """
    inspect.stack()
