"""``llm-locust sim``: the process that serves until it is stopped."""

import argparse
import asyncio
import contextlib
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from llm_locust.sim.engine import Engine, EngineProfile
from llm_locust.sim.faults import FaultPlan, FaultPlanError, PlanError, Refusal, parse_fault_plan, parse_plan
from llm_locust.sim.gateway import Fleet, Gateway
from llm_locust.sim.jobs import ModelLimits
from llm_locust.sim.replica import Port, PortError, Replica, Upstream, listen
from llm_locust.sim.settings import (
    ENGINE_KEYS,
    FaultSettings,
    SettingsError,
    SimSettings,
    add_arguments,
    check,
    read_profile,
)
from llm_locust.sim.telemetry import EventLog, GpuKind, JsonLines, TruthError, events_path
from llm_locust.wire.foreign_text import one_line

__all__ = ["DESCRIPTION", "add_arguments", "run"]


# --- Running deployment: sockets, signals, start and stop


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
        truth = closing.enter_context(JsonLines(settings.truth, "truth log"))
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


DESCRIPTION = "Serve a simulated deployment: a gateway and replicas that stream as vLLM does."

#: Option names, and the engine's field of each.
_ENGINE_OPTIONS = {"overlap": "overlap", **{key: field for key, (field, _) in ENGINE_KEYS.items()}}


def settings_from(args: argparse.Namespace) -> SimSettings:
    """Settings of parsed options: an engine's value from its option, else the profile, else the default.

    Raises:
        FaultPlanError, PlanError, SettingsError: with a one-line message.
    """
    profile = read_profile(args.profile) if args.profile else None
    given = {field: getattr(args, name) for name, field in _ENGINE_OPTIONS.items()}
    given = {field: value for field, value in given.items() if value is not None}
    engine: dict[str, Any] = {**(profile.engine if profile else {}), **given}
    longest = {"max_model_len": args.max_model_len or (profile and profile.max_model_len)}
    settings = SimSettings(
        host=args.host,
        port=args.port,
        replicas=args.replicas,
        prefill_replicas=args.prefill_replicas,
        kv_transfer_ns=args.kv_transfer,
        replica_ports=args.replica_ports,
        routing=args.routing,
        session_header=args.session_header,
        prefix_imbalance=args.prefix_imbalance,
        speeds=_speeds(args.replica_speed or ()),
        plan=parse_plan(args.plan) if args.plan.strip() else (),
        health_interval_ns=args.health_interval,
        seed=args.seed,
        engine=EngineProfile(**engine),
        limits=ModelLimits(
            models=tuple(args.model or ("sim",)),
            mean_output_tokens=args.mean_output_tokens,
            eos=args.eos,
            **{name: value for name, value in longest.items() if value},
        ),
        gpu=profile.gpu if profile else GpuKind(),
        profile=profile.source if profile else None,
        faults=FaultSettings(
            plan=parse_fault_plan(args.faults) if args.faults.strip() else FaultPlan(),
            after_tokens=args.fault_after_tokens,
            stall_ns=args.stall,
            slow_factor=args.slow_factor,
        ),
        api_key=args.api_key,
        truth=args.truth,
        early_role=args.early_role,
        keep_alive_s=args.keep_alive * 1e-9,
    )
    check(settings)
    return settings


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM. Return the exit code: 0, or 2 for invalid settings."""
    try:
        settings = settings_from(args)
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        asyncio.run(_serve(settings, args.end_with_stdin))
    except (FaultPlanError, PlanError, SettingsError, PortError, TruthError) as e:
        print(f"llm-locust sim: {one_line(str(e))}", file=sys.stderr)
        return 2
    return 0


async def _serve(settings: SimSettings, end_with_stdin: bool) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if end_with_stdin:
        _stop_at_end_of_stdin(stop)
    async with Simulation(settings, _say) as simulation:
        _announce(settings, simulation.addresses)
        await stop.wait()


def _stop_at_end_of_stdin(stop: asyncio.Event) -> None:
    stdin = sys.stdin.fileno()

    def read() -> None:
        if not os.read(stdin, 4096):
            asyncio.get_running_loop().remove_reader(stdin)
            stop.set()

    try:
        asyncio.get_running_loop().add_reader(stdin, read)
    except OSError as e:  # a file is always readable
        raise SettingsError("--end-with-stdin: standard input is not a pipe") from e


def _speeds(given: Iterable[Mapping[int, float]]) -> dict[int, float]:
    speeds: dict[int, float] = {}
    for part in given:
        for index, factor in part.items():
            if index in speeds:
                raise SettingsError(f"--replica-speed names replica {index} twice; leave one out")
            speeds[index] = factor
    return speeds


def _announce(settings: SimSettings, addresses: Addresses) -> None:
    models = ", ".join(settings.limits.models)
    print(f"listening on {addresses.gateway} ({settings.replicas} replicas, model {models})", flush=True)
    for index, url in enumerate(addresses.replicas):
        print(f"{settings.role(index)}-{index} on {url}", flush=True)
    if settings.profile:
        print(f"engine: {settings.profile}", flush=True)


def _say(line: str) -> None:
    # The process that started it may have closed the pipe; the deployment goes on.
    with contextlib.suppress(OSError):
        print(line, flush=True)
