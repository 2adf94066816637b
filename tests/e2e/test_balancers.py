"""Real balancers before simulated replicas: what they do to load, streams and connections."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from e2e import balancers, swarm
from e2e.replicas import kill, one_process, replicas, server
from e2e.servers import Server
from e2e.swarm import CHAT, Run
from llm_locust.metrics.question import Question
from llm_locust.report.analysis import analyse
from llm_locust.report.inputs import open_source

# --- Real balancers before three simulated replicas, one of them 3 times slower, one killed midway


pytestmark = pytest.mark.e2e

SLOW, DYING = 1, 2
SLOWER = 3
KEY = {"LITELLM_KEY": balancers.LITELLM_KEY}
UPSTREAM = ("--replica-header", "X-Upstream")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A balancer, and a load that lasts for some 7 s after the death: an outage is told from 5 s on."""

    begin: Callable[[Sequence[Server], Path], AbstractContextManager[Server]]
    name: Callable[[int, Server], str]  # what its header says of a replica
    options: tuple[str, ...]
    users: int = 10
    requests: int = 120
    before_death: int = 12  # of the dying replica
    step_ms: int = 40
    output_tokens: str = "uniform:4,24"
    workers: int = 0
    is_prompt: bool = True  # what it adds to a token's time is small, on a busy machine too


CASES = {
    "nginx": Case(begin=balancers.nginx, name=lambda _, server: server.address, options=UPSTREAM, workers=2),
    "haproxy": Case(begin=balancers.haproxy, name=lambda i, _: f"r{i}", options=UPSTREAM),
    # Its own work is over 1 ms a token: at a faster pace it would be what is measured.
    "litellm": Case(
        begin=balancers.litellm,
        name=lambda _, server: f"{server.url}/v1",
        options=("--api-key-env", "LITELLM_KEY"),
        users=8,
        requests=96,
        step_ms=75,
        output_tokens="uniform:6,16",
        is_prompt=False,
    ),
}


@dataclass(frozen=True, slots=True)
class Death:
    """A run through a balancer; ``truth`` has each replica's log by the name that the balancer gives it."""

    case: Case
    run: Run
    names: list[str]
    truth: dict[str, list[dict[str, Any]]]
    killed_s: float

    @property
    def died(self) -> list[dict[str, Any]]:
        """What failed, and so is in no log: the log of a process that was killed has what was over."""
        return [row for row in self.run.rows if row["outcome"] != "ok"]

    def entry(self, replica: int) -> dict[str, Any]:
        (found,) = [e for e in self.run.summary["replicas"] if e["name"] == self.names[replica]]
        return dict(found)


def served(folder: Path, case: Case) -> Death:
    (folder / "balancer").mkdir(parents=True)
    load = ["-u", str(case.users), "-r", str(case.users), "--input-tokens", "32", "-t", "60s", *case.options]
    load += ["--output-tokens", case.output_tokens, "--num-requests", str(case.requests)]
    steps_ms = [case.step_ms, SLOWER * case.step_ms, case.step_ms]
    with replicas(folder, steps_ms) as behind:
        servers = [server(replica.url, replica.truth) for replica in behind]
        with (
            case.begin(servers, folder / "balancer") as balancer,
            swarm.begun(balancer.url, folder / "run", CHAT, load, KEY, case.workers) as process,
        ):
            behind[DYING].wait_entries(case.before_death)
            killed_s = kill(behind[DYING])
            run = swarm.finish(process, folder / "run")
        names = [case.name(i, each) for i, each in enumerate(servers)]
        logs = [[e for e in r.entries() if e["request_id"] != balancers.WARM_UP] for r in behind]
        return Death(case, run, names, dict(zip(names, logs, strict=True)), killed_s)


@pytest.fixture(scope="module")
def deaths(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Death]]]:
    """Every case, two at once: LiteLLM takes as long to start as another one's run."""
    with ThreadPoolExecutor(max_workers=2) as at_once:
        order = sorted(CASES, key=lambda name: name != "litellm")
        yield {name: at_once.submit(served, tmp_path_factory.mktemp(name), CASES[name]) for name in order}


@pytest.fixture(scope="module", params=CASES)
def death(request: pytest.FixtureRequest, deaths: dict[str, Future[Death]]) -> Death:
    found = deaths[request.param].result()
    print(f"\n{request.param}: {figures(found)}")
    return found


def figures(death: Death) -> str:
    """What the report said, beside the truth."""
    started = datetime.fromisoformat(death.run.summary["window"]["start"]).timestamp()
    out = [death.entry(i)["outages"] for i in range(3)]
    lines = [
        f"{name}: {death.entry(i)['requests']} requests, share {death.entry(i)['share']:.4f}; "
        f"truth {len(death.truth[name])} over"
        for i, name in enumerate(death.names)
    ]
    fairness = death.run.summary["fairness"]
    lines += [
        f"failed: {Counter((row['outcome'], row['replica']) for row in death.died)}",
        f"Jain: requests {fairness['requests']!r}, output tokens {fairness['output_tokens']!r}",
        f"killed at {death.killed_s - started:.3f} s of the window, outages {out}",
        *(cause["text"] for cause in fairness["causes"]),
    ]
    return "\n  ".join(lines)


def jain(amounts: Sequence[float]) -> float:
    return sum(amounts) ** 2 / (len(amounts) * sum(x * x for x in amounts))


def tpot_p50_ns(log: Sequence[dict[str, Any]]) -> float:
    """As the replica itself knows it."""
    ends = ([*entry["token_ns"], *([entry["eos_ns"]] if entry["eos_ns"] else [])] for entry in log)
    return float(median((each[-1] - each[0]) / (len(each) - 1) for each in ends if len(each) > 1))


