"""The run time in whole runs of an open loop: the schedule has all of it, however the run is started."""

import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from swarm_process import LOCUSTFILES, Result, forked, free_port, in_parallel, locust, simulation, wait_until

RATE, RUN_TIME_S = 10, 2
LOAD = ["--request-rate", str(RATE), "--arrival", "constant", "--output-tokens", "1", "--input-tokens", "16"]


def _started_at_once(*words: str) -> Callable[[Path], Result]:
    """A run that begins by itself and ends with its process."""

    def run(folder: Path) -> Result:
        with (
            simulation(folder / "sim") as sim,
            locust(
                folder,
                *(*LOAD, "-t", f"{RUN_TIME_S}s", "-H", sim.url, "--out", "run", *words),
                locustfile=LOCUSTFILES / "open_loop.py",
            ) as process,
        ):
            assert process.exit_code() == 0, process.stderr
        return Result.read(folder / "run")

    return run


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=120):
            return True
    except OSError:
        return False


def _started_in_the_web_ui(folder: Path) -> Result:
    port = free_port()
    web = ["--web-host", "127.0.0.1", "--web-port", str(port), "--out", "run"]
    form = {"user_count": "1", "spawn_rate": "1", "run_time": f"{RUN_TIME_S}s"}
    with (
        simulation(folder / "sim") as sim,
        locust(folder, *LOAD, *web, "-H", sim.url, locustfile=LOCUSTFILES / "open_loop.py"),
    ):
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: _answers(url), "the web UI")
        with urlopen(f"{url}/swarm", urlencode(form).encode(), timeout=120) as answer:
            assert json.loads(answer.read())["success"]
        wait_until((folder / "run/report.html").exists, "the report of a run that nobody stopped")
    return Result.read(folder / "run")


RUNS: dict[str, Callable[[Path], Result]] = {
    "headless, two workers": _started_at_once("--headless", *forked(2)),
    "--autostart --autoquit": _started_at_once(
        *("--autostart", "--autoquit", "0", "--web-host", "127.0.0.1", "--web-port", str(free_port()))
    ),
    "web UI": _started_in_the_web_ui,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    return in_parallel(tmp_path_factory.mktemp("run_time"), RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_a_schedule_of_constant_gaps_has_as_many_requests_as_the_run_time_asks_for(
    name: str, runs: dict[str, Result]
) -> None:
    manifest, requests = runs[name].manifest, runs[name].requests
    scheduled_ns = requests.ints("scheduled_ns")
    # One request may be due at the very end. A busy machine ends later, never earlier.
    assert len(scheduled_ns) + runs[name].summary["completeness"]["unsent"] >= RATE * RUN_TIME_S - 1
    assert manifest.stopped_ns is not None
    assert (manifest.stopped_ns - scheduled_ns.min()) * 1e-9 > RUN_TIME_S - 1 / RATE - 0.001


@pytest.mark.parametrize("name", RUNS)
def test_an_end_by_the_run_time_needs_no_reason_and_is_in_the_manifest_as_it_was_given(
    name: str, runs: dict[str, Result]
) -> None:
    manifest = runs[name].manifest
    assert (manifest.stop_reason, manifest.cut_short) == ("", False)
    assert manifest.options["run_time"] == RUN_TIME_S
