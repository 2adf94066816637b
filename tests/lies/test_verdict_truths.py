"""Scripted servers of a known truth: a bad one fails its run, a healthy one ends it with 0, slow as it is."""

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from metrics_cases import batch, manifest
from scripted_loads import FOR_EVER, Asked, Course, Load, Server
from summaries import summarise, typed

from llm_locust.core.manifest import WorkerFacts
from llm_locust.core.record import Doubt, RequestRecord
from llm_locust.figures.summary import Summary
from llm_locust.figures.verdict import RunVerdict, hung, stood_still, verdict
from llm_locust.report.headline import findings
from llm_locust.swarm.run.finishing import without_gates


@dataclass(frozen=True, slots=True)
class Truth:
    """A server, a load of ``users`` or of requests at ``due_s``, and what its run is asked."""

    server: Server
    users: int = 10
    load: Load = field(default_factory=Load)
    due_s: tuple[float, ...] = ()
    slo: str = ""
    gates: str = "error_rate<50%"
    warmup_s: float = 0.0
    says: str = ""
    boxes: tuple[str, ...] = ()

    def records(self) -> list[RequestRecord]:
        if self.due_s:
            return self.load.open(self.due_s, self.server)
        return self.load.closed(self.users, self.server)

    def judged(self) -> tuple[RunVerdict, Summary]:
        records = self.records()
        run = manifest(
            stopped=self.load.seconds,
            workers=[WorkerFacts(id="w1", index=0, announced=len(records), received=len(records))],
            open_loop=bool(self.due_s),
            slo=self.slo,
            gates=self.gates,
            warmup_s=self.warmup_s,
        )
        summary = typed(summarise(batch(*records), run))
        lost = stood_still(summary) or hung(summary)
        found = verdict(summary, run) or without_gates(summary.requests.failed, lost)
        return found, summary


def poisson(rate: float, seconds: float) -> tuple[float, ...]:
    rng = random.Random(3)
    between = [rng.expovariate(rate) for _ in range(round(2 * rate * seconds))]
    return tuple(at for at in np.cumsum(between).tolist() if at < seconds)


def same(**course: Any) -> Server:
    return lambda asked: Course(**course)


def some(share: float, often: dict[str, Any], seldom: dict[str, Any]) -> Server:
    """``seldom`` for a share of the requests, drawn for each."""
    return lambda asked: Course(**(seldom if asked.rng.random() < share else often))


def hanging(from_s: float, users: int, **course: Any) -> Server:
    """From a time on the first so many users get nothing for what they ask."""
    return lambda asked: (
        Course(ttft=FOR_EVER) if asked.at_s > from_s and asked.user < users else Course(**course)
    )


def now_and_then(period: float, length: float, bad: dict[str, Any], **well: Any) -> Server:
    """Of each period the last so many seconds are bad."""
    return lambda asked: Course(**(bad if asked.at_s % period >= period - length else well))


def varied(asked: Asked) -> Course:
    """Lengths and times as of a real model."""
    rng = asked.rng
    return Course(ttft=rng.lognormvariate(-1.5, 0.5), gap=0.02, n=1 + int(rng.lognormvariate(4.0, 0.8)))


def frozen(*spans: tuple[float, float], seconds: float = 60.0) -> Load:
    return Load(seconds=seconds, freezes=spans)


def each(period: float, length: float, seconds: float = 60.0) -> Load:
    return Load(seconds, freezes=[(at, at + length) for at in np.arange(period, seconds, period).tolist()])


def thinking(least_s: float, most_s: float, **of_load: Any) -> Load:
    return Load(think=lambda rng: rng.uniform(least_s, most_s), **of_load)


READERS = "ttft=2s tpot=50ms"
FROZEN = "the server stood still"
GATE, BY_TIME = "1 of ", "% of the users' time"

