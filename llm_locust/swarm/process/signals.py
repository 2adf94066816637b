"""Interrupts and shutdown of a Locust process, safe for the final messages of a run."""

import signal
from collections.abc import Callable
from functools import partial
from inspect import currentframe, getframeinfo
from types import FrameType, SimpleNamespace

import gevent
from greenlet import greenlet
from locust import runners
from locust.env import Environment


class Interrupts:
    """Handler of Ctrl-C that raises it where Locust expects it, in the main greenlet.

    Python's own handler raises in whichever greenlet is running, possibly the one that stops the load, which
    then never finishes. A handler that the user has installed is kept.

    Attributes:
        take: called with the number of interrupts so far, including this one; returns whether it was handled.
            Otherwise KeyboardInterrupt is raised.
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
    """Let one greenlet at a time shut the process down. Call it after all other listeners were added.

    On SIGTERM Locust shuts down in a separate greenlet and, because that ends the runner, again in the main
    one. One of them would exit while the other still works.
    """
    leaving: list[greenlet] = []

    def wait_for_the_first(**_: object) -> None:
        leaving.append(gevent.getcurrent())
        first = leaving[0]
        # Its SystemExit is raised in the main greenlet, inside this wait.
        while first is not gevent.getcurrent() and not first.dead:
            gevent.sleep(0.05)

    environment.events.quitting.add_listener(wait_for_the_first)


def spare_sources() -> None:
    """Let Locust's ``stop`` see its caller without the source of every caller.

    It inspects them all for a debug message. The first such inspection reads the paths of some 2,000 modules
    and takes 100 ms, which would delay the streams that end then.
    """
    vars(runners)["inspect"] = SimpleNamespace(stack=_callers, getframeinfo=partial(getframeinfo, context=0))


def _callers() -> list[tuple[FrameType | None]]:
    """What Locust reads of ``inspect.stack``: the frame of who calls, and of its caller."""
    frame = currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return [(frame.f_back,), (frame.f_back.f_back,)]
