"""Conversations as wholes and by turn, computed by hand."""

from typing import Any

import pytest
from hypothesis import given, strategies as st
from metrics_cases import ORIGIN_NS, batch, columns, failed, manifest, ns, plain, request
from summaries import summarise, typed

from llm_locust.core.arrow import SCHEMA
from llm_locust.core.batch import PART_ROWS, RecordBatch
from llm_locust.core.record import Echo, Outcome, RequestRecord
from llm_locust.figures.section import Tone
from llm_locust.figures.sessions import (
    TURNS_APART,
    by_turn,
    planned_turns,
    session_name,
    sessions as sessions_of,
    show as section,
)
from llm_locust.figures.summary import Summary
from llm_locust.metrics.columns import Part
from llm_locust.metrics.window import Window


def sessions(*given: Any, **more: Any) -> Any:
    found: Any = plain(sessions_of(*given, **more))
    return found


WINDOW = Window(ns(0.0), ns(10.0), "")


LEFT: dict[str, Any] = {"outcome": Outcome.CANCELLED, "abandoned": True}


TOKENS = (0.05, 0.07, 0.09)


def turn(
    session: str, number: int | None, at: float, arrivals: tuple[float, ...] = TOKENS, **fields: Any
) -> RequestRecord:
    return request(at, arrivals, session=session, turn=number, **fields)


def figures(*records: RequestRecord, window: Window = WINDOW) -> Any:
    return sessions(batch(*records), columns(*records), window)


RECORDS = (
    turn("a-of2", 0, 1.0, (0.1, 0.3)),
    turn("a-of2", 1, 2.0, (0.2, 0.4)),
    turn("b-of3", 0, 1.5, (0.3, 0.5, 0.7)),
    turn("b-of3", 1, 3.0, (), ended=4.0, **LEFT),
    turn("c-of2", 0, 2.0),
    failed(3.0, session="c-of2", turn=1),
    turn("d-of4", 0, 8.0),
    turn("d-of4", 1, 9.0, (0.1,), outcome=Outcome.CANCELLED),
    turn("e-of4", 0, 9.5),
    request(5.0),
)


def test_each_session_ended_in_one_way() -> None:
    found = figures(*RECORDS)
    ways = {key: found[key] for key in ("n", "completed", "abandoned", "failed", "cut")}
    assert ways == {"n": 5, "completed": 1, "abandoned": 1, "failed": 1, "cut": 2}


def test_a_session_that_the_end_cut_between_two_turns_is_not_completed() -> None:
    assert figures(turn("a-of2", 0, 1.0))["cut"] == 1
    assert figures(turn("a-of1", 0, 1.0))["completed"] == 1


def test_a_session_of_which_nobody_said_how_long_it_is_counts_as_completed_where_all_turns_are_ok() -> None:
    found = figures(turn("trace-7", 0, 1.0), turn("trace-8", 0, 1.0, outcome=Outcome.CANCELLED))
    assert (found["completed"], found["cut"]) == (1, 1)


def test_a_session_that_failed_after_its_user_had_left_once_counts_once_as_failed() -> None:
    found = figures(turn("a-of3", 0, 1.0, (), ended=2.0, **LEFT), failed(3.0, session="a-of3", turn=1))
    assert (found["n"], found["failed"], found["abandoned"]) == (1, 1, 0)


def test_turns_and_tokens_are_of_the_sessions_that_came_to_an_end_of_their_own() -> None:
    found = figures(*RECORDS)
    assert found["turns"] == {"n": 3, "mean": pytest.approx(4 / 3), "p50": 1, "max": 2}
    assert found["output_tokens"] == {"n": 3, "mean": pytest.approx(10 / 3), "p50": 3, "max": 4}


def test_a_sessions_tokens_are_not_known_where_those_of_an_ok_turn_are_not() -> None:
    unknown = turn("a-of1", 0, 1.0, (), ended=1.5, streamed=False, output_tokens=None)
    assert figures(unknown, turn("b-of1", 0, 1.0))["output_tokens"]["n"] == 1


