"""What a balancer does to streams and connections, and what the report makes of it."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e import balancers, swarm
from e2e.replicas import one_process
from e2e.swarm import CHAT, Run

pytestmark = pytest.mark.e2e

SHORT = ("--input-tokens", "32", "--output-tokens", "uniform:4,12", "-t", "300s")
LONG = ("--input-tokens", "32", "--output-tokens", "uniform:16,32", "-t", "300s")
UPSTREAM = ("--replica-header", "X-Upstream")


@dataclass(frozen=True, slots=True)
class Runs:
    """``merged``: haproxy without ``option http-no-delay``. ``pinned``, ``nameless``: haproxy that balances
    connections, before replicas that name themselves in a header and before such that do not."""

    merged: Run
    pinned: Run
    nameless: Run
    addresses: dict[str, str]  # of the balancers


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Three small runs at once: each waits most of its time."""
    folder = tmp_path_factory.mktemp("connections")
    with ExitStack() as stack:
        behind = stack.enter_context(one_process(place(folder, "replicas"), 3))
        before = {
            "merged": balancers.haproxy(behind, place(folder, "merged"), no_delay=False),
            "pinned": balancers.haproxy_tcp(behind, place(folder, "pinned"), named=True),
            "nameless": balancers.haproxy_tcp(behind, place(folder, "nameless"), named=False),
        }
        servers = {name: stack.enter_context(balancer) for name, balancer in before.items()}
        options = {"merged": [*few(8, 32), *LONG, *UPSTREAM], "pinned": [*few(4, 120), *SHORT]}
        options["nameless"] = [*few(4, 40), *SHORT]
        begun = {
            name: stack.enter_context(
                swarm.begun(server.url, folder / name / "run", CHAT, options[name], workers=0)
            )
            for name, server in servers.items()
        }
        found = {name: swarm.finish(process, folder / name / "run") for name, process in begun.items()}
        return Runs(**found, addresses={name: server.address for name, server in servers.items()})


def place(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


def few(users: int, requests: int) -> list[str]:
    return ["-u", str(users), "-r", str(users), "--num-requests", str(requests)]


def test_a_stream_that_haproxy_merges_is_called_buffered(runs: Runs) -> None:
    assert runs.merged.exit_code == 0, runs.merged.output
    assert runs.merged.summary["tokens"]["delivery"] == "buffered"
    assert "the stream was buffered on the way" in runs.merged.report
    assert "the stream was buffered on the way" in " ".join(runs.merged.output.split())


def test_connections_that_a_balancer_pins_are_named_as_the_cause(runs: Runs) -> None:
    fairness = runs.pinned.summary["fairness"]
    assert fairness["named_by"] == "header"
    assert {row["replica"] for row in runs.pinned.ok} == {"replica-0", "replica-1", "replica-2"}
    assert fairness["affinity"]["connection"]["observed"] == 1.0
    assert [cause["kind"] for cause in fairness["causes"]] == ["sticky"]
    assert "connections stick to a replica" in runs.pinned.report


def test_behind_a_balancer_of_connections_no_replica_is_claimed_that_nothing_names(runs: Runs) -> None:
    assert {row["replica"] for row in runs.nameless.rows} == {None}
    assert {row["peer"] for row in runs.nameless.rows} == {runs.addresses["nameless"]}
    assert runs.nameless.summary["replicas"] == []
    assert runs.nameless.summary["fairness"]["named_by"] is None
    assert runs.nameless.summary["fairness"]["causes"] == []
    assert "Replica" not in runs.nameless.report
