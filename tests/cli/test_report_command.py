"""``llm-locust report``: everything again from the records."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from metrics_cases import ORIGIN_NS, batch, failed, ns, request
from report_cases import SECONDS, lost_records, manifest, records, write_run

from llm_locust.cli.main import main
from llm_locust.core.manifest import NodeHealth, WorkerFacts
from llm_locust.core.record import Outcome, RequestRecord, moved
from llm_locust.report.analysis import build_report
from llm_locust.report.comparison import compare_runs
from llm_locust.store import (
    FRAMES_FILE,
    MANIFEST_FILE,
    REQUESTS_FILE,
    SUMMARY_FILE,
    FrameHeader,
    create_run_dir,
    encode_frame,
    write_manifest,
)


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command with ``--format json``; gives exit code and summary."""

    def report(*argv: object, format: str = "json") -> tuple[int, Any]:
        code = main(["report", *map(str, argv), "--format", format])
        text = capsys.readouterr().out
        return code, json.loads(text) if format == "json" else text

    return report


def files(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(run.iterdir())}


def identified(made: list[RequestRecord], prefix: str, after_s: float = 0.0) -> list[RequestRecord]:
    """The records with ids of their own, on a clock that is ahead."""
    return [
        moved(replace(record, request_id=f"{prefix}{i}"), round(after_s * 1e9))
        for i, record in enumerate(made)
    ]


def other_run(path: Path, after_s: float, **facts: Any) -> Path:
    """The same requests in another run, which began so much later."""
    began = {"started_ns": ns(after_s), "stopped_ns": ns(after_s + SECONDS)}
    return write_run(path, identified(records(), path.name, after_s), id=path.name, **{**began, **facts})


