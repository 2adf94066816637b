"""What a master tells its workers of a run."""

import time
from typing import Any

from llm_locust.swarm.channel.messages import PACKAGE, PROTOCOL, RunInfo


def run_info(**fields: Any) -> RunInfo:
    """A run of one worker; ``fields`` are what matters to a test."""
    info = RunInfo(
        id="r",
        protocol=PROTOCOL,
        version=PACKAGE,
        seed=3,
        host="http://h",
        base="",
        targets=[],
        arms=[],
        arm_models=[],
        model="m",
        replica_header="",
        salt="s",
        path="p",
        manifest="",
        places=[],
        starters=1,
        origin_ns=time.time_ns(),
        rate=0.0,
        trace_scale=None,
    )
    info.update(fields)  # type: ignore[typeddict-item]
    return info
