"""Fuzzer of run directories: forged files of a run, through the commands that read one.

The bytes of a case are choices: which command, which values of which file are replaced, and by what. So
most cases are well-formed files of nearly the right shape, which is what a stranger would forge.
"""

import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import msgspec
from forged_tables import Choices, forged_bytes, forged_parquet
from fuzz_frames import repaired
from fuzz_target import FOLDER, Target, check_line
from live_cases import Run as LiveRun
from metrics_cases import ORIGIN_NS, stage
from report_cases import records, write_run
from roofline_cases import MODELS

import llm_locust
from llm_locust.cli.main import main
from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import CanaryFacts, HealthCell, NodeHealth, ServerCall, TaskException
from llm_locust.deployment.server_metrics import SERVER_METRICS_FILE, SampleWriter, ServerSample
from llm_locust.figures.summary import SummaryError, read_summary
from llm_locust.live.snapshot import live_end
from llm_locust.report.analysis import build_report
from llm_locust.report.headline import headline_of
from llm_locust.report.inputs import LIVE_FILE, write_live_end
from llm_locust.roofline import read_model
from llm_locust.store import (
    FRAMES_FILE,
    MANIFEST_FILE,
    REPORT_HTML_FILE,
    REQUESTS_FILE,
    SUMMARY_FILE,
    WORKER_FILE,
    FrameHeader,
    encode_frame,
    read_manifest,
    write_manifest,
)

_PLACE = FOLDER / "run-dirs"
#: The runs that are forged: one load, a sweep, and a load whose master was killed.
_BASES = ("load", "sweep", "killed")
GOOD, FORGED, OUT = _PLACE / "good", _PLACE / "forged", _PLACE / "out"

#: What a forged value names; to open it is a fault.
OUTSIDE = FOLDER / "outside.yaml"
_PIPE = FOLDER / "pipe"

#: A tag that is nobody's; unescaped in a page it is a fault.
_TAG = "<script>forged()</script>"


def _nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


#: Values that are put in place of others, of all types, sizes and depths; each is a copy when it is used.
_VALUES: tuple[Any, ...] = (
    *(None, True, False, "", "x", [], {}, [[]], {"": {}}),
    *(0, -1, 1, 0.5, -0.5, 5e-324, 1e15, -1e15, 1e300, -1e300),
    *(2**31, 2**53, 2**53 + 1, 2**62, -(2**62), 2**63, 2**64, 10**40),
    *("nan", "inf", "1e999", "-1", "9" * 400, "1s", "run", "steady", "-"),
    *(_TAG, "[red]x[/red]", "{0.__class__}", "%s%n", "x\x1b[31m\n\0y", "a" * 100_000, "é中\u2028"),
    *("../../x", "/", str(OUTSIDE), str(_PIPE)),
    *("http://127.0.0.1:9/x", "s3://bucket/key", "file:///etc/passwd"),
    *("max rate under p90_ttft<1s", "p99_ttft<1ms", "ttft=1s", "goodput>=1%"),
    *(_nested(500), {"a": _nested(100)}, [0] * 5_000, {str(n): n for n in range(2_000)}),
)


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value))


@dataclass(frozen=True, slots=True)
class _Place:
    """A value in a document: ``parent[key]``."""

    parent: Any
    key: Any


def _places(value: Any) -> Iterator[_Place]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in list(items):
        yield _Place(value, key)
        yield from _places(below)


def mutate(document: Any, choices: Choices) -> None:
    # Half of the time one of the settings, which have no types.
    places = [*_places(document.get("options"))] if isinstance(document, dict) and choices.below(2) else []
    places = places or list(_places(document))
    if not places:
        return
    at = choices.one(places)
    old = at.parent[at.key]
    match choices.below(14):
        case 0:
            del at.parent[at.key]
        case 1 if isinstance(at.parent, list):
            at.parent.extend([old] * choices.one((1, 2, 300)))
        case 1 | 2:
            other = choices.one(places)
            with suppress(LookupError):  # of what an earlier change took away
                at.parent[at.key] = _copy(other.parent[other.key])
        case 3 | 4 if isinstance(old, int | float):
            at.parent[at.key] = choices.one((old + 1, old - 1, -old, old * 1_000, old / 3, str(old), [old]))
        case 3 if isinstance(at.parent, dict):
            at.parent[choices.one((_TAG, "x" * 5_000, "", "[red]x", str(OUTSIDE), "é\u2028"))] = old
        case 5 | 6 | 7:  # of the same type, which more readers accept
            alike = [value for value in _VALUES if type(value) is type(old)]
            at.parent[at.key] = _copy(choices.one(alike or _VALUES))
        case _:
            at.parent[at.key] = _copy(choices.one(_VALUES))


