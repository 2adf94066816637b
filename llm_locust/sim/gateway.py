"""HTTP side: routes, access, routing to replicas, one truth entry a request; and the replicas' operator."""

import asyncio
import hmac
import itertools
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from aiohttp import web

from llm_locust.sim.answers import FORMATS, GatewayExchange, Prefill, error_object
from llm_locust.sim.faults import TRANSFER_FAULT, Action, PlanStep
from llm_locust.sim.jobs import Job, RequestError, resolve
from llm_locust.sim.replica import (
    Front,
    Policy,
    PortError,
    ReplicaState,
    Transfer,
    Upstream,
    make_policy,
    reset_connection,
)
from llm_locust.sim.settings import SimSettings
from llm_locust.sim.telemetry import (
    EventLog,
    GpuKind,
    JsonLines,
    ReplicaReading,
    TruthEntry,
    exposition,
    gpu_exposition,
)
from llm_locust.wire.dialects.dialect import Dialect

# --- Pages of a port besides the API: health, metrics, and a vLLM server's control endpoints


def add_gateway_pages(app: web.Application, upstreams: Sequence[Upstream], settings: SimSettings) -> None:
    """``/health``: 200 while any replica is in rotation. ``/metrics``: those of all living replicas.

    The control endpoints are missing here (404), as at gateways that only know the API's routes: they act on
    one server, which a request to the gateway cannot name.
    """

    async def health(request: web.Request) -> web.Response:
        return web.Response(status=200 if any(u.in_rotation for u in upstreams) else 503)

    async def metrics(request: web.Request) -> web.Response:
        living = [u.replica.reading() for u in upstreams if u.state is not ReplicaState.DOWN]
        return _text(_exposition(settings, living))

    app.router.add_get("/health", health)
    app.router.add_get("/metrics", metrics)
    _add_gpu_page(app, upstreams, settings.gpu)


def add_replica_pages(
    app: web.Application, upstream: Upstream, settings: SimSettings, events: EventLog
) -> None:
    """``/health``: 200, and 503 during a drain. ``/metrics``: as a separate server, ``engine="0"``."""

    async def health(request: web.Request) -> web.Response:
        return web.Response(status=200 if upstream.state is ReplicaState.UP else 503)

    async def metrics(request: web.Request) -> web.Response:
        return _text(_exposition(settings, [replace(upstream.replica.reading(), engine="0")]))

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


def _exposition(settings: SimSettings, readings: Sequence[ReplicaReading]) -> str:
    return exposition(settings.limits.models[0], readings, transfers=settings.prefill_replicas > 0)


