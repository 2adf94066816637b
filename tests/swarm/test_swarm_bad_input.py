"""What cannot work ends with one clear line and exit code 2, before any load."""

import json
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from scripted import refusing_port
from swarm_process import LOCUSTFILES, Process, Simulation, forked, free_port, locust, simulation

KEY = "sk-right-key"


@dataclass(frozen=True, slots=True)
class Case:
    """A wrong command. ``{host}`` stands for the simulation's URL, ``{folder}`` for a folder with files."""

    options: Sequence[str]
    says: str  # a pattern of the one line
    environ: Mapping[str, str] = field(default_factory=dict)
    workers: int = 0  # forked ones
    locustfile: str = "chat.py"
    host: bool = True


CASES = {
    "no host": Case([], r"no host: give -H http://HOST:PORT", host=False),
    "no host, forked": Case([], r"no host: give -H", workers=2, host=False),
    "host that refuses": Case(
        ["-H", "http://127.0.0.1:{closed}"], r"host 'http://.*' cannot be reached: .*refused", host=False
    ),
    "host that refuses, forked": Case(
        ["-H", "http://127.0.0.1:{closed}"], r"cannot be reached: .*refused", workers=2, host=False
    ),
    "host that is no URL": Case(["-H", "ftp://x"], r"host 'ftp://x' is not a URL", host=False),
    "host with a password": Case(["-H", "http://me:hush@x"], r"leave user, query", host=False),
    "unknown model": Case(["--model", "lama"], r"model 'lama' is not on '.*', which has: sim, other"),
    "unknown model, forked": Case(["--model", "lama"], r"which has: sim, other", workers=2),
    "several models and none named": Case([], r"has 2 models, give --model NAME: sim, other"),
    "SLO word": Case(["--slo", "ttft=500ms tpop=50ms"], r"--slo: .*tpop.*tpot"),
    "SLO value": Case(["--slo", "ttft=5parsec"], r"--slo: .*5parsec"),
    "gate word": Case(["--gate", "goodput>=95% p99_tttf<1s"], r"--gate: .*p99_tttf.*p99_ttft"),
    "gate, forked": Case(["--gate", "goodput>=195%"], r"--gate: .*195%", workers=2),
    "lengths": Case(["--input-tokens", "uniform:9"], r"--input-tokens: .*uniform:9"),
    "timeouts": Case(["--timeouts", "fist=9s"], r"--timeouts: .*'fist=9s'.*first=TIME"),
    "warm-up": Case(["--warmup", "soon"], r"--warmup: .*soon"),
    "body": Case(["--body", "{nope"], r"--body: .*nope"),
    "seed": Case(["--seed", "-4"], r"--seed: -4 is negative"),
    "dataset line": Case(["--dataset", "{folder}/bad.jsonl"], r"--dataset: .*bad\.jsonl:2: "),
    "dataset line, forked": Case(["--dataset", "{folder}/bad.jsonl"], r"bad\.jsonl:2: ", workers=2),
    "no dataset": Case(["--dataset", "{folder}/none.jsonl"], r"--dataset: .*none\.jsonl.*No such file"),
    "pictures for completions": Case(
        ["--dataset", "{folder}/pictures.jsonl"], r"pictures\.jsonl:1: .*text", locustfile="completions.py"
    ),
    "dataset and lengths": Case(
        ["--dataset", "{folder}/chat.jsonl", "--input-tokens", "9"], r"input lengths '9' with dataset"
    ),
    "out below a file": Case(["--out", "{folder}/file/run"], r"--out: .*run' cannot be written: Not a dir"),
    "out below a file, forked": Case(
        ["--out", "{folder}/file/run"], r"--out: .*cannot be written", workers=2
    ),
    "out that holds a run": Case(["--out", "{folder}/old"], r"--out: .*old' holds a run already"),
    "key not set": Case(
        ["--api-key-env", "NO_SUCH_KEY"], r"--api-key-env: .*'NO_SUCH_KEY' is not set", {"K": ""}
    ),
    "key with a line break": Case(
        ["--api-key-env", "K"], r"--api-key-env: the value of 'K' holds a line break", {"K": "sk-hush\nX: y"}
    ),
    "wrong key": Case(["--api-key-env", "K"], r"refuses access \(HTTP 401\): give a key", {"K": "sk-hush"}),
    "no key": Case([], r"refuses access \(HTTP 401\): give a key", {"K": ""}),
    "wrong key, forked": Case(
        ["--api-key-env", "K"], r"refuses access \(HTTP 401\)", {"K": "sk-hush"}, workers=2
    ),
    "header without value": Case(["--header", "sk-hush"], r"--header: .*NAME=VALUE"),
    "header name": Case(["--header", "X Y=sk-hush"], r"--header: 'X Y' is no header name"),
    "header value": Case(["--header", "X-Y=sk-hush\u20ac"], r"--header: the value of 'X-Y' holds"),
    "CA file": Case(
        ["--ca-cert", "{folder}/file", "-H", "https://127.0.0.1:1"], r"--ca-cert .*file' cannot be used"
    ),
}


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    process: Process
    took_s: float
    left_over: list[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    (folder / "file").write_text("a regular file")
    (folder / "bad.jsonl").write_text('{"prompt": "fine"}\n{"prompt": \n')
    (folder / "chat.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
    (folder / "pictures.jsonl").write_text(json.dumps({"messages": [picture]}) + "\n")
    (folder / "old").mkdir()
    (folder / "old" / "manifest.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def sim(folder: Path) -> Simulation:  # type: ignore[misc]
    with simulation(folder / "sim", "--model", "sim", "--model", "other", "--api-key", KEY) as sim:
        yield sim


@pytest.fixture(scope="module")
def ended(folder: Path, sim: Simulation) -> dict[str, Ended]:
    with refusing_port() as closed, ThreadPoolExecutor(3) as pool:

        def run(name: str) -> Ended:
            return _run(CASES[name], folder, sim, closed)

        return dict(zip(CASES, pool.map(run, CASES), strict=True))


def _run(case: Case, folder: Path, sim: Simulation, closed: int) -> Ended:
    place = folder / f"case-{id(case)}"
    place.mkdir()
    options = [o.replace("{folder}", str(folder)).replace("{closed}", str(closed)) for o in case.options]
    if case.host and "-H" not in options:
        options += ["-H", sim.url]
    if case.workers:
        options += forked(case.workers)
    environ = {"K": KEY, "LLM_LOCUST_API_KEY_ENV": "K" if case.environ.get("K", KEY) else ""} | dict(
        case.environ
    )
    started = time.monotonic()
    load = ["--headless", "-u", "2", "-r", "2", "-t", "2s"]
    with locust(place, *load, *options, locustfile=LOCUSTFILES / case.locustfile, environ=environ) as process:
        code = process.exit_code()
        return Ended(code, process, time.monotonic() - started, process.left_over())


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_bad_input_ends_with_exit_code_2_and_one_line_that_says_why(
    case: str, ended: dict[str, Ended]
) -> None:
    process = ended[case].process
    said = [line for line in process.said if not line.startswith(("usage:", " "))]
    assert len(said) == 1, process.stderr
    assert re.search(CASES[case].says, said[0]), said[0]
    assert ended[case].code == 2


def test_bad_input_leaves_no_process_behind_and_does_not_take_long(
    case: str, ended: dict[str, Ended]
) -> None:
    assert ended[case].left_over == []
    assert ended[case].took_s < 10


def test_no_secret_is_shown(case: str, ended: dict[str, Ended]) -> None:
    assert "hush" not in ended[case].process.stderr.replace("http://me:hush@x", "")
    assert "hush" not in ended[case].process.stdout


def test_no_request_is_sent_before(ended: dict[str, Ended], sim: Simulation) -> None:
    assert len(ended) == len(CASES)
    assert sim.entries() == []


def test_a_worker_that_cannot_do_the_run_ends_it_and_is_named(tmp_path: Path) -> None:
    """The options are those of the master; a file or a variable that they name may be missing elsewhere."""
    port = str(free_port())
    with simulation(tmp_path / "sim") as sim, ExitStack() as stack:
        options = ["--headless", "-u", "2", "--out", "run", "-H", sim.url, "--api-key-env", "K"]
        as_master = ["--master", "--expect-workers", "1", "--master-bind-port", port]
        master = stack.enter_context(locust(tmp_path, *as_master, *options, environ={"K": KEY}))
        worker = stack.enter_context(locust(tmp_path, "--worker", "--master-port", port, stdout="worker"))
        assert master.exit_code() == 2
        worker.exit_code()
        errors = [line for line in master.said if "/ERROR/" in line]
        assert len(errors) == 1
        assert re.search(r"worker \S+: --api-key-env: the environment variable 'K' is not set", errors[0])
        assert "Traceback" not in master.stderr + worker.stderr
        assert sim.entries() == []
