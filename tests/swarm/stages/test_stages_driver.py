"""The driver of a sweep on a virtual clock: stages of lists and searches, each confirmed by all workers."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from llm_locust.core.manifest import MOST_STAGES, PrefixShare, ReplicaCache, StageFacts
from llm_locust.core.stages import finished, resumed
from llm_locust.figures.edge import Bounds, SearchResult
from llm_locust.figures.objective import Probe, ProbeReading, parse_objective
from llm_locust.options.load import parse_sweep
from llm_locust.swarm.channel.messages import StagedMessage, StageMessage
from llm_locust.swarm.run.stages import (
    ListedLoads,
    SearchPlan,
    StageTimes,
    SweepDriver,
    stages_of,
    steps_of,
)
from llm_locust.workload.arrivals import parse_rate

S = 1_000_000_000
TIMES = StageTimes(warmup_s=2.0, measured_s=10.0, drain_s=5.0)


@dataclass
class FakeSwarm:
    """Workers that confirm each step, after ``drains_s`` a drain; users take a tenth of a second each."""

    names: tuple[str, ...] = ("a", "b")
    drains_s: float = 1.0
    over_s: float = 1e9
    mute: dict[str, int] = field(default_factory=dict)  # worker -> messages that it does not get
    gone_s: float = 1e9  # when the last worker is lost
    late: frozenset[str] = frozenset()  # workers that say they had not begun the load
    now_s: float = 0.0
    asked: int = 1
    sent: list[tuple[float, str, str, StageMessage]] = field(default_factory=list)
    set_at: list[tuple[float, int]] = field(default_factory=list)
    enough: Callable[[list[StageFacts]], bool] = lambda _: False
    looks_s: float = 0.5
    looked_at: list[tuple[int, float]] = field(default_factory=list)
    kept: list[StageFacts] = field(default_factory=list)
    coming: list[tuple[float, str, StagedMessage]] = field(default_factory=list)
    confirm: Callable[[str, StagedMessage], None] = lambda *_: None
    prepares_s: float = 3.0
    prepared: list[tuple[float, PrefixShare, int]] = field(default_factory=list)
    cache_fault: Callable[[int], str] = lambda _: ""  # by stage

    def now_ns(self) -> int:
        return round(self.now_s * S)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        until_s = self.now_s + timeout_s
        while not condition():
            if self.now_s >= until_s:
                return False
            self.now_s = min(self.now_s + 0.25, until_s)
            due = [each for each in self.coming if each[0] <= self.now_s]
            self.coming = [each for each in self.coming if each[0] > self.now_s]
            for _, worker, staged in due:
                self.confirm(worker, staged)
        return True

    def is_over(self) -> bool:
        return self.now_s >= self.over_s

    def workers(self) -> frozenset[str]:
        return frozenset(self.names if self.now_s < self.gone_s else self.names[:-1])

    def users(self) -> int:
        return self.asked

    def set_users(self, users: int) -> None:
        self.set_at.append((self.now_s, users))
        self.now_s += abs(users - self.asked) / 10
        self.asked = users

    def tell(self, step: StageMessage, workers: Iterable[str]) -> None:
        for worker in workers:
            self.sent.append((self.now_s, worker, step.step, step))
            if worker not in self.workers():
                continue
            if self.mute.get(worker, 0):
                self.mute[worker] -= 1
                continue
            takes_s = self.drains_s + max(0.0, step.at_ns / S - self.now_s) if step.step == "drain" else 0.1
            staged = StagedMessage(
                run=step.run,
                stage=step.stage,
                step=step.step,
                loaded=worker not in self.late,
                cut=1,
                unsent=2,
                finished=7,
            )
            self.coming.append((self.now_s + takes_s, worker, staged))

    def prepare(self, prefix: PrefixShare, stage: int) -> list[ReplicaCache]:
        self.prepared.append((self.now_s, prefix, stage))
        self.now_s += self.prepares_s
        return [ReplicaCache(target="http://r", primed=prefix.prefixes, fault=self.cache_fault(stage))]

    def counted(self, caches: list[ReplicaCache]) -> list[ReplicaCache]:
        return [replace(cache, hits=1.0, queries=2.0) for cache in caches]

    def is_enough(self, stages: list[StageFacts], within_s: float) -> bool:
        self.looked_at.append((stages[-1].number, self.now_s))
        self.now_s += min(self.looks_s, within_s)
        return self.enough(stages)

    def keep(self, stages: list[StageFacts]) -> None:
        self.kept = list(stages)


# --- The driver of a sweep on a virtual clock: one stage after the other, each confirmed by all workers


def driven(
    swarm: FakeSwarm, text: str = "users=1,4,2", *, times: StageTimes = TIMES, repeats: int = 1
) -> tuple[bool, list[StageFacts]]:
    driver = SweepDriver("run", swarm, ListedLoads(parse_sweep(text), repeats), times)
    swarm.confirm = driver.confirmed
    complete = driver.drive()
    assert swarm.kept == driver.stages, "what is known is kept"
    return complete, driver.stages


def seconds(stage: StageFacts) -> tuple[float, float]:
    """Warm-up and ramp, and the measured part."""
    assert stage.measured_ns is not None
    assert stage.ended_ns is not None
    return (stage.measured_ns - stage.begun_ns) / S, (stage.ended_ns - stage.measured_ns) / S


def test_stages_follow_each_other_with_a_drain_between_them() -> None:
    complete, stages = driven(FakeSwarm())
    assert complete
    assert [(s.number, s.asked, s.fault) for s in stages] == [(0, 1, ""), (1, 4, ""), (2, 2, "")]
    for stage in stages:
        before_s, measured_s = seconds(stage)
        assert before_s >= TIMES.warmup_s
        assert measured_s == pytest.approx(TIMES.measured_s)
        assert (stage.cut, stage.unsent) == (2, 4), "of both workers"
    for stage, later in pairwise(stages):
        assert stage.drained_ns is not None
        assert later.begun_ns >= stage.drained_ns


@pytest.mark.parametrize("drains_s", [0.0, 5.0])
@pytest.mark.parametrize("load", ["users=1,4,2", "rate=1,4,2"])
def test_a_sweep_says_beforehand_how_long_it_takes_and_takes_no_longer(
    load: str, drains_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    swarm = FakeSwarm(drains_s=drains_s)
    driven(swarm, load, times=replace(TIMES, ramp_s=0.4))
    said = caplog.messages[0]
    assert said.startswith("3 stages at most, in at most 55.2 s (40.2 s where nothing is left to drain)")
    assert (40.2 if drains_s else 35.0) < swarm.now_s <= (55.2 if drains_s else 45.0)


def test_a_sweep_that_goes_on_says_how_long_the_rest_takes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    first = FakeSwarm(over_s=25)
    _, begun = driven(first)
    resume(FakeSwarm(), "users=1,4,2", begun)
    said = [text for text in caplog.messages if "stages at most" in text]
    assert [text.split()[0] for text in said] == ["3", "2"]


def test_users_are_taken_away_while_nobody_sends_and_added_when_the_load_has_begun() -> None:
    swarm = FakeSwarm()
    _, (_, more, fewer) = driven(swarm)
    (added_s, four), (removed_s, two) = swarm.set_at
    assert (four, two) == (4, 2)
    assert more.measured_ns is not None
    assert more.begun_ns <= added_s * S < more.measured_ns
    assert removed_s * S < fewer.begun_ns


def test_a_rate_is_sent_with_its_warm_up_and_needs_no_users() -> None:
    swarm = FakeSwarm()
    complete, stages = driven(swarm, "rate=5,10")
    assert complete
    assert swarm.set_at == []
    loads = [step for _, worker, kind, step in swarm.sent if kind == "load" and worker == "a"]
    assert [step.rate for step in loads] == [5, 10]
    assert all(step.measured_ns == step.at_ns + 2 * S for step in loads)
    assert all(step.at_ns >= sent_s * S + S / 2 for sent_s, _, _, step in swarm.sent), "with notice"
    assert [seconds(stage) for stage in stages] == [(2.0, 10.0)] * 2


def test_a_step_that_was_lost_is_sent_again() -> None:
    swarm = FakeSwarm(mute={"b": 1})
    _, stages = driven(swarm, "users=1")
    assert [stage.fault for stage in stages] == [""]
    assert [kind for _, worker, kind, _ in swarm.sent if worker == "b"][:2] == ["load", "load"]


@pytest.mark.parametrize(
    ("swarm", "why"),
    [
        (FakeSwarm(drains_s=99.0), "2 of 2 workers did not confirm that their requests had ended"),
        (FakeSwarm(mute={"b": 10**6}), "1 of 2 workers did not confirm that their requests had ended"),
        (FakeSwarm(gone_s=8.0), "1 of 2 workers did not confirm that their requests had ended"),
        (FakeSwarm(late=frozenset("b")), "1 of 2 workers did not begin its load"),
        (FakeSwarm(names=()), "no worker was connected"),
    ],
)
def test_a_stage_that_was_not_confirmed_is_not_a_result(swarm: FakeSwarm, why: str) -> None:
    _, stages = driven(swarm, "users=1,2")
    assert stages[0].fault == why
    if "confirm" in why:
        assert stages[0].drained_ns is None


def test_a_worker_that_is_lost_during_the_drain_makes_its_stage_no_result() -> None:
    _, (stage,) = driven(FakeSwarm(gone_s=15.5, drains_s=2.5), "users=1")
    assert stage.fault == "1 workers joined or were lost during the stage"


@pytest.mark.parametrize("over_s", [0.5, 2.0, 8.0, 13.5])
def test_the_end_of_the_run_ends_the_sweep_and_its_stage_is_not_a_result(over_s: float) -> None:
    complete, stages = driven(FakeSwarm(over_s=over_s), "users=1,2")
    assert not complete
    assert len(stages) == 1
    assert "the run ended" in stages[0].fault or stages[0].drained_ns is None


def test_confirmations_of_another_run_do_not_count() -> None:
    swarm = FakeSwarm()
    driver = SweepDriver("run", swarm, ListedLoads(parse_sweep("users=1")), TIMES)
    swarm.confirm = lambda w, s: driver.confirmed(w, StagedMessage(run="other", stage=s.stage, step=s.step))
    driver.drive()
    assert driver.stages[0].fault


LOOKING = replace(TIMES, measured_s=20.0, looks=(0.25, 0.5, 0.75))


def test_repeats_are_measured_in_turn_and_not_in_a_row() -> None:
    complete, stages = driven(FakeSwarm(), "users=1,4", repeats=3)
    assert complete
    assert [(s.asked, s.repeat) for s in stages] == [(1, 0), (4, 0), (1, 1), (4, 1), (1, 2), (4, 2)]


@pytest.mark.parametrize("load", ["users=1,4", "rate=1,4"])
def test_every_load_is_applied_at_every_pair_of_lengths_and_all_workers_are_told(load: str) -> None:
    swarm = FakeSwarm()
    complete, stages = driven(swarm, f"{load} lengths=128:32,4096:64", repeats=2)
    assert complete
    once = [(1, "128:32"), (4, "128:32"), (1, "4096:64"), (4, "4096:64")]
    assert [(s.asked, str(s.lengths)) for s in stages] == once * 2
    assert [s.repeat for s in stages] == [0] * 4 + [1] * 4
    of_stage = {stage.number: stage.lengths for stage in stages}
    for worker in swarm.names:
        loads = [step for _, name, kind, step in swarm.sent if (name, kind) == (worker, "load")]
        assert {step.stage for step in loads} == of_stage.keys()
        assert all(step.lengths == of_stage[step.stage] for step in loads)


def test_a_sweep_over_lengths_that_died_goes_on_with_the_pair_that_was_under_way() -> None:
    text = "users=1,4 lengths=128:32,4096:64"
    dying = FakeSwarm(over_s=40.0)
    _, left = driven(dying, text)
    left = [s if s.drained_ns else replace(s, fault="") for s in left]
    complete, stages = resume(FakeSwarm(now_s=100.0), text, left)
    assert complete
    done = [(s.asked, str(s.lengths)) for s in finished(stages)]
    assert done == [(1, "128:32"), (4, "128:32"), (1, "4096:64"), (4, "4096:64")]


@pytest.mark.parametrize("load", ["users=2", "rate=5"])
def test_a_stage_ends_when_it_is_known_well_enough(load: str) -> None:
    swarm = FakeSwarm(enough=lambda _: len(swarm.looked_at) == 2)
    complete, (stage,) = driven(swarm, load, times=LOOKING)
    assert complete
    assert (stage.is_early, stage.fault) == (True, "")
    _, measured_s = seconds(stage)
    assert 10.0 <= measured_s <= 12.0, "the second look is at half the time; the end needs notice"
    drains = [step for _, _, kind, step in swarm.sent if kind == "drain"]
    assert {step.at_ns for step in drains} == {stage.ended_ns}


def test_a_stage_that_is_never_known_well_enough_has_its_whole_time_and_a_few_looks() -> None:
    swarm = FakeSwarm()
    _, stages = driven(swarm, "users=1,2", times=LOOKING)
    assert [stage.is_early for stage in stages] == [False, False]
    assert [seconds(stage)[1] for stage in stages] == pytest.approx([20.0, 20.0])
    assert [number for number, _ in swarm.looked_at] == [0, 0, 0, 1, 1, 1]
    assert not FakeSwarm().looked_at


def test_a_stage_is_shown_to_its_looks_with_an_end() -> None:
    shown: list[StageFacts] = []

    def enough(stages: list[StageFacts]) -> bool:
        shown.append(stages[-1])
        return False

    driven(FakeSwarm(enough=enough), "users=1,2", times=LOOKING)
    assert all(s.measured_ns is not None and s.ended_ns is not None for s in shown)
    assert [s.number for s in shown] == [0, 0, 0, 1, 1, 1]


def test_a_look_that_takes_long_does_not_make_its_stage_longer() -> None:
    swarm = FakeSwarm(looks_s=100.0)
    _, (stage,) = driven(swarm, "users=1", times=LOOKING)
    assert seconds(stage)[1] == pytest.approx(20.0)
    assert len(swarm.looked_at) == 1


def resume(swarm: FakeSwarm, text: str, *earlier: list[StageFacts]) -> tuple[bool, list[StageFacts]]:
    """Drive what earlier parts have left of a sweep; return all stages."""
    before = resumed([*earlier, []])
    driver = SweepDriver("run", swarm, ListedLoads(parse_sweep(text)), TIMES, earlier=before)
    swarm.confirm = driver.confirmed
    return driver.drive(), resumed([*earlier, driver.stages])


@pytest.mark.parametrize("died_s", [0.5, 2.0, 8.0, 13.2, 14.5, 16.0, 20.0, 31.0, 44.0])
def test_a_sweep_whose_master_died_at_any_time_has_each_load_once(died_s: float) -> None:
    dying = FakeSwarm(over_s=died_s)
    driver = SweepDriver("run", dying, ListedLoads(parse_sweep("users=1,4,2")), TIMES)
    dying.confirm = driver.confirmed
    driver.drive()
    left = [s if s.drained_ns else replace(s, fault="") for s in driver.stages]  # no last word
    complete, stages = resume(FakeSwarm(now_s=100.0), "users=1,4,2", left)
    assert complete
    assert [stage.number for stage in stages] == list(range(len(stages)))
    assert [(s.asked, s.fault) for s in finished(stages)] == [(1, ""), (4, ""), (2, "")]
    drained = [stage for stage in left if stage.drained_ns is not None]
    assert stages[: len(drained)] == drained, "what is finished is kept as it is"
    for stage in stages:
        if stage.repeated_as is not None:
            again = stages[stage.repeated_as]
            assert (again.asked, again.repeat, stage.measured_ns) == (stage.asked, stage.repeat, None)
            assert f"stage {again.number} repeats it" in stage.fault


def test_a_sweep_whose_master_died_twice_in_one_stage_goes_on_with_it() -> None:
    first = [StageFacts(number=0, kind="users", asked=1, begun_ns=0, ended_ns=S, drained_ns=2 * S)]
    died = [StageFacts(number=1, kind="users", asked=4, begun_ns=3 * S)]
    twice = [StageFacts(number=2, kind="users", asked=4, begun_ns=9 * S)]
    _, stages = resume(FakeSwarm(now_s=100.0), "users=1,4", [*first, *died], [], twice)
    assert [(s.number, s.asked, s.repeated_as) for s in stages] == [
        *((0, 1, None), (1, 4, 2), (2, 4, 3)),
        (3, 4, None),
    ]


def test_a_drained_stage_says_how_many_records_each_worker_had() -> None:
    _, (stage,) = driven(FakeSwarm(), "users=1")
    assert stage.made == {"a": 7, "b": 7}
    _, (stage,) = driven(FakeSwarm(mute={"b": 10**6}), "users=1")
    assert stage.made == {}


SHARES = tuple(PrefixShare.of(asked, 512, 10) for asked in (0.0, 0.5, 0.9))


def experiment(swarm: FakeSwarm) -> list[StageFacts]:
    loads = ListedLoads(parse_sweep("users=4 prefix-share=0%,50%,90%"), 1, SHARES)
    driver = SweepDriver("run", swarm, loads, TIMES)
    swarm.confirm = driver.confirmed
    assert driver.drive()
    return driver.stages


def test_caches_are_prepared_between_the_drain_and_the_load_of_a_stage() -> None:
    swarm = FakeSwarm()
    stages = experiment(swarm)
    assert [(prefix, number) for _, prefix, number in swarm.prepared] == list(
        zip(SHARES, range(3), strict=True)
    )
    for (began_s, prefix, _), before, stage in zip(swarm.prepared, (None, *stages), stages, strict=False):
        assert before is None or (before.drained_ns or 0) <= round(began_s * S)
        assert round((began_s + swarm.prepares_s) * S) <= stage.begun_ns
        assert (stage.prefix, stage.fault) == (prefix, "")
        assert [(cache.hits, cache.queries, cache.primed) for cache in stage.caches] == [(1.0, 2.0, 10)]
    assert {step.prefix for *_, step in swarm.sent if step.stage == 1} == {SHARES[1]}


def test_a_stage_whose_caches_are_not_ready_has_no_load_and_says_why_and_the_next_one_goes_on() -> None:
    swarm = FakeSwarm(cache_fault=lambda stage: "http://r: 404" if stage == 1 else "")
    first, second, third = experiment(swarm)
    assert (first.fault, third.fault) == ("", "")
    assert (second.fault, second.measured_ns) == ("http://r: 404", None)
    assert second.drained_ns is not None
    assert {step.stage for *_, step in swarm.sent} == {0, 2}


def test_a_flush_while_requests_may_be_in_flight_is_no_experiment() -> None:
    swarm = FakeSwarm(mute={"b": 0})
    swarm.drains_s = 1e6  # nobody confirms a drain
    stages = experiment(swarm)
    assert "workers did not confirm that their requests had ended" in stages[0].fault
    for later in stages[1:]:  # that of the stage after next are still those of the first
        assert "may have been in flight when the prefix caches were emptied" in later.fault
        assert later.measured_ns is None


def test_a_run_that_ends_while_caches_are_prepared_leaves_that_stage_to_come() -> None:
    swarm = FakeSwarm(over_s=1.0)
    swarm.prepares_s = 3.0
    driver = SweepDriver(
        "run", swarm, ListedLoads(parse_sweep("users=4 prefix-share=0%,50%,90%"), 1, SHARES), TIMES
    )
    swarm.confirm = driver.confirmed
    assert not driver.drive()
    assert swarm.prepared
    assert driver.stages == []


# --- A profile of steps is a list of stages, from its plan alone


STEPS = parse_rate("steps:10@60s,50@30s,20")


def test_each_step_is_a_stage_and_the_last_one_lasts_as_long_as_the_load() -> None:
    found = stages_of(STEPS, 100 * S, 0.0, None)
    assert [(s.asked, s.begun_ns, s.measured_ns, s.ended_ns) for s in found] == [
        (10, 100 * S, 100 * S, 160 * S),
        (50, 160 * S, 160 * S, 190 * S),
        (20, 190 * S, 190 * S, None),
    ]
    assert [s.number for s in found] == [0, 1, 2]


def test_a_warm_up_is_left_out_of_the_stages_that_it_reaches() -> None:
    found = stages_of(STEPS, 0, 70.0, None)
    assert [s.measured_ns for s in found] == [70 * S, 70 * S, 90 * S], "the first has no measured part"


def test_a_stage_that_the_end_of_the_load_did_not_let_begin_is_not_listed() -> None:
    assert len(stages_of(STEPS, 0, 0.0, 60 * S)) == 1
    assert len(stages_of(STEPS, 0, 0.0, 60 * S + 1)) == 2
    assert stages_of(STEPS, None, 0.0, None) == [], "the start of the schedule is not known yet"


@pytest.mark.parametrize("text", ["10", "ramp:0..10,60s", "sine:50,40,60s", "ramp:10..10,60s,10..20,60s"])
def test_a_rate_that_is_constant_or_changes_all_the_time_has_no_stages(text: str) -> None:
    assert not steps_of(parse_rate(text))


def test_a_spike_is_three_stages() -> None:
    assert [step.rate for step in steps_of(parse_rate("spike:5,50,60s,30s"))] == [5, 50, 5]


def test_too_many_steps_have_none() -> None:
    rates = [f"{1 + i}@1s" for i in range(MOST_STAGES)]
    assert len(steps_of(parse_rate("steps:" + ",".join(rates[:-1])))) == MOST_STAGES
    assert not steps_of(parse_rate("steps:" + ",".join([*rates, "1"])))


# --- The plan of a search in the driver of a sweep: each load follows from what the finished stages show


USERS = parse_objective("max concurrency under goodput>=50%")
EDGE = 11


def shown(stages: Sequence[StageFacts]) -> Probe:
    """Up to the edge all requests are good, beyond it none; a stage with a fault shows nothing."""
    load = stages[-1].asked
    if stages[-1].fault:
        return Probe(load, no_result=stages[-1].fault)
    return Probe(load, (ProbeReading(500 if load <= EDGE else 0, 500, 500.0),))


def searched(swarm: FakeSwarm, bounds: Bounds) -> tuple[bool, list[StageFacts], SearchResult | None]:
    plan = SearchPlan(USERS, bounds, shown)
    driver = SweepDriver("run", swarm, plan, TIMES)
    swarm.confirm = driver.confirmed
    return driver.drive(), driver.stages, plan.result


def test_a_search_ends_by_itself_with_the_last_number_of_users_that_holds() -> None:
    complete, stages, found = searched(FakeSwarm(), Bounds(2.0))
    assert complete
    assert found is not None
    assert (found.load, found.is_resolved) == (EDGE, True)
    loads = [stage.asked for stage in stages]
    assert loads[:4] == [2, 4, 8, 16], "doubled until a limit breaks"
    assert max(loads) <= 2 * EDGE
    assert len(loads) <= 12
    assert {EDGE, EDGE + 1} <= set(loads)


def test_a_stage_that_two_workers_lost_is_run_again_once_and_then_ends_the_search() -> None:
    complete, stages, found = searched(FakeSwarm(drains_s=99.0), Bounds(2.0))
    assert complete
    assert [(stage.asked, stage.repeat) for stage in stages] == [(2, 0), (2, 1)]
    assert found is not None
    assert (found.load, found.at_least, found.at_most) == (None, None, None)
    assert "did not confirm" in found.why


def test_the_end_of_the_run_ends_the_search_without_an_answer() -> None:
    complete, stages, found = searched(FakeSwarm(over_s=20.0), Bounds(2.0))
    assert not complete
    assert found is None
    assert stages
