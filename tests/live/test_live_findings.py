"""Users that hang, and replicas that are slow, while the run goes on: by the report's rules."""

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


def served(replica: str, pace_s: float, n: int = 20) -> list[RequestRecord]:
    arrivals = tuple(0.1 + pace_s * k for k in range(10))
    return [request(arrivals=arrivals, replica=replica) for _ in range(n)]


@pytest.mark.parametrize(
    ("paces_s", "n", "said"),
    [
        ((0.01, 0.03, 0.01), 20, "b is 3.0 times slower than the others: TPOT p50 29.9 ms against 9.95 ms"),
        ((0.01, 0.03), 20, "b is 3.0 times slower than a: "),
        ((0.01, 0.014, 0.01), 20, ""),
        ((0.01, 0.03, 0.01), 5, ""),  # chance may have made it
        ((0.01,), 20, ""),
    ],
)
def test_a_replica_that_is_slower_than_the_others_is_named(
    paces_s: tuple[float, ...], n: int, said: str
) -> None:
    answers = [each for name, pace_s in zip("abc", paces_s, strict=False) for each in served(name, pace_s, n)]
    found = told(answers, []).whole.slow
    assert (found[0] if found else "").startswith(said)
    assert len(found) == bool(said)