BAD = {
    "frozen, long answers within the SLO": Truth(
        same(gap=0.02, n=1000), load=frozen((25, 37)), slo=READERS, says=FROZEN
    ),
    "frozen, answers of 8 s": Truth(same(gap=0.02, n=400), load=frozen((25, 37)), says=FROZEN),
    "frozen, answers longer than the run": Truth(
        same(gap=0.05, n=1400), 4, frozen((20, 32)), slo=READERS, says=FROZEN
    ),
    "frozen twice, alike": Truth(
        same(gap=0.02, n=1000), load=frozen((12, 20), (40, 48)), slo=READERS, says=FROZEN
    ),
    "frozen twice, answers of their own length": Truth(varied, load=frozen((12, 20), (40, 48)), says=FROZEN),
    "frozen, no SLO, two users": Truth(same(gap=0.02, n=150), 2, frozen((12, 34)), says=FROZEN),
    "frozen, not streamed": Truth(same(ttft=1.0, streamed=False), load=frozen((20, 32)), says=FROZEN),
    "frozen, not streamed, answers of their own length": Truth(
        lambda asked: Course(ttft=asked.rng.uniform(0.2, 3), gap=0, streamed=False),
        load=frozen((20, 32)),
        says=FROZEN,
    ),
    "frozen for 1.3 s of every 4 s, two users": Truth(
        same(ttft=0.05), 2, each(4, 1.3, 120), slo="ttft=500ms", says=FROZEN
    ),
    "frozen for 2 s of every 6 s, four users": Truth(varied, 4, each(6, 2, 120), says=FROZEN),
    "frozen for 1.5 s of every 10 s, twenty users": Truth(varied, 20, each(10, 1.5), says=FROZEN),
    "frozen, open loop": Truth(
        varied,
        load=frozen((20, 30)),
        due_s=poisson(8, 60),
        slo="ttft=20s",
        gates="error_rate<50%",
        says=FROZEN,
    ),
    "frozen, while users think": Truth(varied, load=thinking(1, 3, freezes=[(20, 32)]), says=FROZEN),
    "frozen, two classes": Truth(
        lambda asked: (
            Course(slo_class="json", streamed=False, ttft=1.0, gap=0.0)
            if asked.user % 2
            else Course(slo_class="chat", n=300)
        ),
        load=frozen((20, 32)),
        says=FROZEN,
    ),
    "hangs to the end, one user": Truth(hanging(10, 1), 1, Load(40), slo="ttft=1s", says=FROZEN),
    "hangs to the end, all users": Truth(hanging(30, 10), says=FROZEN),
    "hangs to the end, no gate": Truth(hanging(30, 10), gates="", says=FROZEN),
    "hangs from its start": Truth(hanging(-1, 10), gates="standstill_s<=2"),
    "users time out one after another": Truth(
        hanging(20, 10), load=Load(timeout=5.0), gates="p50_ttft<1s error_rate<60%", says=FROZEN
    ),
    "half of the users hang": Truth(
        hanging(8, 5), load=Load(40), slo="ttft=2s", gates="goodput>=90% error_rate<50%", says=BY_TIME
    ),
    "nine of ten users hang": Truth(hanging(12, 9), slo="ttft=2s", gates="goodput>=90%", says=BY_TIME),
    "half of the users hang, no SLO": Truth(hanging(8, 5), says="5 of 10 users hung from 8"),
    "half of the users hang, a limit on tpot": Truth(
        hanging(8, 5), slo="tpot=1s", gates="goodput>=90%", says=BY_TIME
    ),
    "half of the users hang in their streams": Truth(
        lambda asked: Course(pauses={20: FOR_EVER} if asked.at_s > 20 and asked.user % 2 else {}),
        says="5 of 10 users hung from 20",
    ),
    "half of the users hang, and time out each time": Truth(
        hanging(8, 5), load=Load(120, timeout=30), gates="error_rate<5%", says="5 of 10 users hung from 8"
    ),
    "half of the users hang, and time out twice": Truth(
        hanging(10, 5), load=Load(60, timeout=30), gates="p95_ttft<1s", says="5 of 10 users hung from 10"
    ),
    "half of the users hang, and leave each time": Truth(
        hanging(8, 5), load=Load(120, patience=30), gates="p95_ttft<1s", says="5 of 10 users hung from 8"
    ),
    "half of the users hang for half of the time, and time out": Truth(
        lambda asked: Course(ttft=FOR_EVER if 20 < asked.at_s < 70 and asked.user % 2 else 0.1),
        load=Load(120, timeout=10),
        gates="p95_ttft<1s",
        says="5 of 10 users hung from 20.1 s to 72.5 s",
    ),
    "half of the users get a token in 3 s": Truth(
        lambda asked: Course(gap=3.0 if asked.at_s > 8 and asked.user % 2 else 0.01),
        gates="p95_itl<100ms",
        says="5 of 10 users hung from 8",
    ),
    "half of the users get a token in 3 s, an SLO": Truth(
        lambda asked: Course(gap=3.0 if asked.at_s > 8 and asked.user % 2 else 0.01),
        load=Load(drain=200),
        slo=READERS,
        gates="goodput>=90%",
        says=BY_TIME,
    ),
    "three in ten requests hang, open loop": Truth(
        some(0.3, {}, {"ttft": FOR_EVER}),
        load=Load(drain=10),
        due_s=poisson(5, 60),
        gates="error_rate<1%",
        says="more hung: with these 32.4% is not < 1%",
    ),
    "three in ten streams stop, open loop, no gate": Truth(
        some(0.3, {}, {"pauses": {20: FOR_EVER}}),
        load=Load(drain=10),
        due_s=poisson(5, 60),
        gates="",
        says="96 of 296 requests hung",
    ),
    "three in ten streams stop, open loop, a limit on their beginning": Truth(
        some(0.3, {}, {"pauses": {20: FOR_EVER}}),
        load=Load(drain=10),
        due_s=poisson(5, 60),
        slo="ttft=2s",
        gates="goodput>=90%",
        says="96 more hung: with these 67.6% is not >= 90%",
    ),
    "a quarter of twenty users hang": Truth(
        hanging(8, 5), 20, slo="ttft=2s", gates="goodput>=90%", says=BY_TIME
    ),
    "half of the users are always late": Truth(
        lambda asked: Course(ttft=3 if asked.user % 2 else 0.05, n=20),
        slo="ttft=1s",
        gates="goodput>=85%",
        says=BY_TIME,
    ),
    "late for 10 s of every 25 s": Truth(
        now_and_then(25, 10, {"ttft": 4.0}, ttft=0.05, n=20),
        8,
        slo="ttft=1s",
        gates="goodput>=85%",
        says=BY_TIME,
    ),
    "slow tokens for 10 s of every 25 s": Truth(
        now_and_then(25, 10, {"gap": 0.3}, n=40), 8, slo="tpot=50ms", gates="goodput>=80%", says=BY_TIME
    ),
    "slow tokens for 5 s of every 20 s, once a user": Truth(
        now_and_then(20, 5, {"gap": 0.15}, n=40),
        20,
        Load(120),
        slo="tpot=50ms",
        gates="goodput>=85%",
        says=BY_TIME,
    ),
    "down for half of the time, users back off": Truth(
        now_and_then(10, 5, {"status": 503, "ttft": 0.3}, n=5, ttft=0.02),
        slo="ttft=2s",
        gates="goodput>=70%",
        says=BY_TIME,
    ),
    "half of the users leave without a token": Truth(
        some(0.5, {}, {"ttft": 1.6}),
        load=Load(30, patience=1.0),
        slo="ttft=2s",
        gates="goodput>=90%",
        says=GATE,
    ),
    "80 % fail, a gate on a rate": Truth(
        some(0.8, {"n": 20}, {"status": 500}),
        8,
        Load(14, backoff=0),
        gates="output_tps>50",
        says="requests failed",
    ),
    "45 % fail, a gate on a median": Truth(
        some(0.45, {"n": 20}, {"status": 500}),
        8,
        Load(14, backoff=0),
        gates="p50_ttft<500ms",
    ),
    "all answers break off": Truth(same(n=3, cut=True), 8, Load(14), gates="goodput>=95%", says=GATE),
    "three answers in ten break off, a gate on a median": Truth(
        some(0.3, {}, {"n": 3, "cut": True}), 8, Load(30), gates="p50_ttft<1s", says="requests failed"
    ),
    "reasoning and no answer": Truth(
        same(doubt=Doubt.NO_ANSWER), 8, Load(30), slo=READERS, gates="goodput>=95%", says=GATE
    ),
    "half of the answers were filtered": Truth(
        some(0.5, {}, {"n": 3, "doubt": Doubt.CONTENT_FILTER}),
        8,
        Load(30),
        slo=READERS,
        gates="goodput>=95%",
        says=GATE,
    ),
    "no finish reason": Truth(
        same(n=3, doubt=Doubt.NO_FINISH_REASON), 8, Load(14), slo="ttft=1s", gates="goodput>=95%", says=GATE
    ),
    "100 ms a token": Truth(same(gap=0.1), 8, Load(30), slo=READERS, gates="goodput>=95%", says=GATE),
    "more is asked for than it can do": Truth(
        lambda asked: Course(ttft=max(0.1, asked.i / 5 - asked.at_s), n=20),
        due_s=poisson(10, 60),
        slo="ttft=1s",
        gates="goodput>=90%",
        says=GATE,
    ),
    "slower and slower": Truth(
        lambda asked: Course(ttft=0.1 + asked.at_s / 20, n=20), slo="ttft=1s", gates="goodput>=90%", says=GATE
    ),
    "stuck from the warm-up on": Truth(
        lambda asked: Course(ttft=20 if asked.at_s < 4 else 0.1), 4, Load(30), warmup_s=6.0, says=FROZEN
    ),
}

