"""From the records of a run directory to its summary, its tables, and a run for notebooks."""

import csv
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st
from metrics_cases import ORIGIN_NS, batch, columns, failed, going_on, manifest, ns, request, requests, stage
from report_cases import lost_records, records, write_run
from summaries import summarise, typed

from llm_locust import RunData
from llm_locust.core.arrow import SCHEMA
from llm_locust.core.manifest import StageFacts, WorkerFacts
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.figures.summary import Summary, read_summary
from llm_locust.metrics.limits import GateError, SloError
from llm_locust.metrics.question import PLAIN, Question
from llm_locust.metrics.requests.rates import Credits, throughput
from llm_locust.metrics.window import Window
from llm_locust.report import csv_tables
from llm_locust.report.analysis import analyse, build_report
from llm_locust.report.csv_tables import curve_csv, timeseries_csv
from llm_locust.report.inputs import Source
from llm_locust.report.run_data import COMPUTED_COLUMNS
from llm_locust.report.so_far import StageQuestion, answer_of
from llm_locust.store import (
    REPORT_HTML_FILE,
    REPORT_MD_FILE,
    REQUESTS_FILE,
    SUMMARY_FILE,
    TIMESERIES_FILE,
    StoreError,
)

#: The page has its own tests.
pytestmark = pytest.mark.usefixtures("without_page")


def files(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run.iterdir()}


def test_the_reports_are_written_beside_the_records(tmp_path: Path) -> None:
    before = set(files(write_run(tmp_path)))
    report = build_report(tmp_path)
    assert set(files(tmp_path)) - before == {SUMMARY_FILE, REPORT_HTML_FILE, REPORT_MD_FILE, TIMESERIES_FILE}
    assert read_summary((tmp_path / SUMMARY_FILE).read_bytes()) == report.summary
    assert (tmp_path / REPORT_MD_FILE).read_text().startswith("## ❌ FAIL: 5 of 100 requests failed")
    assert (tmp_path / TIMESERIES_FILE).read_text().startswith("second,time,started,")


def test_the_same_records_give_the_same_files(tmp_path: Path) -> None:
    build_report(write_run(tmp_path))
    first = files(tmp_path)
    build_report(tmp_path)
    assert files(tmp_path) == first


def test_limits_are_those_of_the_run_where_none_are_given(tmp_path: Path) -> None:
    report = build_report(write_run(tmp_path, gates="rps>1", warmup_s=2.0))
    assert report.summary.goodput.slo == {"ttft": 100.0, "tpot": 50.0}
    assert [gate.text for gate in report.summary.gates] == ["rps>1"]
    assert report.summary.window.seconds == pytest.approx(8)


def test_other_limits_judge_the_same_records_anew(tmp_path: Path) -> None:
    write_run(tmp_path, gates="rps>1", warmup_s=2.0)
    report = build_report(tmp_path, Question(slo="ttft=1s", gates="goodput>=99%", warmup_s=0.0))
    assert report.summary.goodput.slo == {"ttft": 1000.0}
    assert report.summary.goodput.ratio == 0.95
    assert [gate.text for gate in report.summary.gates] == ["goodput>=99%"]
    assert report.summary.window.seconds == pytest.approx(10)
    assert report.exit_code == 1


def test_an_empty_text_takes_a_limit_away(tmp_path: Path) -> None:
    report = build_report(write_run(tmp_path, gates="rps>1000"), Question(slo="", gates=""))
    assert report.summary.goodput.slo == {}
    assert report.verdict is None


@pytest.mark.parametrize(
    ("said", "has"),
    [
        ({"options": {"models": "base=1,lora=2"}}, True),
        ({"scenario_document": {"models": "base,lora"}}, True),
        ({"scenario_document": {"classes": {"a": {"models": {"base": 1, "lora": 1}}}}}, True),
        ({"scenario_document": {"classes": [{"name": "a", "models": "lora"}, {"name": "b"}]}}, True),
        ({"options": {"models": ""}}, False),
    ],
)
def test_a_run_over_several_models_has_its_figures_by_model_unasked(
    tmp_path: Path, said: Any, has: bool
) -> None:
    run = write_run(tmp_path, records(ok=3, bad=1), **said)
    assert list(analyse(Source.of(run), PLAIN).summary.by or ()) == ["model"] * has


