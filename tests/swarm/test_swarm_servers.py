"""Runs whose servers are scraped, in processes of their own, against what the simulation says of itself."""

import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any

import psutil
import pytest
from page_server import hang, page, serving
from swarm_process import Process, Result, Simulation, forked, in_parallel, locust, simulation, wait_until

from llm_locust.deployment.exposition import readings
from llm_locust.deployment.samples import SERVER_METRICS_FILE, read_samples

#: Users that end before the run does, so that the simulation is at rest when it is asked a last time.
LOCUSTFILE = """
import time

from locust import task
from locust.exception import StopUser

from llm_locust import ChatUser


class Chat(ChatUser):
    def on_start(self):
        self.ends = time.monotonic() + 5

    @task
    def one_question(self):
        if time.monotonic() > self.ends:
            raise StopUser
        self.chat()
"""

USUAL = (
    *("--headless", "-u", "4", "-r", "100", "-t", "8s", "--out", "run"),
    *("--metrics-interval", "500ms"),
    *("--output-tokens", "uniform:8,24", "--body", '{"ignore_eos": true}', "--warmup", "1s"),
    *("--slo", "ttft=2s"),
)
COUNTERS = ("prompt_tokens", "generation_tokens", "ttft_s_count", "finished")
IDLE_W, BUSY_W = 100.0, 600.0


@dataclass(frozen=True, slots=True)
class Finished:
    """A run that has ended, and the pages of its servers after it, by their targets."""

    code: int
    stdout: str
    stderr: str
    result: Result
    pages: dict[str, dict[str, float]]
    bad: dict[str, str]  # what is wrong with a target -> its name

    @property
    def server(self) -> dict[str, Any]:
        found: dict[str, Any] = self.result.summary["server"]
        return found

    def target(self, name: str) -> dict[str, Any]:
        (found,) = (target for target in self.server["targets"] if target["name"] == name)
        return dict(found)

    def last(self) -> dict[tuple[str, str], float]:
        """The last sample of each target and name, its labels added up."""
        at: dict[tuple[str, str], int] = {}
        sums: dict[tuple[str, str], float] = {}
        for table in read_samples(self.result.path / SERVER_METRICS_FILE):
            for row in table.to_pylist():
                key = row["target"], row["name"]
                if row["at_ns"] > at.get(key, 0):
                    at[key], sums[key] = row["at_ns"], 0.0
                if row["at_ns"] == at[key]:
                    sums[key] += row["value"]
        return sums


def bases(folder: Path) -> list[str]:
    """Where the replicas listen, by the simulation's own words."""
    lines = (folder / "sim" / "sim.out").read_text().splitlines()
    places = (line.split(" on ")[1].split()[0] for line in lines if line.startswith("replica-"))
    return [place.removesuffix("/v1") for place in places]


def values(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url, timeout=120) as response:
        found = readings(response.read().decode())
    return {name: sum(r.value for r in found if r.name == name) for name in {r.name for r in found}}


def run(
    *options: str, during: Callable[[Simulation, Process], None] = lambda sim, process: None
) -> Callable[[Path], Finished]:
    def scraped(folder: Path) -> Finished:
        with (
            simulation(folder / "sim", "--replicas", "2", "--replica-ports", "0") as sim,
            serving(hang) as hung,
            serving(page("<html>")) as garbage,
        ):
            replicas = [f"{base}/metrics" for base in bases(folder)]
            bad = {"hangs": f"127.0.0.1:{hung}", "garbage": f"127.0.0.1:{garbage}"}
            urls = [*replicas, f"{sim.url}/gpu/metrics", *(f"http://{name}/metrics" for name in bad.values())]
            asked = [word for url in urls for word in ("--metrics-url", url)]
            file = folder / "locustfile.py"
            file.write_text(LOCUSTFILE)
            with locust(folder, *USUAL, *options, *asked, "-H", sim.url, locustfile=file) as process:
                during(sim, process)
                code = process.exit_code()
                pages = {url.split("/")[2]: values(url) for url in (*replicas, f"{sim.url}/gpu/metrics")}
                result = Result.read(folder / "run")
                return Finished(code, process.stdout, process.stderr, result, pages, bad)

    return scraped


def scraper(process: Process) -> psutil.Process | None:
    children = psutil.Process(process.pid).children()
    return next((child for child in children if "--tell" in child.cmdline()), None)


def _lasts_s(sim: Simulation) -> float:
    received_ns: list[int] = [entry["received_ns"] for entry in sim.entries()] or [0]
    return (max(received_ns) - min(received_ns)) * 1e-9


def kill_the_scraper(sim: Simulation, process: Process) -> None:
    wait_until(lambda: _lasts_s(sim) > 2.5, "requests well after the warm-up")
    found = scraper(process)
    assert found is not None
    found.send_signal(SIGKILL)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finished]:
    scenarios = {
        "two workers": run(*forked(2)),
        "killed": run(during=kill_the_scraper),
    }
    return in_parallel(tmp_path_factory.mktemp("servers"), scenarios)


