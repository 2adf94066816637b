"""A replica: its port, its engine on asyncio's clock, and how a gateway picks it among others."""

import asyncio
import math
import os
import random
import socket
import struct
import time
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Protocol

from aiohttp import web

from llm_locust.sim.engine import Engine, EngineSequence
from llm_locust.sim.jobs import Job, RequestError
from llm_locust.sim.telemetry import GpuReading, ReplicaReading, ReplicaStats
from llm_locust.wire.headers import SessionHeader

# --- Routing policies of common balancers and gateways, without IO
#
# A policy knows what a gateway knows: which replicas are in rotation, how many of the gateway's own requests
# each of them has in flight, and the request. Replicas are identified by index.


#: Requests in flight by replica, for those in rotation; never empty.
Loads = Mapping[int, int]

#: How many requests more than the least loaded replica a replica with a matching prefix may have in flight.
PREFIX_IMBALANCE = 32
#: Block hashes remembered per replica: with 16 tokens each, a KV cache of 500,000 tokens.
PREFIX_MEMORY_BLOCKS = 31_250


@dataclass(frozen=True, slots=True)
class Routed:
    """Facts of a request known to a gateway.

    Args:
        session: the ``X-Session-Id`` header if there is one, else the connection.
        block_hashes: chained hashes of the prompt's full blocks, as in the engines' prefix caches.
        source: the request's own random generator.
    """

    session: str
    block_hashes: tuple[int, ...]
    source: random.Random


class Policy(Protocol):
    """Picks one of ``loads``' replicas, and keeps the state that it needs."""

    def pick(self, loads: Loads, request: Routed) -> int: ...


class RoundRobinRouting:
    """The next one in rotation by index, whatever it has in flight."""

    def __init__(self) -> None:
        self._last = -1

    def pick(self, loads: Loads, request: Routed) -> int:
        self._last = _next_after(self._last, loads)
        return self._last


class RandomRouting:
    """A random one, uniformly."""

    def pick(self, loads: Loads, request: Routed) -> int:
        return request.source.choice(sorted(loads))


class LeastInflightRouting:
    """The one with the fewest in flight; equal ones in turn (nginx' least_conn)."""

    def __init__(self) -> None:
        self._last = -1

    def pick(self, loads: Loads, request: Routed) -> int:
        least = min(loads.values())
        self._last = _next_after(self._last, [index for index, load in loads.items() if load == least])
        return self._last


class LeastRequest:
    """The one with fewer in flight of two drawn at random: Envoy's LEAST_REQUEST, power of two choices."""

    def pick(self, loads: Loads, request: Routed) -> int:
        drawn = request.source.sample(sorted(loads), min(2, len(loads)))
        return min(drawn, key=loads.__getitem__)


class StickyRouting:
    """The same one for the same session, by rendezvous hashing.

    Each pair of session and replica has a hash, and the highest one in rotation wins, so that a replica that
    leaves moves only its own sessions, and gets them back when it returns.
    """

    def pick(self, loads: Loads, request: Routed) -> int:
        return max(loads, key=lambda index: _rank(request.session, index))


class PrefixAware:
    """The one whose recently routed prompts share the longest prefix with this one.

    It estimates the replicas' prefix caches from the requests that it has routed and queries none of them,
    like the Kubernetes inference gateway's prefix plugin and SGLang's router. A replica with over
    ``imbalance`` more requests in flight than the least loaded one is not considered. If no considered one
    has the first block, the least loaded gets the request; equally long prefixes go to the less loaded. The
    prompts of a replica that leaves the rotation are forgotten, because its cache is unknown when it returns.
    """

    def __init__(self, imbalance: int = PREFIX_IMBALANCE, memory_blocks: int = PREFIX_MEMORY_BLOCKS) -> None:
        self._imbalance = imbalance
        self._memory_blocks = memory_blocks
        self._routed: dict[int, OrderedDict[int, None]] = {}
        self._fallback = LeastInflightRouting()

    def pick(self, loads: Loads, request: Routed) -> int:
        for gone in self._routed.keys() - loads.keys():
            del self._routed[gone]
        bound = min(loads.values()) + self._imbalance
        shared = {i: self._shared(i, request.block_hashes) for i, load in loads.items() if load <= bound}
        longest = max(shared.values())
        if longest:
            best = {index: loads[index] for index, blocks in shared.items() if blocks == longest}
        else:
            best = dict(loads)
        picked = self._fallback.pick(best, request)
        self._remember(picked, request.block_hashes)
        return picked

    def _shared(self, index: int, hashes: Iterable[int]) -> int:
        routed = self._routed.get(index, ())
        blocks = 0
        for block in hashes:
            if block not in routed:
                break
            blocks += 1
        return blocks

    def _remember(self, index: int, hashes: tuple[int, ...]) -> None:
        routed = self._routed.setdefault(index, OrderedDict())
        # From the last block to the first: a prefix is forgotten from its end.
        for block in reversed(hashes):
            routed[block] = None
            routed.move_to_end(block)
        while len(routed) > self._memory_blocks:
            routed.popitem(last=False)


