"""Requests counted in one pass, and what a worker sends of them."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from live_cases import LIMITS, Clock, counts_of
from metrics_cases import batch, columns, failed, manifest, request, requests
from summaries import summarise
from warm_process import warm_code

from llm_locust.core.manifest import TrajectoryFacts
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.live.counting import PASS_ROWS, STEPS, LiveCounts, count
from llm_locust.live.counts import METRICS, NOTHING, OTHERS, SCALARS, Counts, KeyLimit, LiveKey
from llm_locust.live.figures import figures
from llm_locust.live.state import LiveRun
from llm_locust.live.worker_report import (
    LiveReport,
    LiveSlice,
    PackedCounts,
    ReportError,
    decode_report,
    encode_report,
)
from llm_locust.metrics.limits import SLO_METRICS, Slo
from llm_locust.metrics.requests.judgement import Limits, judge
from llm_locust.metrics.requests.latency import MeasuredFrom, itl, per_request
from llm_locust.metrics.stats.sketch import Sketch

RUN = LiveRun(id="r", limits=LIMITS)
many = st.lists(requests(), min_size=1, max_size=10)
whences: st.SearchStrategy[MeasuredFrom] = st.sampled_from(["sent", "scheduled"])


def key_of(record: RequestRecord) -> LiveKey:
    return LiveKey(record.name, record.slo_class, record.replica or "")


@settings(max_examples=settings().max_examples // 2)
@given(many, whences)
def test_each_key_has_the_sums_of_its_own_requests(
    records: list[RequestRecord], whence: MeasuredFrom
) -> None:
    found = counts_of(*records, measured_from=whence)
    assert found.keys() == {key_of(r) for r in records}
    for key, counts in found.items():
        own = [r for r in records if key_of(r) == key]
        c = columns(*own)
        judgement = judge(c, per_request(c), LIMITS, whence)
        for outcome in Outcome:
            assert counts.outcome(outcome) == sum(r.outcome is outcome for r in own)
        assert counts["good"] == judgement.good.sum()
        for metric in SLO_METRICS:
            assert counts[f"held_{metric}"] == (
                judgement.held[metric].sum() if metric in LIMITS.metrics else 0
            )
        assert counts["output_tokens"] == np.nansum(c.output_tokens)
        assert counts["good_output_tokens"] == np.nansum(c.output_tokens[judgement.good])
        assert counts["busy_ns"] == sum(r.ended_ns - r.sent_ns for r in own if r.sent_ns is not None)


@settings(max_examples=settings().max_examples // 2)
@given(many)
def test_each_metric_has_the_sketch_of_the_ok_requests(records: list[RequestRecord]) -> None:
    for key, counts in counts_of(*records).items():
        c = columns(*(r for r in records if key_of(r) == key))
        ok = np.flatnonzero(c.ok)
        for metric in METRICS:
            values = itl(c, ok).values_s if metric == "itl" else per_request(c)[metric][ok]
            expected, told = Sketch.of(values), counts.sketch(metric)
            assert told.buckets.tolist() == expected.buckets.tolist()
            assert told.ends.tolist() == expected.ends.tolist()
            assert abs(told.total_ns - expected.total_ns) <= len(expected)


@settings(max_examples=settings().max_examples // 4)
@given(st.lists(many, min_size=1, max_size=3))
def test_batches_merge_to_the_counts_of_all_their_requests(parts: list[list[RequestRecord]]) -> None:
    whole = Counts.merge(counts_of(*(r for part in parts for r in part)).values())
    merged = Counts.merge(Counts.merge(counts_of(*part).values()) for part in reversed(parts))
    assert merged.scalars.tolist() == whole.scalars.tolist()
    assert merged.tally.codes.tolist() == whole.tally.codes.tolist()
    assert merged.tally.counts.tolist() == whole.tally.counts.tolist()


def test_failed_and_cancelled_requests_are_told_apart() -> None:
    (counts,) = counts_of(
        request(), failed(), failed(outcome=Outcome.TIMEOUT), failed(outcome=Outcome.CANCELLED)
    ).values()
    assert (counts.ok, counts.failed, counts.cancelled, counts.judged, counts.ended) == (1, 2, 1, 3, 4)


def test_prompt_tokens_count_once_the_server_answered() -> None:
    (counts,) = counts_of(request(input_tokens=10), failed(input_tokens=99)).values()
    assert counts["input_tokens"] == 10


def test_without_an_slo_nothing_is_good() -> None:
    (counts,) = counts_of(request(), limits=Limits(Slo())).values()
    assert counts["good"] == counts["good_output_tokens"] == 0


def test_each_class_is_held_against_its_own_limits() -> None:
    limits = Limits(Slo(ttft_s=0.06), {"batch": Slo(e2el_s=9.0), "free": Slo()})
    slow = (0.2, 0.3)
    found = counts_of(
        request(),
        request(arrivals=slow),
        request(arrivals=slow, slo_class="batch"),
        request(arrivals=slow, slo_class="free"),
        failed(slo_class="batch"),
        failed(outcome=Outcome.CANCELLED),
        limits=limits,
    )
    good = {key.slo_class: counts["good"] for key, counts in found.items()}
    total = Counts.merge(found.values())
    assert good == {"": 1, "batch": 1, "free": 1}
    assert (total["limited_ttft"], total["held_ttft"]) == (2, 1)
    assert (total["limited_e2el"], total["held_e2el"]) == (2, 1)


def test_turns_and_jobs_are_those_of_the_report() -> None:
    """Of whole walks, failed and cut ones, sub-agents, a turn that was sent twice, and other requests."""
    facts = TrajectoryFacts(
        ids=["a", "b", "sub"],
        roots=2,
        possible=[[0.2, 0.8, 0.9], [0.5], [0.6, 0.6]],
        pauses_s=[[1.5, 0.25, 9.0], [0.0], [3.0, 0.0]],
    )
    told = manifest(trajectories=facts)

    def turn(walk: str, number: int, at: float, **fields: Any) -> RequestRecord:
        return request(at, session=walk, turn=number, user=0, **fields)

    records = [
        *(turn("r1-t0-of3", i, 1.0 + i) for i in range(3)),
        turn("r2-t1-of1", 0, 4.0),
        turn("r3-t0-of3", 0, 4.5),
        turn("r3-t0-of3", 1, 5.0, outcome=Outcome.RESENT),
        turn("r3-t0-of3", 1, 5.1, outcome=Outcome.HTTP_ERROR),
        turn("r4-t2-of2", 0, 6.0),
        turn("r4-t2-of2", 1, 7.0, outcome=Outcome.TIMEOUT),
        turn("r5-t0-of3", 0, 8.0),
        turn("r5-t0-of3", 1, 8.2, outcome=Outcome.CANCELLED),
        turn("r6-t8-of3", 0, 8.4),  # of no trajectory of this pool
        request(8.5),
    ]
    made = batch(*records)
    live = figures(
        Counts.merge(count(made, KeyLimit(), LiveRun.of(told)).values()), 9.0, Limits(Slo())
    ).agents
    found = summarise(made, told)["agents"]
    assert live is not None
    for name in ("turns", "ok", "jobs", "jobs_failed"):
        assert getattr(live, name) == found[name], name
    assert live.tools_s == pytest.approx(found["tools_s"])
    assert (live.jobs, live.jobs_failed) == (2, 1)
    assert live.tools_s == pytest.approx(3 * 1.5 + 0.25)
    assert live.output_tokens_per_s_p25 == pytest.approx(found["output_tokens_per_s_p25"], rel=0.02)


def test_an_empty_batch_has_no_key() -> None:
    assert count(batch(), KeyLimit(), RUN) == {}


def test_nothing_merged_is_nothing() -> None:
    assert Counts.merge([]) is NOTHING
    assert NOTHING.ended == 0
    assert np.isnan(NOTHING.sketch("ttft").percentile(50))


def test_replicas_beyond_the_limit_are_counted_together_under_their_name() -> None:
    limit = KeyLimit(most_keys=3)
    found = count(batch(*(request(replica=f"pod-{i}") for i in range(10))), limit, RUN)
    assert sum(c.ended for c in found.values()) == 10
    assert found[LiveKey("chat", "", OTHERS)].ended == 7


def test_names_beyond_the_limit_are_counted_together() -> None:
    limit = KeyLimit(most_pairs=2)
    found = count(batch(*(request(name=f"task {i}") for i in range(5))), limit, RUN)
    assert found[LiveKey(OTHERS, OTHERS, OTHERS)].ended == 3


@given(st.lists(st.builds(LiveKey, *[st.sampled_from("abcdefgh")] * 3), max_size=200))
def test_however_many_keys_come_few_go_out_and_known_ones_stay(keys: list[LiveKey]) -> None:
    limit = KeyLimit(most_pairs=3, most_keys=8)
    first = [limit.fold(key) for key in keys]
    assert len(set(first)) <= 8 + 3 + 1
    assert [limit.fold(key) for key in keys] == first


@pytest.mark.parametrize("fold", [KeyLimit().fold, KeyLimit(1, 1).fold])
def test_folding_is_done_with_what_was_folded_elsewhere(fold: Callable[[LiveKey], LiveKey]) -> None:
    fold(LiveKey("a", "", "x"))
    key = fold(LiveKey("b", "", "y"))
    assert fold(key) == key


def test_a_first_try_is_counted_as_such_and_in_nothing_else() -> None:
    first = failed(outcome=Outcome.RESENT, error="broke")
    (with_it,) = counts_of(request(), failed(), first).values()
    (without,) = counts_of(request(), failed()).values()
    assert (with_it.outcome(Outcome.RESENT), with_it.records) == (1, 3)
    assert (with_it.ended, with_it.failed, with_it.judged) == (2, 1, 2)
    unlike = np.flatnonzero(with_it.scalars != without.scalars)
    assert [SCALARS[place] for place in unlike] == ["outcome_resent"]


def worker(clock: Clock) -> LiveCounts:
    return LiveCounts(LiveRun(id="run", limits=LIMITS), clock.ns)


def ended(report: LiveReport) -> list[tuple[float, int]]:
    """The age of each slice, and how many requests are in it."""
    return [(s.age_s, sum(p.unpacked().ended for p in s.counts)) for s in report.slices]


def test_requests_are_told_with_the_age_of_their_second() -> None:
    clock = Clock(1000.0)
    counts = worker(clock)
    counts.add(request())
    counts.add(request())
    clock.tick(2)
    counts.add(request())
    clock.tick(0.75)
    assert ended(decode_report(counts.report())) == [(2.25, 2), (0.25, 1)]


def test_a_report_has_what_came_since_the_one_before() -> None:
    counts = worker(Clock(1000.0))
    counts.add(request())
    first, second = decode_report(counts.report()), decode_report(counts.report())
    counts.add(request())
    third = decode_report(counts.report())
    assert [r.seq for r in (first, second, third)] == [0, 1, 2]
    assert [r.finished for r in (first, second, third)] == [1, 1, 2]
    assert second.slices == []
    assert sum(n for _, n in ended(third)) == 1


@pytest.mark.parametrize("n", [1, PASS_ROWS - 1, PASS_ROWS, PASS_ROWS + 1, 3 * PASS_ROWS])
def test_passes_of_any_number_lose_nothing(n: int) -> None:
    counts = worker(Clock(1000.0))
    for _ in range(n):
        counts.add(request())
    report = decode_report(counts.report())
    assert sum(amount for _, amount in ended(report)) == report.finished == n


@given(st.lists(st.sampled_from(["ended", "step", "tick", "report", "part"]), max_size=40))
def test_steps_at_any_time_between_lose_nothing_and_count_nothing_twice(happened: list[str]) -> None:
    clock = Clock(1000.0)
    counts, reports = worker(clock), list[LiveReport]()
    for what in [*happened, "report"]:
        if what == "ended":
            counts.add(request())
        elif what == "step":
            counts.step()
        elif what == "tick":
            clock.tick()
        else:
            reports.append(decode_report(counts.report(whole=what == "report")))
            told = sum(amount for report in reports for _, amount in ended(report))
            assert told == reports[-1].finished
            assert what == "part" or not counts.is_due
    assert reports[-1].finished == happened.count("ended")


def test_a_second_that_has_passed_is_due_and_counted_in_some_steps() -> None:
    clock = Clock(1000.0)
    counts = worker(clock)
    counts.add(request())
    assert not counts.is_due
    clock.tick()
    counts.add(request())
    assert counts.is_due
    assert [counts.step() for _ in range(STEPS)] == [True] * STEPS  # the second that goes on is left
    assert not counts.is_due
    assert [counts.step() for _ in range(STEPS + 1)] == [True, True, False, False]


def test_a_reset_forgets_what_was_not_reported() -> None:
    counts = worker(Clock(1000.0))
    counts.add(request())
    counts.report()
    counts.add(request())
    counts.reset(epoch=3)
    report = decode_report(counts.report())
    assert (report.epoch, report.seq, report.finished, report.slices) == (3, 0, 0, [])


@given(st.lists(requests(), min_size=1, max_size=5))
def test_counts_survive_their_way(records: list[RequestRecord]) -> None:
    for key, counts in counts_of(*records).items():
        report = LiveReport("run", 0, 0, 1, [LiveSlice.of(0.5, {key: counts})])
        (packed,) = decode_report(encode_report(report)).slices[0].counts
        back = packed.unpacked()
        assert packed.key == key
        assert back.scalars.tolist() == counts.scalars.tolist()
        assert back.tally.packed() == counts.tally.packed()


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", msgspec.msgpack.encode([1, 2]), msgspec.msgpack.encode(["run", 0, 0, -1, [[0.5, 3]]])],
)
def test_bytes_that_are_no_report_are_refused(data: bytes) -> None:
    with pytest.raises(ReportError, match="not a report of live counts"):
        decode_report(data)


def test_a_report_of_a_second_with_few_requests_is_small() -> None:
    clock = Clock(1000.0)
    counts = worker(clock)
    for i in range(50):
        arrivals = tuple(0.05 + 0.001 * i + 0.02 * k for k in range(100))
        counts.add(request(arrivals=arrivals))
    assert len(counts.report()) < 1000


def test_sums_of_another_version_are_refused() -> None:
    with pytest.raises(ValueError, match="2 sums instead of"):
        PackedCounts(LiveKey("chat", "", ""), [1, 2], [], []).unpacked()


# --- A worker's report: counted in turns of the loop before Locust collects

# Locust patches the standard library, so this is a process of its own.
REPORTS = """
import json
from types import SimpleNamespace as Fake