def test_every_answer_is_credited_to_the_replica_whose_log_has_it(death: Death) -> None:
    logs = {name: {entry["request_id"]: entry for entry in log} for name, log in death.truth.items()}
    for row in death.run.ok:
        (name,) = [name for name, log in logs.items() if row["request_id"] in log]
        assert row["replica"] == name
        assert row["output_tokens"] == logs[name][row["request_id"]]["output_tokens"]


def test_every_answer_of_a_log_is_in_the_records(death: Death) -> None:
    ids = {row["request_id"] for row in death.died}
    for name, log in death.truth.items():
        over = {entry["request_id"] for entry in log if entry["complete"]}
        got = {row["request_id"] for row in death.run.ok if row["replica"] == name}
        # One that had sent its last token when it was killed may not have got it through.
        assert over - ids == got
        assert name == death.names[DYING] or not over & ids


def test_what_nginx_tried_in_turn_is_credited_to_the_one_that_answered(
    deaths: dict[str, Future[Death]],
) -> None:
    death = deaths["nginx"].result()
    log = (death.run.folder.parent / "balancer/nginx.log").read_text(encoding="utf-8")
    assert "connect() failed (111: Connection refused)" in log  # its header had two addresses then
    assert {row["replica"] for row in death.run.ok} == set(death.names)


def test_only_what_the_dead_replica_had_failed(death: Death) -> None:
    assert 0 < len(death.died) <= 2 * death.case.users
    # None: the balancer answered by itself, as the replica had said nothing yet.
    assert {row["replica"] for row in death.died} <= {death.names[DYING], None}
    assert "cancelled" not in {row["outcome"] for row in death.died}


def test_requests_and_shares_are_those_of_the_logs_and_of_what_died(death: Death) -> None:
    failed = Counter(row["replica"] for row in death.died)
    answered = Counter(row["replica"] for row in death.run.ok)
    amounts = {name: answered[name] + failed[name] for name in death.names}
    named = sum(amounts.values())
    for i, name in enumerate(death.names):
        entry = death.entry(i)
        assert entry["requests"] == amounts[name]
        assert entry["share"] == pytest.approx(amounts[name] / named, rel=1e-12)
        assert entry["error_rate"] == pytest.approx(failed[name] / amounts[name], rel=1e-12)
    assert len(death.run.summary["replicas"]) == 3
    assert death.run.summary["fairness"]["named_by"] == "header"
    assert death.run.summary["fairness"]["unnamed"] == failed[None]
    assert death.run.summary["fairness"]["requests"] == pytest.approx(jain([*amounts.values()]), abs=1e-9)


def test_the_indices_of_what_ended_well_are_those_of_the_truth_logs(death: Death) -> None:
    failed = {row["request_id"] for row in death.died}
    over = {
        name: [entry["output_tokens"] for entry in log if entry["request_id"] not in failed]
        for name, log in death.truth.items()
    }
    with open_source([death.run.folder]) as source:
        told = analyse(source, Question(where="outcome == ok")).summary
    for entry in told.replicas:
        assert entry.requests == len(over[entry.name])
        tokens = (entry.output_tokens_per_s or 0.0) * told.window.seconds
        assert tokens == pytest.approx(sum(over[entry.name]), rel=1e-9)
    assert told.fairness.requests == pytest.approx(jain([len(t) for t in over.values()]), abs=1e-9)
    assert told.fairness.output_tokens == pytest.approx(jain([sum(t) for t in over.values()]), abs=1e-9)


def test_the_dead_replica_is_named_with_the_time_of_its_death(death: Death) -> None:
    (outage,) = death.entry(DYING)["outages"]
    started_s = datetime.fromisoformat(death.run.summary["window"]["start"]).timestamp()
    assert started_s + outage["from_s"] == pytest.approx(death.killed_s, abs=1.0)
    assert outage["to_s"] is None
    assert not any(death.entry(i)["outages"] for i in range(3) if i != DYING)
    assert f"{death.names[DYING]} stopped serving at {outage['from_s']:.1f} s" in plain(death.run.report)


def test_the_slow_replica_is_named_and_no_other(death: Death) -> None:
    slow = [cause for cause in death.run.summary["fairness"]["causes"] if cause["kind"] == "slow"]
    assert [cause["replica"] for cause in slow] == [death.names[SLOW]]
    found = re.search(r"is ([\d.]+) times slower than .*: TPOT p50", slow[0]["text"])
    assert found is not None
    paces = [tpot_p50_ns(death.truth[death.names[i]]) for i in (SLOW, 0)]
    if death.case.is_prompt:
        assert float(found[1]) == pytest.approx(paces[0] / paces[1], rel=0.15)
        assert float(found[1]) > 2
    assert slow[0]["text"] in plain(death.run.report)


def test_nothing_else_is_held_against_a_balancer_that_deals_out_requests(death: Death) -> None:
    kinds = {cause["kind"] for cause in death.run.summary["fairness"]["causes"]}
    assert kinds <= {"out", "slow", "round_robin"}


def test_a_stream_that_the_balancer_passes_on_at_once_is_not_called_buffered(death: Death) -> None:
    assert death.run.summary["tokens"]["delivery"] == "tokens"
    assert "buffered" not in death.run.report


def plain(report: str) -> str:
    """Markdown without its escapes."""
    return re.sub(r"\\(.)", r"\1", report).replace("`", "")


# --- What a balancer does to streams and connections, and what the report makes of it


SHORT = ("--input-tokens", "32", "--output-tokens", "uniform:4,12", "-t", "300s")
LONG = ("--input-tokens", "32", "--output-tokens", "uniform:16,32", "-t", "300s")


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