HEALTHY = {
    "short answers": Truth(same(ttft=0.03, n=5), slo="ttft=500ms", gates="goodput>=95% error_rate<5%"),
    "answers of their own length": Truth(varied, slo=READERS, gates="goodput>=95% error_rate<1%"),
    "long answers": Truth(same(n=1000, gap=0.02), 4, slo=READERS, gates="goodput>=50%"),
    "answers longer than the run": Truth(same(n=1400, gap=0.05), 4, slo=READERS, gates="goodput>=50%"),
    "answers longer than the run, not streamed": Truth(same(ttft=70, streamed=False), 4, Load(drain=60)),
    "one user": Truth(varied, 1, slo=READERS, gates="goodput>=95%"),
    "one user, constant waits": Truth(same(ttft=12), 1, Load(40), slo="ttft=500ms"),
    "one user, cut by the end": Truth(same(ttft=9), 1, Load(40, drain=0)),
    "one user, one answer in twenty slow": Truth(some(0.05, {}, {"ttft": 8}), 1),
    "reasoning on and off, one user": Truth(
        some(0.4, {"n": 100}, {"ttft": 8, "n": 100}), 1, slo="ttft=500ms"
    ),
    "reasoning on and off, two users": Truth(some(0.4, {"n": 100}, {"ttft": 8, "n": 100}), 2),
    "reasoning on and off, three users": Truth(some(0.4, {"n": 100}, {"ttft": 8, "n": 100}), 3),
    "reasoning seldom, three users": Truth(some(0.1, {"n": 100}, {"ttft": 15, "n": 100}), 3, Load(120)),
    "reasoning within its SLO": Truth(
        lambda asked: Course(ttft=asked.rng.choice([0.4, 0.5, 0.6, 12])),
        2,
        slo="ttft=15s",
        gates="goodput>=50%",
    ),
    "hits and misses of a cache": Truth(
        some(0.3, {"ttft": 0.03, "n": 8}, {"ttft": 3, "n": 60}),
        2,
        Load(50),
        slo="ttft=2s",
        gates="error_rate<50%",
    ),
    "not streamed, small and large": Truth(
        some(0.2, {"ttft": 0.05, "streamed": False}, {"ttft": 4, "streamed": False}), 1, Load(40)
    ),
    "streamed and not": Truth(
        some(0.4, {"slo_class": "chat"}, {"slo_class": "json", "ttft": 6, "streamed": False}),
        1,
        slo="ttft=500ms",
    ),
    "two paces": Truth(some(0.4, {"n": 100}, {"n": 100, "gap": 0.05}), 4, Load(40), gates="error_rate<50%"),
    "two models": Truth(
        lambda asked: Course(name="large", ttft=6, gap=0.05) if asked.user else Course(name="small"),
        2,
        slo="ttft=8s tpot=60ms",
        gates="goodput>=50%",
    ),
    "two models, no SLO, four users": Truth(
        lambda asked: Course(name="large", ttft=6, gap=0.05) if asked.user % 2 else Course(name="small"), 4
    ),
    "agents that pause": Truth(same(ttft=0.2), 1, thinking(2, 4), slo="ttft=1s", gates="goodput>=50%"),
    "agents in step, one turn of three long": Truth(
        lambda asked: Course(ttft=5 if asked.i % 3 == 2 else 0.3), 8
    ),
    "agents in step, one turn of six long": Truth(
        lambda asked: Course(ttft=9 if asked.i % 6 == 5 else 0.3), 8
    ),
    "a tool pause in the stream, one user": Truth(
        some(0.25, {"n": 100, "gap": 0.02}, {"n": 100, "gap": 0.02, "pauses": {50: 6.0}}), 1, slo="ttft=1s"
    ),
    "a tool pause in the stream, two users": Truth(
        some(0.25, {"n": 100, "gap": 0.02}, {"n": 100, "gap": 0.02, "pauses": {50: 6.0}}), 2
    ),
    "tool pauses anywhere, two users": Truth(
        lambda asked: Course(
            n=100, pauses={asked.rng.randrange(1, 100): 6.0} if asked.rng.random() < 0.3 else {}
        ),
        2,
    ),
    "a batch server, in waves": Truth(
        lambda asked: Course(ttft=3 - asked.at_s % 3, gap=0.0),
        8,
        slo="ttft=4s",
        gates="goodput>=50%",
        boxes=("Buffered stream",),  # each answer comes in one piece, after a silence
    ),
    "a batch server, in waves, no SLO": Truth(
        lambda asked: Course(ttft=3 - asked.at_s % 3, gap=0.0), 8, boxes=("Buffered stream",)
    ),
    "eight users in step, constant waits": Truth(same(ttft=3), 8),
    "every answer stops after its first token": Truth(same(pauses={1: 10.0}), 8),
    "slow for all, a token a second": Truth(same(gap=0.9, n=20), 3),
    "a pause of 2 s once": Truth(
        same(n=100), load=frozen((15, 17), seconds=30), slo=READERS, boxes=("Standstill",)
    ),
    "open loop with a ramp": Truth(
        varied,
        due_s=tuple(20 * float(np.sqrt(k / 200)) for k in range(200))
        + tuple(20 + k / 20 for k in range(800)),
        slo=READERS,
        gates="goodput>=95% p95_ttft<1s",
    ),
    "open loop of few requests": Truth(
        some(0.2, {}, {"ttft": 6}), load=Load(300), due_s=poisson(0.2, 300), gates="error_rate<50%"
    ),
    "by chance half of the answers are too long": Truth(
        lambda asked: Course(ttft=asked.rng.uniform(1, 19), n=20, gap=0),
        30,
        Load(30),
        slo="e2el=10s",
        gates="goodput>=40%",
        boxes=("Buffered stream",),
    ),
    "by chance one answer in twenty is too long": Truth(
        lambda asked: Course(n=1 + int(asked.rng.lognormvariate(4, 1)), gap=0.01),
        10,
        slo="e2el=3s",
        gates="goodput>=90%",
    ),
    "by chance three in a hundred stall": Truth(
        some(0.03, {"n": 20}, {"n": 20, "ttft": 4}), 10, slo="ttft=1s", gates="goodput>=95%"
    ),
    "by chance three in a hundred stall, one user": Truth(
        some(0.03, {"n": 20}, {"n": 20, "ttft": 4}), 1, Load(120), slo="ttft=1s", gates="goodput>=90%"
    ),
    "by chance one in a hundred fails": Truth(
        some(0.01, {"n": 20}, {"status": 500}), 10, slo="ttft=1s", gates="goodput>=95%"
    ),
    "by chance one in two hundred times out": Truth(
        some(0.005, {"n": 30}, {"ttft": FOR_EVER}), 4, Load(300, timeout=5), gates="error_rate<1%"
    ),
    "by chance fewer fail than may, and users back off": Truth(
        some(0.007, {"ttft": 0.03, "n": 3}, {"status": 500, "ttft": 0.03}),
        4,
        Load(300),
        slo="ttft=1s",
        gates="goodput>=99% error_rate<1%",
    ),
    "by chance one in twenty-five times out, sometimes twice in a row": Truth(
        some(0.04, {}, {"ttft": FOR_EVER}), 12, Load(150, timeout=6, seed=10), gates="error_rate<5%"
    ),
    "failures in the warm-up": Truth(
        lambda asked: Course(status=503 if asked.at_s < 3 else 200), 8, Load(20), warmup_s=6.0, gates=""
    ),
    "one of twenty users hangs at the end": Truth(hanging(55, 1), 20, boxes=("Hung users",)),
    "cut by the end, all users": Truth(
        same(n=1000, gap=0.02), load=Load(50, drain=0), slo=READERS, gates="goodput>=50%"
    ),
    "a trace with a gap": Truth(
        varied, load=Load(100), due_s=tuple(t for t in poisson(3, 100) if not 30 < t < 70), slo=READERS
    ),
}


