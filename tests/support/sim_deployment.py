"""A simulated deployment inside the test's own process, and a client that keeps what it saw."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from llm_locust.sim.command import Addresses, Simulation
from llm_locust.sim.engine import EngineProfile
from llm_locust.sim.faults import parse_fault_plan, parse_plan
from llm_locust.sim.gateway import Fleet
from llm_locust.sim.settings import FaultSettings, SimSettings
from llm_locust.sim.telemetry import events_path

#: An engine so fast that tests need not wait; 1 ms a step, none for the prompt.
FAST = EngineProfile(
    ttft_base_ns=0, prefill_per_token_ns=0, step_base_ns=1_000_000, step_per_sequence_ns=0, noise=0.0
)

CHAT = "/chat/completions"


@dataclass(slots=True)
class Seen:
    """What a client saw of one answer, raw."""

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    error: str | None = None  # the class of the client's exception that ended it

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def data(self) -> list[str]:
        """The ``data:`` lines of a stream, in order."""
        lines = self.body.decode().split("\n")
        return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]

    @property
    def events(self) -> list[Any]:
        return [json.loads(line) for line in self.data if line != "[DONE]"]

    @property
    def texts(self) -> list[str]:
        """The text of each chat chunk that has one."""
        deltas = [choice["delta"].get("content") for e in self.events for choice in e.get("choices", [])]
        return [text for text in deltas if text]


@dataclass(frozen=True, slots=True)
class Deployment:
    session: aiohttp.ClientSession
    addresses: Addresses
    truth: Path
    stop: asyncio.Event
    fleet: Fleet
    lines: list[str]  # what it said of its replicas

    async def act(self, words: str) -> None:
        """Do a plan's step now, such as ``kill 0``."""
        (step,) = parse_plan(f"0 {words}")
        await self.fleet.act(step)

    async def post(self, path: str, body: object, base: str | None = None, **headers: str) -> Seen:
        """Send ``body`` (bytes as they are, else as JSON). Headers: ``x_request_id`` is X-Request-Id."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        seen = Seen()
        try:
            url = (base or self.addresses.gateway) + path
            async with self.session.post(url, data=data, headers=named) as response:
                seen.status, seen.headers = response.status, response.headers
                async for block in response.content.iter_any():
                    seen.body += block
        except (aiohttp.ClientError, ConnectionError) as e:
            seen.error = type(e).__name__
        return seen

    async def chat(self, request_id: str = "r", tokens: int = 6, stream: bool = True, **more: Any) -> Seen:
        """A chat request for exactly ``tokens`` tokens."""
        body = {
            "model": "sim",
            "messages": [{"role": "user", "content": "one two three"}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": stream,
        }
        return await self.post(CHAT, body | more, x_request_id=request_id)

    async def get(self, path: str, base: str | None = None, **headers: str) -> tuple[int, str]:
        root = (base or self.addresses.gateway).removesuffix("/v1")
        async with self.session.get(root + path, headers=headers) as response:
            return response.status, await response.text()

    async def events(self, *actions: str) -> list[dict[str, Any]]:
        """The event log, once it has an entry of each of these actions, in any order."""
        async with asyncio.timeout(5):
            while True:
                events = [json.loads(line) for line in events_path(self.truth).read_text().splitlines()]
                if {event["action"] for event in events} >= set(actions):
                    return events
                await asyncio.sleep(0.002)

    async def entries(self, count: int) -> dict[str, dict[str, Any]]:
        """The truth log by request id, once it has ``count`` lines."""
        async with asyncio.timeout(5):
            while len(lines := self.truth.read_text().splitlines()) < count:
                await asyncio.sleep(0.002)
        assert len(lines) == count
        entries = [json.loads(line) for line in lines]
        return {entry["request_id"]: entry for entry in entries}


@asynccontextmanager
async def deployment(
    folder: Path,
    faults: str = "",
    fault_settings: Mapping[str, int] | None = None,
    plan: str = "",
    **settings: Any,
) -> AsyncIterator[Deployment]:
    """Serve on free ports of loopback, with a truth log in ``folder``.

    The gateway looks at its replicas' health when ``fleet.look()`` tells it to.
    """
    truth = folder / "truth.jsonl"
    fault = FaultSettings(plan=parse_fault_plan(faults), **(fault_settings or {}))
    chosen: dict[str, Any] = {"port": 0, "engine": FAST, "faults": fault, "truth": truth}
    chosen |= {"plan": parse_plan(plan), "health_interval_ns": 3_600_000_000_000} | settings
    lines: list[str] = []
    ready: asyncio.Future[Simulation] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()

    async def serve() -> None:
        async with Simulation(SimSettings(**chosen), lines.append) as simulation:
            ready.set_result(simulation)
            await stop.wait()

    serving = asyncio.create_task(serve())
    serving.add_done_callback(lambda _: ready.cancel())
    try:
        await ready
    except asyncio.CancelledError:
        await serving
        raise
    try:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            simulation = ready.result()
            yield Deployment(session, simulation.addresses, truth, stop, simulation.fleet, lines)
    finally:
        stop.set()
        await serving
