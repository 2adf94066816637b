"""Runs straight to the replicas by each policy, and runs whose servers are scraped."""

import re
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any

import psutil
import pytest
from page_server import hang, page, serving
from relay import relay
from swarm_process import (
    CHAT,
    LOCUSTFILES,
    Process,
    Result,
    Simulation,
    forked,
    in_parallel,
    locust,
    simulation,
    wait_until,
)

from llm_locust.deployment.server_metrics import SERVER_METRICS_FILE, read_samples, readings

# --- Runs straight to the replicas by each policy, and runs whose connections carry few requests


TALK = """
from locust import task

from llm_locust import ConversationUser


class Talk(ConversationUser):
    turns = "uniform:3,5"

    @task
    def talk(self):
        self.converse()
"""

SHORT = (
    "--input-tokens",
    "10",
    "--output-tokens",
    "3",
    "--timeouts",
    "first=10s",
    "--headless",
    "--out",
    "run",
)

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Finished:
    """A run, the replicas' own URLs in their order, and what they saw of the run's own requests."""

    code: int
    said: str
    result: Result
    urls: list[str]
    truth: list[Row]
    accepted: int = 0

    @property
    def rows(self) -> list[Row]:
        return [*self.result.rows().values()]

    def by_worker(self, key: str) -> dict[str, Counter[Any]]:
        counts: defaultdict[str, Counter[Any]] = defaultdict(Counter)
        for row in self.rows:
            counts[row["worker"]][row[key]] += 1
        return dict(counts)


def own_urls(folder: Path, replicas: int) -> list[str]:
    """Where each replica of the simulation in a folder listens, as ``http://host:port``."""
    said = folder / "sim.out"
    pattern = re.compile(r"^replica-\d+ on (http://[^/\s]+)/v1$", re.MULTILINE)
    wait_until(lambda: len(pattern.findall(said.read_text())) == replicas, "every replica's address")
    return pattern.findall(said.read_text())


def finished(
    folder: Path,
    sims: Sequence[Simulation],
    urls: list[str],
    *options: str,
    locustfile: Path = CHAT,
    meanwhile: Callable[[], None] = lambda: None,
) -> Finished:
    with locust(folder, *SHORT, *options, locustfile=locustfile) as process:
        try:
            meanwhile()
            code = process.exit_code()
            result = Result.read(folder / "run")
        except Exception as e:
            e.add_note(process.stderr)
            raise
    ids = result.rows().keys()
    truth = [entry for sim in sims for entry in sim.entries() if entry["request_id"] in ids]
    return Finished(code, process.stderr, result, urls, truth)


def direct(folder: Path, *options: str, locustfile: Path = CHAT) -> Finished:
    """Three replicas as targets, without ``-H``; one is written with ``/v1``, one without a scheme."""
    with simulation(folder, "--replicas", "3", "--replica-ports", "0") as sim:
        urls = own_urls(folder, 3)
        written = f"{urls[0]}/v1,{urls[1]} {urls[2].removeprefix('http://')}"
        return finished(folder, [sim], urls, "--targets", written, *options, locustfile=locustfile)


def sticky(folder: Path, *options: str, text: str = TALK) -> Finished:
    (folder / "talk.py").write_text(text)
    asked = ("--target-policy", "sticky", "-u", "9", "-r", "100", *options)
    return direct(folder, *asked, locustfile=folder / "talk.py")


def slow_one(folder: Path) -> Finished:
    """Two targets of which the second takes ten times as long."""
    with simulation(folder / "a") as fast, simulation(folder / "b", "--step-base", "50ms") as slow:
        urls = [fast.url, slow.url]
        options = ("--target-policy", "least_inflight", "-u", "6", "-r", "100", "--num-requests", "120")
        return finished(folder, [fast, slow], urls, "--targets", ",".join(urls), *options)


def one_down(folder: Path) -> Finished:
    """Of three targets one refuses connections from the middle of the run on."""
    with simulation(folder, "--replicas", "3", "--replica-ports", "0") as sim:
        urls = own_urls(folder, 3)
        with relay(int(urls[2].rsplit(":", 1)[1])) as between:
            targets = [*urls[:2], f"http://127.0.0.1:{between.port}"]

            def cut() -> None:
                sim.wait_entries(60)
                between.cut()

            options = ("--targets", ",".join(targets), "-u", "6", "-r", "100", "--num-requests", "300")
            return finished(folder, [sim], targets, *options, meanwhile=cut)


