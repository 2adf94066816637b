"""Running deployment: sockets, signals, start and stop."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from llm_locust.sim.engine.engine import Engine
from llm_locust.sim.faults.events import EventLog, events_path
from llm_locust.sim.faults.faults import Refusal
from llm_locust.sim.gateway.fleet import Fleet
from llm_locust.sim.gateway.gateway import Gateway
from llm_locust.sim.gateway.port import Port, PortError, listen
from llm_locust.sim.gateway.replica import Replica
from llm_locust.sim.gateway.upstream import Upstream
from llm_locust.sim.settings.deployment import SimSettings
from llm_locust.sim.truth import TruthLog


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses of a deployment, as base URLs with ``/v1``."""

    gateway: str
    replicas: tuple[str, ...]  # empty without ports of their own


class Simulation:
    """A gateway, its replicas and the actions on them; serves while its context is open."""

    def __init__(self, settings: SimSettings, say: Callable[[str], None] = lambda line: None) -> None:
        """``say`` is called with a line about each action on a replica."""
        self._settings = settings
        self._say = say
        self._closing = contextlib.AsyncExitStack()

    addresses: Addresses
    fleet: Fleet

    async def __aenter__(self) -> Self:
        """
        Raises:
            PortError: a port is busy or not allowed.
            TruthError: the truth log, or the event log beside it, cannot be written.
        """
        async with self._closing:
            await self._open()
            self._closing = self._closing.pop_all()
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Break off all requests; their truth is written when this returns."""
        await self._closing.aclose()

    async def _open(self) -> None:
        settings, closing = self._settings, self._closing
        truth = closing.enter_context(TruthLog(settings.truth))
        path = events_path(settings.truth) if settings.truth else None
        events = closing.enter_context(EventLog(path, self._say))
        gateway = Gateway(settings, truth, events)
        upstreams = [_upstream(settings, index) for index in range(settings.replicas)]
        front, *own = self._ports(gateway, upstreams)
        for port in (front, *own):
            closing.push_async_callback(port.cleanup)
        closing.push_async_callback(gateway.stop)  # before the ports, which wait for its requests
        for port in (front, *own):
            await port.open()
        events.begin()
        self.addresses = Addresses(front.url, tuple(port.url for port in own))
        self.fleet = Fleet(upstreams, gateway, events)
        for task in self._what_happens(front):
            closing.push_async_callback(_end, asyncio.create_task(task))

    def _ports(self, gateway: Gateway, upstreams: Sequence[Upstream]) -> list[Port]:
        """Open the gateway's port, and those of all replicas or of none. If one fails, none is open."""
        settings = self._settings
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(listen(settings.host, settings.port))]
            for index in range(settings.replicas if settings.replica_ports is not None else 0):
                number = settings.replica_ports + index if settings.replica_ports else 0
                sockets.append(stack.enter_context(listen(settings.host, number)))
            stack.pop_all()
        ports = [Port(gateway.application(upstreams), sockets[0], settings.keep_alive_s)]
        for upstream, sock in zip(upstreams, sockets[1:], strict=False):
            upstream.port = Port(gateway.replica_application(upstream), sock, settings.keep_alive_s)
            ports.append(upstream.port)
        return ports

    def _what_happens(self, front: Port) -> Iterator[Coroutine[Any, Any, None]]:
        settings = self._settings
        if settings.faults.plan.refusal:
            yield _refuse(front, settings.faults.plan.refusal)
        yield self.fleet.follow(settings.plan)
        yield self.fleet.check_health(settings.health_interval_ns)


async def serve(
    settings: SimSettings,
    on_ready: Callable[[Addresses], None],
    stop: asyncio.Event | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Serve until ``stop`` is set, or until SIGINT or SIGTERM without one.

    Raises:
        PortError, TruthError: as :class:`Simulation`.
    """
    async with Simulation(settings, say) as simulation:
        stop = stop or stop_on_signals()
        on_ready(simulation.addresses)
        await stop.wait()


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel a task that runs, or raise the exception of one that has failed."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _upstream(settings: SimSettings, index: int) -> Upstream:
    engine = Engine(settings.engine, f"{settings.seed}/replica-{index}")
    return Upstream(Replica(index, engine, settings.role(index)), settings.speeds.get(index, 1.0))


async def _refuse(front: Port, refusal: Refusal) -> None:
    """Close the listening socket for the span; open connections stay open."""
    await asyncio.sleep(refusal.after_ns * 1e-9)
    await front.close()
    await asyncio.sleep(refusal.duration_ns * 1e-9)
    try:
        await front.open()
    except PortError as e:
        print(f"llm-locust sim: the refusal does not end: {e}", file=sys.stderr)


def stop_on_signals() -> asyncio.Event:
    """Event that SIGINT and SIGTERM set from now on."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
