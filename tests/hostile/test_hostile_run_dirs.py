"""Files of strangers, and code that a master names: values within bounds, nothing in them is run."""

import gzip
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from live_cases import Run as LiveRun
from metrics_cases import request
from process_limits import little_memory
from report_cases import write_run
from roofline_cases import MODELS

from llm_locust.cli.main import main
from llm_locust.client.http.target import TargetError
from llm_locust.client.http.tls import tls_context
from llm_locust.core.files import SmallYamlError, read_small_yaml
from llm_locust.deployment.server_metrics import SERVER_METRICS_FILE
from llm_locust.live.snapshot import live_end
from llm_locust.options.settings import UsageError
from llm_locust.report.inputs import LIVE_FILE, write_live_end
from llm_locust.scenario.document import TrafficClass
from llm_locust.scenario.request_kind import RequestKind, kinds_of
from llm_locust.scenario.tree import ScenarioError, read_text
from llm_locust.store import MANIFEST_FILE, REQUESTS_FILE, SUMMARY_FILE
from llm_locust.swarm.channel.trust import check_named_functions, own_folders
from llm_locust.workload.answers import Validator
from llm_locust.workload.datasets import DatasetError, load_conversations, load_dataset
from llm_locust.workload.draws import LengthError, parse_lengths, read_lengths
from llm_locust.workload.plan import WorkloadSpec
from llm_locust.workload.tokenizer import TokenizerError, load_tokenizer
from llm_locust.workload.trace_formats import TraceError
from llm_locust.workload.traces import open_trace
from llm_locust.workload.trajectories import load_pool
from llm_locust.workload.trajectory_formats import TrajectoryError

# --- A run directory of a stranger: its files are values, and nothing in them is opened or costs a traceback


def forge(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the content of a JSON file."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def forged_shape(run: Path, shape: object) -> Path:
    """A run on one GPU, whose manifest has this in place of the model's shape."""
    write_run(run)
    options = {"gpu_type": "h100", "gpus": "1", "model_shape": shape}
    forge(run / MANIFEST_FILE, lambda manifest: manifest["options"].update(options))
    forge(run / MANIFEST_FILE, lambda manifest: manifest["workers"][0].update(batches=1, received_seqs="0"))
    return run


@pytest.mark.parametrize("kind", ["file", "pipe", "list", "number"])
@pytest.mark.parametrize("command", ["report", "merge"])
def test_what_a_manifest_names_as_the_models_shape_is_not_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, command: str
) -> None:
    secret = tmp_path / "secret.yaml"
    secret.write_text("confidential: 1\n")
    os.mkfifo(tmp_path / "pipe")  # to open it would never return
    shapes: dict[str, object] = {
        "file": str(secret),
        "pipe": str(tmp_path / "pipe"),
        "list": [1],
        "number": 7,
    }
    run = forged_shape(tmp_path / "run", shapes[kind])
    more = [] if command == "report" else ["--out", str(tmp_path / "out")]
    code = main([command, str(run), "--allow-incomplete", *more])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert "confidential" not in out + err
    made = run if command == "report" else tmp_path / "out"
    found = json.loads((made / SUMMARY_FILE).read_text())["roofline"]
    assert "only the name of a file for the model's shape" in str(found)


def test_a_shape_that_is_given_now_is_taken_in_place_of_a_path(tmp_path: Path) -> None:
    run = forged_shape(tmp_path / "run", "/nowhere.yaml")
    shape = str(MODELS / "llama-3-8b.yaml")
    assert main(["report", str(run), "--model-shape", shape, "--out", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out" / SUMMARY_FILE).read_text())["roofline"]
    assert found["model"] == "Llama 3 8B"


@pytest.mark.parametrize("name", [MANIFEST_FILE, REQUESTS_FILE, LIVE_FILE, SERVER_METRICS_FILE])
@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize("command", ["report", "compare", "merge"])
def test_a_file_that_is_a_link_or_a_pipe_is_neither_followed_nor_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, kind: str, command: str
) -> None:
    other, run = write_run(tmp_path / "other", id="other"), write_run(tmp_path / "run")
    victim = tmp_path / "victim"
    victim.write_text("confidential")
    (run / name).unlink(missing_ok=True)
    if kind == "link":
        (run / name).symlink_to(victim)
    else:
        os.mkfifo(run / name)  # to open it would never return
    words = {"compare": [str(other), str(run)], "merge": [str(run), "--out", str(tmp_path / "out")]}
    code = main([command, *words.get(command, [str(run)])])
    out, err = capsys.readouterr()
    assert "confidential" not in out + err
    assert not any("confidential" in path.read_text("latin-1") for path in (tmp_path / "out").glob("*"))
    if name in (MANIFEST_FILE, REQUESTS_FILE) or (command, name) == ("report", LIVE_FILE):
        assert code == 2
        assert ("is a link" if kind == "link" else "regular file") in err or command == "merge"


@pytest.mark.parametrize(
    "change",
    [
        lambda live: live["latency_ms"]["ttft"].update(p50=None),
        lambda live: live["latency_ms"]["ttft"].pop("p99"),
        lambda live: live["latency_ms"]["itl"].update(n=-1),
        lambda live: live["latency_ms"]["itl"].update(n=0),
        lambda live: live["latency_ms"].update(e2el=None),
        lambda live: live["latency_ms"]["tpot"].update(p95=1e300),
        lambda live: live.update(relative_error=1e300),
        lambda live: live.update(ok=2**63),
    ],
)
def test_live_figures_that_are_none_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[dict[str, Any]], object]
) -> None:
    run = write_run(tmp_path / "run")
    live = LiveRun()
    live.ended([request(i * 0.1) for i in range(95)])
    live.report()
    write_live_end(run, replace(live_end(live.store), run="20261121-first"))
    assert main(["report", str(run)]) == 0
    capsys.readouterr()
    forge(run / LIVE_FILE, change)
    assert main(["report", str(run)]) == 2
    err = capsys.readouterr().err
    assert "holds no live figures; remove it" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("price", ["-", "a" * 100_000])
