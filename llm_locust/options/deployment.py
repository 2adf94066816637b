"""The options that say what is behind the URL: replicas, their metrics, what is asked of them."""

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from llm_locust.client.http.pool import Target
from llm_locust.core.durations import parse_time
from llm_locust.deployment.profiler import ProfileSpan
from llm_locust.deployment.targets import POLICIES, Reuse
from llm_locust.options.arrivals import parse_count
from llm_locust.options.types import Append, checked

T = TypeVar("T")

#: What the manifest keeps of them.
DEPLOYMENT_OPTIONS = (
    "targets", "target_policy", "connection_reuse", "replica_url", "expect_replicas", "ready_timeout",
    "metrics_url", "metrics_interval", "metrics_map", "metrics_api_key_env", "profile_server",
    "reset_prefix_cache",
)  # fmt: skip

#: When prefix caches can be emptied: before any load, when the measured phase begins, at both.
RESETS = ("start", "measured", "both")

DEFAULT_READY_TIMEOUT_S = 60.0
DEFAULT_METRICS_INTERVAL_S = 2.0

#: Stands before a URL whose host's addresses are replicas of their own.
DNS = "dns+"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """Which Prometheus endpoints are scraped, and how. ``urls`` is empty where none is."""

    urls: tuple[str, ...] = ()
    interval_s: float = DEFAULT_METRICS_INTERVAL_S
    mappings: tuple[str, ...] = ()
    api_key_env: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentSettings:
    """What is known of the replicas. None is what was not said.

    Attributes:
        targets: URLs that requests go to instead of the host's.
        replica_urls: URLs of replicas behind the host, which no load goes to.
        ready_timeout_s: how long replicas are waited for; None where nobody asked for them.
        reset_prefix_cache: one of :data:`RESETS`.
    """

    targets: tuple[str, ...] = ()
    target_policy: str = "round_robin"
    reuse: Reuse = field(default_factory=Reuse)
    replica_urls: tuple[str, ...] = ()
    expect_replicas: int | None = None
    ready_timeout_s: float | None = None
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    profile: ProfileSpan | None = None
    reset_prefix_cache: str | None = None

    @property
    def resets_at_start(self) -> bool:
        return self.reset_prefix_cache in ("start", "both")

    @property
    def resets_when_measured(self) -> bool:
        return self.reset_prefix_cache in ("measured", "both")


def add_deployment_arguments(add: Callable[..., None]) -> None:
    """What is behind the URL, and what is asked of it beside the load."""
    add(
        "--targets",
        action=Append,
        default=[],
        type=checked(parse_urls),
        metavar="URLS",
        help="send requests straight to these instead of -H, commas between (repeatable); "
        "dns+http://service:8000 stands for all addresses of a name",
    )
    add("--target-policy", choices=POLICIES, help="which of the targets is next (default round_robin)")
    add(
        "--connection-reuse",
        type=checked(Reuse.parse),
        metavar="on|off|N",
        help="off: a new connection for each request; N: for every N of them (default on)",
    )
    add(
        "--replica-url",
        action=Append,
        default=[],
        type=checked(parse_urls),
        metavar="URLS",
        help="replicas behind the host, for --ready-timeout, --profile-server and --reset-prefix-cache "
        "(as --targets)",
    )
    add(
        "--expect-replicas",
        type=checked(parse_count),
        metavar="N",
        help="no load before N replicas have answered a request of one token through the host",
    )
    add(
        "--ready-timeout",
        type=checked(parse_time),
        metavar="TIME",
        help="wait so long for every target, replica and address of the host to answer /health and a "
        "request of one token (default 60s where --targets, --replica-url or --expect-replicas is given)",
    )
    _add_metrics_arguments(add)
    add(
        "--profile-server",
        type=checked(ProfileSpan.parse),
        metavar="SPAN",
        help="the servers' own profiler on every replica: 30s@120s is 30 s, from 120 s after the start",
    )
    add(
        "--reset-prefix-cache",
        choices=RESETS,
        help="empty every replica's prefix cache before the load, when the measured phase begins, or both",
    )