def _text(page: str) -> web.Response:
    return web.Response(
        body=page.encode(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
    )


_MAX_BODY_BYTES = 64 * 1024 * 1024

#: Faults in the truth log of requests that met a killed replica.
KILLED = "killed"  # killed while they were in flight
DEAD = "dead"  # killed before they arrived, and the gateway had not noticed


@dataclass(slots=True, eq=False)
class _Flight:
    """A request that a replica has, and another one computes the prompt of, if there is a ``prefill``.
    ``struck`` if one of them was killed."""

    task: "asyncio.Task[object]"
    upstream: Upstream
    prefill: Prefill | None
    struck: bool = False

    def is_at(self, upstream: Upstream) -> bool:
        if self.prefill is not None and self.prefill.is_under_way and self.prefill.upstream is upstream:
            return True
        return self.upstream is upstream


class Gateway:
    """Serves the OpenAI and the messages API for a set of replicas; several ports may share one gateway."""

    def __init__(self, settings: SimSettings, truth: JsonLines, events: EventLog) -> None:
        self._settings = settings
        self._truth = truth
        self._events = events
        self._numbers = itertools.count()
        self._under_way: set[asyncio.Task[object]] = set()
        self._flights: set[_Flight] = set()
        self._stopping = False

    def application(self, upstreams: Sequence[Upstream]) -> web.Application:
        """Application of the gateway's port, in front of these replicas."""
        settings = self._settings
        prefills, serving = upstreams[: settings.prefill_replicas], upstreams[settings.prefill_replicas :]
        front = Front(serving, self._policy(), settings.session_header)
        if prefills:
            front = replace(front, prefill=Front(prefills, self._policy()))
        app = self._api(front)
        add_gateway_pages(app, upstreams, settings)
        return app

    def replica_application(self, upstream: Upstream) -> web.Application:
        """Application of a replica's own port."""
        app = self._api(Front([upstream], None))
        add_replica_pages(app, upstream, self._settings, self._events)
        return app

    def break_off(self, upstream: Upstream) -> None:
        """End the requests of a replica that was killed, as its clients would see it."""
        for flight in self._flights:
            if flight.is_at(upstream) and not flight.struck:
                flight.struck = True
                flight.task.cancel()

    async def stop(self) -> None:
        """Break off all requests; when this returns, every entry is in the truth log."""
        self._stopping = True
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def _api(self, front: Front) -> web.Application:
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        for endpoint in FORMATS:
            app.router.add_post(f"/v1{endpoint.path}", partial(self._infer, endpoint, front))
        app.router.add_get("/v1/models", self._models)
        return app

    async def _infer(self, endpoint: Dialect, front: Front, request: web.Request) -> web.StreamResponse:
        received_ns = time.time_ns()
        number = next(self._numbers)
        request_id = _printable(request.headers.get("X-Request-Id")) or f"req-{number}"
        exchange = GatewayExchange(
            request=request,
            endpoint=endpoint,
            entry=TruthEntry(request_id=request_id, path=request.path, received_ns=received_ns),
            source=random.Random(f"{self._settings.seed}/{request_id}"),
            faults=self._settings.faults,
            early_role=self._settings.early_role,
            session_header=self._settings.session_header if front.policy else None,
        )
        task = asyncio.current_task()
        assert task is not None
        self._under_way.add(task)
        try:
            return await self._answer(exchange, front, task)
        except asyncio.CancelledError:
            exchange.entry.disconnected = not (exchange.hung_up or self._stopping or front.gone)
            raise
        except ConnectionError:  # the client has left
            exchange.entry.disconnected = not (exchange.hung_up or self._stopping or front.gone)
            return web.Response()
        finally:
            self._under_way.discard(task)
            exchange.entry.ended_ns = time.time_ns()
            self._truth.write(exchange.entry)

    async def _answer(
        self, exchange: GatewayExchange, front: Front, task: "asyncio.Task[object]"
    ) -> web.StreamResponse:
        entry, source = exchange.entry, exchange.source
        # Drawn first, so that a request's fault depends only on the seed and its id.
        fault = self._settings.faults.plan.pick(source.random())
        try:
            self._check_access(exchange.request)
            for name in exchange.endpoint.headers:
                if name not in exchange.request.headers:
                    raise RequestError(400, "BadRequestError", f"{name}: header is required")
            body = await _read(exchange.request)
            settings = self._settings
            block_tokens = settings.engine.kv_block_tokens
            job = resolve(exchange.endpoint, body, entry.request_id, settings.limits, source, block_tokens)
            entry.session_replica = front.session_replica(exchange.request)
            upstream = front.route(exchange.request, job, source)
            entry.replica, entry.fault, entry.input_tokens = upstream.name, fault, job.prompt_tokens
            exchange.prefill = self._prefill(exchange, job, front)
            for each in (upstream, *((exchange.prefill.upstream,) if exchange.prefill else ())):
                if each.state is ReplicaState.DOWN:
                    entry.fault = DEAD
                    raise RequestError(502, "BadGatewayError", f"{each.name} cannot be reached.")
            return await self._forward(exchange, job, _Flight(task, upstream, exchange.prefill), front)
        except RequestError as e:
            return await exchange.send_error(e.status, e.kind, str(e))

    def _prefill(self, exchange: GatewayExchange, job: Job, front: Front) -> Prefill | None:
        """Prefill replica of a request; None if its own replica computes the prompt.

        Raises:
            RequestError: 503 if none accepts requests.
        """
        if front.prefill is None or job.results:
            return None
        upstream = front.prefill.route(exchange.request, job, exchange.source)
        exchange.entry.prefill_replica = upstream.name
        transfer = Transfer(self._settings.kv_transfer_ns, fails=exchange.entry.fault == TRANSFER_FAULT)
        return Prefill(upstream, transfer)

    async def _forward(
        self, exchange: GatewayExchange, job: Job, flight: _Flight, front: Front
    ) -> web.StreamResponse:
        self._flights.add(flight)
        flight.upstream.in_flight += 1
        try:
            return await exchange.answer(job, flight.upstream.replica)
        except asyncio.CancelledError:
            if not flight.struck:
                raise
            flight.task.uncancel()
            return _struck(exchange, front)
        finally:
            flight.upstream.in_flight -= 1
            self._flights.discard(flight)

    def _policy(self) -> Policy:
        return make_policy(self._settings.routing, self._settings.prefix_imbalance)

    def _check_access(self, request: web.Request) -> None:
        key = self._settings.api_key
        if key is None:
            return
        asked = {"Authorization": f"Bearer {key}", "X-Api-Key": key}
        if not any(_same(request.headers.get(name, ""), value) for name, value in asked.items()):
            raise RequestError(401, "AuthenticationError", "Unauthorized: the API key is missing or wrong.")

    async def _models(self, request: web.Request) -> web.Response:
        try:
            self._check_access(request)
        except RequestError as e:
            return web.json_response(error_object(e.status, e.kind, str(e)), status=e.status)
        limits = self._settings.limits
        about = {"object": "model", "created": 0, "owned_by": "sim", "max_model_len": limits.max_model_len}
        return web.json_response({"object": "list", "data": [{"id": m, **about} for m in limits.models]})


def _struck(exchange: GatewayExchange, front: Front) -> web.StreamResponse:
    """Answer to a client whose request was in a replica that is killed.

    On the replica's own port it is a reset. Behind the gateway it is a 502 before the answer's head, and
    after it the end of the connection within the chunked body, as from nginx.

    Raises:
        RequestError: the 502.
    """
    entry = exchange.entry
    entry.fault, entry.complete = KILLED, False
    if front.policy is not None and entry.status is None:
        raise RequestError(
            502, "BadGatewayError", f"{entry.replica} closed the connection before its answer."
        )
    exchange.hung_up = True
    if front.policy is None:
        reset_connection(exchange.transport)
    else:
        exchange.transport.close()
    return web.Response()


def _same(given: str, asked: str) -> bool:
    """Compare in constant time."""
    given_bytes, asked_bytes = (text.encode("utf-8", "surrogateescape") for text in (given, asked))
    return hmac.compare_digest(given_bytes, asked_bytes)


async def _read(request: web.Request) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as e:
        raise RequestError(413, "BadRequestError", f"The body is over {_MAX_BODY_BYTES} bytes.") from e
    except web.RequestPayloadError as e:
        raise RequestError(400, "BadRequestError", f"The body cannot be read: {e}") from e


def _printable(header: str | None) -> str:
    """A header as text that is valid in another header and in JSON."""
    if not header or header.isprintable():
        return header or ""
    return "".join(c if c.isprintable() else "?" for c in header)


# --- Operator of the deployment: executes a plan's steps, and updates the gateway's view of replica health


class Fleet:
    """All replicas of a deployment, with notification of the gateway and the log."""

    def __init__(self, upstreams: Sequence[Upstream], gateway: Gateway, events: EventLog) -> None:
        self._upstreams = upstreams
        self._gateway = gateway
        self._events = events

    async def follow(self, plan: Sequence[PlanStep]) -> None:
        """Do each step at its time, from now on; the steps are in order."""
        began_s = asyncio.get_running_loop().time()
        for step in plan:
            await _until(began_s + step.at_ns * 1e-9)
            await self.act(step)

    async def act(self, step: PlanStep) -> None:
        """Do the step now, and log it."""
        upstream = self._upstreams[step.replica]
        match step.action:
            case Action.KILL:
                await self._kill(upstream)
            case Action.START:
                await _start(upstream)
            case Action.DRAIN:
                upstream.state = ReplicaState.DRAINING
            case Action.SLOW | Action.NORMAL:
                upstream.slow(step.factor)
        factor = step.factor if step.action is Action.SLOW else None
        self._events.add("plan", upstream.name, step.action, factor)
        if step.action is Action.DRAIN:
            # Whoever drains a replica informs the balancer: no health check has to detect it.
            self._look_at(upstream)

    async def check_health(self, interval_ns: int) -> None:
        """Check health at every multiple of the interval from now on, forever."""
        loop = asyncio.get_running_loop()
        began_s, number = loop.time(), 0
        while True:
            number += 1
            await _until(began_s + number * interval_ns * 1e-9)
            self.look()

    def look(self) -> None:
        """Update the gateway's rotation to the replicas that serve."""
        for upstream in self._upstreams:
            self._look_at(upstream)

    def _look_at(self, upstream: Upstream) -> None:
        serves = upstream.state is ReplicaState.UP
        if serves != upstream.in_rotation:
            upstream.in_rotation = serves
            self._events.add("gateway", upstream.name, "in" if serves else "out")

    async def _kill(self, upstream: Upstream) -> None:
        upstream.state, upstream.profiling = ReplicaState.DOWN, False
        if upstream.port is not None:
            await upstream.port.close()
        self._gateway.break_off(upstream)
        upstream.replica.kill()
        if upstream.port is not None:
            upstream.port.reset_connections()


async def _start(upstream: Upstream) -> None:
    was_down = upstream.state is ReplicaState.DOWN
    upstream.state = ReplicaState.UP
    if was_down and upstream.port is not None:
        try:
            await upstream.port.open()
        except PortError as e:
            print(f"llm-locust sim: {upstream.name} has no port of its own any more: {e}", file=sys.stderr)


async def _until(time_s: float) -> None:
    """Sleep until this time of the loop's clock."""
    await asyncio.sleep(max(0.0, time_s - asyncio.get_running_loop().time()))
