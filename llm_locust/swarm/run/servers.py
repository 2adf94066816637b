"""Requests to the servers of a run beside its load: scrapes of their metrics, profiles, resets of caches."""

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from signal import Signals

import gevent
from gevent.event import Event
from gevent.pool import Pool as Greenlets

from llm_locust.client.http.errors import ClientError
from llm_locust.client.http.target import Target
from llm_locust.client.probing import ask
from llm_locust.core.manifest import ScrapeFacts, ServerCall
from llm_locust.deployment.replicas import (
    START_PROFILE,
    STOP_PROFILE,
    Answered,
    Post,
    call_all,
    failures_line,
    profile_calls,
    reset_prefix_caches,
)
from llm_locust.deployment.scraper import read_servers
from llm_locust.deployment.server_metrics import SERVER_METRICS_FILE
from llm_locust.metrics.server_series import ServerNow
from llm_locust.options.deployment import DeploymentSettings, metrics_words
from llm_locust.options.settings import Settings
from llm_locust.scenario.request_kind import RequestKind
from llm_locust.swarm.clocks import RunClock
from llm_locust.swarm.process.children import Child
from llm_locust.swarm.users.traffic import make_pool, shared_headers
from llm_locust.wire.foreign_text import blanked
from llm_locust.wire.headers import secret_texts

logger = logging.getLogger(__name__)


# --------------------
# Scraper of one run's server metrics: a process that runs from before the first user to the end.
#
# A failure of the scraper does not affect the load: what was scraped is kept, and the run reports what is
# missing.
# --------------------


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
        on_servers: called every second with the servers' current figures, on the event loop.
    """

    def __init__(
        self,
        settings: DeploymentSettings,
        run: Path,
        clock: RunClock,
        on_servers: Callable[[list[ServerNow]], None],
    ) -> None:
        self._settings = settings
        self._out = run / SERVER_METRICS_FILE
        self._clock = clock
        self._on_servers = on_servers
        self._child: Child | None = None
        self._first_word = Event()
        self._ending = False
        self._log = _LogLimit(_LINES_A_MINUTE)
        self.facts = ScrapeFacts()

    def begin(self) -> None:
        """Start it, and wait until it has queried every server once, at most :data:`FIRST_WORD_S`."""
        ahead_ns = self._clock.now_ns() - time.monotonic_ns()
        key = self._settings.metrics_api_key_env
        try:
            words = metrics_words(self._settings, self._out, parent=os.getpid(), monotonic_ahead_ns=ahead_ns)
            self._child = Child(
                "llm_locust.deployment.scraper",
                [*words, "--tell"],
                on_line=self._on_line,
                on_error_line=lambda line: self._log(f"server {line.decode(errors='replace')}"),
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
            servers = read_servers(line)
        except ValueError:  # cut off by its end
            return
        self._first_word.set()
        self._on_servers(servers)

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


class _LogLimit:
    """Warnings at a bounded rate per minute; the next one gives the number of those left out."""

    def __init__(self, a_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._a_minute = a_minute
        self._clock = clock
        self._minute_ends = 0.0
        self._logged = 0
        self._left_out = 0

    def __call__(self, text: str) -> None:
        now = self._clock()
        if now >= self._minute_ends:
            self._minute_ends, self._logged = now + 60.0, 0
            if self._left_out:
                logger.warning("%d lines on server metrics were left out", self._left_out)
                self._left_out = 0
        self._logged += 1
        if self._logged <= self._a_minute:
            logger.warning("%s", text)
        else:
            self._left_out += 1


# --- Requests of a run to its replicas besides the load: reset of the prefix cache, control of profilers


#: Interval of the watch: bounds the lateness of a call, and how soon the end of the run is noticed.
_LOOK_S = 0.05

#: A profiler writes its trace before it answers.
CALL_TIMEOUT_S = 60.0

#: Most replicas that are called, or prepared, at once.
AT_ONCE = 64

_RESET = "reset of prefix caches"


def post_to(settings: Settings, kinds: Iterable[RequestKind]) -> Callable[[str], int]:
    """Return a function that posts an empty body to a URL of a replica and returns the status; it raises
    ValueError without an answer. ``kinds`` are those of the load, whose headers it has."""
    headers = shared_headers(settings, kinds)
    hidden = (*settings.secrets, *secret_texts(headers))

    def post(url: str) -> int:
        pool = make_pool(Target.parse(url), settings)
        path = "/" + url.split("://", 1)[-1].partition("/")[2]
        try:
            return ask(pool, "POST", path, headers, CALL_TIMEOUT_S).status
        except ClientError as e:
            raise ValueError(blanked(str(e), hidden)) from e
        finally:
            pool.close()

    return post


@dataclass(frozen=True, slots=True)
class _Moment:
    """An action due ``at_s`` after the run's start; with ``last`` also done if the run ends earlier."""

    at_s: float
    what: str
    act: Callable[[str], Sequence[Answered]]
    last: bool = False


