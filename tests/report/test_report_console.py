"""The report on a terminal and in a pipe: some 30 lines, the answer first and last."""

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from metrics_cases import ns
from report_cases import clock, held_back, records, seen_worker, summary, told
from summaries import typed

from llm_locust.core.manifest import NodeHealth
from llm_locust.core.record import Outcome
from llm_locust.figures.text import Line, Section, number
from llm_locust.figures.verdict import RunVerdict
from llm_locust.report.console import print_report, print_sections
from llm_locust.report.headline import headline_of

RUN = Path("runs/first")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(
    summary: dict[str, Any], width: int = 80, run_dir: Path | None = RUN, *, full: bool = True
) -> str:
    file = io.StringIO()
    print_report(typed(summary), run_dir, file, width, full=full)
    return file.getvalue()


def line_of(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(start))


def test_a_whole_run_says_in_one_line_more_who_came_late_or_went_and_what_was_sent_twice() -> None:
    workers = [seen_worker(0, late=True, resent=17), seen_worker(1, 0, left=True)]
    lines = printed(summary(workers=workers, workers_expected=2), 140).splitlines()
    at = lines.index("Records     complete: all 100 records of 2 workers")
    said = "1 worker joined late · 1 worker left before the stop · 17 batches resent"
    assert lines[at + 1] == " " * 12 + said
    assert lines[at + 2] == ""


def test_of_a_worker_that_was_lost_the_box_says_when_and_what_is_missing() -> None:
    lost = seen_worker(announced=107, in_flight=12, lost=True, heard_ns=ns(42.0), received_seqs="0-3 5")
    text = " ".join(printed(summary(workers=[lost]), 140).replace("┃", "").split())
    assert "19 requests without a record (lost): they count as not good, and are in no other number" in text
    assert (
        "worker-1: lost 42.0 s after the start, 12 requests in flight, 7 records missing, "
        "batches 0-3 5 received" in text
    )


def test_the_workers_that_lack_most_are_named_and_the_others_counted() -> None:
    workers = [seen_worker(i, 0, announced=i, lost=i > 0) for i in range(16)]
    lines = [line.strip("┃ ") for line in printed(summary(workers=workers, workers_expected=16)).splitlines()]
    named = [line for line in lines if line.startswith("worker-")]
    assert len(named) == 10
    assert named[0] == "worker-16: lost, 15 records missing"
    assert "and 5 more workers (summary.json has all)" in lines


def test_torn_files_dropped_records_and_a_file_with_fewer_than_came_are_told() -> None:
    worker = seen_worker(rows=104, announced=107, dropped=3)
    text = printed(summary(workers=[worker], torn=["batches.frames: at byte 12"]), 140)
    box = text[text.index("┏") : text.index("┛")]
    assert "torn: batches.frames: at byte 12" in box
    assert "3 records dropped: neither disk nor memory could hold them" in box
    assert "the run has 100 of the 104 records that were received" in box
    assert "worker-1: 3 records missing, 3 records dropped" in box


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"hub_lag_ms": 50.0},
        {"clock": clock(0.9, 0.2)},
        {"clock": clock(-40.0, 41.0)},
        {"clock": None, "health": NodeHealth()},
    ],
)
def test_nodes_of_which_there_is_nothing_to_say_have_no_table(facts: dict[str, Any]) -> None:
    assert "Node" not in printed(summary(workers=[seen_worker(**facts)]), 140)


@pytest.mark.parametrize(
    ("facts", "heads", "row"),
    [
        ({"hub_lag_ms": 51.0}, [], ["worker-1", "100", "0.100±0.200", "0.500", "51.0", "40.0", "120"]),
        (
            {"clock": clock(-40.0, 1.5)},
            [],
            ["worker-1", "100", "-40.0±1.50", "0.500", "4.00", "40.0", "120"],
        ),
        (
            {"clock": clock(steps=2)},
            ["set"],
            ["worker-1", "100", "0.100±0.200", "2", "0.500", "4.00", "40.0", "120"],
        ),
        (
            {"dropped": 3},
            ["dropped"],
            ["worker-1", "100", "0.100±0.200", "0.500", "4.00", "40.0", "120", "3"],
        ),
    ],
)
def test_a_node_of_which_there_is_something_to_say_has_a_row(
    facts: dict[str, Any], heads: list[str], row: list[str]
) -> None:
    workers = [seen_worker(**facts), seen_worker(1, 0), seen_worker(2, 0)]
    text = printed(summary(workers=workers, workers_expected=3), 140)
    head = line_of(text, "Node")
    assert head.split()[:2] == ["Node", "records"]
    assert [h for h in ("set", "dropped") if h in head.split()] == heads
    assert line_of(text, "worker-1").replace(" ± ", "±").split() == row
    assert "2 other workers: loop never blocked for over 50 ms" in text