def test_the_steady_window_can_be_judged_instead(tmp_path: Path) -> None:
    made = [*records(user=1), *records(bad=0, user=2)]
    assert build_report(write_run(tmp_path, made), Question(window="steady")).summary.window.rule.startswith(
        "steady"
    )


def test_the_exit_code_says_what_is_wrong(tmp_path: Path) -> None:
    blind = records(kernel_stamps=False, client_lag_ns=30_000_000)
    assert build_report(write_run(tmp_path / "none")).verdict is None
    assert build_report(write_run(tmp_path / "held", gates="rps>1 error_rate<=10%")).exit_code == 0
    assert build_report(write_run(tmp_path / "broken", gates="rps>99")).exit_code == 1
    assert build_report(write_run(tmp_path / "invalid", blind, require_valid=True)).exit_code == 3
    incomplete = write_run(tmp_path / "incomplete", gates="error_rate<=10%", workers=lost_records(100, 1))
    assert build_report(incomplete).exit_code == 4
    assert build_report(incomplete, allow_incomplete=True).exit_code == 0


def test_a_run_without_a_request_has_its_reports(tmp_path: Path) -> None:
    report = build_report(write_run(tmp_path, [], gates="requests>0"))
    assert report.exit_code == 3
    assert report.summary.latency_ms["ttft"].known.p50 is None


def test_text_that_is_no_limit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    before = files(write_run(tmp_path))
    with pytest.raises(SloError, match="unknown metric"):
        build_report(tmp_path, Question(slo="tffd=1s"))
    with pytest.raises(GateError, match="unknown metric"):
        build_report(tmp_path, Question(gates="goodness>1"))
    assert files(tmp_path) == before


def test_what_is_not_a_run_directory_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nowhere"):
        build_report(tmp_path / "nowhere")
    with pytest.raises(StoreError, match=r"manifest\.json"):
        build_report(tmp_path)
    (write_run(tmp_path / "run") / REQUESTS_FILE).write_bytes(b"PAR1 no more")
    with pytest.raises(StoreError, match=r"requests\.parquet"):
        build_report(tmp_path / "run")


def test_reports_that_cannot_be_written_are_an_error_that_names_the_directory(tmp_path: Path) -> None:
    (write_run(tmp_path / "run") / REPORT_MD_FILE).mkdir()
    with pytest.raises(StoreError, match=r"the reports in '.*run' cannot be written: Is a directory"):
        build_report(tmp_path / "run")


COUNTS = [
    *("started", "ok", "failed", "cancelled", "input_tokens", "output_tokens"),
    *("inputs", "images", "concurrency"),
]

LATENCIES = ["ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms", "e2el_p50_ms", "e2el_p99_ms"]
HEADS = ["second", "time", *COUNTS, *LATENCIES]


def series(*made: RequestRecord) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(timeseries_csv(batch(*made), manifest())))


