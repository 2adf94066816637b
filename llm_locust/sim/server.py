"""The running deployment: sockets, signals, start and stop."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aiohttp import web

from llm_locust.sim.engine import Engine
from llm_locust.sim.faults import Refusal
from llm_locust.sim.gateway import Gateway
from llm_locust.sim.replica import Replica
from llm_locust.sim.settings import SimSettings
from llm_locust.sim.truth import TruthLog

_BACKLOG = 4_096
_SHUTDOWN_TIMEOUT_S = 0.5


class PortError(OSError):
    """A port that cannot be listened on; the text says which, why, and what to do."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a deployment listens, as base URLs with ``/v1``."""

    gateway: str
    replicas: tuple[str, ...]  # empty where they have no ports of their own


async def serve(
    settings: SimSettings, on_ready: Callable[[Addresses], None], stop: asyncio.Event | None = None
) -> None:
    """Serve until ``stop`` is set, or until SIGINT or SIGTERM where none is given.

    Raises:
        PortError: a port is busy or not allowed.
        TruthError: the truth log cannot be written.
    """
    with contextlib.ExitStack() as stack:
        truth = stack.enter_context(TruthLog(settings.truth))
        gateway_socket = _listen(settings.host, settings.port)
        stack.callback(gateway_socket.close)
        replica_sockets = []
        for index in range(settings.replicas if settings.replica_ports is not None else 0):
            port = settings.replica_ports + index if settings.replica_ports else 0
            replica_sockets.append(_listen(settings.host, port))
            stack.callback(replica_sockets[-1].close)
        await _run(settings, truth, gateway_socket, replica_sockets, on_ready, stop or _stop_on_signals())


async def _run(
    settings: SimSettings,
    truth: TruthLog,
    gateway_socket: socket.socket,
    replica_sockets: Sequence[socket.socket],
    on_ready: Callable[[Addresses], None],
    stop: asyncio.Event,
) -> None:
    gateway = Gateway(settings, truth)
    replicas = [
        Replica(index, Engine(settings.engine, f"{settings.seed}/replica-{index}"))
        for index in range(settings.replicas)
    ]
    runners = [_runner(gateway.application(replicas), settings)]
    if replica_sockets:
        runners += [_runner(gateway.application([replica]), settings) for replica in replicas]
    refusing = None
    try:
        for runner, sock in zip(runners, (gateway_socket, *replica_sockets), strict=True):
            await runner.setup()
            await web.SockSite(runner, sock, backlog=_BACKLOG).start()
        if settings.faults.plan.refusal:
            refusing = asyncio.create_task(_refuse(runners[0], settings.faults.plan.refusal))
        on_ready(Addresses(_url(gateway_socket), tuple(_url(sock) for sock in replica_sockets)))
        await stop.wait()
    finally:
        if refusing:
            refusing.cancel()
        await gateway.stop()
        await asyncio.gather(*(runner.cleanup() for runner in runners))


def _runner(app: web.Application, settings: SimSettings) -> web.AppRunner:
    return web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,
        keepalive_timeout=settings.keep_alive_s,
        shutdown_timeout=_SHUTDOWN_TIMEOUT_S,
    )


async def _refuse(runner: web.AppRunner, refusal: Refusal) -> None:
    """Take the listening socket away for the span; connections that are open stay open."""
    await asyncio.sleep(refusal.after_ns * 1e-9)
    site = next(iter(runner.sites))
    host, port = runner.addresses[0][:2]
    await site.stop()
    await asyncio.sleep(refusal.duration_ns * 1e-9)
    try:
        await web.SockSite(runner, _listen(host, port), backlog=_BACKLOG).start()
    except PortError as e:
        print(f"llm-locust sim: the refusal does not end: {e}", file=sys.stderr)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as e:
        reason = os.strerror(e.errno) if isinstance(e, OSError) and e.errno and e.errno > 0 else str(e)
        raise PortError(
            f"cannot listen on {host}:{port}: {reason}; choose another port, or 0 for a free one"
        ) from e


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