@pytest.mark.parametrize("command", ["report", "compare"])
def test_a_price_that_is_none_is_refused_in_a_short_line_or_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], price: str, command: str
) -> None:
    other, run = write_run(tmp_path / "other", id="other"), write_run(tmp_path / "run")
    forge(run / MANIFEST_FILE, lambda manifest: manifest["options"].update(gpu_hour_cost=price))
    code = main([command, *([str(other)] if command == "compare" else []), str(run)])
    err = capsys.readouterr().err
    assert len(err) < 4_000
    assert code == (2 if command == "report" else 0)


# --- Files that have no end, or hold more than they seem to: refused in one line, in little memory


#: Every reader of a file that a person names, with what it raises.
READERS: dict[str, tuple[Callable[[Path], object], type[ValueError]]] = {
    "trace": (open_trace, TraceError),
    "trajectories": (load_pool, TrajectoryError),
    "dataset": (load_dataset, DatasetError),
    "conversations": (load_conversations, DatasetError),
    "lengths": (read_lengths, LengthError),
    "scenario": (lambda path: read_text(str(path)), ScenarioError),
    "settings": (read_small_yaml, SmallYamlError),
    "tokenizer": (load_tokenizer, TokenizerError),
    "authority": (lambda path: tls_context(ca_cert=path), TargetError),
    "certificate": (lambda path: tls_context(client_cert=path), TargetError),
}

#: Of these, the ones whose readers read no more than a bound: OpenSSL reads a certificate as it comes.
BOUNDED = sorted(READERS.keys() - {"conversations", "authority", "certificate"})

#: Names by which a reader takes a file for one of another kind.
NAMES = {"dataset": ("f.jsonl", "f.json", "f.csv"), "trajectories": ("f.jsonl", "f.json")}

#: Memory that a refusal may take: the longest line of a dataset, some times over.
MOST_GROWTH = 700 << 20


