"""The log is for people: time and text, nothing that misleads, one traceback for each place."""

import logging
import re
from types import SimpleNamespace

import pytest

from llm_locust.swarm.process import log_lines
from llm_locust.swarm.process.log_lines import LineFilter, LineFormatter

RAISED = """'token'
Traceback (most recent call last):
  File "/x/site-packages/locust/user/users.py", line 168, in run
    self.on_start()
  File "/home/me/asker.py", line {line}, in on_start
    raise KeyError("token")
KeyError: 'token'"""


def record(text: str, name: str = "locust.user.users", level: int = logging.ERROR) -> logging.LogRecord:
    return logging.LogRecord(name, level, "", 0, "%s", (text,), None)


@pytest.mark.parametrize(
    ("level", "shown"),
    [(logging.INFO, "text"), (logging.WARNING, "WARNING: text"), (logging.ERROR, "ERROR: text")],
)
def test_a_line_is_time_and_text_and_says_if_it_is_a_warning(level: int, shown: str) -> None:
    for is_terminal, time in ((True, r"\d\d:\d\d:\d\d"), (False, r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")):
        line = LineFormatter(is_terminal).format(record("text", level=level))
        assert re.fullmatch(rf"{time} {shown}", line), line


@pytest.mark.parametrize(
    "text",
    [
        "No run time limit set, use CTRL+C to interrupt",
        "Your selected spawn rate is very high (>100), and this is known to sometimes cause issues.",
        "Your selected spawn rate is very high (>100/worker), and this is known to sometimes cause issues.",
        "While stopping users, we encountered a user that didn't have proper args <Greenlet at 0x7f>",
        "Admin had no tasks left after filtering, instantiating it will fail!",
        "Bad response code from worker children: 4",
        "Ramping to 1 users at a rate of 1.00 per second",
        'All users spawned: {"OpenLoop": 1} (1 total users)',
    ],
)
def test_what_misleads_is_dropped(text: str) -> None:
    assert not LineFilter().filter(record(text, "locust.runners"))
    assert LineFilter().filter(record(f"the users said: {text}", "locust.runners"))


def test_memory_that_has_run_out_is_a_line_with_what_to_do() -> None:
    lost = "Uncaught exception in event handler: \n" + RAISED.format(line=9).replace(
        "KeyError: 'token'", "MemoryError"
    )
    line = record(lost.replace("'token'\n", "", 1), "locust.event")
    assert LineFilter().filter(line)
    said = "Uncaught exception in event handler: memory has run out: raise `ulimit -v` or the memory limit"
    assert line.getMessage().startswith(said)
    assert "\n" not in line.getMessage()
    lines, of_a_task = LineFilter(), RAISED.format(line=9).replace("KeyError: 'token'", "MemoryError")
    assert [lines.filter(record(of_a_task)) for _ in range(3)] == [True, False, False]


def test_the_first_traceback_of_a_place_is_shown_and_the_others_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(log_lines, "time", SimpleNamespace(monotonic=lambda: now[0]))
    lines = LineFilter()
    first = record(RAISED.format(line=9))
    assert lines.filter(first)
    assert lines.filter(first), "by the next handler"
    assert not lines.filter(record(RAISED.format(line=9), "llm_locust.swarm.process.hush")), "gevent's report"
    assert not any(lines.filter(record(RAISED.format(line=9))) for _ in range(98))
    assert lines.filter(record(RAISED.format(line=10))), "another place"
    assert lines.filter(record(RAISED.format(line=9), "a.library")), "not of a user"
    now[0] = 31.0
    counted = record(RAISED.format(line=9))
    assert lines.filter(counted)
    assert counted.getMessage() == "KeyError: 'token' (at asker.py:9 in on_start): 100 times so far"
    assert not lines.filter(record(RAISED.format(line=9)))
