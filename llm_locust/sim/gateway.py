"""The HTTP side: routes, access, routing to replicas, one truth entry a request for inference."""

import asyncio
import hmac
import itertools
import random
import time
from collections.abc import Callable, Sequence
from functools import partial

from aiohttp import web

from llm_locust.sim.exchange import Exchange
from llm_locust.sim.gpu_page import gpu_exposition
from llm_locust.sim.jobs import Endpoint, RequestError, resolve
from llm_locust.sim.replica import Replica
from llm_locust.sim.settings import SimSettings
from llm_locust.sim.stats import exposition
from llm_locust.sim.template import error_object
from llm_locust.sim.truth import TruthEntry, TruthLog

_MAX_BODY_BYTES = 64 * 1024 * 1024

#: Picks the replica of a request, given the request's own random generator.
Router = Callable[[random.Random], Replica]


class Gateway:
    """Serves the OpenAI and the messages API for a set of replicas; several ports may share one gateway."""

    def __init__(self, settings: SimSettings, truth: TruthLog) -> None:
        self._settings = settings
        self._truth = truth
        self._numbers = itertools.count()
        self._under_way: set[asyncio.Task[object]] = set()
        self._stopping = False

    def application(self, replicas: Sequence[Replica]) -> web.Application:
        """The application of one port, in front of these replicas."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        router = make_router(self._settings.routing, replicas)
        for endpoint in Endpoint:
            app.router.add_post(f"/v1/{endpoint}", partial(self._infer, endpoint, router))
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", _health)
        app.router.add_get("/metrics", partial(self._metrics, replicas))
        app.router.add_get("/gpu/metrics", partial(_gpu_metrics, replicas))
        return app

    async def stop(self) -> None:
        """Break off what is under way; when this returns, every entry is in the truth log."""
        self._stopping = True
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _infer(self, endpoint: Endpoint, router: Router, request: web.Request) -> web.StreamResponse:
        received_ns = time.time_ns()
        number = next(self._numbers)
        request_id = _printable(request.headers.get("X-Request-Id")) or f"req-{number}"
        exchange = Exchange(
            request=request,
            endpoint=endpoint,
            entry=TruthEntry(request_id=request_id, path=request.path, received_ns=received_ns),
            source=random.Random(f"{self._settings.seed}/{request_id}"),
            faults=self._settings.faults,
            early_role=self._settings.early_role,
        )
        task = asyncio.current_task()
        assert task is not None
        self._under_way.add(task)
        try:
            return await self._answer(exchange, router)
        except (asyncio.CancelledError, ConnectionError):
            exchange.entry.disconnected = not (exchange.hung_up or self._stopping)
            raise
        finally:
            self._under_way.discard(task)
            exchange.entry.ended_ns = time.time_ns()
            self._truth.write(exchange.entry)

    async def _answer(self, exchange: Exchange, router: Router) -> web.StreamResponse:
        entry, source = exchange.entry, exchange.source
        # Drawn first, so that a request's fault depends on nothing but the seed and its id.
        fault = self._settings.faults.plan.pick(source.random())
        try:
            self._check_access(exchange.request)
            if exchange.endpoint is Endpoint.MESSAGES and "anthropic-version" not in exchange.request.headers:
                raise RequestError(400, "BadRequestError", "anthropic-version: header is required")
            body = await _read(exchange.request)
            job = resolve(exchange.endpoint, body, entry.request_id, self._settings.limits, source)
            replica = router(source)
            entry.replica, entry.fault, entry.input_tokens = replica.name, fault, job.prompt_tokens
            return await exchange.answer(job, replica)
        except RequestError as e:
            return await exchange.send_error(e.status, e.kind, str(e))

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

    async def _metrics(self, replicas: Sequence[Replica], request: web.Request) -> web.Response:
        text = exposition(self._settings.limits.models[0], [replica.reading() for replica in replicas])
        return _page(text)


def make_router(policy: str, replicas: Sequence[Replica]) -> Router:
    """``round_robin``, ``random`` or ``least_inflight`` over the replicas."""
    turns = itertools.cycle(replicas)
    routers: dict[str, Router] = {
        "round_robin": lambda _: next(turns),
        "random": lambda source: source.choice(replicas),
        "least_inflight": lambda _: min(replicas, key=lambda replica: replica.in_flight),
    }
    return routers[policy]


def _same(given: str, asked: str) -> bool:
    """Without telling by its time how much of it is right."""
    given_bytes, asked_bytes = (text.encode("utf-8", "surrogateescape") for text in (given, asked))
    return hmac.compare_digest(given_bytes, asked_bytes)


async def _gpu_metrics(replicas: Sequence[Replica], request: web.Request) -> web.Response:
    return _page(gpu_exposition([replica.gpu() for replica in replicas]))


def _page(text: str) -> web.Response:
    return web.Response(
        body=text.encode(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
    )


async def _health(request: web.Request) -> web.Response:
    return web.Response()


async def _read(request: web.Request) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as e:
        raise RequestError(413, "BadRequestError", f"The body is over {_MAX_BODY_BYTES} bytes.") from e
    except web.RequestPayloadError as e:
        raise RequestError(400, "BadRequestError", f"The body cannot be read: {e}") from e


def _printable(header: str | None) -> str:
    """A header as text that can stand in another header and in JSON."""
    if not header or header.isprintable():
        return header or ""
    return "".join(c if c.isprintable() else "?" for c in header)