def test_a_plain_report_is_the_runs_own_and_is_written_into_it(tmp_path: Path, told: Any) -> None:
    run = write_run(tmp_path / "run")
    code, summary = told(run)
    assert code == 0
    assert json.loads((run / SUMMARY_FILE).read_text()) == summary
    assert "analysis" not in summary


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with its report. Nobody may change it."""
    run = write_run(tmp_path_factory.mktemp("reported") / "run")
    build_report(run)
    return run


@pytest.mark.parametrize(
    "asked",
    [
        ("--slo", "ttft=1s"),
        ("--gate", "error_rate<=10%"),
        ("--warmup", "1s"),
        ("--window", "steady"),
        ("--window", "1s-5s"),
        ("--percentiles", "50"),
        ("--by", "replica"),
        ("--where", "name==chat"),
    ],
)
def test_any_other_report_leaves_the_runs_own_as_it_is(
    reported: Path, capsys: pytest.CaptureFixture[str], asked: tuple[str, ...]
) -> None:
    run, before = reported, files(reported)
    assert main(["report", str(run), *asked]) == 0
    assert "--out DIR keeps this one" in capsys.readouterr().err
    assert files(run) == before


def test_with_out_it_is_kept_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = write_run(tmp_path / "run"), tmp_path / "new" / "out"
    before = files(run)
    asked = ["report", str(run), "--where", "name==chat", "--gate", "rps>1", "--out", str(out)]
    assert main([*asked, "--format", "junit"]) == 0
    said = capsys.readouterr()
    assert said.err == f"llm-locust report: written into {str(out)!r}\n"
    assert (out / "junit.xml").read_text() == said.out
    assert json.loads((out / SUMMARY_FILE).read_text())["analysis"]["where"] == "name==chat"
    assert files(run) == before
    assert main([*asked[:-1], str(run)]) == 2
    assert files(run) == before


def test_the_window_of_a_choice_is_that_of_the_run(tmp_path: Path, told: Any) -> None:
    run = write_run(tmp_path, warmup_s=1.0)
    _, whole = told(run)
    _, part = told(run, "--where", "name == search and ttft > 70ms")
    assert part["window"] == whole["window"]
    assert part["completeness"] == whole["completeness"]
    chosen = [r for r in records() if r.name == "search" and len(r.arrivals_ns) and r.arrivals_ns[0] > 70e6]
    assert part["analysis"]["requests"] == len(chosen)
    assert part["analysis"]["of"] == 100
    assert part["requests"]["lost"] == 0
    assert part["throughput"]["requests_per_s"] == pytest.approx(
        sum(ns(1) <= r.ended_ns < ns(10) for r in chosen) / 9
    )


def test_the_choices_of_a_run_add_up_to_it(tmp_path: Path, told: Any) -> None:
    run = write_run(tmp_path)
    _, whole = told(run)
    _, chat = told(run, "--where", "name == chat")
    _, rest = told(run, "--where", "not name == chat")
    for part, key in (
        ("requests", "ok"),
        ("throughput", "output_tokens_per_s"),
        ("goodput", "requests_per_s"),
    ):
        assert chat[part][key] + rest[part][key] == pytest.approx(whole[part][key])


def test_the_head_says_what_was_chosen_and_how_much_is_left(tmp_path: Path, told: Any) -> None:
    run = write_run(tmp_path)
    for format in ("console", "md"):
        _, text = told(run, "--where", "name == search", format=format)
        assert "only 48 of 100 requests: name == search" in text[:400]


def test_completeness_is_the_runs_and_the_lost_are_nobodys(tmp_path: Path, told: Any) -> None:
    run = write_run(tmp_path, workers=lost_records(100, 3))
    code, part = told(run, "--where", "name == chat")
    assert code == 4
    assert part["completeness"]["records_lost"] == 3
    assert part["requests"]["lost"] is None
    assert "lost" not in part["goodput"]["first_failed"]
    assert told(run, "--where", "name == chat", "--allow-incomplete")[0] == 0


def test_a_window_of_its_own_is_cut_at_the_stop(tmp_path: Path, told: Any) -> None:
    run = write_run(tmp_path)
    _, early = told(run, "--window", "2s-4s")
    assert (early["window"]["seconds"], early["requests"]["scheduled"]) == (2.0, 20)
    _, late = told(run, "--window", "8s-20s")
    assert late["window"]["seconds"] == 2.0
    assert late["window"]["rule"] == "given: 8 s after the start to the run's end"
    assert told(run, "--window", "8s-")[1]["window"] == late["window"]
    assert told(run, "--window=-500ms")[1]["window"]["seconds"] == 0.5


def test_percentiles_are_told_that_were_asked_for(tmp_path: Path, told: Any) -> None:
    run = write_run(tmp_path)
    _, summary = told(run, "--percentiles", "99.95,10", "--gate", "p99_ttft<1s")
    assert summary["latency_ms"]["ttft"]["p10"] == pytest.approx(59.4)
    assert {"p99_95", "p50", "p99"} <= summary["latency_ms"]["itl"].keys()
    _, text = told(run, "--percentiles", "99.95,10", format="console")
    assert next(line for line in text.splitlines() if "Latency" in line).split()[2:] == [
        *("mean", "p10", "p99.95", "n")
    ]


def test_figures_are_told_by_any_label(tmp_path: Path, told: Any) -> None:
    made = [replace(r, session=f"s{i % 2}", turn=i % 12) for i, r in enumerate(records())]
    run = write_run(tmp_path, made)
    _, summary = told(run, "--by", "turn,session,worker,outcome")
    by = summary["by"]
    assert list(by) == ["turn", "session", "worker", "outcome"]
    assert list(by["turn"]["groups"]) == [str(n) for n in range(12)]
    assert by["worker"]["groups"]["w1"]["requests"]["population"] == 100
    assert by["outcome"]["groups"]["http_error"]["requests"] == {
        "scheduled": 5,
        "ok": 0,
        "failed": 5,
        "cancelled": 0,
        "cut": 0,
        "cut_share": 0.0,
        "population": 5,
        "error_rate": 1.0,
    }
    even = by["session"]["groups"]["s0"]
    assert even["latency_ms"]["ttft"]["n"] == 48
    assert even["goodput"]["ratio"] == 26 / 50
    _, text = told(run, "--by", "session,peer", format="console")
    assert "\ns0" in text
    assert "(none)" in text  # no request names its peer


def test_of_too_many_labels_the_largest_are_told(tmp_path: Path, told: Any) -> None:
    made = [request(i / 100, session=f"s{max(0, i - 100)}") for i in range(400)]
    _, summary = told(write_run(tmp_path, made), "--by", "session")
    assert len(summary["by"]["session"]["groups"]) == 200
    assert summary["by"]["session"]["left_out"] == 100
    assert summary["by"]["session"]["groups"]["s0"]["requests"]["population"] == 101


def test_several_runs_are_one_population_over_the_union_of_their_windows(tmp_path: Path, told: Any) -> None:
    first = write_run(tmp_path / "first", identified(records(), "a"), warmup_s=2.0, seed=1)
    later = other_run(tmp_path / "later", 100, warmup_s=2.0, seed=2)
    _, one = told(first)
    _, both = told(later, first)
    assert both["window"]["seconds"] == pytest.approx(16)
    assert both["requests"]["population"] == 2 * one["requests"]["population"]
    assert both["latency_ms"]["ttft"]["p50"] == one["latency_ms"]["ttft"]["p50"]
    for key, value in one["throughput"].items():
        if key == "ci95":
            continue  # twice the requests are more certain
        assert both["throughput"][key] == pytest.approx(value), key
    assert both["run"]["id"] == "20261121-first, later"
    assert both["run"]["seed"] is None
    assert both["analysis"]["runs"] == ["20261121-first", "later"]
    assert both["completeness"]["records_received"] == 200


def test_runs_at_the_same_time_add_their_loads_up(tmp_path: Path, told: Any) -> None:
    first = write_run(tmp_path / "first", identified(records(), "a"))
    beside = other_run(tmp_path / "beside", 0.0)
    _, one = told(first)
    _, both = told(first, beside)
    assert both["window"]["seconds"] == pytest.approx(10)
    for key in ("requests_per_s", "output_tokens_per_s", "concurrency_mean"):
        assert both["throughput"][key] == pytest.approx(2 * one["throughput"][key])


def refused(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    """The one line that it says as it refuses with exit code 2."""
    try:
        code: object = main(["report", *map(str, argv)])
    except SystemExit as e:
        code = e.code
    said = capsys.readouterr()
    assert (code, said.out, said.err.count("\n")) == (2, "", 1)
    return said.err


def test_runs_that_do_not_make_one_population_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write_run(tmp_path / "first", identified(records(), "a"), slo="ttft=1s")
    other = other_run(tmp_path / "other", 50, slo="ttft=2s")
    assert "the runs have different SLOs" in refused(capsys, first, other)
    assert main(["report", str(first), str(other), "--slo", "ttft=1s"]) == 0
    capsys.readouterr()
    copy = write_run(tmp_path / "copy", identified(records(), "a"), slo="ttft=1s", id="copy")
    assert "100 requests, such as 'a0', are in more than one of the runs" in refused(capsys, first, copy)
    open_ = other_run(tmp_path / "open", 90, slo="ttft=1s", open_loop=True)
    assert "judge their requests from different moments" in refused(capsys, first, open_)


def left_over(path: Path, rows: list[RequestRecord], worker: str = "w1") -> Path:
    """What a master leaves that dies when its last batch was in."""
    create_run_dir(path)
    made = batch(*rows, worker=worker)
    facts = [WorkerFacts(id=worker, index=0, announced=len(rows), received=0)]
    write_manifest(path, manifest(len(rows), ended_ns=ORIGIN_NS + 20_000_000_000, workers=facts))
    header = FrameHeader("20261121-first", worker, 0, len(rows), len(rows), 0)
    (path / FRAMES_FILE).write_bytes(encode_frame(header, made.to_bytes()))
    return path


def test_what_is_left_of_a_run_is_merged_and_stays_as_it_is(
    tmp_path: Path, told: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    left = left_over(tmp_path / "left", identified(records(), "a"))
    before = files(left)
    code, summary = told(left)
    assert code == 0
    assert summary["requests"]["population"] == 100
    assert files(left) == before
    out = tmp_path / "out"
    assert main(["report", str(left), "--out", str(out)]) == 0
    assert (out / SUMMARY_FILE).exists()
    capsys.readouterr()
    later = other_run(tmp_path / "later", 100)
    assert told(left, later)[1]["requests"]["population"] == 200


def test_batches_without_a_manifest_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left = left_over(tmp_path / "left", records())
    (left / MANIFEST_FILE).unlink()
    assert "no manifest of it" in refused(capsys, left)
    (left / FRAMES_FILE).write_bytes(b"garbage")
    assert "there are no batches of a run" in refused(capsys, left)


def test_a_directory_without_records_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (write_run(tmp_path / "run") / REQUESTS_FILE).unlink()
    assert "holds no requests.parquet" in refused(capsys, tmp_path / "run")
    assert "holds no manifest.json" in refused(capsys, tmp_path)
    write_run(tmp_path / "part-1")
    assert "name its parts" in refused(capsys, tmp_path)
    assert "nowhere' is not a directory" in refused(capsys, tmp_path / "nowhere")


def test_records_of_a_later_version_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_run(tmp_path) / REQUESTS_FILE
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({"llm_locust.schema": "2"}), path)
    assert "it has schema 2, this version reads up to 1" in refused(capsys, tmp_path)
    pq.write_table(table.drop_columns(["rtt_ns", "outcome"]), path)
    assert "columns are missing: outcome, rtt_ns" in refused(capsys, tmp_path)


def test_a_broken_file_is_one_line_wherever_it_is_broken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_run(tmp_path) / REQUESTS_FILE
    whole = path.read_bytes()
    draw = random.Random(5)
    spoiled = [whole[: draw.randrange(len(whole))] for _ in range(4)]
    for _ in range(16):
        at, length = draw.randrange(len(whole)), draw.choice([1, 8, 200])
        spoiled.append(whole[:at] + draw.randbytes(length) + whole[at + length :])
    for data in [b"", b"PAR1", b"PAR1" * 3, *spoiled]:
        path.write_bytes(data)
        code = main(["report", str(tmp_path), "--allow-incomplete", "--by", "session"])
        said = capsys.readouterr()
        assert code in (0, 2)
        assert "Traceback" not in said.err
        assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (("--where", "ttft>5"), 'where: at character 6, "5"'),
        (("--where", "tffd>5ms"), 'did you mean "ttft"?'),
        (("--where", ""), "empty condition"),
        (("--where", "good", "--slo", ""), "good needs limits of a request"),
        (("--gate", "p99_tft<1s"), 'did you mean "p99_ttft"?'),
        (("--slo", "ttft=fast"), 'at character 6, "fast"'),
        (("--window", "best"), 'unknown window "best"'),
        (("--window", "5s-2s"), "its end must be after its start"),
        (("--window", "5-9s"), "a number without a unit"),
        (("--window", "30s-40s"), "the window begins at 30 s, but the run ended after 10 s"),
        (("--window", "1s-4s", "--warmup", "1s"), "give one of them"),
        (("--warmup", "30"), "add one, as 30ms or 30s"),
        (("--percentiles", "50,100"), '"100" is no percentile'),
        (("--percentiles", "0"), '"0" is no percentile'),
        (("--percentiles", ","), "0 percentiles: name 1 to 20"),
        (("--by", "replcia"), 'did you mean "replica"?'),
        (("--by", ""), "nothing to tell requests apart by"),
        (("--format", "html"), "invalid choice"),
        (("--save-detailed",), "--save-detailed adds lists to --format vllm only"),
    ],
)
def test_a_wrong_question_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: tuple[str, ...], why: str
) -> None:
    assert why in refused(capsys, write_run(tmp_path), *asked)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (("--gate", "error_rate<=100%"), 3),
        (("--gate", "error_rate<=1%"), 1),
        (("--slo", "ttft=1s"), 3),
        (("--window=-2s",), 3),
        (("--where", "name == chat", "--gate", "error_rate<=100%"), 3),
        (("--where", "outcome != ok"), 0),
    ],
)
def test_a_report_in_which_no_request_succeeded_is_invalid_unless_it_only_looks_at_some(
    tmp_path: Path, told: Any, asked: tuple[str, ...], code: int
) -> None:
    run = write_run(tmp_path, [failed(0.05 * k, name="chat") for k in range(100)])
    assert told(run, *asked)[0] == code


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (("--warmup", "60s", "--gate", "requests>=0"), 3),
        (("--warmup", "60s"), 3),
        (("--where", "name == nobody", "--gate", "requests>=0"), 3),
        (("--where", "name == nobody"), 0),
    ],
)
def test_a_report_of_no_request_is_invalid_unless_it_only_looks_for_some(
    tmp_path: Path, told: Any, asked: tuple[str, ...], code: int
) -> None:
    assert told(write_run(tmp_path), *asked)[0] == code


def test_a_gate_without_samples_fails_and_the_last_line_says_that_no_request_was_found(
    tmp_path: Path, told: Any
) -> None:
    asked = (write_run(tmp_path), "--where", "name == nobody", "--gate", "p99_ttft<1s")
    code, summary = told(*asked)
    assert code == 3, "nothing was measured"
    assert summary["gates"][0]["reason"] == "no samples: the run has no value for p99_ttft"
    last = "INVALID: nothing was measured: no request matches name == nobody · exit 3"
    assert told(*asked, format="console")[1].splitlines()[-1] == last


def test_every_format_is_printed(tmp_path: Path, told: Any) -> None:
    run = write_run(tmp_path)
    assert told(run, format="md")[1].startswith("## ❌ FAIL: 5 of 100 requests failed")
    assert json.loads(told(run, format="vllm")[1])["completed"] == 95
    assert "<testsuite " in told(run, format="junit")[1]
    assert json.loads(told(run, "--save-detailed", format="vllm")[1])["ttfts"][0] == pytest.approx(0.05)


def test_accuracy_stands_beside_that_of_the_same_prompts_in_another_run(tmp_path: Path, told: Any) -> None:
    def answered(path: Path, right: int) -> Path:
        made = [
            replace(record, prompt_id=f"p{i}", correct=i < right)
            for i, record in enumerate(identified(records(ok=40, bad=0), path.name))
        ]
        return write_run(path, made, id=path.name)

    loaded, idle = answered(tmp_path / "loaded", 20), answered(tmp_path / "idle", 30)
    code, summary = told(loaded, "--quality-baseline", idle)
    assert code == 0
    beside = summary["quality"]["baseline"]
    assert (beside["prompts"], beside["accuracy"]["ratio"], beside["baseline"]["ratio"]) == (40, 0.5, 0.75)
    assert beside["difference"] == pytest.approx(-0.25)
    assert main(["report", str(loaded), "--quality-baseline", str(tmp_path / "nowhere")]) == 2


def test_first_tries_are_counted_and_found_and_change_nothing_else(tmp_path: Path, told: Any) -> None:
    first = [failed(at, Outcome.RESENT, request_id=f"again-{at}", replica=None) for at in (1.0, 2.0)]
    once, again = write_run(tmp_path / "once"), write_run(tmp_path / "again", [*records(), *first])
    (_, whole), (code, found) = told(once), told(again)
    assert (code, whole["requests"].pop("resent"), found["requests"].pop("resent")) == (0, 0, 2)
    assert (again / "timeseries.csv").read_bytes() == (once / "timeseries.csv").read_bytes()
    assert "2 requests retried; only the retry counts" in (again / "report.md").read_text()
    assert found["completeness"]["records_lost"] == 0
    for key in found.keys() - {"completeness", "by_name", "by_class"}:
        assert found[key] == whole[key], key
    _, chosen = told(again, "--where", "outcome == resent")
    assert (chosen["analysis"]["requests"], chosen["requests"]["resent"], chosen["requests"]["sent"]) == (
        2,
        2,
        0,
    )
    other = write_run(tmp_path / "other", [*records(), *first], id="other")
    assert compare_runs([once, other]).comparisons[0].new.lost == 0


def test_what_is_counted_of_each_run_is_summed_over_several(tmp_path: Path, told: Any) -> None:
    dropped = [{"w1": {"llm_batch": 2}}, {"w1": {"llm_batch": 1, "llm_done": 3}, "w9": {"llm_ping": 4}}]
    healths = [NodeHealth(hub_lag_ms_max=4.0, cpu_percent_max=80.0), NodeHealth(hub_lag_ms_max=9.0)]
    runs = [
        other_run(tmp_path / f"run{i}", 100.0 * i, messages_dropped=messages, master=health)
        for i, (messages, health) in enumerate(zip(dropped, healths, strict=True))
    ]
    _, found = told(*runs)
    part = found["completeness"]
    assert part["messages_dropped"] == 10
    assert part["messages_dropped_by"] == {"w1": {"llm_batch": 3, "llm_done": 3}, "w9": {"llm_ping": 4}}
    assert (part["master"]["hub_lag_ms_max"], part["master"]["cpu_percent_max"]) == (9.0, 80.0)


@pytest.mark.parametrize("name", ["vllm", "llmd", "inferencex", "mlperf", "genai-perf"])
def test_formats_of_generated_tokens_refuse_a_run_of_embeddings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    asked = [request(i, (), ended=i + 0.2, endpoint="embeddings", inputs=4) for i in range(4)]
    run = write_run(tmp_path / "run", identified([*asked, request(5, ended=5.3)], "r"))
    assert main(["report", str(run), "--format", name]) == 2
    assert "add --where endpoint==chat" in capsys.readouterr().err
    assert main(["report", str(run), "--format", name, "--where", "endpoint==chat"]) == 0