def reusing(folder: Path, *options: str) -> Finished:
    """One host, behind a relay that counts connections."""
    with simulation(folder) as sim, relay(int(sim.url.rsplit(":", 1)[1])) as between:
        url = f"http://127.0.0.1:{between.port}"
        asked = ("-H", url, "--connection-reuse", "5", "-u", "4", "-r", "100", "--num-requests", "100")
        found = finished(folder, [sim], [url], *asked, *options)
        return Finished(found.code, found.said, found.result, found.urls, found.truth, between.accepted)


SCENARIOS: dict[str, Callable[[Path], Finished]] = {
    "round robin of two": lambda folder: direct(
        folder, "-u", "6", "-r", "100", "--num-requests", "91", *forked(2)
    ),
    "sticky of two": lambda folder: sticky(folder, "--num-requests", "120", *forked(2)),
    "sticky schedule": lambda folder: sticky(
        folder,
        *("--arrival", "constant", "--request-rate", "60", "--num-requests", "60"),
        text=(LOCUSTFILES / "open_loop.py").read_text(),
    ),
    "sticky sdk": lambda folder: sticky(
        folder,
        *("--num-requests", "36", "--connection-reuse", "off"),
        text=(LOCUSTFILES / "openai_sdk.py").read_text(),
    ),
    "least in flight": slow_one,
    "one down": one_down,
    "reuse 5 of two": lambda folder: reusing(folder, *forked(2)),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finished]:
    return in_parallel(tmp_path_factory.mktemp("targets"), SCENARIOS)


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "one down"])
def test_every_request_is_recorded_with_the_replica_that_served_it(
    runs: dict[str, Finished], name: str
) -> None:
    found = runs[name]
    assert found.code == 0, found.said
    assert {row["outcome"] for row in found.rows} == {"ok"}
    assert Counter((row["request_id"], row["replica"]) for row in found.rows) == Counter(
        (entry["request_id"], entry["replica"]) for entry in found.truth
    )


def test_turns_are_equal_at_each_worker(runs: dict[str, Finished]) -> None:
    found = runs["round robin of two"]
    turns = found.by_worker("peer")
    assert len(turns) == 2
    for counts in turns.values():
        assert counts.keys() == {url.removeprefix("http://") for url in found.urls}
        assert max(counts.values()) - min(counts.values()) <= 1
    assert len(found.rows) == 91


def test_turns_begin_at_another_target_at_each_worker(runs: dict[str, Finished]) -> None:
    first: dict[str, str] = {}
    for row in sorted(runs["round robin of two"].rows, key=lambda row: row["started_ns"]):
        first.setdefault(row["worker"], row["replica"])
    assert len(set(first.values())) == 2


def test_the_turns_of_a_conversation_go_to_one_target(runs: dict[str, Finished]) -> None:
    served: defaultdict[str, list[str]] = defaultdict(list)
    for row in runs["sticky of two"].rows:
        served[row["session"]].append(row["peer"])
    assert max(len(peers) for peers in served.values()) >= 3
    assert all(len(set(peers)) == 1 for peers in served.values())
    assert len({peers[0] for peers in served.values()}) == 3


def test_requests_of_no_conversation_stick_to_their_user(runs: dict[str, Finished]) -> None:
    rows = runs["sticky sdk"].rows
    places = {row["user"]: row["peer"] for row in rows}
    assert all(places[row["user"]] == row["peer"] for row in rows)
    assert len(places) == 9
    assert len(set(places.values())) == 3


def test_requests_of_a_schedule_are_of_nobody_and_take_turns(runs: dict[str, Finished]) -> None:
    assert [*Counter(row["peer"] for row in runs["sticky schedule"].rows).values()] == [20, 20, 20]


def test_a_slow_target_gets_less_of_what_goes_to_the_least_loaded(runs: dict[str, Finished]) -> None:
    found = runs["least in flight"]
    fast, slow = (Counter(r["peer"] for r in found.rows)[url.removeprefix("http://")] for url in found.urls)
    assert fast + slow == 120
    assert slow > 0
    assert fast > 2 * slow


