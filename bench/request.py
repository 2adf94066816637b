"""CPU time of one request in a worker, by part, without a socket: ``python bench/request.py``.

An answer in the form of common servers, 100 token events that came in a read each, goes the way of a real
one: its prompt is made, its bytes are read and decoded, it becomes a record, and the record goes into a batch
and into the live counts. Each figure is the least of some rounds, and also in multiples of a loop in plain
Python that was timed next to it: those can be compared between machines, and with other work on this one.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

import gevent

from llm_locust.client.call import LiveCall, LlmClient
from llm_locust.client.http.clock import READ
from llm_locust.client.http.pool import Pool
from llm_locust.client.http.target import Target
from llm_locust.client.recording import Answer, Call
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.live.counting import LiveCounts
from llm_locust.live.state import LiveRun
from llm_locust.swarm.channel.shipping import Recorder
from llm_locust.wire.dialects.chat import CHAT, COMPLETIONS
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.dialects.responses import RESPONSES
from llm_locust.workload.draws import parse_lengths
from llm_locust.workload.plan import Workload, WorkloadSpec

EVENTS = 100
ROUND = 256  # requests
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"x-request-id: 0123456789abcdef\r\ntransfer-encoding: chunked\r\n\r\n"
)
_CHUNK = {
    "id": "chatcmpl-0123456789abcdef",
    "object": "chat.completion.chunk",
    "created": 1763000000,
    "model": "m",
}


def _sse(document: dict[str, Any], name: bytes = b"") -> bytes:
    lead = b"event: " + name + b"\n" if name else b""
    return lead + b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


def _chat(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "token_ids": None}
    return _sse({**_CHUNK, "choices": [choice], **more})


def _usage(output_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 64, "total_tokens": 64 + output_tokens, "completion_tokens": output_tokens}


def _chat_answer(event: Callable[[int], bytes]) -> list[bytes]:
    usage = _sse({**_CHUNK, "choices": [], "usage": _usage(EVENTS)})
    body = [event(n) for n in range(EVENTS)]
    return [
        _chat({"role": "assistant", "content": ""}),
        *body,
        _chat({}, "length"),
        usage,
        b"data: [DONE]\n\n",
    ]


def _completion_answer() -> list[bytes]:
    def event(text: str, finish: str | None = None) -> bytes:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
        return _sse({**_CHUNK, "object": "text_completion", "choices": [choice]})

    usage = _sse({**_CHUNK, "choices": [], "usage": _usage(EVENTS)})
    return [*[event(" tok") for _ in range(EVENTS)], event("", "length"), usage, b"data: [DONE]\n\n"]


def _responses_answer() -> list[bytes]:
    def event(n: int) -> bytes:
        name = b"response.output_text.delta"
        of = {"item_id": "msg_0123456789abcdef", "output_index": 0, "content_index": 0, "logprobs": []}
        return _sse({"type": name.decode(), "sequence_number": n, **of, "delta": " tok"}, name)

    usage = {"input_tokens": 64, "output_tokens": EVENTS, "total_tokens": 64 + EVENTS}
    done = {"id": "resp_0", "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    end = {"type": "response.incomplete", "response": {**done, "model": "m", "usage": usage}}
    return [*[event(n) for n in range(EVENTS)], _sse(end, b"response.incomplete")]


#: Answers by their form, each as its pieces.
FORMS: dict[str, tuple[Dialect, list[bytes]]] = {
    "chat": (CHAT, _chat_answer(lambda n: _chat({"content": f" tok{n}"}))),
    "chat, CRLF": (
        CHAT,
        [each.replace(b"\n", b"\r\n") for each in _chat_answer(lambda n: _chat({"content": f" tok{n}"}))],
    ),
    "chat, usage in each": (
        CHAT,
        _chat_answer(lambda n: _chat({"content": f" tok{n}"}, usage=_usage(n + 1))),
    ),
    "chat, reasoning": (CHAT, _chat_answer(lambda n: _chat({"reasoning_content": f" tok{n}"}))),
    "completions": (COMPLETIONS, _completion_answer()),
    "responses": (RESPONSES, _responses_answer()),
}


class Worker:
    """What a worker makes of its requests, without the sockets."""

    def __init__(self, endpoint: Dialect, pieces: list[bytes]) -> None:
        lengths = parse_lengths("64"), parse_lengths(str(EVENTS))
        spec = WorkloadSpec(input_tokens=lengths[0], output_tokens=lengths[1], endpoint=endpoint)
        self._prompts: Iterator[Any] = Workload(spec, 1, 0, 1, "salt").prompts(0)
        self._template = spec.body_template("m")
        self._recorder = Recorder("run", "worker", lambda *_: None)
        self._counts = LiveCounts(LiveRun(id="run"), lambda: 0)
        self._client = LlmClient(Pool(Target.parse("http://127.0.0.1:9")), sink=self._finished)
        self._endpoint = endpoint
        chunks = [f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in pieces] + [b"0\r\n\r\n"]
        self._reads = [_reads([_HEAD + chunks[0]]), _reads(chunks[1:])]
        self._records: list[RequestRecord] = []

    def _finished(self, answer: Answer) -> None:
        self._records.append(answer.record)

    def round(self) -> dict[str, float]:
        """µs of CPU a request, by part."""
        calls: list[LiveCall] = []
        self._records.clear()
        parts: dict[str, Callable[[], object]] = {
            "prompt": lambda: [self._body() for _ in range(ROUND)],
            "begin": lambda: calls.extend(self._begun() for _ in range(ROUND)),
            "read": lambda: self._read(calls),
            "decode": lambda: _decode(calls),
            "record": lambda: [live.conclude() for live in calls],
            "batch": self._batch,
            "live counts": self._count,
        }
        found: dict[str, float] = {}
        for name, part in parts.items():
            began_ns = time.thread_time_ns()
            part()
            found[name] = (time.thread_time_ns() - began_ns) / 1000 / ROUND
        for record in self._records:
            if record.outcome is not Outcome.OK or len(record.arrivals_ns) != EVENTS:
                sys.exit(f"the answer was not read: {record}")
        return found

    def _body(self) -> bytes:
        return self._template.encode(next(self._prompts))

    def _begun(self) -> LiveCall:
        client = self._client
        call = Call(
            request_id=client.new_request_id(),
            name="chat",
            scheduled_ns=time.time_ns(),
            endpoint=self._endpoint,
            asked_output_tokens=EVENTS,
        )
        route = client.routes.choose(call)
        return LiveCall(client, route, client.request(route, "/v1", b"{}", call), call)

    def _read(self, calls: list[LiveCall]) -> None:
        for live in calls:
            for read in self._reads:
                live._exchange.on_reads(*read)

    def _batch(self) -> None:
        for record in self._records:
            self._recorder.add(record)
        self._recorder.close_batch()

    def _count(self) -> None:
        for record in self._records:
            self._counts.add(record)
        self._counts.report()


def _decode(calls: list[LiveCall]) -> None:
    for live in calls:
        live.settle()


def _reads(pieces: list[bytes]) -> tuple[bytes, bytes]:
    """Pieces that a connection got in a read each, as its reader gives them."""
    ends = accumulate(map(len, pieces))
    now_ns, real_ns = time.monotonic_ns(), time.time_ns()
    return b"".join(pieces), b"".join(READ.pack(end, real_ns, now_ns) for end in ends)


def plain_us() -> float:
    """µs of CPU of the loop in plain Python."""
    began_ns = time.thread_time_ns()
    found: dict[int, str] = {}
    for n in range(1000):
        found[n & 63] = str(n)
    return (time.thread_time_ns() - began_ns) / 1000


def measured(endpoint: Dialect, pieces: list[bytes], rounds: int) -> tuple[dict[str, float], float]:
    """Least µs by part, and those of the plain loop."""
    worker, least, plain = Worker(endpoint, pieces), dict[str, float](), float("inf")
    for _ in range(rounds):
        found = worker.round()
        plain = min(plain, *(plain_us() for _ in range(20)))
        least = {part: min(us, least.get(part, us)) for part, us in found.items()}
    return least, plain


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    gevent.spawn(_print, rounds).get()


def _print(rounds: int) -> None:
    for name, (endpoint, pieces) in FORMS.items():
        parts, plain = measured(endpoint, pieces, rounds)
        total = sum(parts.values())
        print(f"{name:20} {total:7.0f} µs a request = {total / plain:5.2f} plain loops of {plain:.0f} µs")
        print("    " + "  ".join(f"{part} {us:.0f}" for part, us in parts.items()))


if __name__ == "__main__":
    main()