#: Policies by name.
POLICIES: Mapping[str, Callable[[], Policy]] = {
    "round_robin": RoundRobinRouting,
    "random": RandomRouting,
    "least_inflight": LeastInflightRouting,
    "least_request": LeastRequest,
    "sticky": StickyRouting,
    "prefix": PrefixAware,
}


def make_policy(name: str, prefix_imbalance: int = PREFIX_IMBALANCE) -> Policy:
    """Create a policy by name, one of :data:`POLICIES`."""
    return PrefixAware(prefix_imbalance) if name == "prefix" else POLICIES[name]()


def _next_after(last: int, indices: Iterable[int]) -> int:
    ordered = sorted(indices)
    return next((index for index in ordered if index > last), ordered[0])


def _rank(session: str, index: int) -> bytes:
    return blake2b(f"{index}/{session}".encode("utf-8", "surrogateescape"), digest_size=8).digest()


# --- One listening port with its application, which can be closed and reopened


_BACKLOG = 4_096
_SHUTDOWN_TIMEOUT_S = 0.5


class PortError(OSError):
    """A port that cannot be listened on; the text says which, why, and what to do."""


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket.

    Raises:
        PortError: a port is busy or not allowed.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as e:
        reason = os.strerror(e.errno) if isinstance(e, OSError) and e.errno and e.errno > 0 else str(e)
        raise PortError(
            f"cannot listen on {host}:{port}: {reason}; choose another port, or 0 for a free one"
        ) from e


_LINGER_ZERO = struct.pack("ii", 1, 0)