def test_many_notable_nodes_are_cut_and_counted() -> None:
    workers = [seen_worker(i, 0, hub_lag_ms=60.0) for i in range(25)]
    text = printed(summary(workers=workers, workers_expected=25))
    assert sum(line.startswith("w") and "60.0" in line for line in text.splitlines()) == 20
    assert "5 more in summary.json" in text


def alike(n: int) -> dict[str, Any]:
    """A run of ``n`` answers with one name from one replica: no table is of a part of them."""
    return summary([replace(record, name="chat", replica="a") for record in records(ok=n, bad=0)])


def test_a_percentile_of_too_few_samples_is_marked_and_the_mark_explained() -> None:
    some = alike(100)
    few = printed(some)
    assert "~" in line_of(few, "TTFT")
    assert "~ too few independent samples" in few
    for part in (some, *some["by_name"].values()):
        for stats in part["latency_ms"].values():
            stats["ci95"] = {key: None if key == "p99_9" else [1.0, 2.0] for key in stats["ci95"]}
    for stats in (some["tokens"]["user_tps"], some["replicas"][0], some["goodput"]["on_time"]):
        stats["ci95"] = {key: [1.0, 2.0] for key in stats["ci95"]}
    assert "~" not in printed(some)
    assert "~ too few independent samples" in printed(some, width=140)  # of p99.9


def test_ttfo_is_shown_only_where_it_is_not_ttft() -> None:
    assert "\nTTFO" not in printed(summary())
    reasoned = summary(records(first_answer_ns=90_000_000))
    assert "\nTTFO" in printed(reasoned)
    assert "\nTTFO" in printed(reasoned, full=False)


def test_responses_that_the_server_left_open_are_told_at_the_end() -> None:
    assert "Left open" not in printed(summary())
    made = records(ok=95, bad=5)
    made = [replace(r, left_open=not i % 50) for i, r in enumerate(made)]
    text = " ".join(printed(summary(made)).split())
    told = "2 responses (2.0 %) left open by the server after the answer's end"
    assert text.index("Latency, ms") < text.index(told) < text.index("all 100 records of 1 worker")


def test_lines_of_files_that_were_skipped_are_told_in_the_head() -> None:
    assert "--skip-bad-lines" not in printed(summary())
    text = " ".join(printed(summary(skipped_lines={"a.jsonl": 1, "b.jsonl": 20})).split())
    assert "1 line of a.jsonl could not be read, skipped by --skip-bad-lines" in text
    assert "20 lines of b.jsonl could not be read, skipped by --skip-bad-lines" in text


def test_bursts_after_a_silence_are_called_buffered() -> None:
    made = held_back(records(output_tokens=15))
    buffered = " ".join(printed(summary(made)).replace("┃", "").split())
    assert "the stream was buffered on the way: TTFT, TPOT and ITL are not the server's" in buffered
    assert "3.00 tokens per event" in buffered
    assert "llm-locust doctor URL names the proxy's settings" in buffered


@pytest.mark.parametrize("width", [80, 140])
def test_no_line_is_wider_than_the_page(width: int) -> None:
    made = records(error="word " * 100, output_tokens=6)
    lost = seen_worker(announced=107, lost=True, dropped=3, clock=clock(-812.0, 3.0, 2), hub_lag_ms=99.0)
    workers = [replace(lost, id="load-worker-7d9f8b6c4d-x2v9p_" + 32 * "f", received_seqs="0 2 4 " * 90)]
    facts = {"workers": workers, "torn": ["spool/" + 90 * "w"]}
    text = printed(summary(made, gates="goodput>=5% p99_ttft<1s", open_loop=True, **facts), width)
    assert max(map(len, text.splitlines())) <= width


def test_a_figure_keeps_all_its_digits_even_where_the_page_is_too_narrow_for_them() -> None:
    slow = summary()
    slow["latency_ms"]["ttft"] |= dict.fromkeys(("mean", "p50", "p90", "p95", "p99"), 1_234_567_890.0)
    assert line_of(printed(slow), "TTFT").count("1,234,567,890") == 5


def test_a_fact_longer_than_a_line_is_not_broken_before_its_unit() -> None:
    fact = "prompts are 0.037 % longer than requested on average, 0.24 % off (median), 1.5 % (p99), in 34 ms"
    for width in range(30, 90):
        file = io.StringIO()
        print_sections([Section("Tokens", (Line(fact),))], file, width)
        assert not re.search(r"\d\n\s*(%|ms)", file.getvalue())


def test_a_clock_offset_has_no_more_decimals_than_its_error() -> None:
    told_of = summary(records())
    told_of["completeness"]["workers"][0] |= {"clock_offset_ms": -8.1e-05, "clock_error_ms": 0.249}
    told_of["completeness"]["workers"][0]["hub_lag_ms_max"] = 80.0
    assert "0 ± 0.249" in printed(told_of)


