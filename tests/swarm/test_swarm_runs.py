"""Records against the server's own truth, for one process, forked workers and separate ones."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from swarm_process import Process, Result, Simulation, forked, in_parallel, locust, simulation, swarm

pytestmark = pytest.mark.everyday

#: What each fault is to the client. A reset may overtake the tokens that were sent before it.
EXPECTED = {
    None: {"ok"},
    "slow": {"ok"},
    "http_400": {"http_error"},
    "http_429": {"http_error"},
    "http_500": {"http_error"},
    "close_before": {"connect_error"},
    "reset": {"truncated", "connect_error"},
    "cut": {"truncated"},
    "truncated": {"truncated"},
    "stall": {"timeout"},
    "garbage": {"invalid"},
    "error_object": {"api_error"},
    "empty": {"empty"},
}

#: So that none is missing among 240 requests by chance in a million runs.
FAULTS = " ".join(f"{fault}=6.5%" for fault in EXPECTED if fault)

USUAL = (
    # Bounded by a count: on a busy machine a time may be over before the last user is there.
    *("--headless", "-u", "16", "-r", "100", "--num-requests", "240", "--stop-timeout", "20", "--out", "run"),
    *("--input-tokens", "uniform:10,40", "--output-tokens", "uniform:4,12", "--seed", "7"),
    *("--timeouts", "first=2s gap=600ms", "--body", '{"ignore_eos": true}'),
)


@dataclass(frozen=True, slots=True)
class Finished:
    code: int
    output: str
    errors: str
    result: Result
    truth: list[dict[str, Any]]


def _finished(process: Process, sim: Simulation, folder: Path) -> Finished:
    code = process.exit_code()
    return Finished(code, process.stdout, process.stderr, Result.read(folder / "run"), sim.entries())


def _one_process(folder: Path) -> Finished:
    with (
        simulation(folder, "--faults", FAULTS) as sim,
        locust(folder, *USUAL, "-H", sim.url, "--gate", "error_rate<90%") as process,
    ):
        return _finished(process, sim, folder)


def _two_forked(folder: Path) -> Finished:
    with simulation(folder, "--faults", FAULTS) as sim:
        options = (*USUAL, *forked(2), "--gate", "error_rate<1% goodput>=1%", "--slo", "e2el=9s")
        with locust(folder, *options, "-H", sim.url, cold=True) as process:
            return _finished(process, sim, folder)


def _four_apart(folder: Path) -> Finished:
    with (
        simulation(folder, "--faults", FAULTS) as sim,
        swarm(folder, 4, *USUAL, "-H", sim.url + "/v1") as (master, workers),
    ):
        finished = _finished(master, sim, folder)
        for worker in workers:
            worker.exit_code()
        return finished


SCENARIOS: dict[str, Callable[[Path], Finished]] = {
    "one process": _one_process,
    "two forked workers": _two_forked,
    "four workers apart": _four_apart,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finished]:
    return in_parallel(tmp_path_factory.mktemp("runs"), SCENARIOS)


@pytest.fixture(params=list(SCENARIOS))
def run(request: pytest.FixtureRequest, runs: dict[str, Finished]) -> Finished:
    return runs[request.param]


def test_records_are_the_requests_that_the_server_saw_one_to_one(run: Finished) -> None:
    seen = Counter(entry["request_id"] for entry in run.truth)
    rows = run.result.rows()
    assert seen.keys() == rows.keys()
    # A server that closes the connection on a request has failed: it is not asked again.
    assert set(seen.values()) == {1}


def test_each_injected_fault_is_found_with_its_outcome(run: Finished) -> None:
    rows = run.result.rows()
    wrong = [
        (entry["fault"], rows[entry["request_id"]]["outcome"], rows[entry["request_id"]]["error"])
        for entry in run.truth
        if rows[entry["request_id"]]["outcome"] not in EXPECTED[entry["fault"]]
    ]
    assert not wrong
    assert {entry["fault"] for entry in run.truth} == EXPECTED.keys()


def test_what_a_record_says_is_what_the_server_did(run: Finished) -> None:
    rows = run.result.rows()
    for entry in run.truth:
        row = rows[entry["request_id"]]
        assert row["status"] == entry["status"] or row["outcome"] == "connect_error"
        assert row["replica"] == entry["replica"] or row["outcome"] == "connect_error"
        if row["outcome"] == "ok":
            assert row["output_tokens"] == entry["output_tokens"] == row["asked_output_tokens"]
            arrivals = [row["sent_ns"] + after for after in row["arrivals_ns"]]
            assert all(sent <= came for sent, came in zip(entry["token_ns"], arrivals, strict=True))


def test_the_run_is_complete_and_names_its_workers(run: Finished) -> None:
    manifest = run.result.manifest
    assert manifest.complete
    assert run.result.summary["completeness"]["complete"] is True
    assert manifest.workers_expected == len(manifest.workers)
    assert [worker.index for worker in manifest.workers] == list(range(len(manifest.workers)))
    assert sum(w.received for w in manifest.workers) == len(run.result.requests)
    by_worker = Counter(run.result.requests.texts("worker"))
    assert by_worker == {w.id: w.received for w in manifest.workers}
    assert all(w.announced == w.received and w.in_flight == 0 for w in manifest.workers)


def test_the_number_of_workers_is_the_one_that_was_asked_for(runs: dict[str, Finished]) -> None:
    assert [len(runs[name].result.manifest.workers) for name in SCENARIOS] == [1, 2, 4]


def test_with_a_stop_timeout_no_request_is_cancelled(run: Finished) -> None:
    assert "cancelled" not in run.result.requests.texts("outcome")


def test_the_summarys_requests_add_up(run: Finished) -> None:
    requests = run.result.summary["requests"]
    stopped_ns = run.result.manifest.stopped_ns
    assert stopped_ns is not None
    rows = run.result.rows().values()
    # A user may begin one more request in the instant in which the run is stopped.
    outcomes = Counter(row["outcome"] for row in rows if row["scheduled_ns"] < stopped_ns)
    assert requests["ok"] + requests["failed"] + requests["cancelled"] == requests["scheduled"]
    assert {k: v for k, v in requests["by_outcome"].items() if v} == outcomes
    assert requests["scheduled"] == outcomes.total() >= 0.9 * len(rows)


def test_nothing_but_the_run_directory_stays(run: Finished) -> None:
    files = {path.name for path in run.result.path.iterdir()}
    assert {"manifest.json", "requests.parquet", "summary.json", "report.md", "timeseries.csv"} <= files
    assert not {name for name in files if name.endswith((".frames", ".part")) or name.startswith(".")}


def test_no_traceback_and_no_error_is_logged(run: Finished) -> None:
    assert "Traceback" not in run.errors
    assert " ERROR: " not in run.errors
    assert "/CRITICAL/" not in run.errors


def test_the_report_is_printed_with_the_run_directory(run: Finished) -> None:
    assert "Records     complete" in run.output
    assert str(run.result.path.name) in run.output
    assert f"exit {run.code}" in run.output[-400:], "the answer comes last"


def test_a_gate_that_holds_gives_exit_code_0_whatever_failed(runs: dict[str, Finished]) -> None:
    finished = runs["one process"]
    assert finished.result.summary["requests"]["failed"] > 0
    assert finished.code == 0


def test_a_broken_gate_gives_exit_code_1(runs: dict[str, Finished]) -> None:
    gates = runs["two forked workers"].result.summary["gates"]
    assert [gate["passed"] for gate in gates] == [False, True]
    assert runs["two forked workers"].code == 1


def test_failures_without_a_gate_give_locusts_own_exit_code(runs: dict[str, Finished]) -> None:
    assert runs["four workers apart"].code == 1


def test_workers_with_one_seed_draw_different_prompts(runs: dict[str, Finished]) -> None:
    finished = runs["four workers apart"]
    drawn: dict[str, list[tuple[Any, Any]]] = {}
    for row in finished.result.requests.table.sort_by("scheduled_ns").to_pylist():
        drawn.setdefault(row["worker"], []).append((row["asked_input_tokens"], row["asked_output_tokens"]))
    firsts = [tuple(lengths[:8]) for lengths in drawn.values()]
    assert len(set(firsts)) == len(firsts)


def test_a_host_without_the_version_has_the_same_base(runs: dict[str, Finished]) -> None:
    """One run names the host with ``/v1`` at its end, the others without."""
    paths = {entry["path"] for finished in runs.values() for entry in finished.truth}
    assert paths == {"/v1/chat/completions"}
