"""Users that hang while the run goes on: told by the report's rule, before the report is there."""

import pytest
from live_cases import START_S, Run, observation, worker
from metrics_cases import request

from llm_locust.core.record import RequestRecord
from llm_locust.live.state import MISSING, LiveRun, Waiting
from llm_locust.live.store import snapshot
from llm_locust.report.progress import Progress, line

QUICK, SLOW = request(arrivals=(0.1, 0.12)), request(arrivals=(8.0, 8.02))
WHOLE = request(arrivals=(6.0,), streamed=False)
HOLE = request(arrivals=(0.1, 6.1))
TOLD_S = 40.0


def told(
    answers: list[RequestRecord], waiting: list[Waiting], state: str = "running", **facts: object
) -> Progress:
    """Of ten users, 40 s after the start."""
    run = Run()
    run.store.begin(LiveRun(id="run", **facts))  # type: ignore[arg-type]
    run.ended(answers)
    run.report()
    run.store.observe(observation(10, worker("a", state, told_s=START_S + TOLD_S, waiting=tuple(waiting))))
    return Progress(run.store.run, snapshot(run.store), snapshot(run.store, 10))


def silent(*seconds: float, name: str = "chat", streamed: bool = True) -> list[Waiting]:
    return [Waiting(name, "", streamed, each) for each in seconds]


@pytest.mark.parametrize(
    ("answers", "waiting", "said"),
    [
        ([QUICK] * 40, silent(32, 31, 20), "3 of 10 users hung from 8 s on"),
        ([QUICK] * 40, silent(32, 31, 20) * 4, "12 of 10"),
        ([QUICK] * 40, [], ""),
        ([QUICK] * 9, silent(32), ""),  # too few tell what is usual
        ([QUICK] * 30 + [SLOW], silent(20), ""),  # one of few has waited for a third of it
        ([QUICK] * 30 + [SLOW], silent(32), "1 of 10"),
        ([QUICK] * 99 + [SLOW], silent(20), "1 of 10"),  # seldom enough
        ([QUICK] * 30 + [HOLE], silent(17), ""),  # pauses in an answer are waits, too
        ([WHOLE] * 30, silent(17, streamed=False), ""),
        ([WHOLE] * 30, silent(19, streamed=False), "1 of 10"),
        ([QUICK] * 40, silent(32, name="another"), ""),  # of which nothing is known
    ],
)
def test_a_user_hangs_whose_silence_is_three_times_as_long_as_is_usual(
    answers: list[RequestRecord], waiting: list[Waiting], said: str
) -> None:
    found = told(answers, waiting)
    assert found.whole.hung.text(10).startswith(said)
    assert said in line(found)
    assert ("hung" in line(found)) == bool(said)


def test_it_is_said_from_when_on_without_the_warm_up_as_in_the_report() -> None:
    assert (
        told([QUICK] * 40, silent(32), warmup_s=5.0).whole.hung.text(10) == "1 of 10 users hung from 3 s on"
    )
    assert "from the warm-up on" in told([QUICK] * 40, silent(38), warmup_s=5.0).whole.hung.text(10)


def test_what_a_lost_worker_had_said_is_no_news() -> None:
    assert told([QUICK] * 40, silent(32), MISSING).whole.hung.n == 0