import gevent
from locust.event import Events

from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.live.counting import LiveCounts
from llm_locust.live.worker_report import decode_report
from llm_locust.live.state import LiveRun
from llm_locust.swarm.channel.messages import LIVE
from llm_locust.swarm.live import LiveSender

at_ns = [10**12]
sent, collected, reports = [], [], []
environment = Fake(events=Events(), parsed_options=Fake())
environment.events.report_to_master.add_listener(lambda **_: collected.append(len(reports)))  # Locust's own
mail = Fake(listen=lambda *_: None, send=lambda _, message: reports.append(message.report))
sender = LiveSender(environment, mail)
counts = sender._counter.counts = LiveCounts(LiveRun(id="run"), lambda: at_ns[0])


def finish():
    record = RequestRecord(
        request_id=str(len(sent)), name="a", outcome=Outcome.OK, scheduled_ns=1, started_ns=1, ended_ns=2
    )
    sent.append(record)
    counts.add(record)


def report():
    data = {}
    environment.events.report_to_master.fire(client_id="w", data=data)
    reports.append(data[LIVE])


given_up = 0
for turns in range(12):
    for _ in range(3):
        finish()
        at_ns[0] += 500_000_000
    reporter = gevent.spawn(report)
    for _ in range(turns):
        gevent.sleep(0.0001)
    finish()
    before = len(collected), len(reports)
    if not reporter.ready():
        reporter.kill()
        given_up += 1
        assert (len(collected), len(reports)) == before, "it has taken something"
assert 0 < given_up < 12, given_up
environment.events.test_stop.fire(environment=environment)
told = [decode_report(each) for each in reports]
print(json.dumps([
    [each.seq for each in told] == list(range(len(told))),
    told[-1].finished == len(sent),
    sum(one.unpacked().ended for each in told for part in each.slices for one in part.counts) == len(sent),
    len(told) == len(collected) + 1,
]))
"""


def test_a_report_that_is_given_up_midway_has_taken_nothing_and_no_request_is_lost_or_counted_twice() -> None:
    assert json.loads(warm_code(REPORTS)) == [True] * 4
