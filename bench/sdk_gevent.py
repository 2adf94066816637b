"""The usual way, for comparison: users in gevent that iterate the openai SDK's own stream.

Times are taken around the iterator, as such a user does. Prints ``{"window": "open"}`` after the warm-up, and
one line of JSON at the end.
"""

from gevent import monkey

monkey.patch_all()

import argparse  # noqa: E402
import json  # noqa: E402
import time  # noqa: E402
from dataclasses import dataclass, field  # noqa: E402

import gevent  # noqa: E402
import numpy as np  # noqa: E402
import openai  # noqa: E402


@dataclass(slots=True)
class Window:
    """Data of the users while it was open."""

    is_open: bool = False
    tokens: int = 0
    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)


def one_request(client: openai.OpenAI, window: Window) -> None:
    sent_s = time.perf_counter()
    first_s = last_s = float("nan")
    tokens = 0
    stream = client.chat.completions.create(
        model="known",
        messages=[{"role": "user", "content": "How much is it?"}],
        stream=True,
        max_tokens=100,
    )
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            last_s = time.perf_counter()
            tokens += 1
            window.tokens += window.is_open
            if tokens == 1:
                first_s = last_s
                if window.is_open:
                    window.ttft_s.append(first_s - sent_s)
    if window.is_open and tokens > 1:
        window.tpot_s.append((last_s - first_s) / (tokens - 1))


def user(base_url: str, delay_s: float, window: Window) -> None:
    """A user with a client of its own: a shared one keeps no more than 100 connections alive."""
    http_client = openai.DefaultHttpxClient(verify=False)  # plain HTTP: saves 20 ms of CPU for loading CAs
    client = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, http_client=http_client)
    gevent.sleep(delay_s)
    while True:
        one_request(client, window)


def quantiles_ms(samples_s: list[float]) -> dict[str, float | int | None]:
    if not samples_s:
        return {"n": 0, "p50": None, "p99": None}
    p50, p99 = np.percentile(samples_s, [50, 99]) * 1e3
    return {"n": len(samples_s), "p50": float(p50), "p99": float(p99)}


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU and latencies of the openai SDK in gevent.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--warmup", type=float, default=3.0)
    options = parser.parse_args()
    base_url, window = f"http://127.0.0.1:{options.port}/v1", Window()
    users = [
        gevent.spawn(user, base_url, options.warmup * i / options.streams, window)
        for i in range(options.streams)
    ]
    gevent.sleep(options.warmup)
    print(json.dumps({"window": "open"}), flush=True)
    window.is_open, cpu_s, start_s = True, time.process_time(), time.perf_counter()
    gevent.sleep(options.seconds)
    cpu_s, elapsed_s = time.process_time() - cpu_s, time.perf_counter() - start_s
    window.is_open = False
    figures = {
        "seconds": elapsed_s,
        "tokens": window.tokens,
        "tokens_per_s": window.tokens / elapsed_s,
        "cpu_us_per_token": cpu_s / window.tokens * 1e6 if window.tokens else None,
        "cpu_percent": 100 * cpu_s / elapsed_s,
        "ttft_ms": quantiles_ms(window.ttft_s),
        "tpot_ms": quantiles_ms(window.tpot_s),
    }
    print(json.dumps(figures), flush=True)
    gevent.killall(users)


if __name__ == "__main__":
    main()
