"""Pages of a port besides the API: health, metrics, and a vLLM server's control endpoints."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from aiohttp import web

from llm_locust.sim.engine.gpu_page import GpuKind, gpu_exposition
from llm_locust.sim.engine.stats import ReplicaReading, exposition
from llm_locust.sim.faults.events import EventLog
from llm_locust.sim.gateway.upstream import ReplicaState, Upstream


@dataclass(frozen=True, slots=True)
class PageSettings:
    """What metrics pages name, and whether they have KV ``transfers``."""

    model: str
    gpu: GpuKind
    transfers: bool = False

    def exposition(self, readings: Sequence[ReplicaReading]) -> str:
        return exposition(self.model, readings, transfers=self.transfers)


def add_gateway_pages(app: web.Application, upstreams: Sequence[Upstream], settings: PageSettings) -> None:
    """``/health``: 200 while any replica is in rotation. ``/metrics``: those of all living replicas.

    The control endpoints are missing here (404), as at gateways that only know the API's routes: they act on
    one server, which a request to the gateway cannot name.
    """

    async def health(request: web.Request) -> web.Response:
        return web.Response(status=200 if any(u.in_rotation for u in upstreams) else 503)

    async def metrics(request: web.Request) -> web.Response:
        living = [u.replica.reading() for u in upstreams if u.state is not ReplicaState.DOWN]
        return _text(settings.exposition(living))

    app.router.add_get("/health", health)
    app.router.add_get("/metrics", metrics)
    _add_gpu_page(app, upstreams, settings.gpu)


def add_replica_pages(
    app: web.Application, upstream: Upstream, settings: PageSettings, events: EventLog
) -> None:
    """``/health``: 200, and 503 during a drain. ``/metrics``: as a separate server, ``engine="0"``."""

    async def health(request: web.Request) -> web.Response:
        return web.Response(status=200 if upstream.state is ReplicaState.UP else 503)

    async def metrics(request: web.Request) -> web.Response:
        return _text(settings.exposition([replace(upstream.replica.reading(), engine="0")]))

    app.router.add_get("/health", health)
    app.router.add_get("/metrics", metrics)
    _add_gpu_page(app, [upstream], settings.gpu)
    for action in ("start_profile", "stop_profile", "reset_prefix_cache"):
        app.router.add_post(f"/{action}", partial(_control, upstream, events, action))


async def _control(upstream: Upstream, events: EventLog, action: str, request: web.Request) -> web.Response:
    """200 without a body in every state, as from vLLM: superfluous starts and stops are ignored."""
    ignored = ""
    match action:
        case "reset_prefix_cache":
            upstream.replica.reset_prefix_cache()
        case "start_profile" if upstream.profiling:
            ignored = " ignored: it is profiling already"
        case "stop_profile" if not upstream.profiling:
            ignored = " ignored: it is not profiling"
        case _:
            upstream.profiling = action == "start_profile"
    events.add("client", upstream.name, action + ignored)
    return web.Response()


def _add_gpu_page(app: web.Application, upstreams: Sequence[Upstream], gpu: GpuKind) -> None:
    async def page(request: web.Request) -> web.Response:
        return _text(gpu_exposition([upstream.replica.gpu() for upstream in upstreams], gpu))

    app.router.add_get("/gpu/metrics", page)


def _text(page: str) -> web.Response:
    return web.Response(
        body=page.encode(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
    )
