"""summary.json as a whole: its keys, its numbers, its denominators."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from metrics_cases import batch, failed, manifest, request, requests
from summaries import summarise

from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import Manifest, WorkerFacts
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.metrics.limits import GateError, SloError
from llm_locust.metrics.question import Question


def run_of(*records: RequestRecord, **fields: Any) -> dict[str, Any]:
    return summarise(batch(*records), manifest(**fields))


def undefined_or_plain(value: Any) -> bool:
    """Whether JSON can hold it: finite floats, plain Python types."""
    if isinstance(value, dict):
        return all(type(k) is str and undefined_or_plain(v) for k, v in value.items())
    if isinstance(value, list):
        return all(map(undefined_or_plain, value))
    return value is None or type(value) in (str, int, bool) or (type(value) is float and math.isfinite(value))


def test_an_empty_run_has_zero_requests_and_no_latencies() -> None:
    summary = run_of(slo="ttft=1s", gates="goodput>=0% requests>=0 error_rate<1%")
    assert summary["requests"]["scheduled"] == 0
    assert summary["requests"]["error_rate"] is None
    assert summary["latency_ms"]["ttft"]["n"] == 0
    assert summary["latency_ms"]["ttft"]["p99"] is None
    assert summary["goodput"]["ratio"] is None
    assert summary["throughput"]["requests_per_s"] == 0.0
    assert [g["passed"] for g in summary["gates"]] == [False, True, False]
    assert summary["replicas"] == summary["errors"] == []
    assert summary["by_name"] == summary["by_class"] == {}


@settings(max_examples=settings().max_examples // 2)  # of a whole summary each
@given(
    st.lists(requests(), max_size=15),
    st.sampled_from(["run", "steady"]),
    st.sampled_from([0.0, 0.5, 2.0]),
    st.booleans(),
)
def test_any_run_is_json_without_nan_and_its_counts_fit_together(
    records: list[RequestRecord], window: str, warmup_s: float, open_loop: bool
) -> None:
    facts = manifest(slo="ttft=300ms tpot=100ms", gates="p99_ttft<1s", warmup_s=warmup_s, open_loop=open_loop)
    summary = summarise(batch(*records), facts, Question(window=window))
    assert undefined_or_plain(summary)
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    counts = summary["requests"]
    assert counts["ok"] + counts["failed"] + counts["cancelled"] == counts["scheduled"]
    assert sum(counts["by_outcome"].values()) == counts["scheduled"]
    assert sum(e["count"] for e in summary["errors"]) == counts["failed"]
    answered, adjusted = (summary[key]["e2el"]["n"] for key in ("latency_ms", "latency_ms_adjusted"))
    assert adjusted == answered + counts["failed"]
    for key in ("by_name", "by_class"):
        parts = summary[key].values()
        assert not parts or sum(p["requests"]["scheduled"] for p in parts) == counts["scheduled"]


@settings(max_examples=settings().max_examples // 4)  # of two whole summaries each, 150 ms
@given(st.lists(st.lists(requests(), max_size=4), min_size=2, max_size=4), st.randoms())
def test_the_order_in_which_batches_came_changes_nothing(
    workers: list[list[RequestRecord]], random: Any
) -> None:
    batches = [batch(*records, worker=f"w{i}") for i, records in enumerate(workers)]
    shuffled = list(batches)
    random.shuffle(shuffled)
    facts = manifest(slo="ttft=300ms e2el=1s", open_loop=True)
    assert summarise(RecordBatch.concat(shuffled), facts) == summarise(RecordBatch.concat(batches), facts)


def test_trap_19_the_slo_of_an_open_loop_counts_from_the_schedule_unless_told_otherwise() -> None:
    late = [request(float(i), (0.1, 0.2), late=5.0) for i in range(4)]
    open_loop = {"open_loop": True, "slo": "ttft=1s"}
    assert run_of(*late, **open_loop)["goodput"]["ratio"] == 0.0
    assert run_of(*late, **open_loop, options={"slo_from": "sent"})["goodput"]["ratio"] == 1.0
    assert run_of(*late, slo="ttft=1s")["goodput"]["ratio"] == 1.0
    assert run_of(*late)["latency_ms"]["ttft_scheduled"]["p50"] == pytest.approx(5100)


def test_what_is_given_stands_before_the_manifests_own() -> None:
    facts = manifest(slo="ttft=1us", gates="goodput>=100%", warmup_s=9.0)
    given = summarise(batch(request()), facts, Question(slo="ttft=1s", gates="rps>0", warmup_s=0.0))
    assert given["goodput"]["ratio"] == 1.0
    assert [g["text"] for g in given["gates"]] == ["rps>0"]
    assert given["requests"]["ok"] == 1
    own = summarise(batch(request()), facts)
    assert own["requests"]["ok"] == 0
    assert own["window"]["seconds"] == pytest.approx(1.0)


def test_a_part_that_is_everything_says_what_the_whole_says() -> None:
    summary = run_of(request(), failed(0.5), slo="ttft=1s")
    part = summary["by_name"]["chat"]
    own = {key: summary["quality"][key] for key in part["quality"]}
    assert part == {key: summary[key] for key in part} | {"quality": own}


def latency_figures(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Every dictionary of the summary that has percentiles of latencies."""
    tables = [summary[key] for key in ("latency_ms", "latency_ms_adjusted")]
    tables += [part["latency_ms"] for key in ("by_name", "by_class") for part in summary[key].values()]
    turns = [turn[f"{m}_ms"] for turn in summary["sessions"]["by_turn"] for m in ("ttft", "tpot", "e2el")]
    return [figures for table in tables for figures in table.values()] + turns


