"""``python -m llm_locust.deployment.scraper``: scrape metrics into a run directory until stopped.

It is a process of its own, so that neither parsing nor a server that hangs affects the event loop of the
load. With ``--tell`` it writes the servers' current figures to its standard output every second, a line of
JSON (a list of :class:`~llm_locust.metrics.server_series.ServerNow`); the first one when every
server has been scraped once. It leaves the samples in its stream: the process that started it makes the
Parquet file.
"""

import argparse
import math
import os
import signal
import ssl
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from queue import Empty, Full, Queue
from threading import Event, Thread

import msgspec

from llm_locust.deployment.discovery import (
    Endpoint,
    EndpointError,
    FetchError,
    ScrapeTarget,
    fetch,
    targets_of,
)
from llm_locust.deployment.server_metrics import (
    KNOWN,
    ExpositionError,
    MappingError,
    Rule,
    SamplesError,
    SampleWriter,
    ServerSample,
    compact_samples,
    parse_mapping,
    readings,
)
from llm_locust.metrics.server_roles import ROLE_SAMPLE, role_now
from llm_locust.metrics.server_series import Newest, ServerNow
from llm_locust.wire.foreign_text import blanked, shown_variable
from llm_locust.wire.headers import secret_texts

# --- Scraping of many targets at once: each in a thread of its own, so that a slow one delays only itself


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


#: Samples of a scrape itself.
_OWN = frozenset({UP, ROLE_SAMPLE, SCRAPE_S})


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
        due, said, last, knows_any = time.monotonic(), "", False, False
        while not last:
            last = going.stop.is_set()
            samples, reason = scrape(target, self._last_plan if last and not said else self._plan)
            if (reason or "") != said:
                self._tell(f"{target.name}: {reason or 'available again'}")
                said = reason or ""
            knows_any |= any(sample.name not in _OWN for sample in samples)
            if last and not reason and not knows_any:
                self._tell(f"{target.name}: its page had no metric that is known; --metrics-map names others")
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


# --- The process


#: Lower priority than the load on the same cores.
_NICENESS = 5
_WRITE_S = 1.0
_SLACK_S = 0.5

#: The load waits for the first page of each server, but not for one that hangs.
_FIRST_S = 1.0
_LEAST_INTERVAL_S, _MOST_INTERVAL_S = 0.1, 60.0


def main(argv: Sequence[str] | None = None) -> int:
    """Scrape until SIGTERM, SIGINT or the parent's end. Return 0, 1 (file error) or 2 (options)."""
    args = _parser().parse_args(argv)
    try:
        plan = _plan(args)
    except (EndpointError, MappingError, ValueError) as e:
        _tell(str(e))
        return 2
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    os.nice(_NICENESS)
    try:
        _scrape_into(args.out, plan, stop, args.parent, tell=args.tell)
        if not args.tell:
            compact_samples(args.out)
    except (OSError, SamplesError) as e:
        _tell(f"{str(args.out)!r} cannot be written: {getattr(e, 'strerror', None) or e}")
        return 1
    return 0


def read_servers(line: bytes) -> list[ServerNow]:
    """Parse a line of ``--tell`` (raises ValueError if it is invalid)."""
    return msgspec.json.decode(line, type=list[ServerNow])


def words(
    urls: Sequence[str],
    out: Path,
    *,
    interval_s: float = 2.0,
    timeout_s: float = 1.5,
    mappings: Sequence[str] = (),
    api_key_env: str | None = None,
    parent: int | None = None,
    monotonic_ahead_ns: int | None = None,
) -> list[str]:
    """Command line for :func:`main`, to start it as a process.

    Raises:
        EndpointError, MappingError, ValueError: what :func:`main` would refuse, before there is a process.
    """
    given = [f"--out={out}", f"--interval={interval_s}", f"--timeout={timeout_s}"]
    given += [f"--url={url}" for url in urls]
    given += [f"--map={mapping}" for mapping in mappings]
    others = {"--api-key-env": api_key_env, "--parent": parent, "--monotonic-ahead-ns": monotonic_ahead_ns}
    given += [f"{name}={value}" for name, value in others.items() if value is not None]
    _plan(_parser().parse_args(given))
    return given