def test_a_session_lasts_from_the_first_schedule_to_the_last_end_and_only_completed_ones_count() -> None:
    found = figures(*RECORDS)
    assert found["duration_s"] == {
        "n": 1,
        "mean": pytest.approx(1.4),
        "p50": pytest.approx(1.4),
        "p95": pytest.approx(1.4),
        "p99": pytest.approx(1.4),
        "ci95": {"mean": None, "p50": None, "p95": None, "p99": None},
        "n_effective": {"mean": None, "p50": None, "p95": None, "p99": None},
    }


def test_a_session_belongs_to_the_window_that_it_began_in_with_all_its_turns() -> None:
    window = Window(ns(1.2), ns(2.5), "")
    found = figures(*RECORDS, window=window)
    assert (found["n"], found["completed"], found["abandoned"], found["failed"]) == (2, 0, 1, 1)
    assert [(t["turn"], t["requests"]) for t in found["by_turn"]] == [(0, 2), (1, 1)]


def test_turns_are_told_apart_by_their_number_over_the_ok_requests() -> None:
    first, second = figures(*RECORDS)["by_turn"]
    assert (first["turn"], first["from_here_on"], first["requests"], first["ok"]) == (0, False, 5, 5)
    assert first["ttft_ms"]["n"] == 5
    assert first["ttft_ms"]["p50"] == pytest.approx(50)  # of 50, 50, 50, 100 and 300
    assert first["e2el_ms"]["p50"] == pytest.approx(90)  # of 90, 90, 90, 300 and 700
    assert (second["requests"], second["ok"], second["failed"], second["abandoned"]) == (4, 1, 1, 1)
    assert second["ttft_ms"]["p99"] == pytest.approx(200)
    assert second["tpot_ms"]["p50"] == pytest.approx(200)


def test_late_turns_share_a_row_and_turns_without_a_number_have_none() -> None:
    many = [turn("a", k, 0.1 * k) for k in range(TURNS_APART + 3)]
    *_, last = rows = figures(*many, turn("b", None, 1.0))["by_turn"]
    assert [row["turn"] for row in rows] == list(range(TURNS_APART + 1))
    assert [row["from_here_on"] for row in rows] == [False] * TURNS_APART + [True]
    assert last["requests"] == 3


def test_the_cached_share_is_of_the_prompt_tokens_of_which_both_are_known() -> None:
    (row,) = figures(
        turn("a", 0, 1.0, input_tokens=100, cached_tokens=80),
        turn("b", 0, 1.0, input_tokens=300, cached_tokens=0),
        turn("c", 0, 1.0, input_tokens=900, cached_tokens=None),
        turn("d", 0, 1.0, input_tokens=None, cached_tokens=7),
        failed(1.0, session="e", turn=0, input_tokens=50, cached_tokens=50),
    )["by_turn"]
    assert row["cached_share"] == pytest.approx(0.2)
    assert row["input_tokens"]["mean"] == pytest.approx(1300 / 3)
    assert figures(turn("a", 0, 1.0))["by_turn"][0]["cached_share"] is None


def test_without_sessions_there_is_nothing_to_say() -> None:
    assert figures(request(1.0), failed()) is None
    assert figures() is None
    assert section(report(request(1.0))) is by_turn(report(request(1.0))) is None


def test_abandoned_requests_are_counted_apart_among_the_cancelled() -> None:
    summary = summarise(batch(*RECORDS), manifest())
    counts = summary["requests"]
    assert (counts["cancelled"], counts["abandoned"], counts["failed"]) == (2, 1, 1)
    assert counts["error_rate"] == pytest.approx(1 / 8)
    assert {**summary["sessions"], "duration_s": 0} == {**figures(*RECORDS), "duration_s": 0}


def test_records_from_before_there_were_sessions_have_none() -> None:
    old = batch(request(1.0)).table.drop_columns(["session", "turn", "abandoned"])
    read = RecordBatch.from_table(old, SCHEMA.names)
    assert sessions(read, Part.from_batch(read, ORIGIN_NS), WINDOW) is None
    assert not Part.from_batch(read, ORIGIN_NS).abandoned.any()


