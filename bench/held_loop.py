"""The usual chat, on a worker whose event loop is held for 150 of every 180 ms once all users are there.

It is held by sleeping, so that the hold itself costs no CPU.
"""

from typing import Any

import gevent
from gevent.monkey import get_original
from locust import events
from locust.env import Environment
from locust.runners import WorkerRunner

from llm_locust.locustfiles.chat import Chat

__all__ = ["Chat"]

HELD_S, FREE_S = 0.15, 0.03

_sleep = get_original("time", "sleep")


def _hold() -> None:
    while True:
        _sleep(HELD_S)  # of the whole thread
        gevent.get_hub().loop.update_now()  # else it takes the time held for a part of its sleep
        gevent.sleep(FREE_S)


def arrange(environment: Environment, **_: Any) -> None:
    """Hold a worker's loop from when all users are there until the load's end."""
    if not isinstance(environment.runner, WorkerRunner):
        return
    holders: list[gevent.Greenlet[[], None]] = []

    def begin(**_: Any) -> None:
        if not holders:
            holders.append(gevent.spawn(_hold))

    def end(**_: Any) -> None:
        while holders:
            holders.pop().kill()

    environment.events.spawning_complete.add_listener(begin)
    environment.events.test_stop.add_listener(end)


events.init.add_listener(arrange)
