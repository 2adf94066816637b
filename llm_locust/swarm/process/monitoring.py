"""Locust's watch on CPU and memory, made to survive a moment without a free descriptor.

It reads /proc every 10 s. Where that fails, its greenlet would end by the exception, and with it a local run:
that greenlet is all that Locust waits for.
"""

import logging
from typing import Any, NoReturn

import gevent
from locust.runners import CPU_MONITOR_INTERVAL, Runner

from llm_locust.host import reason_of
from llm_locust.swarm.process.loops import Throttle

logger = logging.getLogger(__name__)


def keep_monitoring() -> None:
    """Let the watch of every runner that is created from now on go on after an OSError."""
    watch = Runner.monitor_cpu_and_memory

    def watch_on(runner: Runner) -> NoReturn:
        may_say = Throttle()
        while True:
            try:
                watch(runner)
            except OSError as e:
                if may_say():
                    logger.warning("this process's CPU and memory cannot be read now: %s", reason_of(e))
            gevent.sleep(CPU_MONITOR_INTERVAL)

    patched: Any = Runner
    patched.monitor_cpu_and_memory = watch_on
