"""Options of ``llm-locust sim`` and the parsers of their values."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from llm_locust.core.durations import parse_time_ns
from llm_locust.sim.engine.engine import EngineProfile
from llm_locust.sim.faults.plan import parse_factor
from llm_locust.sim.routing import POLICIES, PREFIX_IMBALANCE
from llm_locust.wire.session_header import SessionHeader

_T = TypeVar("_T")

#: Defaults of the engine's options.
_ENGINE = EngineProfile()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llm-locust sim``. Durations are written with a unit, such as 20ms."""
    _add_place_arguments(parser.add_argument_group("where and what"))
    _add_routing_arguments(parser.add_argument_group("gateway and replicas"))
    _add_engine_arguments(parser.add_argument_group("each replica's engine"))
    _add_fault_arguments(parser.add_argument_group("faults"))


def _add_place_arguments(place: argparse._ArgumentGroup) -> None:
    place.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    place.add_argument(
        "--port", type=_port, default=8000, help="the gateway's port, 0: a free one (%(default)s)"
    )
    place.add_argument("--replicas", type=_positive, default=4, help="number of replicas (%(default)s)")
    place.add_argument(
        "--prefill-replicas",
        type=_count,
        default=0,
        metavar="N",
        help="the first N of them compute prompts and the others decode, as in disaggregated serving "
        "(%(default)s: each does both)",
    )
    place.add_argument(
        "--kv-transfer",
        type=_duration,
        metavar="TIME",
        default="10ms",
        help="time of a prompt's KV cache from a prefill to a decode replica (%(default)s)",
    )
    place.add_argument(
        "--replica-ports",
        type=_port,
        metavar="PORT",
        help="let each replica listen on a port of its own too, PORT being the first; 0: free ones",
    )
    place.add_argument("--model", action="append", metavar="NAME", help="a served model; repeatable (sim)")
    place.add_argument("--api-key", metavar="KEY", help="ask for this bearer token, or x-api-key, on /v1")
    place.add_argument(
        "--seed", type=int, default=0, help="of lengths, texts, noise and faults (%(default)s)"
    )
    place.add_argument(
        "--truth",
        type=Path,
        metavar="FILE",
        help="log of true times, JSON Lines; what happens to replicas goes to FILE.events.jsonl",
    )
    place.add_argument(
        "--keep-alive", type=_duration, default="3600s", help="of idle connections (%(default)s)"
    )
    place.add_argument(
        "--end-with-stdin",
        action="store_true",
        help="end when standard input is closed, as a pipe is when the program that started this one ends",
    )


def _add_routing_arguments(routing: argparse._ArgumentGroup) -> None:
    routing.add_argument(
        "--routing",
        choices=POLICIES,
        metavar="POLICY",
        default="round_robin",
        help=f"the gateway's policy: {', '.join(POLICIES)}; least_request is the less loaded of two "
        "drawn at random, sticky goes by X-Session-Id or else by "
        "connection, prefix by the longest common prefix (%(default)s)",
    )
    routing.add_argument(
        "--session-header",
        type=_session_header,
        metavar="NAME",
        help="name the replica in this response header, and send a request that gives it back to that "
        "replica, whatever the policy; x-session-token, or cookie:NAME",
    )
    routing.add_argument(
        "--prefix-imbalance",
        type=_count,
        metavar="N",
        default=PREFIX_IMBALANCE,
        help="requests in flight beyond the least loaded replica's from which one is not picked for its "
        "prefix (%(default)s)",
    )
    routing.add_argument(
        "--replica-speed",
        type=_speeds,
        action="append",
        metavar="N=FACTOR",
        help="replica N's steps last FACTOR times as long, such as 1=3x; repeatable, or with commas between",
    )
    routing.add_argument(
        "--plan",
        default="",
        help="what happens to replicas and when, such as '10s kill 2; 20s start 2; 30s slow 1 3x; "
        "40s normal 1; 50s drain 0', or a YAML file",
    )
    routing.add_argument(
        "--health-interval",
        type=_duration,
        default="2s",
        help="between two looks of the gateway at its replicas' health (%(default)s)",
    )