@given(st.permutations(RECORDS), st.integers(1, len(RECORDS)))
def test_neither_the_order_nor_the_parts_of_the_records_matter(
    records: list[RequestRecord], rows: int
) -> None:
    class InParts:
        def __len__(self) -> int:
            return len(records)

        def parts(self, columns: Any = SCHEMA.names) -> Any:
            for at in range(0, len(records), rows):
                yield RecordBatch(batch(*records[at : at + rows]).table.select(columns))

    assert rows <= PART_ROWS
    assert sessions(InParts(), columns(*records), WINDOW) == figures(*RECORDS)


@given(st.text(), st.integers(0, 999_999_999))
def test_a_sessions_name_says_how_many_turns_it_is_to_have(unique: str, turns: int) -> None:
    assert planned_turns(session_name(unique, turns)) == turns


HEADED = (
    turn("a", 0, 1.0, replica="r1"),
    turn("a", 1, 2.0, replica="r1", session_header=Echo.ECHOED),
    turn("a", 2, 3.0, replica="r2", session_header=Echo.ECHOED),
    turn("b", 0, 1.0, replica="r1"),
    turn("b", 1, 2.0, session_header=Echo.ECHOED),
    turn("c", 1, 2.0, replica="r2", session_header=Echo.MISSING),
    turn("c", 2, 3.0, replica="r2", session_header=Echo.REFUSED),
    turn("d", 1, 20.0, replica="r2", session_header=Echo.ECHOED),
    turn("e", 1, 4.0, (), sent=False, outcome=Outcome.CONNECT_ERROR, session_header=Echo.ECHOED),
)


def test_follow_up_turns_are_counted_by_what_they_had_of_the_header_and_whether_they_stayed() -> None:
    """Of those in the window that were sent; a turn whose replica nobody knows has not left it."""
    found = sessions(batch(*HEADED), columns(*HEADED), WINDOW, "x-session-token")["header"]
    assert found == {
        "name": "x-session-token",
        "echoed": 3,
        "missing": 1,
        "refused": 1,
        "placed": 2,
        "same_replica": 0.5,
    }
    assert figures(*HEADED)["header"] is None


def test_the_report_says_which_turns_gave_the_header_back() -> None:
    summary = typed(
        summarise(batch(*HEADED), manifest(options={"session_header": "x-session-token\x1b[31m"}))
    )
    found = section(summary)
    assert found is not None
    (line,) = (line for line in found.lines if "gave it back" in line.text)
    assert "\x1b" not in line.text
    assert ": 3 of 5 follow-up turns gave it back · 1 had none · 1 had one that cannot be sent" in line.text
    assert line.text.endswith("50.0 % of them stayed at their replica")
    assert line.tone is Tone.WARN


@pytest.mark.parametrize("name", ["", "a", "of5", "a-of", "a-of5x", "a-ofx", "a-of1234567890"])
def test_other_names_say_nothing_of_it(name: str) -> None:
    assert planned_turns(name) is None


def report(*records: RequestRecord) -> Summary:
    return typed(summarise(batch(*records), manifest()))


def test_the_report_says_how_sessions_ended_and_what_is_in_no_latency() -> None:
    found = section(report(*RECORDS))
    assert found is not None
    ends, lengths, lasted, left = (line.text for line in found.lines)
    assert ends == "5 sessions · 1 completed · 1 abandoned · 1 failed · 2 cut by the end"
    assert lengths == "turns 1.33 mean, 1.00 median, 2 max · output tokens 3.33 mean"
    assert lasted == "completed in ~1.40 s p50, ~1.40 s p95, ~1.40 s p99"
    assert found.notes[0].text.startswith("~ too few independent samples")
    assert left == "1 request abandoned before the first token: lower bounds in TTFT and E2EL"


def test_turns_stand_side_by_side_where_there_are_several() -> None:
    table = by_turn(report(*RECORDS))
    assert table is not None
    assert table.table is not None
    assert [row.cells[:4] for row in table.table.rows] == [("0", "5", "0", "~50.0"), ("1", "4", "1", "~200")]
    assert by_turn(report(turn("a", 0, 1.0))) is None
    many = by_turn(report(*(turn("a", k, 0.1 * k) for k in range(12))))
    assert many is not None
    assert many.table is not None
    assert many.table.rows[-1].cells[0] == "10 and later"