#: What these runs show is not enough to tell: neither is it told.
UNTOLD = {
    "one request and a limit of one in a thousand": Truth(
        same(), 1, Load(0.1), slo="ttft=1s", gates="goodput>=99.9%", says="the limit needs 1,000 requests"
    ),
    "twenty requests and a p99": Truth(
        same(gap=0.05, n=100), 4, Load(25), gates="p99_ttft<1s", says="needs 100 samples"
    ),
    "a buffer hides 50 ms a token, a limit on tpot": Truth(
        same(gap=0.05, buffered=True), 8, gates="p50_tpot<20ms", says="answers came at once"
    ),
    "a buffer hides 50 ms a token, an SLO on tpot": Truth(
        same(gap=0.05, buffered=True), 8, slo="tpot=20ms", gates="goodput>=95%", says="answers came at once"
    ),
    "all requests began in the warm-up": Truth(
        same(ttft=10, n=1), 2, Load(12), warmup_s=11.0, says="nothing was measured"
    ),
    "one of ten users hung for half of the time": Truth(
        hanging(32, 1), gates="error_rate<1%", says="let them end with a longer --drain"
    ),
    "two in a hundred requests hang, open loop": Truth(
        some(0.02, {}, {"ttft": FOR_EVER}),
        load=Load(drain=10),
        due_s=poisson(5, 60),
        gates="error_rate<1%",
        says="let them end with a longer --drain",
    ),
    "nobody was answered": Truth(same(status=503), 4, Load(10), gates="rps<1000", says="none of the"),
}


