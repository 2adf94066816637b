"""Verdicts on servers of a known truth: for each rule a bad run that must not pass, and an honest one.

Runs are made of records, as users who each wait for their answer, or as arrivals at a rate, would have sent
them. They go through the same functions as those of a run directory.
"""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
from metrics_cases import batch, failed, manifest, ns, request
from summaries import summarise, typed

from llm_locust.core.manifest import Manifest, WorkerFacts
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.figures.summary import Summary
from llm_locust.figures.verdict import verdict

Answer = Callable[[float, int], tuple[float, ...]]


def steadily(ttft: float = 0.1, gap: float = 0.01, n: int = 40) -> Answer:
    return lambda at, i: tuple(ttft + gap * k for k in range(n))


def users(
    number: int, seconds: float, answer: Answer, *, drain: float = 60.0, ramp_s: float = 0.0
) -> list[RequestRecord]:
    """A closed loop: each user sends its next request when the last has ended, until the load ends."""
    made, numbers = [], count()
    for user in range(number):
        at = ramp_s * user / number
        while at < seconds:
            arrivals = answer(at, next(numbers))
            ends = at + arrivals[-1] if arrivals else np.inf
            if ends <= seconds + drain:
                made.append(request(at, arrivals, user=user))
            else:
                cut_s = seconds + drain
                came = tuple(a for a in arrivals if at + a <= cut_s)
                made.append(request(at, came, ended=cut_s, outcome=Outcome.CANCELLED, user=user))
            at = ends + 0.001
    return sorted(made, key=lambda record: record.scheduled_ns)


def arriving(rate: float, seconds: float, capacity: float, seed: int = 1) -> list[RequestRecord]:
    """An open loop of Poisson arrivals, each answered in a queue of one server."""
    rng = np.random.default_rng(seed)
    made, free = [], 0.0
    for at in np.cumsum(rng.exponential(1 / rate, int(rate * seconds))).tolist():
        begun = max(at, free)
        free = begun + 1 / capacity
        made.append(request(at, (begun - at + 0.05, free - at + 0.05)))
    return [record for record in made if record.scheduled_ns < ns(seconds)]


def told(
    records: list[RequestRecord], seconds: float, gates: str, **facts: Any
) -> tuple[int | None, Summary]:
    known: dict[str, Any] = {"slo": "ttft=1s", "options": {"num_users": "5"}}
    run: Manifest = manifest(stopped=seconds, gates=gates, **{**known, **facts})
    found = typed(summarise(batch(*records), run))
    outcome = verdict(found, run)
    return (None if outcome is None else outcome.code), found


def mixed(good: int, bad: int) -> list[RequestRecord]:
    """Requests one after the other, the bad ones spread among them."""
    n = good + bad
    is_bad = set(np.linspace(0, n - 1, bad).round().astype(int).tolist()) if bad else set()
    return [failed(0.1 * i) if i in is_bad else request(0.1 * i) for i in range(n)]


SHARES: list[tuple[str, int, int, str, int]] = [
    # what is true, good ones, bad ones, the gate, exit code
    ("one request shows nothing of 99.9 %", 1, 0, "goodput>=99.9%", 3),
    ("one request shows nothing of 1 %", 1, 0, "error_rate<1%", 3),
    ("nor do 99", 99, 0, "error_rate<1%", 3),
    ("a hundred do", 100, 0, "error_rate<1%", 0),
    ("and as many good ones", 100, 0, "goodput>=99%", 0),
    ("a thousand do for 0.1 %", 1000, 0, "error_rate<0.1% goodput>=99.9%", 0),
    ("twenty for 95 %", 20, 0, "goodput>=95%", 0),
    ("nineteen do not", 19, 0, "goodput>=95%", 3),
    ("none of twenty good is plain", 0, 20, "goodput>=95%", 1),
    ("one of twenty failed may be chance", 19, 1, "error_rate<1%", 3),
    ("one of ten bad may be, too", 9, 1, "goodput>=95%", 3),
    ("two of eight failed are not", 6, 2, "error_rate<1%", 1),
    ("all of three failed is plain", 0, 3, "error_rate<10%", 1),
    ("two of 150 too", 148, 2, "error_rate<1%", 1),
    ("one of 150 is not", 149, 1, "error_rate<1%", 0),
    ("a smoke test asks that none fails", 5, 0, "error_rate<=0% goodput>=100%", 0),
    ("and is broken by one", 4, 1, "error_rate<=0%", 1),
    ("a broken gate comes before one that cannot tell", 30, 5, "error_rate<10% goodput>=99%", 1),
    ("a coin needs two", 2, 0, "error_rate<50%", 0),
]


