"""``llm-locust sim``: the process that serves until it is stopped."""

import argparse
import asyncio
import contextlib
import os
import resource
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from llm_locust.sim.answers.jobs import ModelLimits
from llm_locust.sim.engine.engine import EngineProfile
from llm_locust.sim.engine.gpu_page import GpuKind
from llm_locust.sim.faults.faults import FaultPlan, FaultPlanError, parse_fault_plan
from llm_locust.sim.faults.plan import PlanError, parse_plan
from llm_locust.sim.gateway.port import PortError
from llm_locust.sim.server import Addresses, serve, stop_on_signals
from llm_locust.sim.settings.deployment import FaultSettings, SettingsError, SimSettings, check
from llm_locust.sim.settings.options import add_arguments
from llm_locust.sim.settings.profile_file import read_profile
from llm_locust.sim.truth import TruthError
from llm_locust.wire.names import one_line

__all__ = ["DESCRIPTION", "add_arguments", "run", "settings_from"]

DESCRIPTION = "Serve a simulated deployment: a gateway and replicas that stream as vLLM does."

#: Option names, and the engine's field of each.
_ENGINE_OPTIONS = {
    "ttft_base": "ttft_base_ns",
    "prefill_per_token": "prefill_per_token_ns",
    "step_base": "step_base_ns",
    "step_per_seq": "step_per_sequence_ns",
    "context_per_token": "context_per_token_ns",
    "overlap": "overlap",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "kv_cache_tokens": "kv_cache_tokens",
    "kv_block_tokens": "kv_block_tokens",
    "prefix_cache": "prefix_cache",
    "noise": "noise",
}


def settings_from(args: argparse.Namespace) -> SimSettings:
    """Settings of parsed options: an engine's value from its option, else the profile, else the default.

    Raises:
        FaultPlanError, PlanError, SettingsError: with a one-line message.
    """
    profile = read_profile(args.profile) if args.profile else None
    given = {
        field: getattr(args, name)
        for name, field in _ENGINE_OPTIONS.items()
        if getattr(args, name) is not None
    }
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
        _raise_open_files_limit()
        asyncio.run(_serve(settings, args.end_with_stdin))
    except (FaultPlanError, PlanError, SettingsError, PortError, TruthError) as e:
        print(f"llm-locust sim: {one_line(str(e))}", file=sys.stderr)
        return 2
    return 0


async def _serve(settings: SimSettings, end_with_stdin: bool) -> None:
    stop = stop_on_signals()
    if end_with_stdin:
        _stop_at_end_of_stdin(stop)
    await serve(settings, lambda addresses: _announce(settings, addresses), stop, _say)


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


def _raise_open_files_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
