"""``llm-locust sim``: options, and the process that serves until it is told to stop."""

import argparse
import asyncio
import resource
import sys
from pathlib import Path

from llm_locust.sim.durations import parse_duration_ns
from llm_locust.sim.engine import EngineProfile
from llm_locust.sim.faults import FaultPlan, FaultPlanError, parse_fault_plan
from llm_locust.sim.jobs import ModelLimits
from llm_locust.sim.server import Addresses, PortError, serve
from llm_locust.sim.settings import ROUTING_POLICIES, FaultSettings, SettingsError, SimSettings, check
from llm_locust.sim.truth import TruthError

DESCRIPTION = "Serve a simulated deployment: a gateway and replicas that stream as vLLM does."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llm-locust sim``. Durations are written with a unit, such as 20ms."""
    place = parser.add_argument_group("where and what")
    place.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    place.add_argument(
        "--port", type=_port, default=8000, help="the gateway's port, 0: a free one (%(default)s)"
    )
    place.add_argument("--replicas", type=_positive, default=4, help="number of replicas (%(default)s)")
    place.add_argument(
        "--replica-ports",
        type=_port,
        metavar="PORT",
        help="let each replica listen on a port of its own too, PORT being the first; 0: free ones",
    )
    place.add_argument("--routing", choices=ROUTING_POLICIES, default="round_robin", help="(%(default)s)")
    place.add_argument("--model", action="append", metavar="NAME", help="a served model; repeatable (sim)")
    place.add_argument("--api-key", metavar="KEY", help="ask for this bearer token, or x-api-key, on /v1")
    place.add_argument(
        "--seed", type=int, default=0, help="of lengths, texts, noise and faults (%(default)s)"
    )
    place.add_argument("--truth", type=Path, metavar="FILE", help="log of true times, JSON Lines")
    place.add_argument(
        "--keep-alive", type=_duration, default="3600s", help="of idle connections (%(default)s)"
    )
    _add_engine_arguments(parser.add_argument_group("each replica's engine"))
    _add_fault_arguments(parser.add_argument_group("faults"))


def _add_engine_arguments(engine: argparse._ArgumentGroup) -> None:
    engine.add_argument(
        "--ttft-base", type=_duration, default="20ms", help="from arrival to the scheduler (%(default)s)"
    )
    engine.add_argument(
        "--prefill-per-token",
        type=_duration,
        default="30us",
        help="a step's time per prompt token (%(default)s)",
    )
    engine.add_argument(
        "--step-base", type=_duration, default="15ms", help="a step's time with nothing in it (%(default)s)"
    )
    engine.add_argument(
        "--step-per-seq", type=_duration, default="100us", help="a step's time per sequence (%(default)s)"
    )
    engine.add_argument("--max-num-seqs", type=_positive, default=256, help="batch limit (%(default)s)")
    engine.add_argument(
        "--max-num-batched-tokens", type=_positive, default=2_048, help="tokens of one step (%(default)s)"
    )
    engine.add_argument("--kv-cache-tokens", type=_positive, default=500_000, help="(%(default)s)")
    engine.add_argument("--max-model-len", type=_positive, default=32_768, help="(%(default)s)")
    engine.add_argument(
        "--noise", type=_not_negative, default=0.02, help="relative spread of a step's time (%(default)s)"
    )
    engine.add_argument(
        "--mean-output-tokens",
        type=_not_negative,
        default=200.0,
        help="mean length of an answer that ends by itself (%(default)s)",
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
        "http_400..http_599, close_before, reset, cut, truncated, stall, garbage, error_object, empty, slow",
    )
    faults.add_argument(
        "--fault-after-tokens", type=_count, default=3, help="where a fault midway strikes (%(default)s)"
    )
    faults.add_argument("--stall", type=_duration, default="3600s", help="length of a stall (%(default)s)")
    faults.add_argument("--slow-factor", type=_positive, default=10, help="of slow answers (%(default)s)")


def settings_from(args: argparse.Namespace) -> SimSettings:
    """The settings that parsed options say.

    Raises:
        FaultPlanError, SettingsError: with one line for the person.
    """
    settings = SimSettings(
        host=args.host,
        port=args.port,
        replicas=args.replicas,
        replica_ports=args.replica_ports,
        routing=args.routing,
        seed=args.seed,
        engine=EngineProfile(
            ttft_base_ns=args.ttft_base,
            prefill_per_token_ns=args.prefill_per_token,
            step_base_ns=args.step_base,
            step_per_sequence_ns=args.step_per_seq,
            max_num_seqs=args.max_num_seqs,
            max_num_batched_tokens=args.max_num_batched_tokens,
            kv_cache_tokens=args.kv_cache_tokens,
            noise=args.noise,
        ),
        limits=ModelLimits(
            models=tuple(args.model or ("sim",)),
            max_model_len=args.max_model_len,
            mean_output_tokens=args.mean_output_tokens,
        ),
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
    """Serve until SIGINT or SIGTERM. Gives the exit code: 0, or 2 for settings that cannot work."""
    try:
        settings = settings_from(args)
        _raise_open_files_limit()
        asyncio.run(serve(settings, lambda addresses: _announce(settings, addresses)))
    except (FaultPlanError, SettingsError, PortError, TruthError) as e:
        print(f"llm-locust sim: {e}", file=sys.stderr)
        return 2
    return 0


def _announce(settings: SimSettings, addresses: Addresses) -> None:
    models = ", ".join(settings.limits.models)
    print(f"listening on {addresses.gateway} ({settings.replicas} replicas, model {models})", flush=True)
    for index, url in enumerate(addresses.replicas):
        print(f"replica-{index} on {url}", flush=True)


def _raise_open_files_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _duration(text: str) -> int:
    try:
        return parse_duration_ns(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(str(e)) from e


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