def _add_metrics_arguments(add: Callable[..., None]) -> None:
    add(
        "--metrics-url",
        action=Append,
        default=[],
        metavar="URL",
        help="Prometheus endpoint of a replica or GPU exporter to scrape during the run (repeatable); "
        "dns+http://service:port/metrics is all addresses of a name, k8s:app=vllm:8000 all pods with a label",
    )
    add("--metrics-interval", type=checked(parse_time), metavar="TIME", help="between scrapes (default 2s)")
    add(
        "--metrics-map",
        action=Append,
        default=[],
        metavar="THEIRS=OURS",
        help="what another server calls a known metric (repeatable)",
    )
    add(
        "--metrics-api-key-env",
        metavar="NAME",
        help="environment variable that holds a bearer token for the metrics endpoints",
    )


def parse_urls(text: str) -> tuple[str, ...]:
    """URLs with commas or spaces between, with or without ``dns+`` before them.

    Raises:
        ValueError: one that is none, which it names.
    """
    urls = tuple(dict.fromkeys(re.findall(r"[^\s,]+", text)))
    for url in urls:
        if url.startswith(f"{DNS}https:"):
            raise ValueError(
                f"{url!r}: certificates hold names, and dns+ connects to addresses; list the URLs one by one"
            )
        Target.parse(url.removeprefix(DNS))
    return urls


def patience_s(settings: DeploymentSettings) -> float | None:
    """How long replicas are waited for before the load; None where nobody asked for it."""
    asked = settings.targets or settings.replica_urls or settings.expect_replicas
    if settings.ready_timeout_s is None and asked:
        return DEFAULT_READY_TIMEOUT_S
    return settings.ready_timeout_s


def parse_deployment(options: argparse.Namespace) -> DeploymentSettings:
    """The options' values; raises ValueError, which names the option."""
    found = DeploymentSettings(
        targets=_urls(options, "targets"),
        target_policy=getattr(options, "target_policy", None) or "round_robin",
        reuse=_one(options, "connection_reuse", Reuse.parse) or Reuse(),
        replica_urls=_urls(options, "replica_url"),
        expect_replicas=_one(options, "expect_replicas", parse_count),
        ready_timeout_s=_one(options, "ready_timeout", parse_time),
        metrics=_metrics(options),
        profile=_one(options, "profile_server", ProfileSpan.parse),
        reset_prefix_cache=getattr(options, "reset_prefix_cache", None) or None,
    )
    if getattr(options, "target_policy", None) and not found.targets:
        raise ValueError("--target-policy: there is one target, the host; name others by --targets")
    if found.targets and found.expect_replicas is not None:
        raise ValueError(
            "--expect-replicas counts replicas through the host; with --targets each of them is waited for"
        )
    return found


def _metrics(options: argparse.Namespace) -> MetricsSettings:
    return MetricsSettings(
        urls=tuple(dict.fromkeys(_words(options, "metrics_url"))),
        interval_s=_one(options, "metrics_interval", parse_time) or DEFAULT_METRICS_INTERVAL_S,
        mappings=_words(options, "metrics_map"),
        api_key_env=getattr(options, "metrics_api_key_env", None) or None,
    )


def metrics_words(settings: MetricsSettings, out: Path, **more: int) -> list[str]:
    """The scraper's command line; raises ValueError, with one line for the person, where it would refuse it.

    Its bearer token has to be in this process's environment: not asked of workers, who scrape nothing.
    """
    from llm_locust.deployment.scraper import words as scraper_words  # and Prometheus' parser: no worker's

    timeout_s = min(1.5, 0.75 * settings.interval_s)
    return scraper_words(
        settings.urls,
        out,
        interval_s=settings.interval_s,
        timeout_s=timeout_s,
        mappings=settings.mappings,
        api_key_env=settings.api_key_env,
        **more,
    )


def _urls(options: argparse.Namespace, name: str) -> tuple[str, ...]:
    try:
        return tuple(dict.fromkeys(url for text in _words(options, name) for url in parse_urls(text)))
    except ValueError as e:
        raise ValueError(f"--{name.replace('_', '-')}: {e}") from e


def _words(options: argparse.Namespace, name: str) -> tuple[str, ...]:
    given: Sequence[str] | str = getattr(options, name, None) or ()
    return (given,) if isinstance(given, str) else tuple(given)


def _one(options: argparse.Namespace, name: str, parse: Callable[[str], T]) -> T | None:
    text = getattr(options, name, None)
    try:
        return parse(str(text)) if text not in (None, "") else None
    except ValueError as e:
        raise ValueError(f"--{name.replace('_', '-')}: {e}") from e
