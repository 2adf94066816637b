"""The command ``llm-locust`` and its help."""

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from metrics_cases import ORIGIN_NS, batch
from report_cases import lost_records, manifest, records, write_run

from llm_locust.cli.main import COMMANDS, main
from llm_locust.deployment.server_metrics import SERVER_METRICS_FILE, SampleWriter, ServerSample
from llm_locust.store import (
    FRAMES_FILE,
    MANIFEST_FILE,
    REQUESTS_FILE,
    SUMMARY_FILE,
    FrameHeader,
    create_run_dir,
    encode_frame,
    read_manifest,
    write_manifest,
)

# --- The ``llm-locust`` command


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line that the command says as it refuses with exit code 2."""
    try:
        code: object = main(argv)
    except SystemExit as e:
        code = e.code
    said = capsys.readouterr()
    assert code == 2
    assert said.out == ""
    assert said.err.endswith("\n")
    assert said.err.count("\n") == 1
    return said.err


def test_report_prints_the_run_and_writes_its_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    run = write_run(tmp_path / "first")
    assert main(["report", str(run)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("first · tiny at http://127.0.0.1:8000\n")
    assert str(run) in text
    assert (run / SUMMARY_FILE).exists()


def test_report_judges_by_the_limits_that_it_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(write_run(tmp_path))
    assert main(["report", run, "--slo", "ttft=1s", "--gate", "goodput>=95%", "--warmup", "0s"]) == 0
    assert main(["report", run, "--slo", "ttft=60ms", "--gate", "goodput>=95%", "--window", "steady"]) == 1
    text = capsys.readouterr().out
    assert "ttft ≤ 1,000 ms" in text
    assert "ttft ≤ 60 ms" in text


def test_missing_records_are_exit_code_4_unless_they_are_allowed(tmp_path: Path) -> None:
    run = str(write_run(tmp_path, workers=lost_records(100, 3)))
    assert main(["report", run]) == 4
    assert main(["report", run, "--allow-incomplete"]) == 0


def left_over(path: Path, **facts: Any) -> Path:
    """What a master leaves that dies after its last batch came and before it finished the run."""
    rows = batch(*records())
    known = manifest(len(rows), **facts)
    create_run_dir(path)
    write_manifest(path, known)
    header = FrameHeader(known.id, "w1", 0, len(rows), len(rows), 0)
    (path / FRAMES_FILE).write_bytes(encode_frame(header, rows.to_bytes()))
    return path


def test_merge_makes_a_run_of_what_was_left_and_reports_on_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = write_run(tmp_path / "whole")
    left = left_over(tmp_path / "left", ended_ns=ORIGIN_NS + 20_000_000_000)
    assert main(["merge", str(left), str(left), "--out", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert main(["report", str(whole)]) == 0
    assert text.replace("/out", "/whole") == capsys.readouterr().out
    assert (tmp_path / "out" / SUMMARY_FILE).exists()


def test_merge_exits_as_the_report_of_the_run_does(tmp_path: Path) -> None:
    dead = str(left_over(tmp_path / "dead"))
    assert main(["merge", dead, "--out", str(tmp_path / "a")]) == 4
    assert main(["merge", dead, "--out", str(tmp_path / "b"), "--allow-incomplete"]) == 0
    broken = str(left_over(tmp_path / "broken", gates="rps>99", ended_ns=ORIGIN_NS + 20_000_000_000))
    assert main(["merge", broken, "--out", str(tmp_path / "c")]) == 1


def test_merge_refuses_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = str(write_run(tmp_path / "run")), str(tmp_path / "out")
    assert "nowhere' does not exist" in refused(capsys, "merge", str(tmp_path / "nowhere"), "--out", out)
    assert "holds a run already" in refused(capsys, "merge", run, "--out", run)
    assert "there is nothing of run 'x'" in refused(capsys, "merge", run, "--out", out, "--run", "x")
    assert "--out" in refused(capsys, "merge", run)


def test_merge_warns_of_what_it_cannot_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left = left_over(tmp_path / "left", ended_ns=ORIGIN_NS + 20_000_000_000)
    (left / "spool").mkdir()
    (left / "spool" / MANIFEST_FILE).write_text("{")
    assert main(["merge", str(left), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().err
    assert said.startswith("llm-locust merge: warning: ")
    assert said.count("\n") == 1


def test_a_report_on_batches_is_that_of_the_run_made_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = left_over(tmp_path / "not done", ended_ns=ORIGIN_NS + 20_000_000_000)
    assert main(["report", str(left)]) == 0
    said = capsys.readouterr()
    assert main(["merge", str(left), "--out", str(tmp_path / "out")]) == 0
    above, _, answer = said.out.rpartition("\n\n")
    merged = capsys.readouterr().out
    assert merged.startswith(above)
    assert merged.endswith(answer)
    assert "nothing was written: the report is of batches that are in no finished run yet" in said.err
    assert f"`llm-locust merge '{left}' --out NEW`" in said.err
    (left / MANIFEST_FILE).unlink()
    assert "but no manifest of it" in refused(capsys, "report", str(left))


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nowhere' is not a directory" in refused(capsys, "report", str(tmp_path / "nowhere"))
    assert "holds no manifest.json" in refused(capsys, "report", str(tmp_path))


def test_broken_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path)
    (run / REQUESTS_FILE).write_bytes(b"PAR1")
    assert "requests.parquet' cannot be read" in refused(capsys, "report", str(run))
    (run / MANIFEST_FILE).write_text("{")
    assert "manifest.json' is not a manifest" in refused(capsys, "report", str(run))
    (run / MANIFEST_FILE).write_text('{"schema": 99}')
    assert "has schema 99" in refused(capsys, "report", str(run))


@pytest.mark.parametrize(
    ("option", "text", "why"),
    [
        ("--slo", "ttft=fast", 'at character 6, "fast"'),
        ("--slo", "ttfd=1s", 'did you mean "ttft"?'),
        ("--gate", "goodput=95%", "write one of"),
        ("--gate", "p99_tft<1s", 'did you mean "p99_ttft"?'),
        ("--warmup", "30", "add one, as 30ms or 30s"),
        ("--warmup", "soon", "not a duration"),
        ("--window", "best", 'unknown window "best"'),
    ],
)
def test_a_wrong_option_is_one_line_that_points_at_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, text: str, why: str
) -> None:
    assert why in refused(capsys, "report", str(write_run(tmp_path)), option, text)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("reprot",), "llm-locust: 'reprot' is not a command; did you mean report?"),
        (("--verison",), "llm-locust: '--verison' is not an option; did you mean --version?"),
        (("xyzzy",), "llm-locust: 'xyzzy' is not a command; see llm-locust --help"),
        (("report",), "llm-locust report: the following arguments are required: RUN"),
        (("report", "a", "--windw=run"), "unknown option --windw; did you mean --window?"),
        (("report", "a", "--xyzzy"), "unknown option --xyzzy; see --help"),
        (("k8s", "render", "--overly", "x"), "the following arguments are required: --scenario, --workers"),
    ],
)
def test_wrong_arguments_are_one_line(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], said: str
) -> None:
    text = refused(capsys, *argv)
    assert text.startswith("llm-locust")
    assert said in text


def test_without_a_command_the_help_names_three_to_begin_with_and_the_exit_code_is_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 2  # a pipeline whose variable is empty has not tested anything
    said = capsys.readouterr()
    assert said.out == ""
    assert re.findall(r"^  llm-locust (\w+)", said.err, re.M) == ["run", "run", "compare"]
    assert "%%" not in said.err
    for ask in ("--help", "-h", "help"):
        assert main([ask]) == 0
        assert capsys.readouterr().out == said.err
    assert max(map(len, said.err.splitlines())) < 100


def test_the_help_imports_no_command() -> None:
    script = (
        "import sys; from llm_locust.cli.main import main; main(['--help']); print(*sys.modules, sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    own = {name for name in done.stdout.splitlines() if name.startswith("llm_locust")}
    assert own == {"llm_locust", "llm_locust.cli", "llm_locust.cli.main"}
    assert not {"locust", "numpy", "rich"} & {*done.stdout.splitlines()}


def test_the_simulator_has_its_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert "not a port" in refused(capsys, "sim", "--port", "99999")
    assert "llm-locust sim: " in refused(capsys, "sim", "--faults", "nonsense=1%")


def test_help_and_version_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"llm-locust {version('llm-locust')}\n"
    for argv, said in (
        (["report", "--help"], "goodput>=95% p99_ttft<800ms"),
        (["merge", "--help"], "--run ID"),
        (["sim", "--help"], "--replicas"),
        (["sweep", "--help"], "--stage-time TIME  "),
    ):
        with pytest.raises(SystemExit) as ended:
            main(argv)
        assert ended.value.code == 0
        assert said in capsys.readouterr().out


def test_a_report_needs_neither_the_simulator_nor_its_server_library_nor_pandas(tmp_path: Path) -> None:
    script = (
        "import sys; from llm_locust.cli.main import main; main(); "
        "sys.exit(', '.join({'aiohttp', 'llm_locust.sim', 'pandas'} & set(sys.modules)) or 0)"
    )
    command = [sys.executable, "-c", script, "report", str(write_run(tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "llm_locust", "report", str(write_run(tmp_path, gates="rps>99"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=120) == 1


def test_standard_files_that_are_closed_are_the_null_device_also_for_the_next_program() -> None:
    is_open = "import sys; sys.stderr.write(repr([f is None for f in (sys.stdin, sys.stdout, sys.stderr)]))"
    script = (
        "import os, sys; from llm_locust.swarm.process.early_signals import open_standard_files\n"
        "open_standard_files();"
        f"print(sys.stdin.read(), flush=True); os.execv(sys.executable, [sys.executable, '-c', {is_open!r}])"
    )
    for closed in ("", "<&-", ">&-", "<&- >&-"):
        words = ["/bin/sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, script]
        done = subprocess.run(words, capture_output=True, input=b"", timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, repr([False] * 3).encode())


def test_merge_takes_along_what_was_scraped_of_the_run_and_of_no_other(tmp_path: Path) -> None:
    left = left_over(tmp_path / "left", ended_ns=ORIGIN_NS + 20_000_000_000)
    other = left_over(tmp_path / "other", id="another", ended_ns=ORIGIN_NS + 20_000_000_000)
    for of, target in ((left, "a:8000"), (other, "b:8000")):
        with SampleWriter(of / SERVER_METRICS_FILE) as writer:
            writer.write(
                [ServerSample(ORIGIN_NS + i * 10**9, target, "running", "{}", 3.0) for i in range(12)]
            )
    sources = [str(left), str(other)]
    run = read_manifest(left).id
    assert main(["merge", *sources, "--run", run, "--out", str(tmp_path / "out")]) == 0
    summary = json.loads((tmp_path / "out" / SUMMARY_FILE).read_bytes())
    assert [target["name"] for target in summary["server"]["targets"]] == ["a:8000"]


# --- The help of every command: complete, and as it is meant to be read


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*argv, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


@pytest.mark.parametrize("columns", [80, 140])
@pytest.mark.parametrize("name", [*COMMANDS, "k8s render", "k8s run"])
def test_help_shows_percentages_and_fits_the_terminal(
    name: str, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = printed(capsys, *name.split())
    assert "%%" not in text, "argparse expands it in some texts, and not in others"
    assert not re.search(r"%\(\w+\)s", text)
    assert not [line for line in text.splitlines() if len(line) > columns]