def reset_connection(transport: asyncio.Transport) -> None:
    """Close the connection at once with an RST."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
    transport.abort()


class Port:
    """Serves an application on a socket. Closed and opened again, it has the same address."""

    def __init__(self, app: web.Application, sock: socket.socket, keep_alive_s: float) -> None:
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=keep_alive_s,
            shutdown_timeout=_SHUTDOWN_TIMEOUT_S,
        )
        self._socket: socket.socket | None = sock
        self._address: tuple[str, int] = sock.getsockname()[:2]
        self._site: web.SockSite | None = None

    @property
    def url(self) -> str:
        """Base URL, with ``/v1``."""
        host, port = self._address
        return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"

    async def open(self) -> None:
        """Listen, for the first time or again.

        Raises:
            PortError: another process has taken the port meanwhile.
        """
        if self._runner.server is None:
            await self._runner.setup()
        sock, self._socket = self._socket or listen(*self._address), None
        self._site = web.SockSite(self._runner, sock, backlog=_BACKLOG)
        await self._site.start()

    async def close(self) -> None:
        """Refuse new connections; open ones stay open."""
        site, self._site = self._site, None
        if site is not None:
            await site.stop()

    def reset_connections(self) -> None:
        """Close every open connection at once with an RST, as the kernel does for a process that is gone."""
        server = self._runner.server
        for connection in server.connections if server is not None else ():
            if isinstance(connection.transport, asyncio.Transport):
                reset_connection(connection.transport)

    async def cleanup(self) -> None:
        """End the service for good, or close the socket of one that was never opened."""
        if self._socket is not None:
            self._socket.close()
        await self._runner.cleanup()


# --- An engine on asyncio's clock: each step's end is awaited as an absolute time


#: Called once for each token of a sequence, when it is due.
TokenSink = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Transfer:
    """KV cache of a prompt that another replica has computed, on its way for ``duration_ns``. If the transfer
    ``fails``, it does so after that time, and the prompt is computed again."""

    duration_ns: int
    fails: bool = False


@dataclass(slots=True)
class _Running:
    sink: TokenSink
    submitted_ns: int
    finish_reason: str
    transfer: Transfer | None
    first_token_ns: int = 0
    last_token_ns: int = 0


class Replica:
    """One simulated server. Its engine's virtual time is this host's CLOCK_MONOTONIC.

    A late wake-up of asyncio does not move the next step: lateness affects the time of a token, never the
    rate of tokens.
    """

    def __init__(self, index: int, engine: Engine, role: str = "replica") -> None:
        self.name = f"{role}-{index}"
        self._label = str(index)
        self._engine = engine
        self._stats = ReplicaStats()
        self._sequences: dict[EngineSequence, _Running] = {}
        self._next_step: asyncio.TimerHandle | None = None
        self._began_ns = time.monotonic_ns()

    @property
    def in_flight(self) -> int:
        """Sequences with tokens still to be generated."""
        return len(self._sequences)

    @property
    def slow_factor(self) -> float:
        """Factor on the duration of each step that starts from now on."""
        return self._engine.slow_factor

    @slow_factor.setter
    def slow_factor(self, factor: float) -> None:
        if not 0 < factor < math.inf:
            raise ValueError(f"a step cannot last {factor} times as long; give a factor above 0")
        self._engine.slow_factor = factor

    def submit(
        self,
        prompt_tokens: int,
        output_tokens: int,
        pace: int,
        finish_reason: str,
        sink: TokenSink,
        *,
        block_hashes: Sequence[int] = (),
        transfer: Transfer | None = None,
    ) -> EngineSequence:
        """Queue a request now; it is ready when its KV ``transfer`` has ended.

        Args:
            pace: number of steps per token.
            sink: called ``output_tokens`` times, unless the request is cancelled or the replica killed.
            block_hashes: the prefix cache's keys of the prompt's full blocks.

        Raises:
            ValueError: the request is longer than the whole KV cache.
        """
        now_ns = time.monotonic_ns()
        ready_ns = now_ns + self._engine.profile.ttft_base_ns + (transfer.duration_ns if transfer else 0)
        received = 0 if transfer is None or transfer.fails else max(0, prompt_tokens - 1)
        sequence = EngineSequence(prompt_tokens, output_tokens, ready_ns, pace, block_hashes, received)
        self._engine.submit(sequence)
        self._sequences[sequence] = _Running(sink, now_ns, finish_reason, transfer)
        if self._next_step is None:
            self._await_step()
        return sequence

    def cancel(self, sequence: EngineSequence) -> None:
        """Free what the sequence holds; one that has ended is ignored."""
        if self._sequences.pop(sequence, None) is not None:
            self._engine.cancel(sequence)

    def kill(self) -> None:
        """Lose everything, as a killed process: requests, caches, counters. It can serve again.

        No sink is called afterwards: the caller must end the answers that wait for tokens.
        """
        if self._next_step is not None:
            self._next_step.cancel()
            self._next_step = None
        self._engine.clear(time.monotonic_ns())
        self._stats = ReplicaStats()
        self._sequences.clear()

    def reset_prefix_cache(self) -> None:
        """Forget all prompts seen so far. Running sequences go on."""
        self._engine.reset_prefix_cache()

    def reading(self) -> ReplicaReading:
        engine = self._engine
        return ReplicaReading(
            self._label,
            engine.num_running,
            engine.num_waiting,
            engine.kv_cache_usage,
            self._stats,
            engine.counters,
        )

    def gpu(self) -> GpuReading:
        """Reading of a device that does nothing but this engine's steps."""
        now_ns = time.monotonic_ns()
        # A step counts as a whole from its start, so that the current one must be cut off at now.
        busy_ns = min(self._engine.busy_ns, now_ns - self._began_ns)
        in_step = self._next_step is not None
        return GpuReading(self._label, now_ns - self._began_ns, busy_ns, in_step, self._engine.kv_cache_usage)

    def _await_step(self) -> None:
        end_ns = self._engine.start_step()
        self._next_step = None
        if end_ns is not None:
            self._next_step = asyncio.get_running_loop().call_at(end_ns * 1e-9, self._step)

    def _step(self) -> None:
        try:
            emitted = self._engine.finish_step()
            self._stats.generation_tokens += len(emitted)
            for sequence in emitted:
                running = self._sequences[sequence]
                self._count(sequence, running)
                running.sink()
        finally:
            self._await_step()

    def _count(self, sequence: EngineSequence, running: _Running) -> None:
        """Observe the token that the sequence has just got."""
        now_ns = time.monotonic_ns()
        stats = self._stats
        if sequence.generated == 1:
            running.first_token_ns = now_ns
            self._count_prompt(sequence, running.transfer)
            stats.ttft_s.observe((now_ns - running.submitted_ns) * 1e-9)
        else:
            stats.itl_s.observe((now_ns - running.last_token_ns) * 1e-9)
        running.last_token_ns = now_ns
        if sequence.generated == sequence.output_tokens:
            del self._sequences[sequence]
            self._observe_whole(sequence, running)

    def _count_prompt(self, sequence: EngineSequence, transfer: Transfer | None) -> None:
        tokens, received = sequence.prompt_tokens, sequence.received
        cached = 0 if received else sequence.cached_tokens or 0
        self._stats.count_prompt(tokens, cached=cached, received=received)
        if transfer is not None:
            self._stats.count_transfer(transfer.duration_ns * 1e-9, 0 if transfer.fails else tokens)

    def _observe_whole(self, sequence: EngineSequence, running: _Running) -> None:
        stats, first_ns, end_ns = self._stats, running.first_token_ns, running.last_token_ns
        assert sequence.scheduled_ns is not None
        stats.finished[running.finish_reason] += 1
        stats.e2el_s.observe((end_ns - running.submitted_ns) * 1e-9)
        stats.queue_s.observe((sequence.scheduled_ns - sequence.ready_ns) * 1e-9)
        stats.prefill_s.observe((first_ns - sequence.scheduled_ns) * 1e-9)
        if sequence.generated > 1:
            stats.tpot_s.observe((end_ns - first_ns) / (sequence.generated - 1) * 1e-9)


