"""Cost of the schedule: µs of CPU per arrival, and the share of a core at 10,000 requests/s.

    python bench/schedule.py

No network and no Locust: arrivals of one worker of W, which together share 10,000/s, and the reading of a
trace with the same rate.
"""

import tempfile
import time
from pathlib import Path

from llm_locust.workload.arrival_grammar import parse_rate
from llm_locust.workload.arrivals import Arrival, ListedSchedule, Process, Schedule, Timetable
from llm_locust.workload.trace_formats import TraceEntry
from llm_locust.workload.traces import open_trace

RATE = 10_000
SECONDS = 20
STEP_S = 0.1  # interval of a sender's queries


def show(name: str, schedule: Timetable[Arrival] | Timetable[TraceEntry], workers: int) -> None:
    """One worker's CPU for :data:`SECONDS` of load at :data:`RATE`."""
    begin, arrivals = time.process_time(), 0
    for step in range(1, round(SECONDS / STEP_S) + 1):
        arrivals += len(schedule.before(step * STEP_S))
    cpu_s = time.process_time() - begin
    of_a_core = f"{cpu_s / SECONDS:.2%} of a core"
    print(f"{name:15} {workers} workers: {cpu_s / arrivals * 1e6:5.2f} µs an arrival of its own, {of_a_core}")


def main() -> None:
    for workers in (1, 4):
        for cv, name in ((0.0, "constant"), (1.0, "poisson"), (2.0, "gamma:2")):
            for rate in (str(RATE), f"sine:{RATE},{RATE // 2},{SECONDS}s"):
                schedule = Schedule(Process(cv), parse_rate(rate), seed=1, worker_count=workers)
                show(f"{name} {rate.partition(':')[0]}", schedule, workers)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.jsonl")
        path.write_text("\n".join(map(line, range(RATE * SECONDS))))
        for workers in (1, 4):
            show("mooncake", ListedSchedule(open_trace(path).share(0, workers)), workers)


def line(k: int) -> str:
    times = f'"timestamp": {k * 1000 / RATE}'
    return f'{{{times}, "input_length": 1024, "output_length": 9, "hash_ids": [0, {k}]}}'


if __name__ == "__main__":
    main()