@pytest.mark.parametrize(("truth", "good", "bad", "gate", "code"), SHARES, ids=[each[0] for each in SHARES])
def test_a_share_is_shown_by_as_many_requests_as_have_one_beyond_it(
    truth: str, good: int, bad: int, gate: str, code: int
) -> None:
    found, summary = told(mixed(good, bad), 200.0, gate)
    assert found == code, truth
    assert any(each.undecided for each in summary.gates) == (code == 3)


def long_answers(seconds: float, warmup_s: float) -> tuple[list[RequestRecord], float, dict[str, Any]]:
    """Ten users, answers of 10.1 s: the true rate is 0.99/s, and 99 tokens/s."""
    made = users(10, seconds, steadily(0.1, 0.1, 101))
    return made, seconds, {"warmup_s": warmup_s}


RATES: list[tuple[str, tuple[list[RequestRecord], float, dict[str, Any]], str, int]] = [
    ("20 ended in 16 s: 1.25 counted, 0.99 true", long_answers(21, 5), "rps>=1.2", 1),
    ("the true rate holds in it", long_answers(21, 5), "rps>=0.9", 0),
    ("20 ended in 25 s: 0.8 counted", long_answers(25, 0), "rps>=0.9", 0),
    ("and good ones too", long_answers(25, 0), "goodput_rps>=0.9", 0),
    ("a rate beyond it is broken all the same", long_answers(25, 0), "rps>=1.5", 1),
    ("an upper limit that only the count meets", long_answers(25, 0), "rps<=0.9", 1),
    ("tokens of a few answers", long_answers(25, 0), "output_tps>=90", 0),
    ("more tokens than there can be", long_answers(25, 0), "output_tps>=120", 1),
    ("a long window is as counted", long_answers(300, 5), "rps>=0.95", 0),
    ("and breaks as counted", long_answers(300, 5), "rps>=1.05", 1),
]


@pytest.mark.parametrize(("truth", "run", "gate", "code"), RATES, ids=[each[0] for each in RATES])
def test_a_rate_of_a_few_answers_is_that_of_the_load(
    truth: str, run: tuple[list[RequestRecord], float, dict[str, Any]], gate: str, code: int
) -> None:
    records, seconds, facts = run
    found, summary = told(records, seconds, gate, slo="e2el=12s", **facts)
    assert found == code, (truth, summary.gates[0].reason, summary.gates[0].note)


def test_a_rate_of_a_few_answers_of_which_most_were_cut_cannot_tell() -> None:
    def long_ones(at: float, i: int) -> tuple[float, ...]:
        return (0.1, 1.0) if i < 4 else (0.1, 100.0)

    _, summary = told(users(10, 12.0, long_ones, drain=0.0), 12.0, "rps>=0.3")
    assert summary.gates[0].undecided, summary.gates[0]


RAMP = users(12, 40.0, steadily(0.08, 0.01, 40), ramp_s=24.0)


@pytest.mark.parametrize(
    ("truth", "gate", "code"),
    [
        ("the load was there for 40 % of the window, and gives 25/s at its whole", "rps>=20", 3),
        ("no load of it gives as much", "rps>=60", 1),
        ("what holds in spite of the ramp holds", "rps>=10", 0),
    ],
)
def test_a_ramp_that_fills_the_run_says_nothing_of_the_rate_at_the_whole_load(
    truth: str, gate: str, code: int
) -> None:
    found, summary = told(RAMP, 40.0, gate, options={"num_users": "12"})
    assert found == code, (truth, summary.gates[0].reason)


