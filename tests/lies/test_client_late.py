"""A client that was late, and reports that said that it was not.

- A client whose event loop was held for 150 of every 180 ms read several packets at once and gave all of
  them the time of the last: the median TTFT was 175.6 ms for a true 52.8. The report said "kernel stamps keep
  latencies true" and the verdict was ``suspect``; ``--require-valid`` never fired, because with kernel stamps
  nothing in a closed loop could be ``invalid``. Now the first tokens whose time is not known are counted,
  more than 1 % of them make the run ``invalid``, and the exit code is 3.
- The gaps between events of one late read were 0, and in ITL. Now they are counted, and in no latency.
- With packet stamps the same client knows the time of each event, and is within its load's limits.
- A stream whose gaps were 0 because its client was late was called ``buffered``: by something on the way.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import gevent
import numpy as np
import pytest
from calls import GOOD, MS, Caller, arrived_ns, caller
from capturing import captures, packet_stamps
from gevent.monkey import get_original
from scripted import Script, ScriptedServer, chunk, last_chunk, stream_script, write
from swarm_process import Result, locust, simulation

from llm_locust.client.http.clock import ANCILLARY_BYTES
from llm_locust.core.record import RequestRecord

pytestmark = pytest.mark.skipif(not ANCILLARY_BYTES, reason="this system does not stamp packets")

HELD_S, FREE_S = 0.150, 0.030
TTFT_MS, GAP_MS = 50, 20
LATER_MS = 200  # of a first token that is to come while the loop is held, on a busy machine too

LOCUSTFILE = f"""
import gevent
from gevent.monkey import get_original
from locust import events, task

from llm_locust import ChatUser


class User(ChatUser):
    @task
    def one(self):
        self.chat()


@events.test_start.add_listener
def hold(environment, **_):
    gevent.spawn(hold_for_ever)


def hold_for_ever():
    sleep = get_original("time", "sleep")
    while True:
        sleep({HELD_S})
        gevent.get_hub().loop.update_now()  # else the loop takes the time held for a part of its sleep
        gevent.sleep({FREE_S})
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Result]:
    """A closed loop of 4 users whose client is held, and its exit code."""
    return held_run(tmp_path_factory.mktemp("late"))


def held_run(folder: Path, *options: str) -> tuple[int, Result]:
    locustfile = folder / "held.py"
    locustfile.write_text(LOCUSTFILE)
    times = "--ttft-base", f"{TTFT_MS}ms", "--step-base", f"{GAP_MS}ms"
    with simulation(folder / "sim", *times) as deployment:
        asked = "--output-tokens", "12", "--input-tokens", "20"
        load = "--headless", "-u", "4", "-r", "4", "-t", "6s", "--host", deployment.url
        out = "--out", str(folder / "run"), "--require-valid"
        with locust(folder, *load, *asked, *out, *options, locustfile=locustfile) as process:
            code = process.exit_code()
    return code, Result.read(folder / "run")


def test_a_held_client_makes_the_run_invalid_and_the_exit_code_3(run: tuple[int, Result]) -> None:
    code, result = run
    client = result.summary["client"]
    assert (code, client["verdict"], client["timestamps"]) == (3, "invalid", "kernel")
    assert client["first_tokens_wide"] > 0.01
    assert "of the first tokens were read late" in client["reasons"][0]
    assert not any("keep latencies true" in reason for reason in client["reasons"])


def test_the_gaps_that_a_held_client_does_not_know_are_in_no_latency(run: tuple[int, Result]) -> None:
    _, result = run
    client, itl = result.summary["client"], result.summary["latency_ms"]["itl"]
    assert client["gaps_unknown_share"] > 0.5
    ok = [row for row in result.requests.table.to_pylist() if row["outcome"] == "ok"]
    gaps = sum(len(row["arrivals_ns"]) - 1 for row in ok)
    assert itl["n"] + client["gaps_unknown"] == gaps


def test_a_held_client_does_not_blame_the_path(run: tuple[int, Result]) -> None:
    assert run[1].summary["tokens"]["delivery"] == "tokens"


def test_littles_law_holds_where_nothing_is_missing(run: tuple[int, Result]) -> None:
    """The worker counts a call until it notices its end, and is known to be late."""
    law = run[1].summary["littles_law"]
    assert law["workers_in_flight_s"] > 5
    assert law["holds"] is True, law


