"""Options that say what is behind the URL: replicas, their metrics, what is asked of them."""

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from msgspec import structs

from llm_locust.client.http.target import Target
from llm_locust.core.texts import ON_OFF, is_on, parse_time
from llm_locust.deployment.discovery import metrics_urls
from llm_locust.deployment.replicas import ProfileSpan
from llm_locust.deployment.targets import POLICIES, Arm, Reuse, chosen_arms
from llm_locust.metrics.server_roles import split_role
from llm_locust.options.option import Group, option, parse_count
from llm_locust.options.requests import headers_from

#: When prefix caches can be emptied: before any load, when the measured phase begins, at both.
RESETS = ("start", "measured", "both")

DEFAULT_READY_TIMEOUT_S = 60.0
DEFAULT_METRICS_INTERVAL_S = 2.0

#: Stands before a URL whose host's addresses are replicas of their own.
DNS = "dns+"


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
        if Target.parse(url.removeprefix(DNS)).query:
            raise ValueError(f"{url!r}: ?api-version= may stand in the URL of -H only")
    return urls


def parse_replica_urls(text: str) -> tuple[str, ...]:
    """URLs as :func:`parse_urls`, each with or without ``prefill=`` or ``decode=`` before it.

    Raises:
        ValueError: one that is none, which it names.
    """
    found = tuple(dict.fromkeys(re.findall(r"[^\s,]+", text)))
    for url in found:
        parse_urls(split_role(url)[1])
    return found