def left(n: int, at: float = 5.0) -> list[RequestRecord]:
    """Users who left after a second without a token."""
    return [request(at + i * 0.1, (), ended=at + 1 + i * 0.1, outcome=Outcome.CANCELLED) for i in range(n)]


def stalled(n: int) -> list[RequestRecord]:
    """Streams that stopped after five tokens, ten seconds before they were cut."""
    came = tuple(0.1 + 0.01 * k for k in range(5))
    return [request(10 + i * 0.1, came, ended=20.2, outcome=Outcome.CANCELLED) for i in range(n)]


WELL = users(10, 20.0, steadily(0.1, 0.02, 60), drain=0.0)
PACE = "p50_tpot<50ms p95_tpot<50ms p99_itl<100ms mean_tpot<50ms"


@pytest.mark.parametrize(
    ("truth", "records", "gate", "code"),
    [
        ("ten were cut at a good pace", WELL, PACE, 0),
        ("four in a hundred left before the first token", [*WELL, *left(7)], PACE, 0),
        ("streams that stalled until the cut", [*WELL, *stalled(20)], "p95_tpot<50ms", 1),
        ("and their gaps", [*WELL, *stalled(20)], "max_itl<100ms", 1),
        ("one failure of eighty", mixed(79, 1), "mean_ttft<500ms", 0),
        ("a tenth of all", mixed(72, 8), "mean_ttft<500ms", 1),
        ("a limit that the failure could have broken", mixed(79, 1), "mean_ttft<50ms", 1),
    ],
)
def test_what_was_cut_or_failed_is_in_the_pace_as_far_as_it_had_one(
    truth: str, records: list[RequestRecord], gate: str, code: int
) -> None:
    found, summary = told(records, 20.0, gate)
    assert found == code, (truth, [(each.text, each.value, each.reason) for each in summary.gates])


def cut_short(records: list[RequestRecord], stopped: float, gate: str, asked: float | None) -> int | None:
    ends = None if asked is None else ns(asked)
    own = {"cut_short": True, "stop_reason": "error_rate>20% over 5s", "load_ends_ns": ends}
    return told(records, stopped, gate, **own)[0]


def failing_from(begun: float, stopped: float) -> list[RequestRecord]:
    return [failed(0.05 * i) if 0.05 * i >= begun else request(0.05 * i) for i in range(int(stopped * 20))]


@pytest.mark.parametrize(
    ("truth", "records", "stopped", "gate", "asked", "code"),
    [
        ("a sixth failed of a fifth of the run", failing_from(10, 12), 12.0, "error_rate<1%", 60.0, 1),
        ("the rest could repair it", failing_from(10, 12), 12.0, "error_rate<5%", 60.0, 4),
        ("nobody knows how long it was to be", failing_from(10, 12), 12.0, "error_rate<1%", None, 4),
        ("what holds of a part holds of no run", failing_from(99, 12), 12.0, "error_rate<1%", 60.0, 4),
        ("one slow answer breaks a maximum for good", [*mixed(99, 0), request(5.0, (3.0, 3.1))], 12.0,
         "max_ttft<1s", 60.0, 1),
        ("a rate may rise", failing_from(99, 12), 12.0, "rps>=100", 60.0, 4),
        ("half of the run was bad", failing_from(15, 30), 30.0, "goodput>=90%", 60.0, 1),
    ],
)  # fmt: skip
def test_a_gate_that_no_rest_of_a_run_could_repair_comes_before_the_cut(
    truth: str, records: list[RequestRecord], stopped: float, gate: str, asked: float | None, code: int
) -> None:
    assert cut_short(records, stopped, gate, asked) == code, truth


def rising(low: float, high: float, begun: float, seconds: float) -> Answer:
    def answer(at: float, i: int) -> tuple[float, ...]:
        ttft = low + (high - low) * max(0.0, at - begun) / (seconds - begun)
        ttft *= 1 + 0.1 * ((i * 7919) % 11 - 5) / 5
        return tuple(ttft + 0.01 * k for k in range(40))

    return answer


def dear_at_first(at: float, i: int) -> tuple[float, ...]:
    ttft = (1.0 if at < 6 else 0.2) * (1 + 0.1 * ((i * 7919) % 11 - 5) / 5)
    return tuple(ttft + 0.01 * k for k in range(40))