def test_a_pipe_gets_plain_text_without_trailing_blanks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    lines = printed(summary(gates="goodput>=99%")).splitlines()
    assert not [line for line in lines if "\x1b" in line or line != line.rstrip()]


def test_a_terminal_gets_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    file = Terminal()
    print_report(told(), RUN, file, 80)
    assert "\x1b[" in file.getvalue()


def test_text_from_outside_cannot_style_break_or_reorder_a_line() -> None:
    hostile = "[red]no[/red]\x1b[31m room\x1b[0m\r\nnext\x07 \u202egnp \ud800[link=x]y"
    made = [*records(bad=0), *records(ok=0, bad=1)]
    made += records(ok=1, bad=0, outcome=Outcome.API_ERROR, error=hostile.replace("\ud800", ""))
    found = summary(made)
    found["run"] |= {"name": hostile, "model": hostile}
    text = printed(found, 140)
    assert text.count("[red]no[/red] room next gnp [link=x]y") == 4
    assert not [c for c in text if c != "\n" and not c.isprintable()]


def test_an_output_without_unicode_gets_the_report_in_its_own_signs() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    print_report(told(), RUN, file, 80)
    assert b"ok: kernel stamps | lag p99" in raw.getvalue()
    assert b"ttft <= 100 ms" in raw.getvalue()


def test_many_kinds_of_failure_are_cut_and_counted() -> None:
    made = [
        record for i in range(25) for record in records(ok=1, bad=0, outcome=Outcome.INVALID, error=f"e{i}")
    ]
    text = printed(summary(made))
    assert sum(line.startswith("invalid") for line in text.splitlines()) == 20
    assert "5 more in summary.json" in text


def test_percentiles_from_buckets_state_their_error() -> None:
    made = summary()
    assert "counted in buckets" not in printed(made)
    made["latency_ms"]["itl"]["relative_error"] = 0.0005
    assert "ITL percentiles within 0.05 % (counted in buckets)" in printed(made)


def test_a_load_that_back_off_made_lower_says_by_how_much() -> None:
    waited = seen_worker(backoff_waits=12, backoff_ns=66_000_000_000)
    made = summary(workers=[waited])
    text = " ".join(printed(made).split())
    users = made["completeness"]["backoff_users_mean"]
    assert "back-off: 12 waits after failed requests, 66.0 s of user time" in text
    assert f"; {number(users)} users at a time, on average, sent nothing" in text
    assert "back-off" not in printed(summary())


def test_what_a_bound_of_requests_under_way_held_back_is_said() -> None:
    held = seen_worker(held_back=12, longest_held_ns=2_300_000_000, unsent=3)
    text = " ".join(printed(summary(workers=[held])).split())
    assert "12 requests held back by --max-in-flight, 2.30 s at most" in text
    assert "3 requests due and not sent by the end" in text


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("title", ["Records", "Server calls", "Cost of speculation", "a" * 30])
def test_a_title_never_touches_the_line_beside_it(title: str, width: int) -> None:
    file = io.StringIO()
    print_sections([Section(title, (Line("2 replicas: profiled"),))], file, width)
    assert re.fullmatch(rf"{title} +2 replicas: profiled", file.getvalue().strip())


@pytest.mark.parametrize("width", [80, 140])
def test_no_word_of_a_report_touches_a_number_that_follows_it(width: int) -> None:
    text = printed(summary(gates="goodput>=50%"), width, None)
    ours = {"p50", "p90", "p99", "p999", "sha256", "w1", "w2", "http2"}
    touching = [word for word in re.findall(r"\b[a-zA-Z]{2,}[0-9]+\b", text) if word not in ours]
    assert touching == []


def printed_brief(found: dict[str, Any], width: int = 80, code: int | None = 0) -> list[str]:
    told = typed(found)
    file = io.StringIO()
    given = None if code is None else RunVerdict(code, "a reason" if code else "")
    print_report(told, RUN, file, width, found=headline_of(told, given))
    return file.getvalue().splitlines()


def test_each_cause_has_one_box_the_worst_first() -> None:
    found = summary(records(kernel_stamps=False, client_lag_ns=30_000_000))
    slow = {"kind": "slow", "text": "replica-2 is slower", "replica": "replica-2"}
    found["fairness"] |= {"causes": [slow]}
    found["tokens"] |= {"delivery": "buffered"}
    tops = [line.strip("┏━┓ ") for line in printed_brief(found) if line.startswith("┏")]
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


def test_failures_of_other_users_are_no_cause_of_what_failed_here() -> None:
    found = {**summary(records(ok=50, bad=50), gates="error_rate<1%"), "other_requests": OTHERS}
    assert "other requests" not in headline_of(typed(found), RunVerdict(1, "1 of 1 gates failed")).cause