def test_a_target_that_goes_down_keeps_its_turns_and_has_all_the_errors(runs: dict[str, Finished]) -> None:
    found = runs["one down"]
    failed = [row for row in found.rows if row["outcome"] != "ok"]
    assert {row["replica"] for row in failed} == {"replica-2"}
    assert {row["outcome"] for row in failed} <= {"connect_error", "truncated"}
    assert sum(row["sent_ns"] is None for row in failed) > 20, "refused ones among them"
    assert not any(row["retries"] for row in failed if row["sent_ns"] is None)
    assert sorted(Counter(row["replica"] for row in found.rows).values()) == [100, 100, 100]
    rates = {entry["name"]: entry["error_rate"] for entry in found.result.summary["replicas"]}
    assert rates == {"replica-0": 0, "replica-1": 0, "replica-2": len(failed) / 100}


def test_a_connection_carries_no_more_requests_than_asked(runs: dict[str, Finished]) -> None:
    found = runs["reuse 5 of two"]
    # Those that the run's end leaves half used: one for each user at most.
    assert 20 <= _new(found) <= 24
    assert found.result.summary["latency_ms"]["connect"]["n"] == _new(found)


def test_the_server_sees_the_connections_that_the_records_tell_of(runs: dict[str, Finished]) -> None:
    found = runs["reuse 5 of two"]
    # The others are those of what is asked before the load.
    assert found.accepted - _new(found) == 2


def test_requests_of_the_sdk_have_connections_of_their_own_too(runs: dict[str, Finished]) -> None:
    assert _new(runs["sticky sdk"]) == 36


def test_connections_are_kept_where_nothing_is_said(runs: dict[str, Finished]) -> None:
    assert _new(runs["round robin of two"]) <= 18, "six users, three targets"


def _new(found: Finished) -> int:
    """Requests that made a connection."""
    return sum(not row["reused"] for row in found.rows)


# --- Runs whose servers are scraped, in processes of their own, against what the simulation says of itself


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
class ServersFinished:
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
) -> Callable[[Path], ServersFinished]:
    def scraped(folder: Path) -> ServersFinished:
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
                return ServersFinished(code, process.stdout, process.stderr, result, pages, bad)

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
def servers_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ServersFinished]:
    scenarios = {
        "two workers": run(*forked(2)),
        "killed": run(during=kill_the_scraper),
    }
    return in_parallel(tmp_path_factory.mktemp("servers"), scenarios)


@pytest.fixture
def whole(servers_runs: dict[str, ServersFinished]) -> ServersFinished:
    return servers_runs["two workers"]


def test_counters_in_the_file_are_the_simulators_totals(whole: ServersFinished) -> None:
    found, last = whole, whole.last()
    replicas = [target for target, told in found.pages.items() if "finished" in told]
    assert len(replicas) == 2
    for target in replicas:
        for counter in COUNTERS:
            assert last[target, counter] == found.pages[target][counter] > 0


def test_in_the_window_the_servers_saw_what_the_client_saw(whole: ServersFinished) -> None:
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


def test_servers_that_hang_or_send_garbage_cost_nothing_but_their_own_gap(whole: ServersFinished) -> None:
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


def test_energy_is_that_of_the_simulated_gpus(whole: ServersFinished) -> None:
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


def test_times_are_on_the_runs_axis(whole: ServersFinished) -> None:
    result = whole.result
    tables = read_samples(result.path / SERVER_METRICS_FILE)
    at_ns = [at for table in tables for at in table.column("at_ns").to_pylist()]
    assert result.manifest.ended_ns is not None
    first_ns = min(row["scheduled_ns"] for row in result.requests.table.to_pylist())
    assert result.manifest.started_ns < min(at_ns) < first_ns, "before the first user"
    assert max(at_ns) < result.manifest.ended_ns


def test_the_live_figures_are_those_of_the_records_with_a_warm_up_too(whole: ServersFinished) -> None:
    result = whole.result
    check = result.summary["live_check"]
    assert check["within"] is True
    assert check["requests"]["live"] == len(result.requests) > result.summary["requests"]["scheduled"] > 0
    assert result.manifest.live_check == check


def test_a_scraper_that_is_killed_is_said_everywhere_and_the_load_goes_on(
    servers_runs: dict[str, ServersFinished],
) -> None:
    found = servers_runs["killed"]
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
def test_nothing_stays_behind(servers_runs: dict[str, ServersFinished], name: str) -> None:
    found = servers_runs[name]
    assert "Traceback" not in found.stderr
    left = {path.name for path in found.result.path.iterdir()}
    assert SERVER_METRICS_FILE in left
    assert not any(path.endswith((".arrows", ".part")) for path in left)
