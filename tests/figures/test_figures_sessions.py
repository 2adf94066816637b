"""Conversations as wholes and by turn, computed by hand."""

from typing import Any

import pytest
from hypothesis import given, strategies as st
from metrics_cases import ORIGIN_NS, batch, columns, failed, manifest, ns, plain, request
from summaries import summarise, typed

from llm_locust.core.arrow import SCHEMA
from llm_locust.core.batch import PART_ROWS, RecordBatch
from llm_locust.core.record import Outcome, RequestRecord, SessionHeaderEcho
from llm_locust.figures.sessions import (
    by_turn,
    planned_turns,
    session_name,
    sessions as sessions_of,
    show as section,
)
from llm_locust.figures.summary import Summary
from llm_locust.figures.text import Tone
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


def test_a_session_that_the_end_cut_between_two_turns_is_not_completed() -> None:
    assert figures(turn("a-of2", 0, 1.0))["cut"] == 1
    assert figures(turn("a-of1", 0, 1.0))["completed"] == 1


def test_a_session_of_which_nobody_said_how_long_it_is_counts_as_completed_where_all_turns_are_ok() -> None:
    found = figures(turn("trace-7", 0, 1.0), turn("trace-8", 0, 1.0, outcome=Outcome.CANCELLED))
    assert (found["completed"], found["cut"]) == (1, 1)


def test_a_session_belongs_to_the_window_that_it_began_in_with_all_its_turns() -> None:
    window = Window(ns(1.2), ns(2.5), "")
    found = figures(*RECORDS, window=window)
    assert (found["n"], found["completed"], found["abandoned"], found["failed"]) == (2, 0, 1, 1)
    assert [(t["turn"], t["requests"]) for t in found["by_turn"]] == [(0, 2), (1, 1)]


def test_without_sessions_there_is_nothing_to_say() -> None:
    assert figures(request(1.0), failed()) is None
    assert figures() is None
    assert section(report(request(1.0))) is by_turn(report(request(1.0))) is None


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
    turn("a", 1, 2.0, replica="r1", session_header=SessionHeaderEcho.ECHOED),
    turn("a", 2, 3.0, replica="r2", session_header=SessionHeaderEcho.ECHOED),
    turn("b", 0, 1.0, replica="r1"),
    turn("b", 1, 2.0, session_header=SessionHeaderEcho.ECHOED),
    turn("c", 1, 2.0, replica="r2", session_header=SessionHeaderEcho.MISSING),
    turn("c", 2, 3.0, replica="r2", session_header=SessionHeaderEcho.REFUSED),
    turn("d", 1, 20.0, replica="r2", session_header=SessionHeaderEcho.ECHOED),
    turn("e", 1, 4.0, (), sent=False, outcome=Outcome.CONNECT_ERROR, session_header=SessionHeaderEcho.ECHOED),
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