@pytest.mark.parametrize(
    ("truth", "records", "seconds", "said"),
    [
        ("slower from the beginning on", users(10, 60, rising(0.1, 1.9, 0, 60)), 60.0, "getting slower"),
        ("slower from the middle on", users(10, 60, rising(0.1, 1.9, 30, 60)), 60.0, "getting slower"),
        ("slower in half a minute", users(4, 30, rising(0.05, 0.65, 0, 30)), 30.0, "getting slower"),
        ("alike all the time", users(10, 60, rising(0.2, 0.2, 0, 60)), 60.0, "like those of the last third"),
        ("cold at first", users(10, 60, dear_at_first), 60.0, "were like a warm-up"),
    ],
)
def test_slower_with_time_is_no_warm_up(
    truth: str, records: list[RequestRecord], seconds: float, said: str
) -> None:
    _, summary = told(records, seconds, "", slo="ttft=2s", options={"num_users": "10"})
    part = summary.steadiness
    assert said in part.reason, truth
    assert (part.slower is not None) == (said == "getting slower")
    assert (part.warmup_s_suggested is not None) == (said == "were like a warm-up")
    if part.slower is not None and part.slower.limit_at_s is not None:
        assert part.slower.limit_at_s > seconds


def loads() -> Iterator[tuple[str, float, float, float, bool]]:
    for seconds in (30.0, 60.0):
        yield f"a third more than it can, {seconds:g} s", 40.0, 30.0, seconds, True
        yield f"three times as much, {seconds:g} s", 90.0, 30.0, seconds, True
        yield f"half of what it can, {seconds:g} s", 15.0, 30.0, seconds, False
        yield f"nine tenths, {seconds:g} s", 27.0, 30.0, seconds, False


@pytest.mark.parametrize(("truth", "rate", "capacity", "seconds", "is_over"), list(loads()))
def test_a_queue_that_grows_to_the_end_is_an_overload(
    truth: str, rate: float, capacity: float, seconds: float, is_over: bool
) -> None:
    _, summary = told(arriving(rate, seconds, capacity), seconds, "", open_loop=True, options={})
    found = summary.steadiness.overload
    assert (found is not None) == is_over, (truth, summary.steadiness.reason)
    if found is not None:
        assert found.sent_per_s == pytest.approx(rate, rel=0.15)
        assert found.answered_per_s == pytest.approx(capacity, rel=0.15)
        assert summary.steadiness.reason.startswith("overloaded: sent ")


def test_requests_that_all_began_in_the_warm_up_say_for_how_long_to_run() -> None:
    made = users(4, 60.0, steadily(0.1, 0.05, 1400), drain=60.0)
    found, summary = told(made, 60.0, "error_rate<1%", warmup_s=5.0)
    assert found == 3
    assert summary.window.why_empty == (
        "all 4 requests began in the 5 s of warm-up and took up to 70.1 s: "
        "run for 146 s or more, or give --warmup 0s"
    )
    found, summary = told(made, 60.0, "error_rate<=0%")
    assert (found, summary.window.why_empty) == (0, None)


@pytest.mark.parametrize(
    ("truth", "off_s", "code"),
    [("placed by a clock that was set", -28.0, 3), ("or set forward", 90.0, 3), ("in time", 0.0, 0)],
)
def test_requests_outside_of_the_load_make_a_run_invalid_whatever_gates_say(
    truth: str, off_s: float, code: int
) -> None:
    made = [*users(5, 20.0, steadily()), *(request(5.0 + off_s + 0.01 * i) for i in range(4))]
    made.sort(key=lambda record: record.scheduled_ns)
    worker = WorkerFacts(id="w1", index=0, announced=len(made), received=len(made))
    found, summary = told(made, 20.0, "rps>=1 error_rate<1%", ended_ns=ns(25.0), workers=[worker])
    assert (found, summary.client.misplaced) == (code, 4 if off_s else 0), truth
    assert ("begin before the load or end after it" in str(summary.client.reasons)) == bool(off_s)
