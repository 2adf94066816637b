"""Runs straight to the replicas by each policy, and runs whose connections carry few requests."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from relay import relay
from swarm_process import (
    CHAT,
    LOCUSTFILES,
    Result,
    Simulation,
    forked,
    in_parallel,
    locust,
    simulation,
    wait_until,
)

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