# --- A replica as seen by its gateway and its operator: its true state, and the gateway's view


class ReplicaState(StrEnum):
    """True state of a replica."""

    UP = "up"
    DRAINING = "draining"  # accepts nothing new, finishes what it has
    DOWN = "down"


@dataclass(slots=True, eq=False)
class Upstream:
    """One replica. ``base_factor`` is the factor on its steps while no plan slows it.

    ``in_rotation`` is the gateway's view, which follows the true state with a delay; ``in_flight`` counts its
    unfinished requests; ``profiling`` is set by ``/start_profile``.
    """

    replica: Replica
    base_factor: float = 1.0
    port: Port | None = None
    state: ReplicaState = ReplicaState.UP
    in_rotation: bool = True
    in_flight: int = 0
    profiling: bool = False

    def __post_init__(self) -> None:
        self.slow(1.0)

    @property
    def name(self) -> str:
        return self.replica.name

    def slow(self, factor: float) -> None:
        """Make every later step last ``factor`` times as long as normal for this replica."""
        self.replica.slow_factor = self.base_factor * factor


# --- What is behind one port, and which replica a request goes to


#: Header with the session for the sticky policy.
SESSION_HEADER = "X-Session-Id"


@dataclass(frozen=True, slots=True)
class Front:
    """The gateway's policy and replicas, or one replica without a policy.

    A request whose ``session_header`` names a replica in rotation goes to that one, whatever the policy.
    ``prefill`` picks the replica that computes its prompt first; None if its own one does.
    """

    upstreams: Sequence[Upstream]
    policy: Policy | None
    session_header: SessionHeader | None = None
    prefill: "Front | None" = None

    @property
    def gone(self) -> bool:
        """Whether it is the port of a replica that was killed, which has reset its connections."""
        return self.policy is None and self.upstreams[0].state is ReplicaState.DOWN

    def route(self, request: web.Request, job: Job, source: random.Random) -> Upstream:
        """Replica of a request.

        Raises:
            RequestError: 503 if none accepts requests.
        """
        if self.policy is None:
            (upstream,) = self.upstreams
            if upstream.state is ReplicaState.DRAINING:
                raise RequestError(503, "ServiceUnavailableError", f"{upstream.name} takes no new requests.")
            return upstream
        loads = {i: upstream.in_flight for i, upstream in enumerate(self.upstreams) if upstream.in_rotation}
        if not loads:
            raise RequestError(503, "ServiceUnavailableError", "No replica is in rotation.")
        named = self.session_replica(request)
        for index in loads:
            if self.upstreams[index].name == named:
                return self.upstreams[index]
        routed = Routed(_session(request), job.block_hashes, source)
        return self.upstreams[self.policy.pick(loads, routed)]

    def session_replica(self, request: web.Request) -> str | None:
        """Name of the replica in the request's session header; None without one, or if it is none of ours."""
        if self.session_header is None:
            return None
        if self.session_header.cookie is not None:
            given = request.cookies.get(self.session_header.cookie.decode())
        else:
            given = request.headers.get(self.session_header.sends.decode())
        try:
            return None if given is None else b64decode(given, validate=True).decode()
        except ValueError:
            return None


def session_fields(header: SessionHeader, replica: str) -> dict[str, str]:
    """Response headers that give a session its replica, in the form of llm-d's: base64 of its name."""
    token = b64encode(replica.encode()).decode()
    if header.cookie is not None:
        return {"Set-Cookie": f"{header.cookie.decode()}={token}; Path=/; HttpOnly"}
    return {header.takes.decode(): token}


def _session(request: web.Request) -> str:
    """Session given by the client, else the connection, which is all that a TCP balancer has."""
    named = request.headers.get(SESSION_HEADER)
    if named:
        return named
    peer = request.transport.get_extra_info("peername") if request.transport else None
    return str(peer)
