"""Server of known times for machines without a C compiler: ``server.c`` in asyncio.

It has the same options, answers and ``/truth``. It has no kernel stamps of requests, and asyncio's timers are
up to 1 ms late; ``/truth`` reports by how much, so that the measurement stays honest.
"""

import argparse
import asyncio
import json
import re
import resource
import signal
import time
from collections import Counter
from dataclasses import dataclass, field

_ID = b"0" * 16
_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_MODELS = {"object": "list", "data": [{"id": "known", "object": "model"}]}


def event(choices: list[dict[str, object]], **more: object) -> bytes:
    """One ``data:`` event of a chat completion as one HTTP chunk, with an id of zeros."""
    body = {"id": f"chatcmpl-{_ID.decode()}", "object": "chat.completion.chunk", "created": 1700000000}
    text = json.dumps({**body, "model": "known", "choices": choices, **more}, separators=(",", ":"))
    return http_chunk(b"data: " + text.encode() + b"\n\n")


def http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def choice(delta: dict[str, str], finish: str | None = None) -> list[dict[str, object]]:
    return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "token_ids": None}]


def answer_writes(tokens: int) -> list[bytes]:
    """Content of each write of one answer: the role with the first token, the finish reason with the last."""
    usage = {"prompt_tokens": 64, "total_tokens": 64 + tokens, "completion_tokens": tokens}
    writes = [event(choice({"content": " token"}))] * (tokens - 1)
    writes.append(event(choice({"content": " token"}, "length")))
    writes[0] = event(choice({"role": "assistant", "content": ""})) + writes[0]
    end = event([], usage=usage) + http_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
    return [*writes, end]


@dataclass(slots=True)
class Truth:
    """What was sent, and how late: counts by whole microseconds."""

    ttft_s: float
    gap_s: float
    writes: list[bytes]
    streams: int = 0
    requests: int = 0
    completed: int = 0
    broken: int = 0
    tokens: int = 0
    first_lateness: Counter[int] = field(default_factory=Counter)
    lateness: Counter[int] = field(default_factory=Counter)

    def forget(self) -> None:
        self.requests = self.completed = self.broken = self.tokens = 0
        self.first_lateness.clear()
        self.lateness.clear()

    def as_json(self) -> bytes:
        used = resource.getrusage(resource.RUSAGE_SELF)
        figures = {
            "now_ns": time.time_ns(),
            "cpu_s": used.ru_utime + used.ru_stime,
            "ttft_ms": self.ttft_s * 1e3,
            "gap_ms": self.gap_s * 1e3,
            "streams": self.streams,
            "requests": self.requests,
            "completed": self.completed,
            "broken": self.broken,
            "tokens": self.tokens,
            "first_lateness_us": quantiles(self.first_lateness),
            "lateness_us": quantiles(self.lateness),
        }
        return json.dumps(figures).encode()


def quantiles(counts: Counter[int]) -> dict[str, int | None]:
    n = counts.total()
    if not n:
        return {"n": 0, "p50": None, "p99": None, "max": None}
    values = sorted(counts)
    found = []
    for q in (0.5, 0.99):
        rank = int(q * (n - 1))
        for value in values:
            rank -= counts[value]
            if rank < 0:
                found.append(value)
                break
    return {"n": n, "p50": found[0], "p99": found[1], "max": values[-1]}


class Connection(asyncio.Protocol):
    """One client: requests in, one answer at a time, each write at its own absolute time."""

    def __init__(self, truth: Truth, loop: asyncio.AbstractEventLoop) -> None:
        self._truth, self._loop = truth, loop
        self._received = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._id = _ID
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer:
            self._timer.cancel()
            self._truth.streams -= 1
            self._truth.broken += 1

    def data_received(self, data: bytes) -> None:
        now_s = self._loop.time()
        self._received += data
        self._answer_next(now_s)

    def _answer_next(self, now_s: float) -> None:
        end = self._received.find(b"\r\n\r\n")
        if self._timer or end < 0:
            return
        found = _LENGTH.search(self._received, 0, end)
        total = end + 4 + (int(found[1]) if found else 0)
        if len(self._received) < total:
            return
        method, path = self._received[:end].split(b" ", 2)[:2]
        del self._received[:total]
        if method == b"POST":
            self._start(now_s)
        else:
            self._transport.write(self._page(method.decode("latin-1"), path.decode("latin-1")))
            self._answer_next(now_s)

    def _page(self, method: str, path: str) -> bytes:
        status, body = "200 OK", b"{}"
        if path == "/truth":
            body = self._truth.as_json()
            if method == "DELETE":
                self._truth.forget()
        elif path == "/v1/models":
            body = json.dumps(_MODELS).encode()
        elif path != "/health":
            status, body = "404 Not Found", b'{"error":{"message":"no such page"}}'
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    def _start(self, now_s: float) -> None:
        self._id = b"%016x" % self._truth.requests
        self._truth.requests += 1
        self._truth.streams += 1
        self._transport.write(_STREAM_HEAD)
        self._schedule(now_s + self._truth.ttft_s, 0)

    def _schedule(self, due_s: float, token: int) -> None:
        self._timer = self._loop.call_at(due_s, self._write_token, due_s, token)

    def _write_token(self, due_s: float, token: int) -> None:
        truth, now_s = self._truth, self._loop.time()
        self._transport.write(truth.writes[token].replace(_ID, self._id))
        late_us = max(0, int((now_s - due_s) * 1e6))
        truth.lateness[late_us] += 1
        if token == 0:
            truth.first_lateness[late_us] += 1
        truth.tokens += 1
        if token + 2 < len(truth.writes):
            self._schedule(due_s + truth.gap_s, token + 1)
            return
        self._transport.write(truth.writes[-1].replace(_ID, self._id))
        truth.streams -= 1
        truth.completed += 1
        self._timer = None
        self._answer_next(now_s)


async def serve(truth: Truth, port: int) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    server = await loop.create_server(lambda: Connection(truth, loop), "127.0.0.1", port, backlog=4096)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await stopped.wait()
    print(truth.as_json().decode(), flush=True)
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="An LLM server of known times on loopback.")
    parser.add_argument("--port", type=int, default=0, help="0: any free one; the port is printed")
    parser.add_argument("--ttft-ms", type=float, default=50.0)
    parser.add_argument("--gap-ms", type=float, default=20.0)
    parser.add_argument("--tokens", type=int, default=100)
    options = parser.parse_args()
    if options.ttft_ms < 0 or options.gap_ms < 0 or options.tokens < 1:
        parser.error("--ttft-ms and --gap-ms must be at least 0, --tokens at least 1")
    truth = Truth(options.ttft_ms * 1e-3, options.gap_ms * 1e-3, answer_writes(options.tokens))
    asyncio.run(serve(truth, options.port))


if __name__ == "__main__":
    main()
