"""Operator of the deployment: executes a plan's steps, and updates the gateway's view of replica health."""

import asyncio
import sys
from collections.abc import Sequence

from llm_locust.sim.faults import Action, EventLog, PlanStep
from llm_locust.sim.gateway.gateway import Gateway
from llm_locust.sim.gateway.replica import PortError, ReplicaState, Upstream


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
