"""What cannot work ends with one clear line and exit code 2, before any load."""

import json
import os
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from scripted import refusing_port
from swarm_process import LOCUSTFILES, Process, Simulation, forked, free_port, locust, simulation

from llm_locust.options.table import OPTION

KEY = "sk-right-key"


@dataclass(frozen=True, slots=True)
class Case:
    """A wrong command. ``{host}`` stands for the simulation's URL, ``{folder}`` for a folder with files."""

    options: Sequence[str]
    says: str  # a pattern of the one line
    environ: Mapping[str, str | None] = field(default_factory=dict)  # None: not set
    workers: int = 0  # forked ones
    locustfile: str = "chat.py"
    host: bool = True


CASES = {
    "no host": Case([], r"no host: give -H http://HOST:PORT", host=False),
    "host that refuses": Case(
        ["-H", "http://127.0.0.1:{closed}"], r"host 'http://.*' cannot be reached: .*refused", host=False
    ),
    "host that is no URL": Case(["-H", "ftp://x"], r"host 'ftp://x' is not a URL", host=False),
    "host with a password": Case(["-H", "http://me:hush@x"], r"leave user, query", host=False),
    "unknown model": Case(
        ["--model", "lama", "--canary", "on"], r"model 'lama' is not on '.*', which has: sim, other"
    ),
    "unknown model, forked": Case(["--model", "lama", "--canary", "on"], r"which has: sim, other", workers=2),
    "several models and none named": Case([], r"has 2 models, give --model NAME: sim, other"),
    "SLO word": Case(["--slo", "ttft=500ms tpop=50ms"], r"--slo: .*tpop.*tpot"),
    "seed": Case(["--seed", "-4"], r"--seed: -4 is too small"),
    "dataset line": Case(["--dataset", "{folder}/bad.jsonl"], r"--dataset: .*bad\.jsonl:2: "),
    "dataset line, forked": Case(["--dataset", "{folder}/bad.jsonl"], r"bad\.jsonl:2: ", workers=2),
    "dataset that is a device": Case(["--dataset", "/dev/zero"], r"--dataset: .*'/dev/zero': .*a device"),
    "dataset that is a pipe, forked": Case(
        ["--dataset", "{folder}/pipe"], r"--dataset: .*pipe': .*it is a pipe, not a file", workers=2
    ),
    "trace in seconds of a format in milliseconds": Case(
        ["--arrival", "trace:{folder}/seconds.jsonl", "--model", "sim"],
        r"--arrival: .*20 requests in 9.5 ms are 2,000 requests/s, .*: add --trace-unit s if",
        locustfile="replay.py",
    ),
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
    "wrong key": Case(
        ["--api-key-env", "K"], r"refuses the key in 'K' \(HTTP 401\): is it a key of this", {"K": "sk-hush"}
    ),
    "wrong key in a header": Case(
        ["--header", "Authorization=Bearer sk-hush"], r"refuses the key in --header \(HTTP 401\)", {"K": ""}
    ),
    "wrong key, the SDKs' variable": Case(
        ["--model", "sim", "--canary", "on"],
        r"refuses the key in 'OPENAI_API_KEY' \(HTTP 401\)",
        {"K": "", "OPENAI_API_KEY": "sk-hush", "LLM_LOCUST_API_KEY_ENV": None},
    ),
    "no key, though the SDKs' variable is set": Case(
        ["--api-key-env", ""], r"refuses requests without a key", {"K": "", "OPENAI_API_KEY": "sk-hush"}
    ),
    "no key": Case([], r"refuses requests without a key \(HTTP 401\): give one by --api-key-env", {"K": ""}),
    "no port": Case(["-H", "http://127.0.0.77"], r"names no port, so 80 was tried: add :PORT", host=False),
    "a query that is not a version": Case(
        ["-H", "{host}/v1?model=sim"], r"only \?api-version=DATE may be there", host=False
    ),
    "a key in the query": Case(
        ["-H", "{host}/v1?api-version=1&api-key=sk-hush"], r"'api-key' in it: leave user", host=False
    ),
    "a version for one of several targets": Case(
        ["--targets", "{host}?api-version=1"], r"--targets: .* in the URL of -H only"
    ),
    "a path of an endpoint, and no such model": Case(
        ["-H", "{host}/v1/chat/completions", "--model", "lama", "--canary", "on"],
        r"which has: sim, other",
        host=False,
    ),
    "no users": Case(["-u", "0"], r"-u 0: without users nothing is sent; give -u 1"),
    "no users a second": Case(["-r", "0"], r"-r/--spawn-rate: must be > 0"),
    "a warm-up as long as the run": Case(
        ["--warmup", "2s", "--model", "sim"], r"--warmup: 2 s is not shorter than the run, -t 2s.*longer -t"
    ),
    "a run time without its unit's grammar": Case(["-t", "soon"], r"-t/--run-time: "),
    "a replay without a trace": Case(
        ["--model", "sim"], r"Replay replays a trace, and none.*--arrival trace:FILE", locustfile="replay.py"
    ),
    "a trace that is not there": Case(
        ["--arrival", "trace:{folder}/none.csv"], r"--arrival: .*none\.csv", locustfile="replay.py"
    ),
    "a slice of no trace": Case(
        ["--trace-slice", "1m-2m"],
        r"--trace-slice without a trace: give --arrival",
        locustfile="open_loop.py",
    ),
    "a rate for users that wait for answers": Case(
        ["--request-rate", "5"], r"--request-rate requires an OpenLoopUser"
    ),
    "an option that is none": Case(["--zzz", "x"], r"unrecognized arguments: --zzz"),
    "no user class": Case([], r"No User class found!", locustfile="{folder}/empty.py"),
    "a user class that is not there": Case(["Chatt"], r"Unknown User\(s\): Chatt"),
    "a scenario that is not there": Case(["--scenario", "{folder}/none.yaml"], r"--scenario: .*none\.yaml"),
    "workers that do not come": Case(
        [
            *("--master", "--expect-workers-max-wait", "1", "--master-bind-host", "127.0.0.1"),
            *("--master-bind-port", "{free}", "--model", "sim"),
        ],
        r"Gave up waiting for workers",
    ),
    "a port of the web UI in use": Case(
        ["--headful", "--model", "sim", "--web-port", "{busy}"],
        r"--web-port: 127.0.0.1:\d+ is in use.*another --web-port",
    ),
    "a port of the metrics in use": Case(["--metrics-port", "{busy}", "--model", "sim"], r"--metrics-port"),
    "header without value": Case(["--header", "sk-hush"], r"--header: .*NAME=VALUE"),
    "header value": Case(["--header", "X-Y=sk-hush\u20ac"], r"--header: the value of 'X-Y' holds"),
    "CA file": Case(
        ["--ca-cert", "{folder}/file", "-H", "https://127.0.0.1:1"], r"--ca-cert .*file' cannot be used"
    ),
}