def _add_engine_arguments(engine: argparse._ArgumentGroup) -> None:
    """Add the engine's options. Their default is None, so that a profile can set them."""
    engine.add_argument(
        "--profile",
        type=Path,
        metavar="FILE",
        help="compute the engine's figures from a model and GPUs, see examples/deployments; options win",
    )

    def add(name: str, read: Callable[[str], object], default: str, text: str) -> None:
        engine.add_argument(name, type=read, help=f"{text} ({default})")

    def ms(ns: float) -> str:
        return f"{ns * 1e-6:g}ms"

    e = _ENGINE
    add("--ttft-base", _duration, ms(e.ttft_base_ns), "from arrival to the scheduler")
    add("--prefill-per-token", _duration, ms(e.prefill_per_token_ns), "a step's time per prompt token")
    add("--step-base", _duration, ms(e.step_base_ns), "a step's time with nothing in it")
    add("--step-per-seq", _duration, ms(e.step_per_sequence_ns), "a step's time per sequence")
    add("--context-per-token", _duration, "0", "a step's time per token of context that it attends to")
    add("--overlap", _switch, "off", "on: of memory and arithmetic time the longer counts, not the sum")
    add("--max-num-seqs", _positive, f"{e.max_num_seqs}", "batch limit")
    add("--max-num-batched-tokens", _positive, f"{e.max_num_batched_tokens}", "tokens of one step")
    add("--kv-cache-tokens", _positive, f"{e.kv_cache_tokens}", "tokens that fit into the KV cache")
    add("--kv-block-tokens", _positive, f"{e.kv_block_tokens}", "tokens of one of its blocks")
    add("--prefix-cache", _switch, "off", "on: blocks of prompts that begin alike are computed once")
    add("--max-model-len", _positive, "32768", "tokens of the longest sequence")
    add("--noise", _not_negative, f"{e.noise:g}", "relative spread of a step's time")
    engine.add_argument(
        "--mean-output-tokens",
        type=_not_negative,
        default=200.0,
        help="mean length of an answer that ends by itself, without its end (%(default)s)",
    )
    engine.add_argument(
        "--eos",
        type=_switch,
        default="on",
        help="on: an answer that ends by itself ends with one more token, which usage counts and which comes "
        "as an empty event with the finish reason, as vLLM does it; off: its last word is its end",
    )
    engine.add_argument(
        "--early-role",
        action="store_true",
        help="send a chat's role delta with the headers, not the first token",
    )


def _add_fault_arguments(faults: argparse._ArgumentGroup) -> None:
    faults.add_argument(
        "--faults",
        default="",
        metavar="PLAN",
        help="such as 'http_500=1%% reset=0.5%% refused=2s@10s', or a JSON or YAML file; "
        "http_400..http_599, close_before, reset, cut, truncated, stall, garbage, error_object, empty, slow, "
        "kv_transfer",
    )
    faults.add_argument(
        "--fault-after-tokens", type=_count, default=3, help="where a fault midway strikes (%(default)s)"
    )
    faults.add_argument("--stall", type=_duration, default="3600s", help="length of a stall (%(default)s)")
    faults.add_argument("--slow-factor", type=_positive, default=10, help="of slow answers (%(default)s)")


def _argument(read: Callable[[str], _T], text: str) -> _T:
    try:
        return read(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(str(e)) from e


def _session_header(text: str) -> SessionHeader:
    return _argument(SessionHeader.parse, text)


def _duration(text: str) -> int:
    return _argument(parse_time_ns, text)


def _speeds(text: str) -> dict[int, float]:
    """Parse ``1=3x`` or ``1=3x,2=0.5``."""
    speeds: dict[int, float] = {}
    for part in text.split(","):
        index, equals, factor = part.strip().partition("=")
        if not equals or not (index.isascii() and index.isdecimal()) or len(index) > 6:
            raise argparse.ArgumentTypeError(
                f"{part.strip()!r} is not a replica and its factor; write such as 1=3x"
            )
        if int(index) in speeds:
            raise argparse.ArgumentTypeError(f"{text!r} names replica {int(index)} twice")
        speeds[int(index)] = _argument(parse_factor, factor)
    return speeds


def _switch(text: str) -> bool:
    if text not in ("on", "off"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither on nor off")
    return text == "on"


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 0 to 65535")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _not_negative(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value