class ServerCalls:
    """Calls of one run to its replicas.

    Args:
        replicas: their URLs.
        post: of :mod:`llm_locust.deployment.replicas`.
        now_ns: the run's clock.
        run_s: planned length of the run; None if unbounded.
        on_call: called with a description of each call.

    Attributes:
        made: calls so far, with their answers.

    Raises:
        ProfileError: the run is over before the profile starts.
    """

    def __init__(
        self,
        settings: DeploymentSettings,
        replicas: Sequence[str],
        post: Post,
        now_ns: Callable[[], int],
        *,
        warmup_s: float,
        run_s: float | None,
        on_call: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._on_call = on_call
        self.made: list[ServerCall] = []
        self._replicas = replicas
        self._post = post
        self._now_ns = now_ns
        self._resets_at_start = settings.resets_at_start
        self._moments = sorted(self._planned(settings, warmup_s, run_s), key=lambda m: m.at_s)

    def _planned(
        self, settings: DeploymentSettings, warmup_s: float, run_s: float | None
    ) -> Iterator[_Moment]:
        if settings.resets_when_measured:
            yield _Moment(warmup_s, _RESET, self._reset_one)
        for call in () if settings.profile is None else profile_calls(settings.profile, run_s):
            act = partial(self._call_one, call.path)
            yield _Moment(call.at_s, call.path, act, call.path == STOP_PROFILE)

    def before_load(self) -> None:
        """Make the calls due before the first user."""
        if self._resets_at_start:
            self._do(_Moment(0.0, _RESET, self._reset_one))

    def watch(self, started_ns: int, ended: Callable[[], bool]) -> None:
        """Make each call at its time. Profilers that were started are stopped with the run."""
        started = False
        for moment in self._moments:
            while not ended() and self._now_ns() - started_ns < moment.at_s * 1e9:
                gevent.sleep(_LOOK_S)
            if ended() and not (moment.last and started):
                return
            self._do(moment)
            started |= moment.what == START_PROFILE

    def _do(self, moment: _Moment) -> None:
        at_ns = self._now_ns()
        answers = [a for one in Greenlets(AT_ONCE).map(moment.act, self._replicas) for a in one]
        self.made += [
            ServerCall(at_ns=at_ns, path=a.path, target=a.target, status=a.status, error=a.error)
            for a in answers
        ]
        failed = failures_line(moment.what, answers)
        if failed is not None:
            logger.warning("%s", failed)
        else:
            logger.info("%s: done by %d replicas", moment.what, len(answers))
        self._on_call(failed or f"{moment.what}: {len(answers)} replicas")

    def _reset_one(self, url: str) -> Sequence[Answered]:
        return reset_prefix_caches([url], self._post)

    def _call_one(self, path: str, url: str) -> Sequence[Answered]:
        return call_all([url], path, self._post)