#: What a text is refused for by its option. A command line says so as it does of the SLO above.
REFUSED = [
    ("slo", "ttft=5parsec", "5parsec"),
    ("gate", "goodput>=95% p99_tttf<1s", "p99_tttf.*p99_ttft"),
    ("gate", "goodput>=195%", "195%.*at most 100%: write it as 95%"),
    ("input_tokens", "uniform:9", "uniform:9"),
    ("timeouts", "fist=9s", "'fist=9s'.*first=TIME"),
    ("warmup", "soon", "soon"),
    ("warmup", "5", "'5': a number without a unit.*5s"),
    ("drain", "5 sec", "unknown unit.*write 5s"),
    ("body", "{nope", "nope"),
    ("arrival", "possion", "possion"),
    ("num_requests", "0", "'0' is no whole number"),
    ("stop_when", "errors>5", "'errors>5': allowed are"),
    ("header", "X Y=sk-hush", "what begins with 'X' is no header name"),
]


@pytest.mark.parametrize(("name", "text", "says"), REFUSED)
def test_a_text_is_refused_for_what_is_wrong_with_it(name: str, text: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{OPTION[name].flag}: .*{says}") as refused:
        OPTION[name].value(Namespace(**{name: text}))
    assert "hush" not in str(refused.value)


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    process: Process
    left_over: list[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    (folder / "file").write_text("a regular file")
    (folder / "bad.jsonl").write_text('{"prompt": "fine"}\n{"prompt": \n')
    (folder / "chat.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
    (folder / "pictures.jsonl").write_text(json.dumps({"messages": [picture]}) + "\n")
    times = ({"timestamp": i / 2, "input_length": 9, "output_length": 2} for i in range(20))
    (folder / "seconds.jsonl").write_text("".join(f"{json.dumps(time)}\n" for time in times))
    os.mkfifo(folder / "pipe")
    (folder / "empty.py").write_text("import llm_locust\n")
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
    facts = {"folder": str(folder), "closed": str(closed), "host": sim.url, "busy": sim.url.split(":")[-1]}
    facts["free"] = str(free_port())

    def filled(text: str) -> str:
        return re.sub(r"\{(folder|closed|host|busy|free)\}", lambda found: facts[found[1]], text)

    options = [filled(option) for option in case.options]
    if case.host and "-H" not in options:
        options += ["-H", sim.url]
    if case.workers:
        options += forked(case.workers)
    named = "K" if case.environ.get("K", KEY) else ""
    environ = {"K": KEY, "LLM_LOCUST_API_KEY_ENV": named} | dict(case.environ)
    load = ["--headless", "-u", "2", "-r", "2", "-t", "2s"]
    locustfile = LOCUSTFILES / filled(case.locustfile)
    given = {name: value for name, value in environ.items() if value is not None}
    with locust(place, *load, *options, locustfile=locustfile, environ=given) as process:
        code = process.exit_code()
        return Ended(code, process, process.left_over())


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


def test_bad_input_leaves_no_process_behind(case: str, ended: dict[str, Ended]) -> None:
    assert ended[case].left_over == []


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
        errors = [line for line in master.said if " ERROR: " in line]
        assert len(errors) == 1
        assert re.search(r"worker \S+: --api-key-env: the environment variable 'K' is not set", errors[0])
        assert "Traceback" not in master.stderr + worker.stderr
        assert sim.entries() == []
