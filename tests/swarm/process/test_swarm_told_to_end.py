"""A run that its process was told to end before its time is cut short, unless a person started it.

Locust patches the process that imports it: each test has its own.
"""

from warm_process import warm_code

COMMON = """
from types import SimpleNamespace

from llm_locust.core.exit_codes import EXIT_INCOMPLETE
from llm_locust.figures.verdict import RunVerdict
from llm_locust.swarm.roles import coordinator
from llm_locust.swarm.roles.coordinator import (RunCoordinator)

CUT = "the process was told to end (SIGTERM or Ctrl-C)"

class FakeRun:
    stopped_ns = report = uploaded = None
    finishing = is_part = False
    reported = "run"
    load = SimpleNamespace(num_requests=None, trace=None, sweep=None)
    settings = SimpleNamespace(
        load=load, report=SimpleNamespace(full=False, print_summary=False)
    )

    def __init__(self):
        self.reasons = []

    def cut(self, reason):
        self.reasons.append(reason)

def coordinator_of(run, *, headless=False, autostart=False, run_time=60, printed=None):
    made = RunCoordinator.__new__(RunCoordinator)
    made.run, made._printed, made._found, made._refused = run, printed, None, False
    made._options = SimpleNamespace(
        headless=headless, autostart=autostart, run_time=run_time, exit_code_on_error=1
    )
    made.environment = SimpleNamespace(shape_class=None, process_exit_code=0)
    made.finish = made._join_finishing = lambda: None
    return made

def reasons(**given):
    # Of a run that is under load when its process is told to end.
    run = FakeRun()
    coordinator_of(run, **given).on_quitting(lambda: None)
    return run.reasons
"""


def test_an_autostarted_run_that_is_ended_before_its_time_is_cut_short_as_a_headless_one() -> None:
    warm_code(
        COMMON
        + """
assert reasons(headless=True) == [CUT]
assert reasons(autostart=True) == [CUT]
assert reasons(autostart=True, run_time=None) == [], "it has no end of its own"
assert reasons() == [], "a person started it in the web UI, and ends it"
assert reasons(autostart=True, printed=FakeRun()) == [], "so is a later run of that process"
"""
    )


def test_the_report_of_an_autostarted_run_says_its_exit_code_and_the_process_ends_with_that_line() -> None:
    warm_code(
        COMMON
        + """
import io
from contextlib import redirect_stdout
from dataclasses import dataclass

from llm_locust.figures.section import Tone

@dataclass
class Answer:
    code: int
    tone: Tone = Tone.BAD

    @property
    def line(self):
        return f"exit {self.code}"

coordinator.stood_still = coordinator.users_hung = lambda summary: ""
coordinator.verdict = lambda summary, found: Answer(found.code)
coordinator.print_report = lambda *_, found, full: print(found.code)

def said(*, is_at_end=False, **given):
    run, out = FakeRun(), io.StringIO()
    found = RunVerdict(EXIT_INCOMPLETE, f"it was cut short: {CUT}")
    run.report = SimpleNamespace(summary=None, verdict=found)
    with redirect_stdout(out):
        made = coordinator_of(run, **given)
        made.print_once()
        if is_at_end:
            print("tables of Locust")
            made.on_quit()
    return out.getvalue()

assert said(autostart=True) == said(headless=True) == f"{EXIT_INCOMPLETE}\\n"
assert said() == "None\\n", "the process goes on"
last = said(is_at_end=True, autostart=True).splitlines()[1:]
assert last == ["tables of Locust", "", f"exit {EXIT_INCOMPLETE}"], last
"""
    )