def test_every_latency_percentile_has_its_interval_or_too_few_samples_for_one() -> None:
    took = np.random.default_rng(1).random(3_000) / 10
    records = [
        request(i / 400, (0.1 + ttft, 0.9), session=f"s{i}", turn=0, slo_class="fast", replica="a")
        for i, ttft in enumerate(took.tolist())
    ]
    summary = run_of(*records)
    for figures in latency_figures(summary):
        places = [key for key in figures if re.fullmatch(r"p[0-9_]+", key)]
        assert places
        assert list(figures["ci95"]) == ["mean", *places]
        for place in places:
            ends = figures["ci95"][place]
            assert ends is None or figures[place] is None or ends[0] <= figures[place] <= ends[1]
    (replica,) = summary["replicas"]
    assert set(replica["ci95"]) == {key for key in replica if re.search(r"_p\d+_ms", key)}
    assert summary["latency_ms"]["ttft"]["ci95"]["p99"] is not None
    assert summary["latency_ms"]["ttft"]["ci95"]["p99_9"] is None


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"window": "all"}, ValueError, 'unknown window "all": write one of run, steady'),
        ({"warmup_s": -1.0}, ValueError, "the warm-up is -1.0 s"),
        ({"warmup_s": math.nan}, ValueError, "the warm-up is nan s"),
    ],
)
def test_what_cannot_be_asked_for_is_said(
    arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        summarise(batch(request()), manifest(), Question(**arguments))


def test_bad_texts_of_a_manifest_are_errors_that_point_at_the_word() -> None:
    with pytest.raises(SloError, match='"ttf"'):
        run_of(slo="ttf=1s")
    with pytest.raises(GateError, match='"rp"'):
        run_of(gates="rp>1")
    with pytest.raises(ValueError, match='slo_from is "start"'):
        run_of(slo="ttft=1s", options={"slo_from": "start"})


def workers(*facts: tuple[int | None, int, bool]) -> list[WorkerFacts]:
    return [
        WorkerFacts(id=f"w{i}", index=i, announced=announced, received=received, lost=lost)
        for i, (announced, received, lost) in enumerate(facts)
    ]


def under_way(in_flight: int) -> dict[str, Any]:
    """Facts of a run that has two records, and a worker that died with some more under way."""
    died = WorkerFacts(id="w1", index=0, announced=2, received=2, in_flight=in_flight, lost=True)
    return {"workers": [died], "slo": "ttft=1s"}


def test_lost_requests_are_those_of_the_whole_run_whatever_the_window() -> None:
    summary = run_of(request(), request(6.0), **under_way(3), warmup_s=5.0)
    assert (summary["requests"]["population"], summary["requests"]["lost"]) == (1, 3)
    assert summary["goodput"]["ratio"] == pytest.approx(1 / 4)


@pytest.mark.parametrize("records", [[request(), request()], [request(), request(name="b", slo_class="x")]])
def test_of_lost_requests_neither_name_nor_class_is_known(records: list[RequestRecord]) -> None:
    summary = run_of(*records, **under_way(2))
    parts = [*summary["by_name"].values(), *summary["by_class"].values()]
    assert summary["goodput"]["ratio"] == 0.5
    assert {part["requests"]["lost"] for part in parts} == {None}
    assert {part["goodput"]["ratio"] for part in parts} == {1.0}
    assert not any("lost" in part["goodput"]["first_failed"] for part in parts)
    whole = run_of(*records, slo="ttft=1s")
    assert {part["requests"]["lost"] for part in whole["by_name"].values()} == {0}


DOCS = Path(__file__).parents[2] / "docs" / "definitions.md"
ANSWER = (0.1, 0.3, 0.5)
RUN = manifest(stopped=10.0, slo="ttft=1s e2el=2s")


def given_up(ended: float, arrivals: tuple[float, ...] = (), **fields: Any) -> RequestRecord:
    return request(1.0, arrivals, ended=ended, outcome=Outcome.CANCELLED, **fields)


def ended(outcome: Outcome) -> RequestRecord:
    return request(1.0, ANSWER, outcome=outcome)


#: Requests of which good ones, bad ones and cut ones are known, so that each share moves in its own way.
OTHERS = [
    *(request(float(at), ANSWER) for at in range(4)),
    request(4.0, (1.5, 2.5, 3.5)),
    replace(given_up(1.2), request_id="cut"),
]

ONE_MORE = {
    "ok and good": request(1.0, ANSWER),
    "ok and not good": request(1.0, (0.1, 0.3, 2.5)),
    "failed": ended(Outcome.TRUNCATED),
    "`timeout`": ended(Outcome.TIMEOUT),
    "`rejected`": ended(Outcome.REJECTED),
    "cut, over a limit": given_up(9.0, (0.1, 0.3)),
    "cut, over none": given_up(2.0, (0.1, 0.3)),
    "abandoned, over a limit": given_up(9.0, abandoned=True),
    "abandoned, over none": given_up(1.5, abandoned=True),
}


def worker(**facts: Any) -> Manifest:
    return replace(RUN, workers=[replace(each, **facts) for each in RUN.workers])


def rows() -> dict[str, list[str]]:
    """The table: the kind of request, and its cells."""
    section = DOCS.read_text().split("### Who is in which denominator\n")[1].split("\n### ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {re.sub(r"\[|\]\(#[a-z-]+\)", "", kind): rest for kind, *rest in cells}


def figures(records: list[RequestRecord], run: Manifest) -> dict[str, Any]:
    return summarise(batch(*records), run)


def cells(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What one request more is in, in the words of the table."""
    e2el = [before["latency_ms"]["e2el"], after["latency_ms"]["e2el"]]
    adjusted = [before["latency_ms_adjusted"]["e2el"], after["latency_ms_adjusted"]["e2el"]]
    tpot = [each["latency_ms"]["tpot"] for each in (before, after)]

    def more(key: str, of: str) -> bool:
        return bool(after[of][key] != before[of][key])

    answers = after["quality"]["answers"] != before["quality"]["answers"]
    return [
        sample(*e2el),
        sample(*tpot),
        "+∞" if adjusted[1]["beyond"] else sample(*adjusted),
        error(before["requests"], after["requests"]),
        good(before["goodput"], after["goodput"]),
        attainment(after["goodput"]["attainment"]),
        yes(more("requests_per_s", "goodput") and more("output_tokens_per_s", "goodput")),
        yes(more("requests_per_s", "throughput")),
        yes(more("output_tokens_per_s", "throughput")),
        yes(more("concurrency_mean", "throughput")),
        cut(after["requests"]["cut_share"]),
        yes(answers),
    ]


def yes(counts: bool) -> str:
    return "yes" if counts else "no"


def sample(before: dict[str, Any], after: dict[str, Any]) -> str:
    if after["n"] > before["n"]:
        return "observed"
    return "censored" if after["censored"] > before["censored"] else "no"


def error(before: dict[str, Any], after: dict[str, Any]) -> str:
    if after["population"] == before["population"]:
        assert after["error_rate"] == before["error_rate"]
        return "no"
    return "failed" if after["error_rate"] > before["error_rate"] else "yes"


def good(before: dict[str, Any], after: dict[str, Any]) -> str:
    assert before["ratio"] == 4 / 5
    return {4 / 5: "no", 5 / 6: "good", 4 / 6: "bad"}[after["ratio"]]


def attainment(after: dict[str, float]) -> str:
    """Of both limits: 4 of the 5 others held each."""
    found = {{4 / 5: "no", 5 / 6: "held", 4 / 6: "not held"}[share] for share in after.values()}
    if found == {"held", "not held"}:
        return "each limit by itself"
    return next(iter(found)) if len(found) == 1 else (found - {"no"}).pop()


def cut(share: float) -> str:
    return {1 / 6: "no", 1 / 7: "yes", 2 / 7: "cut"}[share]


@pytest.mark.parametrize("kind", ONE_MORE)
def test_one_more_recorded_request_is_where_the_table_has_it(kind: str) -> None:
    before, after = figures(OTHERS, RUN), figures([*OTHERS, ONE_MORE[kind]], RUN)
    assert cells(before, after) == rows()[kind]


@pytest.mark.parametrize(("kind", "run"), [("lost", worker(announced=1)), ("unsent", worker(unsent=1))])
def test_one_more_request_without_a_record_is_where_the_table_has_it(kind: str, run: Manifest) -> None:
    assert cells(figures(OTHERS, RUN), figures(OTHERS, run)) == rows()[kind]


def test_one_more_stuck_request_is_where_the_table_has_it() -> None:
    """The window begins after the warm-up: the first request begins the run, and has ended before that."""
    run = replace(RUN, warmup_s=1.0)
    others = [request(-1.0, ANSWER), *OTHERS]
    hung = request(-0.5, (1.0,), ended=9.0, outcome=Outcome.CANCELLED)
    silent = request(-0.5, (), ended=9.0, outcome=Outcome.CANCELLED)
    before = figures(others, run)
    found = cells(before, figures([*others, hung], run))
    assert found == rows()["stuck"]
    after = figures([*others, silent], run)
    assert after["latency_ms"]["ttft"]["censored"] == before["latency_ms"]["ttft"]["censored"] + 1


def test_the_first_try_of_a_request_that_was_sent_again_is_counted_and_in_no_other_figure() -> None:
    kind = "the first try of one that was sent again"
    first = request(1.0, (), ended=1.03, outcome=Outcome.RESENT, error="broke", replica="other")
    once = [replace(OTHERS[0], retries=1), *OTHERS[1:]]
    before = figures(once, worker(announced=len(once), received=len(once)))
    after = figures([first, *once], worker(announced=len(once) + 1, received=len(once) + 1))
    assert cells(before, after) == rows()[kind]
    assert set(rows()[kind]) == {"no"}
    assert after["completeness"].pop("records_stored") == before["completeness"].pop("records_stored") + 1
    for counted in (before, after):
        counted.pop("completeness")
    of_all = [after["requests"], after["by_name"]["chat"]["requests"]]
    assert [each["resent"] for each in of_all] == [1, 1]
    for each in of_all:
        each["resent"] = 0
    assert after == before


def test_the_table_has_no_other_rows() -> None:
    kinds = {*ONE_MORE, "lost", "unsent", "stuck", "the first try of one that was sent again"}
    assert rows().keys() == kinds