@pytest.mark.parametrize("name", list(UNTOLD))
def test_what_a_run_does_not_show_is_neither_good_nor_bad(name: str) -> None:
    truth = UNTOLD[name]
    found, summary = truth.judged()
    assert found.code == 3, (found, summary.goodput)
    assert truth.says in " ".join([found.reason, *(gate.reason or "" for gate in summary.gates)])


@pytest.mark.parametrize("name", list(BAD))
def test_a_bad_server_fails_its_run(name: str) -> None:
    truth = BAD[name]
    found, summary = truth.judged()
    assert found.code == 1, (found, summary.reliability, summary.goodput.ratio, summary.user_time)
    causes = (each.text for each in findings(summary))
    said = " ".join([found.reason, *(gate.reason or "" for gate in summary.gates), *causes])
    assert truth.says in said


@pytest.mark.parametrize("name", list(HEALTHY))
def test_a_healthy_server_ends_its_run_with_0_and_without_a_box_that_means_nothing(name: str) -> None:
    truth = HEALTHY[name]
    found, summary = truth.judged()
    assert found.code == 0, (found, summary.reliability, summary.goodput)
    assert tuple(each.title for each in findings(summary) if each.box is not None) == truth.boxes


def test_requests_that_the_client_gave_up_are_the_cause_where_none_was_answered() -> None:
    waits = Truth(same(ttft=65), 1, Load(20, drain=60, timeout=60), gates="error_rate<1%")
    found, summary = waits.judged()
    assert found.code == 1
    keys = [each.key for each in findings(summary)]
    assert keys.index("failures") < keys.index("standstill")
    frozen_later = Truth(same(gap=0.02, n=150), load=frozen((12, 34)), gates="error_rate<1%")
    assert next(each.key for each in findings(frozen_later.judged()[1])) == "standstill"