def refusal(reader: str, path: Path) -> str:
    read, error = READERS[reader]
    with pytest.raises(error) as caught, little_memory(MOST_GROWTH):
        read(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 2_500
    return str(caught.value)


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    place = os.open(path.parent, os.O_RDONLY)  # a path of a socket is short
    try:
        listener.bind(f"/proc/self/fd/{place}/{path.name}")
    finally:
        os.close(place)
        listener.close()


NO_FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "pipe": (_fifo, "it is a pipe, not a file"),
    "socket": (_socket, "it is a socket, not a file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "it is a device, not a file"),
    "random device": (lambda path: path.symlink_to("/dev/urandom"), "it is a device, not a file"),
    "nothing": (lambda path: path.symlink_to("nowhere"), "cannot be read: No such file or directory"),
}


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_refused_without_being_opened(tmp_path: Path, reader: str, kind: str) -> None:
    make, says = NO_FILES[kind]
    for name in (*NAMES.get(reader, ("f",)), "f.parquet", "f.jsonl.gz"):
        make(tmp_path / name)
        assert says in refusal(reader, tmp_path / name)


@cache
def _packed(content: bytes) -> bytes:
    """A gzip file that expands to 2 GiB of this content."""
    return gzip.compress(content * (16 << 20)) * 128


#: Contents that go on for ever, as far as a reader can tell.
ENDLESS: dict[str, Callable[[Path], object]] = {
    "zeros": lambda path: os.truncate(path, 20 << 30),
    **{
        f"packed {name}": lambda path, content=content: path.write_bytes(_packed(content))  # type: ignore[misc]
        for name, content in {"blank lines": b"\n", "brackets": b"["}.items()
    },
}


@pytest.mark.parametrize("content", ENDLESS)
@pytest.mark.parametrize("reader", BOUNDED)
def test_what_has_no_end_is_refused_at_a_bound(tmp_path: Path, reader: str, content: str) -> None:
    path = tmp_path / "f"
    path.touch()
    ENDLESS[content](path)
    for name in NAMES.get(reader, ("f",)):
        path = path.rename(tmp_path / name)
        refusal(reader, path)


# --- What a master without the run's secret may have a worker import: code beside its locustfile


CHECKS = """
from functools import partial
from os import system

def is_short(answer, prompt):
    return len(answer) < 10

class Scorer:
    def __call__(self, answer, prompt):
        return True

scorer = Scorer()
bound = partial(system)
"""

PACKAGE = "from ownpack.inner import f\nfrom otherchecks import f as lent\n"

#: Says that it was imported.
TRAP = "from pathlib import Path\n(Path(__file__).parent / 'imported').touch()\ndef f(a, p): return True\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A locustfile's folder, and one beside it, both on Python's path."""
    before = set(sys.modules)
    own, other = tmp_path / "own", tmp_path / "other"
    for place in (own, own / "ownpack", other, other / "otherpack"):
        place.mkdir(parents=True)
    (own / "ownchecks.py").write_text(CHECKS)
    (own / "ownpack/__init__.py").write_text(
        "from ownpack.inner import f\nfrom otherchecks import f as lent\n"
    )
    (own / "ownpack/inner.py").write_text("def f(a, p): return True\n")
    (own / "spaces").mkdir()
    (own / "spaces/inner.py").write_text(TRAP)
    (other / "otherchecks.py").write_text(TRAP)
    (other / "otherpack/__init__.py").write_text(TRAP)
    (other / "otherpack/inner.py").write_text(TRAP)
    monkeypatch.syspath_prepend(str(other))
    monkeypatch.syspath_prepend(str(own))
    yield own
    for name in set(sys.modules) - before:
        del sys.modules[name]


def kinds(named: str) -> tuple[RequestKind, ...]:
    lengths = parse_lengths("8")
    validators = (Validator("contains", ("x",)), Validator("function", named))
    run = WorkloadSpec(input_tokens=lengths, output_tokens=lengths)
    return kinds_of([TrafficClass(name="a", request_name="", validators=validators)], run)


@pytest.mark.parametrize(
    "named", ["ownchecks:is_short", "ownchecks:scorer", "ownpack:f", "ownpack.inner:f", "ownchecks:no_such"]
)
def test_code_beside_the_locustfile_may_be_named(folder: Path, named: str) -> None:
    check_named_functions(kinds(named), own_folders([str(folder / "locustfile.py")], "/"))


@pytest.mark.parametrize(
    "named",
    [
        "os:system",
        "subprocess:run",
        "builtins:eval",
        "__main__:main",
        "no_such_module:f",
        "otherchecks:f",
        "otherpack:f",
        "otherpack.inner:f",
        "ownpack.no_such:f",
        "ownchecks.inner:f",
        "spaces.inner:f",
    ],
)
def test_no_other_module_is_imported(folder: Path, named: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_named_functions(kinds(named), own_folders([str(folder / "locustfile.py")], "/"))
    text = str(caught.value)
    assert "\n" not in text
    assert f"{named!r}" in text
    assert "--swarm-secret-env" in text
    assert not list(folder.parent.rglob("imported"))


@pytest.mark.parametrize("named", ["ownchecks:system", "ownchecks:bound", "ownpack:lent"])
def test_what_the_locustfiles_code_has_imported_is_not_lent_to_the_master(folder: Path, named: str) -> None:
    with pytest.raises(UsageError, match="not written in"):
        check_named_functions(kinds(named), own_folders([str(folder / "locustfile.py")], "/"))


def test_a_file_of_a_configmap_is_a_link_and_lies_where_the_link_does(folder: Path, tmp_path: Path) -> None:
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    (mounted / "linkedchecks.py").symlink_to(folder / "ownchecks.py")
    sys.path.insert(0, str(mounted))
    try:
        check_named_functions(kinds("linkedchecks:is_short"), own_folders([str(mounted / "l.py")], "/"))
    finally:
        sys.path.remove(str(mounted))


def test_the_working_directory_counts_where_the_locustfile_lies_in_it(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "locustfiles").mkdir(parents=True)
    path = str(project / "locustfiles/chat.py")
    real = str(project.resolve())
    assert own_folders([path], str(project)) == (f"{real}/locustfiles", real)
    assert own_folders([path], str(tmp_path / "elsewhere")) == (f"{real}/locustfiles",)
    assert own_folders([], str(project)) == ()