@captures
def test_packet_stamps_are_true_where_those_of_reads_are_not(run: tuple[int, Result], tmp_path: Path) -> None:
    _, result = held_run(tmp_path, "--stamps", "packet")
    client = result.summary["client"]
    assert (client["timestamps"], client["packets_dropped"], client["unseen_reads"]) == ("packet", 0, 0)
    assert (client["first_tokens_wide"], client["gaps_unknown"]) == (0, 0)
    (worker,) = result.manifest.workers
    assert worker.stamps is not None
    assert worker.stamps.source == "packet"
    assert worker.stamps.packets > 12 * result.summary["requests"]["ok"]
    (packet_ttft, packet_itl), (read_ttft, _) = errors_of(result), errors_of(run[1])
    assert packet_ttft < read_ttft / 4
    assert packet_itl < 0.2


def errors_of(result: Result) -> tuple[float, float]:
    """Relative errors of the median TTFT and ITL, against what a server did that may have been late too."""
    lines = (result.path.parent / "sim" / "truth.jsonl").read_text().splitlines()
    entries = [entry for entry in map(json.loads, lines) if entry["complete"]]
    latency = result.summary["latency_ms"]
    ttft_ns = np.median([entry["first_token_ns"] - entry["received_ns"] for entry in entries])
    itl_ns = np.median(np.concatenate([np.diff(entry["token_ns"]) for entry in entries]))
    true = ttft_ns / MS, itl_ns / MS
    ttft, itl = (abs(latency[k]["p50"] - t) / t for k, t in zip(("ttft", "itl"), true, strict=True))
    return float(ttft), float(itl)


@pytest.fixture
def ask(server: ScriptedServer, kernel_stamping: None) -> Iterator[Caller]:
    with caller(server.url) as made:
        yield made


@captures
def test_a_held_client_with_packet_stamps_knows_the_time_of_each_event(
    server: ScriptedServer, kernel_stamping: None
) -> None:
    script = stream_script(ttft_ms=LATER_MS, gap_ms=GAP_MS, tokens=5)
    with packet_stamps() as stamping, caller(server.url, stamping=stamping) as ask:
        record, early_ns = held(ask, script)
    _, served = server.wait_ended(2)
    late_ns = arrived_ns(record) - np.array(served.write_ns[1:6])
    assert not early_ns.any()
    assert (late_ns >= 0).all()
    assert record.client_lag_ns is not None
    assert np.median(late_ns) < record.client_lag_ns / 20


def held(ask: Caller, script: Script) -> tuple[RequestRecord, np.ndarray]:
    """A call whose loop is held from just after its sending until all of the answer is there."""
    ask.ask([GOOD])  # connecting would wait for the loop too
    job = ask.spawn(script)
    gevent.sleep(0.01)
    get_original("time", "sleep")(0.6)
    record = job.get(timeout=120).record
    return record, np.zeros(len(record.arrivals_ns), np.int64) if record.early_ns is None else record.early_ns


def test_the_true_time_of_each_event_lies_within_what_the_record_says(
    server: ScriptedServer, ask: Caller
) -> None:
    record, early_ns = held(ask, stream_script(ttft_ms=LATER_MS, gap_ms=GAP_MS, tokens=5))
    _, served = server.wait_ended(2)
    written = np.array(served.write_ns[1:6])  # the first write is the head
    came = arrived_ns(record)
    assert (came - early_ns <= written + MS).all()
    assert (written <= came).all()
    assert early_ns[0] > 50 * MS, "it came 80 ms before the last packet of its read"


def test_events_of_one_packet_that_a_client_read_in_time_came_together(ask: Caller) -> None:
    parts = stream_script(ttft_ms=TTFT_MS, gap_ms=0, tokens=3)
    data = [step.data or b"" for step in parts]
    record = ask.ask([write(0, data[0]), write(TTFT_MS, b"".join(data[1:]))]).record
    assert len(record.arrivals_ns) == 3
    assert record.client_lag_ns is not None
    if record.client_lag_ns < MS:  # else this machine was too busy to tell
        assert record.early_ns is None


def test_what_a_read_ends_with_is_exact_however_late_it_was(ask: Caller) -> None:
    """One packet: its stamp is the kernel's, and nothing came after it."""
    parts = [step.data or b"" for step in stream_script(tokens=1)]
    script = [write(0, parts[0]), write(LATER_MS, parts[1]), write(1500, chunk(parts[2]) + last_chunk())]
    ask.ask([GOOD])  # connecting would wait for the loop too
    job = ask.spawn(script)
    gevent.sleep(0.01)
    get_original("time", "sleep")(0.6)
    record = job.get(timeout=120).record
    assert record.client_lag_ns is not None
    assert record.client_lag_ns > 100 * MS
    assert record.early_ns is None
