"""A client that was late, and reports that said that it was not."""

import json
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import gevent
import numpy as np
import pytest
from calls import GOOD, MS, Caller, arrived_ns, caller
from gevent.monkey import get_original
from live_cases import counts_of
from metrics_cases import request
from report_cases import summary
from scripted import ScriptedServer, stream_script
from swarm_process import Result, locust, simulation

from llm_locust.client.http.clock import ANCILLARY_BYTES
from llm_locust.core.record import RequestRecord
from llm_locust.live.findings import live_validity

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
def held_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[int, Result]]:
    """A closed loop of 4 users whose client is held, by what reads its sockets, and its exit code."""

    @cache
    def run(reader: str) -> tuple[int, Result]:
        folder = tmp_path_factory.mktemp("late")
        locustfile = folder / "held.py"
        locustfile.write_text(LOCUSTFILE)
        times = "--ttft-base", f"{TTFT_MS}ms", "--step-base", f"{GAP_MS}ms"
        with simulation(folder / "sim", *times) as deployment:
            asked = "--output-tokens", "12", "--input-tokens", "20"
            load = "--headless", "-u", "4", "-r", "4", "-t", "6s", "--host", deployment.url
            out = "--out", str(folder / "run"), "--require-valid"
            with locust(
                folder, *load, *asked, *out, locustfile=locustfile, environ={"LLM_LOCUST_READER": reader}
            ) as process:
                code = process.exit_code()
        return code, Result.read(folder / "run")

    return run


@pytest.mark.alone
def test_the_times_of_a_held_client_are_the_servers(held_run: Callable[[str], tuple[int, Result]]) -> None:
    code, result = held_run("c")
    client = result.summary["client"]
    assert (client["timestamps"], client["reader"]) == ("kernel", "c")
    # Not 0: on a busy machine the server, too, sends two tokens at once.
    assert client["first_tokens_wide"] < held_run("python")[1].summary["client"]["first_tokens_wide"] / 4
    assert (code, client["verdict"]) != (3, "invalid")
    ttft, itl = errors_of(result)
    assert (ttft < 0.05, itl < 0.05) == (True, True), (ttft, itl)


@pytest.mark.alone
def test_where_python_reads_a_held_client_makes_the_run_invalid_and_the_exit_code_3(
    held_run: Callable[[str], tuple[int, Result]],
) -> None:
    code, result = held_run("python")
    client = result.summary["client"]
    assert (code, client["verdict"], client["reader"]) == (3, "invalid", "python")
    assert client["first_tokens_wide"] > 0.01
    assert "of the first tokens were read late" in client["reasons"][0]
    assert errors_of(result)[0] > 4 * errors_of(held_run("c")[1])[0]


@pytest.mark.alone
@pytest.mark.parametrize("reader", ["c", "python"])
def test_a_held_client_does_not_blame_the_path(
    reader: str, held_run: Callable[[str], tuple[int, Result]]
) -> None:
    assert held_run(reader)[1].summary["tokens"]["delivery"] == "tokens"


@pytest.mark.alone
@pytest.mark.parametrize("reader", ["c", "python"])
def test_littles_law_holds_where_nothing_is_missing(
    reader: str, held_run: Callable[[str], tuple[int, Result]]
) -> None:
    """The worker counts a call until it notices its end, and is known to be late."""
    law = held_run(reader)[1].summary["littles_law"]
    assert law["workers_in_flight_s"] > 5
    assert law["holds"] is True, law


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


def test_a_held_client_knows_the_time_of_each_event(server: ScriptedServer, ask: Caller) -> None:
    ask.ask([GOOD])  # connecting would wait for the loop too
    job = ask.spawn(stream_script(ttft_ms=LATER_MS, gap_ms=GAP_MS, tokens=5))
    gevent.sleep(0.01)
    get_original("time", "sleep")(0.6)  # from just after its sending until all of the answer is there
    record = job.get(timeout=120).record
    _, served = server.wait_ended(2)
    late_ns = arrived_ns(record) - np.array(served.write_ns[1:6])  # the first write is the head
    assert (late_ns >= 0).all()
    assert record.end_lag_ns is not None
    assert record.end_lag_ns > 100 * MS, "the loop took the answer up long after it had come"
    assert np.median(late_ns) < record.end_lag_ns / 20


def whole(**known: Any) -> list[RequestRecord]:
    late = known.pop("late", 0.0)
    return [
        request(i * 0.05, (), late=late, ended=i * 0.05 + late + 0.2, streamed=False, **known)
        for i in range(100)
    ]


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        (
            {"late": 5.0},
            "the load was late: requests were sent 5,000 ms after their schedule (p99)",
        ),
        (
            {"client_lag_ns": 250_000_000, "kernel_stamps": False},
            "the client read 250 ms late (p99), the median E2EL is 200 ms",
        ),
    ],
)
def test_its_delays_are_held_against_the_whole_answer(known: dict[str, Any], reason: str) -> None:
    client = summary(whole(**known), open_loop=True)["client"]
    assert client["verdict"] == "invalid"
    assert any(each.startswith(reason) for each in client["reasons"])
    (live,) = counts_of(*whole(**known)).values()
    assert live_validity(live, [], open_loop=True, seconds=5.0).severity == "invalid"
    assert summary(whole(), open_loop=True)["client"]["verdict"] == "ok"