@pytest.fixture
def whole(runs: dict[str, Finished]) -> Finished:
    return runs["two workers"]


def test_counters_in_the_file_are_the_simulators_totals(whole: Finished) -> None:
    found, last = whole, whole.last()
    replicas = [target for target, told in found.pages.items() if "finished" in told]
    assert len(replicas) == 2
    for target in replicas:
        for counter in COUNTERS:
            assert last[target, counter] == found.pages[target][counter] > 0


def test_in_the_window_the_servers_saw_what_the_client_saw(whole: Finished) -> None:
    found = whole
    gateway = found.server["gateway"]
    assert gateway["same_requests"]
    assert gateway["gateway_ms"] == pytest.approx(
        gateway["client_ttft_ms"] - gateway["server_ttft_ms"] - gateway["rtt_ms"]
    )
    assert gateway["server_ttft_ms"] < gateway["client_ttft_ms"]
    window, total = found.result.summary["window"], found.server["total"]
    tokens = found.result.summary["throughput"]["output_tokens_per_s"] * window["seconds"]
    # Pages are read each 0.5 s, and later on a busy machine: that much of the window's edges is not known.
    assert total["generation_tokens"] == pytest.approx(tokens, rel=0.25)
    assert 0 < total["running_mean"] <= 4
    assert found.server["failure"] is None
    assert "gateway and balancer" in found.result.report()


def test_servers_that_hang_or_send_garbage_cost_nothing_but_their_own_gap(whole: Finished) -> None:
    found = whole
    assert found.code == 0
    for bad in found.bad.values():
        assert found.target(bad)["failed"] == found.target(bad)["scrapes"] > 2
        assert f"server metrics: {bad}: " in found.stderr
    for target in found.pages:
        told = found.target(target)
        assert told["failed"] == 0
        assert told["scrapes"] > 3
        assert told["covered"] > 0.7
    assert "of 2 servers returned no metrics page" in found.stdout


def test_energy_is_that_of_the_simulated_gpus(whole: Finished) -> None:
    """Which draw 100 W, and 600 W in a step."""
    summary = whole.result.summary
    energy, throughput, seconds = summary["energy"], summary["throughput"], summary["window"]["seconds"]
    assert (energy["gpus"], energy["by_counter"]) == (2, 2)
    assert 2 * IDLE_W < energy["power_w"] <= 2 * BUSY_W
    assert energy["joules"] == pytest.approx(energy["power_w"] * seconds)
    tokens = throughput["output_tokens_per_s"] * seconds
    assert energy["joules_per_output_token"] == pytest.approx(energy["joules"] / tokens)
    assert energy["per_watt"]["output_tokens_per_s"] == pytest.approx(tokens / energy["joules"])
    good = summary["goodput"]["requests_per_s"]
    assert energy["per_watt"]["goodput_requests_per_s"] == pytest.approx(good / energy["power_w"])
    assert energy["per_gpu"]["goodput_requests_per_s"] == pytest.approx(good / 2)
    assert "J per output token" in whole.result.report()


def test_times_are_on_the_runs_axis(whole: Finished) -> None:
    result = whole.result
    tables = read_samples(result.path / SERVER_METRICS_FILE)
    at_ns = [at for table in tables for at in table.column("at_ns").to_pylist()]
    assert result.manifest.ended_ns is not None
    first_ns = min(row["scheduled_ns"] for row in result.requests.table.to_pylist())
    assert result.manifest.started_ns < min(at_ns) < first_ns, "before the first user"
    assert max(at_ns) < result.manifest.ended_ns


def test_the_live_figures_are_those_of_the_records_with_a_warm_up_too(whole: Finished) -> None:
    result = whole.result
    check = result.summary["live_check"]
    assert check["within"] is True
    assert check["requests"]["live"] == len(result.requests) > result.summary["requests"]["scheduled"] > 0
    assert result.manifest.live_check == check


def test_a_scraper_that_is_killed_is_said_everywhere_and_the_load_goes_on(runs: dict[str, Finished]) -> None:
    found = runs["killed"]
    assert found.code == 0
    assert found.result.manifest.complete
    assert found.result.manifest.server_metrics is not None
    assert found.result.manifest.server_metrics.failure == "was ended by signal 9 (SIGKILL)"
    assert "the scraper was ended by signal 9 (SIGKILL)" in found.server["failure"]
    assert "the scraper was ended by signal 9 (SIGKILL)" in " ".join(found.stdout.split())
    assert "ERROR: server metrics: the scraper was ended by" in found.stderr
    assert found.server["total"]["scrapes"] > 0, "what it had stays"
    assert "missing" in found.result.summary["energy"], "of a part of the window there are no figures"


@pytest.mark.parametrize("name", ["two workers", "killed"])
def test_nothing_stays_behind(runs: dict[str, Finished], name: str) -> None:
    found = runs[name]
    assert "Traceback" not in found.stderr
    left = {path.name for path in found.result.path.iterdir()}
    assert SERVER_METRICS_FILE in left
    assert not any(path.endswith((".arrows", ".part")) for path in left)
