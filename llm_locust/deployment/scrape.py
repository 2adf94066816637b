"""Scraping of many targets at once: each in a thread of its own, so that a slow one delays only itself.

Plain threads, no event loop: for use in a process that has no other work
(:mod:`llm_locust.deployment.scraper`).
"""

import math
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from queue import Empty, Full, Queue
from threading import Event, Thread

import msgspec

from llm_locust.deployment.discovery import Endpoint, FetchError, ScrapeTarget, fetch, targets_of
from llm_locust.deployment.exposition import KNOWN, ExpositionError, Rule, readings
from llm_locust.deployment.samples import ServerSample
from llm_locust.figures.servers import ROLE_SAMPLE
from llm_locust.wire.foreign_text import blanked
from llm_locust.wire.headers import secret_texts

#: Names of samples added by each scrape: whether there was a page, and how long it took.
UP, SCRAPE_S = "up", "scrape_s"

#: Most pages that wait to be written; further ones are dropped to bound memory.
MOST_WAITING = 256

#: Timeout of the last scrape: nothing waits for a next one.
LAST_S = 2.0

#: Interval at which a name is resolved again.
RESOLVE_S = 10.0

_NO_LABELS = "{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapePlan:
    """What to scrape, and how. ``now_ns`` is the run's time; ``headers`` may contain a secret."""

    endpoints: Sequence[Endpoint]
    interval_s: float = 2.0
    timeout_s: float = 1.5
    rules: Sequence[Rule] = KNOWN
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: ssl.SSLContext | None = None
    now_ns: Callable[[], int] = time.time_ns

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must be removed from any page before it goes to a file or a log."""
        return secret_texts({name: value.replace("{", "{{") for name, value in self.headers.items()})


def scrape(target: ScrapeTarget, plan: ScrapePlan) -> tuple[list[ServerSample], str | None]:
    """Samples of one scrape, and the reason if there is no page.

    Their time is the middle between request and answer.
    """
    began_ns = plan.now_ns()
    found, reason, seconds = [], None, math.nan
    try:
        page = fetch(target, plan.timeout_s, plan.headers, plan.tls)
        found, seconds = readings(page.text, plan.rules), page.seconds
    except (FetchError, ExpositionError) as e:
        reason = blanked(str(e), plan.secrets)
    at_ns = (began_ns + plan.now_ns()) // 2
    samples = [
        ServerSample(at_ns, target.name, r.name, blanked(_text(r.labels), plan.secrets), float(r.value))
        for r in found
    ]
    samples.append(ServerSample(at_ns, target.name, UP, _NO_LABELS, float(reason is None)))
    if target.role is not None:
        role = _text({"role": target.role, "source": target.role_source})
        samples.append(ServerSample(at_ns, target.name, ROLE_SAMPLE, role, 1.0))
    if not math.isnan(seconds):
        samples.append(ServerSample(at_ns, target.name, SCRAPE_S, _NO_LABELS, seconds))
    return samples, reason


@dataclass(slots=True)
class _Following:
    """A target's thread: its stop event, and whether its first scrape is done."""

    stop: Event = field(default_factory=Event)
    begun: Event = field(default_factory=Event)


class Scraper:
    """Threads that scrape until they are stopped; :meth:`take` returns their samples.

    Args:
        tell: called with a line whenever a target is new, has no page, or has one again.
    """

    def __init__(self, plan: ScrapePlan, tell: Callable[[str], None]) -> None:
        self._plan, self._tell = plan, tell
        self._last_plan = replace(plan, timeout_s=max(plan.timeout_s, LAST_S))
        self._stop = Event()
        self._found: Queue[list[ServerSample]] = Queue(MOST_WAITING)
        self._looked_up = {endpoint: Event() for endpoint in plan.endpoints}
        self._going: dict[tuple[Endpoint, ScrapeTarget], _Following] = {}
        self._threads: list[Thread] = []
        self.dropped = 0

    def start(self) -> None:
        for endpoint in self._plan.endpoints:
            self._spawn(self._follow, endpoint)

    def await_first(self, within_s: float) -> None:
        """Wait until each current target has been scraped once, up to this limit."""
        ends = time.monotonic() + within_s
        for looked_up in self._looked_up.values():
            looked_up.wait(max(0.0, ends - time.monotonic()))
        for going in list(self._going.values()):
            going.begun.wait(max(0.0, ends - time.monotonic()))

    def stop(self, within_s: float) -> None:
        """Have all threads scrape once more and end; abandon those that hang after this limit."""
        self._stop.set()
        for going in list(self._going.values()):
            going.stop.set()
        ends = time.monotonic() + within_s
        for thread in list(self._threads):
            thread.join(max(0.0, ends - time.monotonic()))

    def take(self) -> list[ServerSample]:
        """All samples since the last call."""
        samples: list[ServerSample] = []
        while True:
            try:
                samples += self._found.get_nowait()
            except Empty:
                return samples

    def _spawn(self, function: Callable[..., None], *args: object) -> None:
        thread = Thread(target=function, args=args, daemon=True)
        self._threads = [t for t in self._threads if t.is_alive()]
        self._threads.append(thread)
        thread.start()

    def _follow(self, endpoint: Endpoint) -> None:
        """Keep one thread for each current target of the endpoint."""
        failed = False
        while not self._stop.is_set():
            try:
                now = {(endpoint, self._named(target)) for target in targets_of(endpoint)}
            except OSError as e:
                if not failed:
                    self._tell(f"{endpoint.host}: {e.strerror or e}")
                failed = True
            else:
                failed = False
                self._change(endpoint, now)
            self._looked_up[endpoint].set()
            if not endpoint.every:
                return
            self._stop.wait(1.0 if failed else RESOLVE_S)

    def _named(self, target: ScrapeTarget) -> ScrapeTarget:
        """Target with its path in its name, if several pages of one port are scraped."""
        path = target.path.partition("?")[0]
        paths = {other.path.partition("?")[0] for other in self._plan.endpoints if other.port == target.port}
        return target if len(paths) <= 1 or path == "/metrics" else replace(target, name=target.name + path)

    def _change(self, endpoint: Endpoint, now: set[tuple[Endpoint, ScrapeTarget]]) -> None:
        mine = {key for key in self._going if key[0] == endpoint}
        for key in mine - now:
            self._tell(f"{key[1].name}: no longer an address of {endpoint.host}")
            self._going.pop(key).stop.set()
        for key in sorted(now - mine, key=lambda key: key[1].name):
            self._going[key] = going = _Following()
            self._spawn(self._scrape_on, key[1], going)

    def _scrape_on(self, target: ScrapeTarget, going: _Following) -> None:
        """Scrape at absolute times; a missed one is skipped. The last scrape is at the end."""
        due, said, last = time.monotonic(), "", False
        while not last:
            last = going.stop.is_set()
            samples, reason = scrape(target, self._last_plan if last and not said else self._plan)
            if (reason or "") != said:
                self._tell(f"{target.name}: {reason or 'available again'}")
                said = reason or ""
            try:
                self._found.put_nowait(samples)
            except Full:
                self.dropped += len(samples)
            going.begun.set()
            if reason is not None and going.stop.is_set():  # another attempt would be in vain
                return
            late = max(0.0, time.monotonic() - due)
            due += (math.floor(late / self._plan.interval_s) + 1) * self._plan.interval_s
            going.stop.wait(max(0.0, due - time.monotonic()))


def _text(labels: Mapping[str, str]) -> str:
    return msgspec.json.encode(labels, order="sorted").decode() if labels else _NO_LABELS