def _scrape_into(out: Path, plan: ScrapePlan, stop: Event, parent: int | None, *, tell: bool) -> None:
    scraper, newest, teller = Scraper(plan, _tell), Newest(), _Teller(sys.stdout.fileno()) if tell else None
    with SampleWriter(out) as writer:
        scraper.start()
        scraper.await_first(min(plan.timeout_s, _FIRST_S))
        going = True
        while going and (parent is None or os.getppid() == parent):
            _keep(scraper.take(), writer, newest)
            if teller is not None:
                teller.tell(newest)
            going = not stop.wait(_WRITE_S)
        scraper.stop(within_s=max(plan.timeout_s, LAST_S) + _SLACK_S)
        writer.write(scraper.take())
    if scraper.dropped:
        _tell(f"{scraper.dropped:,} samples were dropped: they arrived faster than they could be written")


def _keep(samples: Sequence[ServerSample], writer: SampleWriter, newest: Newest) -> None:
    writer.write(samples)
    for (target, at_ns), scrape in groupby(samples, lambda sample: (sample.target, sample.at_ns)):
        found = list(scrape)
        role = role_now((sample.name, sample.labels) for sample in found)
        newest.add(target, at_ns, ((sample.name, sample.value) for sample in found), role)


class _Teller:
    """Lines for the parent process. None are written while it is too busy to read: scraping does not wait."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._rest = b""
        os.set_blocking(fd, False)

    def tell(self, newest: Newest) -> None:
        line = self._rest or msgspec.json.encode(newest.servers()) + b"\n"
        with suppress(BlockingIOError, BrokenPipeError):
            self._rest = line[os.write(self._fd, line) :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m llm_locust.deployment.scraper",
        description="Scrape Prometheus endpoints into a Parquet file until SIGTERM.",
    )
    parser.add_argument("--url", action="append", required=True, help="repeatable; dns+http://name:port/path")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="server_metrics.parquet")
    parser.add_argument("--interval", type=float, default=2.0, metavar="SECONDS", help="(%(default)s)")
    parser.add_argument("--timeout", type=float, default=1.5, metavar="SECONDS", help="(%(default)s)")
    parser.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="THEIRS=OURS",
        help="a name of another server; repeatable",
    )
    parser.add_argument("--api-key-env", metavar="NAME", help="variable that holds a bearer token")
    parser.add_argument("--parent", type=int, metavar="PID", help="end when this is no longer the parent")
    parser.add_argument("--tell", action="store_true", help="write the servers' current figures")
    parser.add_argument(
        "--monotonic-ahead-ns", type=int, metavar="NS", help="the run's time is CLOCK_MONOTONIC plus this"
    )
    return parser


def _plan(args: argparse.Namespace) -> ScrapePlan:
    """Parse the options (raises EndpointError, MappingError or ValueError with a one-line message)."""
    if not _LEAST_INTERVAL_S <= args.interval <= _MOST_INTERVAL_S:
        raise ValueError(
            f"metrics cannot be scraped every {args.interval:g} s: write {_LEAST_INTERVAL_S:g} to "
            f"{_MOST_INTERVAL_S:g} seconds"
        )
    if not 0 < args.timeout < math.inf:
        raise ValueError(f"a scrape cannot take {args.timeout:g} s: write seconds above 0")
    key = os.environ.get(args.api_key_env, "") if args.api_key_env else ""
    if args.api_key_env and not key:
        raise ValueError(
            f"the environment variable {shown_variable(args.api_key_env)}, which must hold the metrics "
            "endpoints' token, is not set"
        )
    ahead_ns = args.monotonic_ahead_ns
    return ScrapePlan(
        endpoints=[Endpoint.parse(url) for url in dict.fromkeys(args.url)],
        interval_s=args.interval,
        timeout_s=args.timeout,
        rules=(*map(parse_mapping, args.map), *KNOWN),
        headers={"Authorization": f"Bearer {key}"} if key else {},
        now_ns=time.time_ns if ahead_ns is None else lambda: time.monotonic_ns() + ahead_ns,
    )


def _tell(line: str) -> None:
    with suppress(BrokenPipeError):  # the parent is gone: the main thread will notice
        print(f"metrics: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
