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
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from threading import Event

import msgspec

from llm_locust.deployment.discovery import Endpoint, EndpointError
from llm_locust.deployment.exposition import KNOWN, MappingError, parse_mapping
from llm_locust.deployment.samples import SamplesError, SampleWriter, ServerSample, compact_samples
from llm_locust.deployment.scrape import LAST_S, ScrapePlan, Scraper
from llm_locust.figures.servers import role_now
from llm_locust.metrics.server_series import Newest, ServerNow
from llm_locust.wire.foreign_text import shown_variable

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


def read_told(line: bytes) -> list[ServerNow]:
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
        now_ns=time.time_ns if ahead_ns is None else partial(_monotonic_ns, ahead_ns),
    )


def _monotonic_ns(ahead_ns: int) -> int:
    return time.monotonic_ns() + ahead_ns


def _tell(line: str) -> None:
    with suppress(BrokenPipeError):  # the parent is gone: the main thread will notice
        print(f"metrics: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