def test_each_second_has_a_row_from_the_start_to_the_last_end() -> None:
    found = series(request(1.5, (0.1,)), request(3.2, (0.5, 2.5)))
    assert found.columns.tolist() == HEADS
    assert found["second"].tolist() == [0, 1, 2, 3, 4, 5]
    assert (
        found["time"].iloc[1] == str(np.datetime64(ORIGIN_NS // 10**9 + 1, "s")).replace("T", " ") + ".000Z"
    )
    assert found["started"].tolist() == [0, 1, 0, 1, 0, 0]
    assert found["ok"].tolist() == [0, 1, 0, 0, 0, 1]


def test_a_second_without_an_answer_has_empty_cells_and_not_zeros() -> None:
    last = timeseries_csv(batch(request(0.0, (0.1,)), failed(1.0)), manifest()).splitlines()[-1]
    assert last.endswith(",,,,,,")


def test_a_run_without_requests_is_a_head_line() -> None:
    assert timeseries_csv(batch(), manifest()) == ",".join(HEADS) + "\n"


def test_a_worker_whose_clock_is_behind_has_rows_below_zero() -> None:
    assert series(request(-1.5, (0.1,)), request(0.5))["second"].tolist() == [-2, -1, 0]


def test_a_clock_that_is_years_off_does_not_make_a_row_for_each_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(csv_tables, "MOST_SECONDS", 1_000)  # a week of rows says no more
    lines = timeseries_csv(batch(request(0.0), request(3e8)), manifest()).count("\n")
    assert lines == 1_000 + 1


@given(st.lists(requests(), min_size=1, max_size=12))
def test_every_row_is_what_the_metrics_say_of_that_second(made: list[RequestRecord]) -> None:
    c, rows = columns(*made), np.arange(len(made))
    for second, row in series(*made).set_index("second").iterrows():
        start_ns = ORIGIN_NS + int(str(second)) * 10**9
        window = Window(start_ns, start_ns + 10**9, "one second")
        credits = Credits.of(c, window)
        measured = throughput(c, credits, rows)
        assert row.ok == measured.requests_per_s
        assert row.concurrency == pytest.approx(measured.concurrency_mean, abs=1e-3)
        assert row.output_tokens == pytest.approx(np.nansum(credits.output_tokens), abs=1e-3)
        assert row.input_tokens == pytest.approx(np.nansum(credits.input_tokens), abs=1e-3)


DOCS = Path(__file__).parents[2] / "docs" / "notebooks.md"


def documented() -> dict[str, str]:
    """Column -> type, as the page has them."""
    table = DOCS.read_text(encoding="utf-8").split("| column | type | meaning |")[1].split("\n\n")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (\w+) \| \S", table, flags=re.M))


def test_every_column_is_documented_with_its_type_and_in_its_order(tmp_path: Path) -> None:
    df = RunData.load(write_run(tmp_path)).requests
    types = {name: {"str": "text", "object": "array"}.get(str(t), str(t)) for name, t in df.dtypes.items()}
    assert types == documented()
    assert list(documented()) == [*SCHEMA.names, *COMPUTED_COLUMNS]


def test_types_do_not_depend_on_what_is_missing(tmp_path: Path) -> None:
    full = RunData.load(write_run(tmp_path / "full")).requests
    empty = RunData.load(write_run(tmp_path / "empty", [], slo="")).requests
    assert full.dtypes.astype(str).to_dict() == empty.dtypes.astype(str).to_dict()


def test_each_request_has_its_metrics(tmp_path: Path) -> None:
    made = [
        request(1.0, (0.05, 0.07, 0.11), late=0.01, output_tokens=5, rtt_ns=40_000, answer_hash=2**62 + 1),
        failed(2.0),
        request(3.0, (), streamed=False, ended=3.4, output_tokens=7),
    ]
    df = RunData.load(write_run(tmp_path, made)).requests
    first = df.iloc[0]
    assert first.ttft_s == pytest.approx(0.05)
    assert first.e2el_s == pytest.approx(0.11)
    assert first.tpot_s == pytest.approx(0.06 / 4)
    assert first.user_tps == pytest.approx(4 / 0.06)
    assert first.schedule_delay_s == pytest.approx(0.01)
    assert first.ttft_scheduled_s == pytest.approx(0.06)
    assert (first.scheduled_s, first.sent_s) == pytest.approx((1.0, 1.01))
    assert first.rtt_s == pytest.approx(40e-6)
    assert first.answer_hash == 2**62 + 1
    assert np.diff(first.arrivals_ns).tolist() == [20_000_000, 40_000_000]
    assert df.ttft_s.isna().tolist() == [False, True, True]
    assert df.e2el_s.tolist()[2] == pytest.approx(0.4)
    assert df.events.tolist() == [3, 0, 0]


def test_what_is_good_depends_on_the_limits(tmp_path: Path) -> None:
    write_run(tmp_path)
    own, strict = RunData.load(tmp_path), RunData.load(tmp_path, slo="ttft=60ms")
    assert own.requests.good.sum() == 51
    assert strict.requests.good.sum() == 11
    failed = strict.requests.first_failed.value_counts()
    assert failed[failed > 0].to_dict() == {"ttft": 84, "outcome": 5}
    none = RunData.load(tmp_path, slo="").requests
    assert none.good.isna().all()
    assert none.first_failed.isna().all()
    assert none.on_time_ratio.isna().all()
    assert own.requests.on_time_ratio[own.requests.outcome == "ok"].between(0, 1).all()


def test_the_window_is_that_of_the_report(tmp_path: Path) -> None:
    run = RunData.load(write_run(tmp_path, warmup_s=2.0))
    assert run.window_s == pytest.approx((2.0, 10.0))
    assert run.requests.in_window.sum() == 80
    assert RunData.load(tmp_path, warmup_s=0.0).requests.in_window.all()
    assert run.manifest.name == "first"


def test_a_window_is_a_span_too_and_one_that_is_none_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    whole, part = RunData.load(run), RunData.load(run, window="1s-2s")
    assert part.window_s == pytest.approx((1.0, 2.0))
    assert 0 < part.requests.in_window.sum() < whole.requests.in_window.sum()
    for wrong in ({"window": "stedy"}, {"warmup_s": -1.0}):
        with pytest.raises(ValueError, match=r"stedy|-1\.0 s"):
            RunData.load(run, **wrong)


def test_text_that_is_missing_is_missing_and_text_that_is_empty_is_not(tmp_path: Path) -> None:
    df = RunData.load(write_run(tmp_path, records(ok=2, bad=1))).requests
    assert df.error.isna().tolist() == [True, True, False]
    assert (df["class"] == "").all()
    assert isinstance(df.outcome.dtype, pd.CategoricalDtype)


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"holds no manifest\.json"):
        RunData.load(tmp_path)


def test_it_needs_neither_locust_nor_gevent(tmp_path: Path) -> None:
    script = (
        "import sys; from llm_locust import RunData; RunData.load(sys.argv[1]); "
        "sys.exit(', '.join({'locust', 'gevent'} & set(sys.modules)) or 0)"
    )
    command = [sys.executable, "-c", script, str(write_run(tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_first_try_of_a_request_that_was_sent_again_is_in_a_frame_of_its_own(tmp_path: Path) -> None:
    first = failed(1.0, Outcome.RESENT, request_id="again")
    run = RunData.load(write_run(tmp_path, [first, request(1.0, request_id="again", retries=1)]))
    assert run.requests.request_id.tolist() == run.first_tries.request_id.tolist() == ["again"]
    assert (run.requests.outcome.tolist(), run.first_tries.outcome.tolist()) == (["ok"], ["resent"])
    assert run.first_tries.columns.tolist() == SCHEMA.names


def served(worker: str) -> list[RequestRecord]:
    """100 requests/s from 1 s to 31 s whose TTFT varies by 2 %."""
    times_s = np.exp(0.02 * np.random.default_rng(3).normal(size=3_000)) * 0.05
    return [
        request(1 + i / 100, (float(t), float(t) + 0.02), user=1, request_id=f"{worker}{i}")
        for i, t in enumerate(times_s)
    ]


def looked_at(run: Path, workers: tuple[str, ...], kind: str = "rate", asked: float = 200.0) -> bool:
    facts = [
        WorkerFacts(id=name, index=i, announced=99, received=0, lost=True, heard_ns=ns(32.0))
        for i, name in enumerate(("a", "b"))
    ]
    options = {"sweep": f"{kind}={asked:g}", "until": "p50_ttft±5%"}
    with going_on(run, [(name, served(name)) for name in workers], workers=facts, options=options):
        pass
    stage = StageFacts(
        number=0,
        kind=kind,  # type: ignore[arg-type]
        asked=asked,
        repeat=0,
        begun_ns=ns(0.5),
        measured_ns=ns(1.0),
        ended_ns=ns(31.0),
    )
    return answer_of(run, StageQuestion([stage], until="p50_ttft±5%")).is_enough


def test_a_worker_without_records_does_not_let_the_others_end_the_stage(tmp_path: Path) -> None:
    assert looked_at(tmp_path / "both", ("a", "b"))
    with pytest.raises(ValueError, match="recorded by b yet"):
        looked_at(tmp_path / "one", ("a",))


def test_a_worker_that_has_no_user_in_the_stage_is_not_waited_for(tmp_path: Path) -> None:
    assert looked_at(tmp_path / "one", ("a",), "users", 1.0)
    with pytest.raises(ValueError, match="recorded by b yet"):
        looked_at(tmp_path / "two", ("a",), "users", 2.0)


@pytest.mark.parametrize(
    ("made", "no_result"),
    [
        ({"a": 3_000}, ""),
        ({"a": 3_001}, "1 records of it"),
        ({"a": 2_990, "b": 2}, "2 records of it"),  # what "a" has beyond its count is not what "b" lacks
        ({}, ""),
    ],
)
def test_a_search_reads_no_stage_whose_records_are_not_all_here(
    tmp_path: Path, made: dict[str, int], no_result: str
) -> None:
    """As of an earlier part, whose master was killed before the last batch came."""
    with going_on(tmp_path / "run", [("a", served("a"))], options={"sweep": "rate=100"}):
        pass
    stage = StageFacts(
        number=0,
        kind="rate",
        asked=100.0,
        repeat=0,
        begun_ns=ns(0.5),
        measured_ns=ns(1.0),
        ended_ns=ns(31.0),
        drained_ns=ns(31.5),
        made=made,
    )
    probe = answer_of(tmp_path / "run", StageQuestion([stage], find="max rate under p50_ttft<500ms")).probe
    assert probe is not None
    assert probe.no_result.startswith(no_result)
    assert bool(probe.no_result) is bool(no_result)


#: A server that takes 0.1 s for up to eight requests at once. The highest load is measured first.
USERS = (32, 1, 2, 4, 8, 16, 24)
SECONDS = 10.0


def of_stage(number: int, users: int) -> list[RequestRecord]:
    takes = 0.1 * max(1.0, users / 8)
    return [
        request(20 * number + i * takes / users, (takes,), user=i % users)
        for i in range(int(SECONDS / takes * users))
    ]


@pytest.fixture(scope="module")
def sweep() -> Summary:
    records = [record for number, users in enumerate(USERS) for record in of_stage(number, users)]
    stages = [
        stage(n, 20.0 * n, 20 * n + SECONDS, asked=float(users), fault="a worker was lost" if n == 3 else "")
        for n, users in enumerate(USERS)
    ]
    facts = manifest(200.0, options={"sweep": "users=…"}, stages=stages, slo="ttft=1s")
    return typed(summarise(batch(*records), facts))


@pytest.fixture(scope="module")
def rows(sweep: Summary) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(curve_csv(sweep) or "")))


def test_without_a_law_or_a_knee_their_cells_are_empty_and_without_loads_there_is_no_file() -> None:
    records = of_stage(0, 32) + of_stage(1, 1)
    two = [stage(n, 20.0 * n, 20 * n + SECONDS, asked=float(USERS[n])) for n in (0, 1)]
    facts = manifest(60.0, options={"sweep": "users=…"}, stages=two)
    found = list(csv.DictReader(io.StringIO(curve_csv(typed(summarise(batch(*records), facts))) or "")))
    assert [row["asked"] for row in found] == ["1.0", "32.0"]
    empty = ("knee", "knee_low", "knee_high", "usl_requests_per_s", "goodput", "good_requests_per_s")
    assert {row[name] for row in found for name in empty} == {""}
    once = manifest(60.0, options={"sweep": "users=32"}, stages=two[:1])
    assert curve_csv(typed(summarise(batch(*records), once))) is None
