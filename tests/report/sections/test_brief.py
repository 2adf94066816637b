"""The short report on the console: some 30 lines, the answer first and last."""

import io
from pathlib import Path
from typing import Any

import pytest
from report_cases import records, summary

from llm_locust.figures.summary import typed
from llm_locust.figures.verdict import RunVerdict
from llm_locust.report.console import print_report
from llm_locust.report.sections.headline import verdict

RUN = Path("runs/first")


def printed(found: dict[str, Any], width: int = 80, code: int | None = 0) -> list[str]:
    told = typed(found)
    file = io.StringIO()
    given = None if code is None else RunVerdict(code, "a reason" if code else "")
    print_report(told, RUN, file, width, found=verdict(told, given))
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 140])
def test_a_good_run_takes_some_thirty_lines(width: int) -> None:
    lines = printed(summary(records(bad=0), gates="goodput>=50% error_rate<5%"), width)
    assert 20 < len(lines) <= 32
    assert all(len(line) <= width for line in lines)
    verdict_line = "PASS: goodput 53.7 % (at least 50 %), error rate 0 % (below 5 %)"
    assert verdict_line in lines[:6]
    assert lines[-1] == f"{verdict_line} · exit 0"


def test_what_says_nothing_is_left_out_and_how_to_get_the_rest_is_said() -> None:
    text = "\n".join(printed(summary()))
    for left_out in ("TTFT with connecting", "TTFT per 1k input", "95 %, ms", "Fairness", "Where the time"):
        assert left_out not in text
    assert "runs/first/report.html" in text
    assert "llm-locust report runs/first --full" in text


def test_a_warning_of_a_section_that_is_left_out_stands_among_the_remarks() -> None:
    found = summary()
    found["steadiness"] |= {"warmup_like": True, "reason": "the first 7 s were like a warm-up"}
    lines = printed(found)
    at = next(i for i, line in enumerate(lines) if line.startswith("Remarks"))
    assert lines[at] == "Remarks     the first 7 s were like a warm-up"


def test_a_suspicion_is_a_line_at_the_end_and_no_box() -> None:
    made = records(bad=0, client_lag_ns=2_500_000)
    found = summary(made)
    found["client"] |= {"verdict": "suspect", "reasons": ["the client read 2.5 ms late"]}
    lines = printed(found)
    assert "━" not in "".join(lines)
    assert "Client      suspect: the client read 2.5 ms late" in lines


def test_a_client_that_was_starved_and_moved_no_figure_says_so_behind_its_ok() -> None:
    found = summary(records(bad=0))
    found["client"] |= {"run_queue_percent_max": 77.1}
    (line,) = [line for line in printed(found, 160) if line.startswith("Client")]
    assert line.startswith("Client      ok: kernel stamps")
    assert line.endswith("starved: waited for a core 77.1 % of the time, which moved no figure")
    found["client"] |= {"verdict": "suspect", "cause": "starved", "reasons": ["the load was late"]}
    assert not any("moved no figure" in line for line in printed(found, 160))


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (
            {"end_lag_ns": 900_000_000},
            "the latencies are the server's, under another load than was asked for",
        ),
        (
            {"client_lag_ns": 30_000_000, "kernel_stamps": False},
            "these numbers show the client, not the server",
        ),
    ],
)
def test_a_late_load_is_never_said_to_make_right_times_wrong(made: dict[str, Any], says: str) -> None:
    lines = printed(summary(records(bad=0, **made)), 120)
    assert any(f"INVALID: {says}" in line for line in lines)


def test_each_cause_has_one_box_the_worst_first() -> None:
    found = summary(records(kernel_stamps=False, client_lag_ns=30_000_000))
    slow = {"kind": "slow", "text": "replica-2 is slower", "replica": "replica-2"}
    found["fairness"] |= {"causes": [slow]}
    found["tokens"] |= {"delivery": "buffered"}
    tops = [line.strip("┏━┓ ") for line in printed(found) if line.startswith("┏")]
    assert tops == ["Client", "Replicas", "Stream"]


OTHERS = [
    {"method": "GET", "name": "/health", "requests": 20, "failures": 3, "p50_ms": 1.5, "p95_ms": 4.0},
    {
        "method": "POST",
        "name": "/login\x1b[31m",
        "requests": 2,
        "failures": 0,
        "p50_ms": None,
        "p95_ms": None,
    },
]


def test_requests_of_other_users_have_a_table_and_their_failures_stand_beside_the_verdict() -> None:
    found = {**summary(records(bad=0), gates="goodput>=50%"), "other_requests": OTHERS}
    text = "\n".join(printed(found, 120))
    assert "\x1b" not in text
    assert "/login" in text
    assert text.splitlines()[-1].startswith("PASS: goodput")
    assert "but: 3 of 22 other requests failed: GET /health" in text


def test_failures_of_other_users_are_no_cause_of_what_failed_here() -> None:
    found = {**summary(records(ok=50, bad=50), gates="error_rate<1%"), "other_requests": OTHERS}
    assert "other requests" not in verdict(typed(found), RunVerdict(1, "1 of 1 gates failed")).cause
