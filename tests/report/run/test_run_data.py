"""A run for notebooks."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from metrics_cases import failed, request
from report_cases import records, write_run

from llm_locust import RunData
from llm_locust.core.arrow import SCHEMA
from llm_locust.core.record import Outcome
from llm_locust.report.run.run_data import COMPUTED_COLUMNS
from llm_locust.store import StoreError

DOCS = Path(__file__).parents[3] / "docs" / "notebooks.md"


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