def each_once(urls: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Those of all words, each once."""
    return tuple(dict.fromkeys(chain.from_iterable(urls)))


class DeploymentSettings(Group, frozen=True, kw_only=True):
    """What is known of the replicas. None is what was not said.

    Attributes:
        targets: URLs that requests go to instead of the host's.
        arms: targets of an interleaved comparison, instead of the host.
        replica_urls: URLs of replicas behind the host, which no load goes to.
        ready_timeout_s: how long replicas are waited for; None where nobody asked for them.
        canary: send a request of each kind before the load.
        metrics_urls: Prometheus endpoints that are scraped; empty where none is.
        reset_prefix_cache: one of :data:`RESETS`.
    """

    targets: tuple[str, ...] = option(
        "--targets",
        "send requests directly to these, commas between (repeatable); "
        "dns+http://service:8000 stands for all addresses of a name",
        parse_urls,
        "URLS",
        kind="list",
        join=each_once,
    )
    target_policy: str = option(
        "--target-policy",
        "how the target of the next request is chosen (default round_robin)",
        choices=POLICIES,
        otherwise="round_robin",
    )
    arms: tuple[Arm, ...] = option(
        "--arm",
        "compare targets in one run (repeatable): each request or conversation goes to one of them at "
        "random; gateway=http://HOST:8000 share=2 gets twice as many as one without share; "
        "headers, body or prompts of its own are in the scenario's arms",
        Arm.parse,
        "NAME=URL",
        kind="list",
    )
    reuse: Reuse = option(
        "--connection-reuse",
        "off: a new connection for each request; N: for every N of them (default on)",
        Reuse.parse,
        "on|off|N",
        otherwise=Reuse(),
    )
    replica_urls: tuple[str, ...] = option(
        "--replica-url",
        "replicas behind the host, for --ready-timeout, --profile-server, --reset-prefix-cache and "
        "--sweep prefix-share (as --targets); prefill=URL and decode=URL are separate ones",
        parse_replica_urls,
        "URLS",
        kind="list",
        join=each_once,
    )
    expect_replicas: int | None = option(
        "--expect-replicas",
        "start the load once N replicas have answered a request of one token through the host",
        parse_count,
        "N",
    )
    ready_timeout_s: float | None = option(
        "--ready-timeout",
        "wait this long for every target, replica and address of the host to answer /health and a "
        "request of one token (default 60s where --targets, --replica-url or --expect-replicas is given)",
        parse_time,
        "TIME",
    )
    canary: bool = option(
        "--canary",
        "before the load, send one request of each kind to every target, up to its first token; if it is "
        "refused, the load does not start (default on)",
        parse=is_on,
        choices=ON_OFF,
        is_load=False,
        otherwise=True,
    )
    metrics_urls: tuple[str, ...] = option(
        "--metrics-url",
        "Prometheus endpoint of a replica or GPU exporter to scrape during the run (repeatable); "
        "dns+http://service:port/metrics is all addresses of a name, k8s:app=vllm:8000 all pods with a "
        "label; prefill=URL and decode=URL say what the replica does",
        metavar="URL",
        kind="list",
        join=lambda urls: tuple(dict.fromkeys(urls)),
    )
    metrics_interval_s: float = option(
        "--metrics-interval",
        "time between scrapes (default 2s)",
        parse_time,
        "TIME",
        otherwise=DEFAULT_METRICS_INTERVAL_S,
    )
    metrics_map: tuple[str, ...] = option(
        "--metrics-map",
        "what another server calls a known metric (repeatable)",
        metavar="THEIRS=OURS",
        kind="list",
    )
    metrics_api_key_env: str | None = option(
        "--metrics-api-key-env",
        "environment variable that holds a bearer token for the metrics endpoints",
        metavar="NAME",
    )
    profile: ProfileSpan | None = option(
        "--profile-server",
        "run the servers' own profiler on every replica: 30s@120s is 30 s, from 120 s after the start",
        ProfileSpan.parse,
        "SPAN",
    )
    reset_prefix_cache: str | None = option(
        "--reset-prefix-cache",
        "empty every replica's prefix cache before the load, when the measured phase begins, or both",
        choices=RESETS,
    )

    @property
    def resets_at_start(self) -> bool:
        return self.reset_prefix_cache in ("start", "both")

    @property
    def resets_when_measured(self) -> bool:
        return self.reset_prefix_cache in ("measured", "both")


def patience_s(settings: DeploymentSettings) -> float | None:
    """How long replicas are waited for before the load; None where nobody asked for it."""
    asked = settings.targets or settings.replica_urls or settings.expect_replicas
    if settings.ready_timeout_s is None and asked:
        return DEFAULT_READY_TIMEOUT_S
    return settings.ready_timeout_s


def parse_deployment(
    options: argparse.Namespace, environ: Mapping[str, str], described: Sequence[Arm] = ()
) -> DeploymentSettings:
    """The options' values.

    Args:
        environ: has the values of the arms' headers.
        described: the scenario's arms.

    Raises:
        ValueError: it names the option.
    """
    given = DeploymentSettings.of(options)
    found = structs.replace(
        given,
        arms=_arms(given.arms, described, getattr(options, "host", None), environ),
        replica_urls=tuple(split_role(url)[1] for url in given.replica_urls),
        metrics_urls=metrics_urls(given.metrics_urls, given.replica_urls),
    )
    if found.arms:
        _check_beside_arms(found)
    if getattr(options, "target_policy", None) and not found.targets:
        raise ValueError("--target-policy: there is one target, the host; name others by --targets")
    if found.targets and found.expect_replicas is not None:
        raise ValueError(
            "--expect-replicas counts replicas through the host; with --targets each of them is waited for"
        )
    return found


def _arms(
    named: Sequence[Arm], described: Sequence[Arm], host: str | None, environ: Mapping[str, str]
) -> tuple[Arm, ...]:
    """The arms of the run, with the values of their headers (raises ValueError)."""
    try:
        found = chosen_arms(named, described, host)
    except ValueError as e:
        raise ValueError(f"--arm: {e}") from e
    return tuple(replace(arm, headers=_headers(arm, environ)) for arm in found)


def _headers(arm: Arm, environ: Mapping[str, str]) -> dict[str, str]:
    try:
        return {**arm.headers, **headers_from(arm.header_env.items(), environ)}
    except ValueError as e:
        raise ValueError(f"arm {arm.name!r}: {e}") from e


def _check_beside_arms(settings: DeploymentSettings) -> None:
    """Refuse options that say something else than arms (raises ValueError)."""
    if settings.targets:
        raise ValueError("--targets and --arm both say where requests go: give one of them")
    if settings.expect_replicas is not None:
        raise ValueError("--expect-replicas counts replicas through the host, and --arm names several")


def metrics_words(settings: DeploymentSettings, out: Path, **more: int) -> list[str]:
    """The scraper's command line; raises ValueError, with one line for the person, where it would refuse it.

    Its bearer token has to be in this process's environment: not asked of workers, who scrape nothing.
    """
    from llm_locust.deployment.scraper import words as scraper_words  # and Prometheus' parser: no worker's

    return scraper_words(
        settings.metrics_urls,
        out,
        interval_s=settings.metrics_interval_s,
        timeout_s=min(1.5, 0.75 * settings.metrics_interval_s),
        mappings=settings.metrics_map,
        api_key_env=settings.metrics_api_key_env,
        **more,
    )
