"""Connections to the servers under test and the headers of every request, from the settings."""

import os
from collections.abc import Callable, Iterable, Sequence

from llm_locust.client.http.pool import Pool
from llm_locust.client.http.target import Target, refuse_proxy
from llm_locust.client.http.tls import tls_context
from llm_locust.client.recording import Call
from llm_locust.client.routes import Routes
from llm_locust.deployment.targets import RandomArm, make_chooser
from llm_locust.options.access import access_headers
from llm_locust.options.settings import Settings
from llm_locust.scenario.request_kind import RequestKind
from llm_locust.swarm.channel.messages import RunInfo
from llm_locust.wire.dialects.dialect import Dialect


def request_headers(settings: Settings, *dialects: Dialect, target: Target | None = None) -> dict[str, str]:
    """Headers of every request: the API key, those of the dialects and of the target, the user's own."""
    versioned = target is not None and bool(target.query)
    return access_headers(settings.api_key, settings.headers, dialects, versioned=versioned)


def kind_headers(settings: Settings, kind: RequestKind, target: Target | None = None) -> dict[str, str]:
    """Headers of every request of a kind: the run's, its class's limits, its class's own."""
    shared = request_headers(settings, kind.endpoint, target=target)
    return {**shared, **settings.slo_headers(kind.slo_class), **kind.headers}


def shared_headers(settings: Settings, kinds: Iterable[RequestKind]) -> dict[str, str]:
    """Headers that the requests of all kinds have alike, for what is asked of their servers beside them."""
    first, *others = [kind_headers(settings, kind) for kind in kinds] or [request_headers(settings)]
    return {name: value for name, value in first.items() if all(o.get(name) == value for o in others)}


def make_pool(target: Target, settings: Settings) -> Pool:
    """Create a pool with the settings' certificates and limits (raises TargetError for invalid ones)."""
    return make_pools([target], settings)[0]


def make_pools(targets: Sequence[Target], settings: Settings) -> list[Pool]:
    """Create a pool for each target, as :func:`make_pool`; certificates are read once."""
    for target in targets:
        refuse_proxy(target, os.environ)
    secure = any(target.scheme == "https" for target in targets)
    tls = (
        tls_context(settings.access.ca_cert, settings.access.client_cert, insecure=settings.access.insecure)
        if secure
        else None
    )
    bound_s, most = min(10.0, settings.run.timeouts.first_s), settings.deployment.reuse.most
    return [
        Pool(
            target,
            tls=tls,
            tls_name=settings.access.tls_name,
            connect_timeout_s=bound_s,
            most_requests=most,
            kernel_stamps=settings.run.stamps == "kernel",
        )
        for target in targets
    ]


def make_routes(
    run: RunInfo,
    settings: Settings,
    worker: int,
    together: Callable[[Call], str | None],
) -> Routes:
    """Route to the run's host, or to each of ``--targets`` or ``--arm`` (raises TargetError).

    Args:
        worker: index of this process.
        together: key of sticky requests.
    """
    if bases := run.get("arms"):
        return _arm_routes(bases, settings, RandomArm(_shares(settings), run["seed"], worker))
    targets = [Target.at(url) for url in run.get("targets") or ()]
    if not targets:
        host = Target.parse(run["host"]).with_base(run["base"])
        return Routes(make_pools([host], settings), session_header=settings.requests.session_header)
    policy = settings.deployment.target_policy
    chooser = make_chooser(policy, len(targets), worker=worker, seed=run["seed"])
    pools = make_pools(targets, settings)
    return Routes(pools, chooser, together, session_header=settings.requests.session_header)


def _arm_routes(bases: Sequence[str], settings: Settings, random_arm: RandomArm) -> Routes:
    """A route to each arm of an interleaved comparison, of which every request or session draws one."""
    pools = make_pools([Target.at(url) for url in bases], settings)
    names = [arm.name for arm in settings.deployment.arms]
    return Routes(pools, random_arm, arms=names, session_header=settings.requests.session_header)


def _shares(settings: Settings) -> list[float]:
    return [arm.weight for arm in settings.deployment.arms]
