"""Scraper of one run's server metrics: a process that runs from before the first user to the end.

A failure of the scraper does not affect the load: what was scraped is kept, and the run reports what is
missing.
"""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from signal import Signals

from gevent.event import Event

from llm_locust.core.run_facts import ScrapeFacts
from llm_locust.deployment.samples_file import SERVER_METRICS_FILE
from llm_locust.deployment.scraper import read_told
from llm_locust.metrics.deployment.server_now import ServerNow
from llm_locust.options.deployment import MetricsSettings, metrics_words
from llm_locust.swarm.clocks.run_clock import RunClock
from llm_locust.swarm.process.children import Child

logger = logging.getLogger(__name__)

#: Longest delay of the first users for the counters' first values, which increases are counted from.
FIRST_WORD_S = 5.0

#: Time limit of its end: a last scrape of 2 s, then a merge at half a second per million samples.
END_S = 60.0

#: Environment variables that hold the address of a pod's API server.
_CLUSTER = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KUBERNETES_SERVICE_PORT_HTTPS")

#: Most lines of the scraper that are logged in a minute.
_LINES_A_MINUTE = 20


class Scraping:
    """Scrapes into a run directory while the run lasts.

    Args:
        told: called every second with the servers' current figures, on the event loop.
    """

    def __init__(
        self, settings: MetricsSettings, run: Path, clock: RunClock, told: Callable[[list[ServerNow]], None]
    ) -> None:
        self._settings = settings
        self._out = run / SERVER_METRICS_FILE
        self._clock = clock
        self._told = told
        self._child: Child | None = None
        self._first_word = Event()
        self._ending = False
        self._log = _Bounded(_LINES_A_MINUTE)
        self.facts = ScrapeFacts()

    def begin(self) -> None:
        """Start it, and wait until it has queried every server once, at most :data:`FIRST_WORD_S`."""
        ahead_ns = self._clock.now_ns() - time.monotonic_ns()
        key = self._settings.api_key_env
        try:
            words = metrics_words(self._settings, self._out, parent=os.getpid(), monotonic_ahead_ns=ahead_ns)
            self._child = Child(
                "llm_locust.deployment.scraper",
                [*words, "--tell"],
                on_line=self._on_line,
                on_error_line=self._on_error_line,
                on_end=self._on_end,
                variables=[*_CLUSTER, *([key] if key is not None else [])],
            )
        except (ValueError, OSError) as e:
            self._failed(f"could not be started: {getattr(e, 'strerror', None) or e}")
            return
        if not self._first_word.wait(FIRST_WORD_S):
            logger.warning("no server metrics within %g s; the load begins without them", FIRST_WORD_S)

    def end(self) -> None:
        """End it after one more scrape, however long its servers take; once."""
        if self._child is None or self._ending:
            return
        self._ending = True
        code = self._child.end(END_S)
        if code and not self.facts.failure:
            self._failed(_why(code))

    def discard(self) -> None:
        """End it, and remove its files."""
        self.end()
        for path in self._out.parent.glob(f"{self._out.stem}*"):
            path.unlink(missing_ok=True)

    def _on_line(self, line: bytes) -> None:
        try:
            servers = read_told(line)
        except ValueError:  # cut off by its end
            return
        self._first_word.set()
        self._told(servers)

    def _on_error_line(self, line: bytes) -> None:
        self._log(f"server {line.decode(errors='replace')}")

    def _on_end(self, code: int) -> None:
        self._first_word.set()
        if not self._ending:
            self._failed(_why(code))

    def _failed(self, why: str) -> None:
        self.facts = ScrapeFacts(failure=why, failed_ns=self._clock.now_ns())
        what = "their last samples may be missing" if self._ending else "none from now on; the load goes on"
        logger.error("server metrics: the scraper %s: %s", why, what)


def _why(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was ended by signal {-code} ({Signals(-code).name})"


class _Bounded:
    """Warnings at a bounded rate per minute; the next one gives the number of those left out."""

    def __init__(self, a_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._a_minute = a_minute
        self._clock = clock
        self._minute_ends = 0.0
        self._said = 0
        self._left_out = 0

    def __call__(self, text: str) -> None:
        now = self._clock()
        if now >= self._minute_ends:
            self._minute_ends, self._said = now + 60.0, 0
            if self._left_out:
                logger.warning("%d lines on server metrics were left out", self._left_out)
                self._left_out = 0
        self._said += 1
        if self._said <= self._a_minute:
            logger.warning("%s", text)
        else:
            self._left_out += 1