# -- what a command may do -----------------------------------------------------------------

_ALLOWED = (
    *map(str, (FOLDER, sys.prefix, sys.base_prefix, Path(llm_locust.__file__).parents[1])),
    *("/proc/", "/sys/", "/usr/", "/dev/null", "/dev/urandom", "/etc/mime.types", "/etc/localtime"),
)

_FORBIDDEN = (
    "socket.connect",
    "socket.getaddrinfo",
    "subprocess.Popen",
    "os.exec",
    "os.posix_spawn",
    "os.system",
)

#: What the command that runs now did and may not do; None while none runs.
_done: list[str] | None = None


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: it hears of every file that Python opens."""
    if _done is None:
        return
    if event in _FORBIDDEN:
        _done.append(f"{event} {arguments!r:.200}")
    elif event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        path = os.path.realpath(os.fsdecode(arguments[0]))
        if not path.startswith(_ALLOWED) or path in (str(OUTSIDE), str(_PIPE)):
            _done.append(f"open {path}")


sys.addaudithook(_hear)


def called(words: Sequence[str]) -> None:
    """One command in this process, which may end with any of its codes, and otherwise in no way."""
    global _done
    out, err = io.StringIO(), io.StringIO()
    done: list[str] = []
    _done = done
    try:
        with redirect_stdout(out), redirect_stderr(err), chdir(_PLACE):
            code = main(words)
    finally:
        _done = None
    assert not done, done
    assert code in range(5), code
    said = out.getvalue() + err.getvalue()
    assert "Traceback" not in said, said[-3_000:]
    assert "\x1b" not in said
    assert "confidential" not in said
    if code == 2:
        lines = err.getvalue().splitlines()
        assert lines, "2 without a word"
        check_line(ValueError(lines[-1]))


_COMMANDS: tuple[tuple[str, ...], ...] = (
    ("report", str(FORGED)),
    ("report", str(FORGED)),
    ("report", str(FORGED), "--format", "json", "--full"),
    ("report", str(FORGED), "--by", "replica", "--window", "steady", "--out", str(OUT)),
    ("report", str(FORGED), str(GOOD)),
    ("compare", str(GOOD), str(FORGED)),
    ("compare", str(FORGED), str(GOOD)),
    ("merge", str(FORGED), "--out", str(OUT)),
    ("plan", str(FORGED), "--rate", "10"),
    ("find", "max rate under p90_ttft<1s", str(FORGED), str(GOOD)),
    ("find", "max concurrency under p90_ttft<1s", str(FORGED)),
    ("upload", str(FORGED), str(OUT), "--attempts", "1"),
)


def _make(path: Path, id_: str, began_ns: int, *, sweep: bool) -> None:
    """A run with all kinds of facts, of two stages where it is a sweep, and its report."""
    made = [replace(each, request_id=f"{id_}-{n}") for n, each in enumerate(records(36, 4))]
    write_run(path, made)
    facts = read_manifest(path)
    health = NodeHealth(
        cpu_percent_max=9.0,
        rss_mib=[[0.0, 9.0]],
        cells=[HealthCell(at_s=began_ns / 1e9, seconds=1.0, cpu_percent=5.0)],
    )
    worker = replace(facts.workers[0], batches=1, received_seqs="0", health=health, unsent_by_class={"a": 1})
    options = {
        "sweep": "users=1,2" if sweep else "", "find": "", "insecure": True, "num_requests": "40",
        "num_users": "2", "window": "run", "gpu_type": "h100", "gpus": "1", "note": "a",
        "gpu_hour_cost": "2", "slo_from": "sent", "session_header": "x", "until": "", "tokenizer": "t",
        "model_shape": asdict(read_model(MODELS / "llama-3-8b.yaml")),
    }  # fmt: skip
    write_manifest(
        path,
        replace(
            facts,
            id=id_,
            workers=[worker],
            master=health,
            options=options,
            class_slos={"a": {"ttft": 1.0}},
            command=["llm-locust", "run"],
            versions={"locust": "2"},
            scenario_document={"classes": [{"name": "a"}]},
            targets=["http://127.0.0.1:8000"],
            stages=[stage(0, 0.0, 5.0), stage(1, 5.0, 10.0)] if sweep else [],
            stages_planned=2 if sweep else 0,
            canaries=[CanaryFacts(target="t", endpoint="chat", name="n", began_ns=began_ns, took_s=0.1)],
            server_calls=[ServerCall(at_ns=began_ns, path="/metrics", target="t", status=200)],
            task_exceptions=[TaskException(error="KeyError: 1", count=2)],
            messages_dropped={"w1": {"llm_batch": 1}},
        ),
    )
    live = LiveRun()
    live.ended(records(36, 4))
    live.report()
    write_live_end(path, replace(live_end(live.store), run=id_))
    _write_samples(path / SERVER_METRICS_FILE, began_ns)
    build_report(path)
    if id_ == "killed":
        (path / REQUESTS_FILE).unlink()
        batch = RecordBatch.from_records(made, "w1")
        frame = encode_frame(FrameHeader(id_, "w1", 0, len(batch), len(batch), 0, 0, 1), batch.to_bytes())
        (path / FRAMES_FILE).write_bytes(frame)
        (path / WORKER_FILE).write_bytes(msgspec.json.encode(worker))
        _write_samples(path / SERVER_METRICS_FILE, began_ns)


def _write_samples(path: Path, began_ns: int) -> None:
    with SampleWriter(path) as writer:
        for second in range(5):
            at_ns = began_ns + second * 10**9
            labels = '{"le":"1.0","model_name":"m"}'
            writer.write(
                [
                    ServerSample(at_ns, "http://127.0.0.1:8000", "vllm:num_requests_running", "{}", 2.0),
                    ServerSample(at_ns, "http://127.0.0.1:8000", "vllm:kv_cache_usage_perc", "{}", 0.5),
                    ServerSample(at_ns, "http://127.0.0.1:8000", "vllm:ttft_bucket", labels, 9.0),
                ]
            )


def _prepare() -> dict[tuple[str, str], Any]:
    shutil.rmtree(_PLACE, ignore_errors=True)
    _PLACE.mkdir()
    OUTSIDE.write_text("confidential: 1\n")
    if not _PIPE.exists():
        os.mkfifo(_PIPE)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        _make(GOOD, "good", ORIGIN_NS, sweep=False)
        for base in _BASES:
            _make(_PLACE / base, base, ORIGIN_NS, sweep=base == "sweep")
        for words, base in zip(_COMMANDS, cycle(_BASES), strict=False):  # what they import
            _fresh(base)
            main(words)
    return {
        (base, name): json.loads((_PLACE / base / name).read_text())
        for base in _BASES
        for name in (MANIFEST_FILE, LIVE_FILE, SUMMARY_FILE, WORKER_FILE)
        if (_PLACE / base / name).exists()
    }


def _fresh(base: str) -> None:
    for path in (FORGED, OUT):
        shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(_PLACE / base, FORGED)


_documents = _prepare()


_STREAM_FILE = "server_metrics-0.arrows"

#: How a file that is not JSON is forged.
_COLUMNS: dict[str, Callable[[Path, Choices], None]] = {
    REQUESTS_FILE: forged_parquet,
    SERVER_METRICS_FILE: forged_parquet,
    FRAMES_FILE: lambda path, choices: forged_bytes(path, choices, repaired),
    _STREAM_FILE: forged_bytes,
}


def _run_dirs(case: bytes) -> None:
    choices = Choices(case)
    words = choices.one(_COMMANDS)
    if forge(choices):
        called(words)
    for page in (FORGED / REPORT_HTML_FILE, OUT / REPORT_HTML_FILE):
        assert not page.exists() or _TAG not in page.read_text(), "a tag in the page"


def forge(choices: Choices) -> bool:
    """Make a run directory with one forged file; False if that is its summary, which is checked here."""
    base = choices.one(_BASES)
    name = choices.one((MANIFEST_FILE,) * 6 + (LIVE_FILE, SUMMARY_FILE) + tuple(_COLUMNS))
    if base == "killed":
        name = choices.one((MANIFEST_FILE, WORKER_FILE, FRAMES_FILE, _STREAM_FILE))
    _fresh(base)
    change = _COLUMNS.get(name)
    if change is not None and (FORGED / name).exists():
        change(FORGED / name, choices)
        return True
    document = _copy(_documents.get((base, name), _documents[base, MANIFEST_FILE]))
    forged = json.dumps(document)
    for _ in range(choices.one((1, 1, 2, 3))):
        mutate(document, choices)
        with suppress(RecursionError):
            forged = json.dumps(document)
    if name == SUMMARY_FILE:
        _check_summary(forged.encode())
        return False
    (FORGED / name).write_text(forged)
    return True


def _check_summary(content: bytes) -> None:
    """It is read, and has a verdict in words, or is refused in a line."""
    try:
        headline_of(read_summary(content))
    except SummaryError as e:
        check_line(e)


RUN_DIRS = Target(
    "run-dirs",
    _run_dirs,
    (*(bytes([0, n]) for n in range(0, 256, 5)), b"\x01\x02", b"\x7f\xff", bytes(2)),
    tuple(bytes((n * k * 37 + k * k * 11) % 256 for k in range(1, 40)) for n in range(1, 60)),
    most_bytes=64,
)
