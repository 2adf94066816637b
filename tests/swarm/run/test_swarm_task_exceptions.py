"""Exceptions of the locustfile's tasks, as the manifest has them."""

from typing import Any

from llm_locust.core.manifest import MOST_TASK_EXCEPTIONS
from llm_locust.swarm.process.leaving import innermost
from llm_locust.swarm.run.task_exceptions import raised_in_tasks

TRACEBACK = """  File "/venv/lib/python3.12/site-packages/locust/user/task.py", line 340, in run
    self.execute_next_task()
  File "/home/me/tests/asker.py", line 12, in ask
    self.chat(words)
  File "/venv/lib/python3.12/site-packages/llm_locust/swarm/users/users.py", line 90, in chat
    raise TypeError
"""


def row(msg: str, count: int = 1, traceback: str = TRACEBACK) -> dict[str, Any]:
    return {"msg": msg, "count": count, "traceback": traceback, "nodes": {"w1"}}


def test_an_exception_has_its_text_and_the_innermost_line_of_the_locustfile() -> None:
    (found,) = raised_in_tasks({1: row("TypeError: no words", 7)})
    assert (found.error, found.where, found.count) == ("TypeError: no words", "asker.py:12 in ask", 7)


def test_a_traceback_of_libraries_alone_gives_its_last_line() -> None:
    of_library = '  File "/x/site-packages/a.py", line 1, in f\n    g()\n'
    assert innermost(of_library) == "a.py:1 in f"
    assert innermost("") == ""
    assert innermost("no traceback at all") == ""


def test_an_exception_of_the_sdk_for_a_failed_request_is_none_of_the_locustfile() -> None:
    """The request has a record: it is a failure of the server, and the measurement is valid."""
    failures = ["openai.RateLimitError: Error code: 429", "httpx2.ReadTimeout: no event within 30 s"]
    mistakes = ["openai.OpenAIError: no key", "KeyError: 'openai.x'"]
    found = raised_in_tasks({n: row(msg) for n, msg in enumerate([*failures, *mistakes])})
    assert sorted(each.error for each in found) == sorted(mistakes)


def test_what_a_hostile_worker_reports_is_cleaned_and_cut() -> None:
    nasty = f'  File "/a/\x1b[31m{"b" * 4000}.py", line 5, in \u202ef\n'
    (found,) = raised_in_tasks({1: row("\x1b[2J<script>\n" * 200, traceback=nasty)})
    assert len(found.error) <= 500
    assert len(found.where) <= 300
    assert "\x1b" not in found.error + found.where
    assert "\n" not in found.error


def test_many_kinds_are_listed_by_frequency_and_their_sum_is_kept() -> None:
    table = {k: row(f"ValueError: {k}", count=k) for k in range(1, 101)}
    found = raised_in_tasks(table)
    assert len(found) == MOST_TASK_EXCEPTIONS
    assert found[0].error == "ValueError: 100"
    assert found[-1].error == "other exceptions"
    assert sum(each.count for each in found) == sum(range(1, 101))
