"""What the page is told of the stages of a run: their states, the live figures, what the report has."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from live_cases import START_S, Run
from metrics_cases import ORIGIN_NS, manifest, ns, request, stage
from run_going_on import going_on

from llm_locust.core.manifest import StageFacts
from llm_locust.figures.summary import typed_stages
from llm_locust.live.state import LiveStages, state_of
from llm_locust.live.store import figures_since
from llm_locust.report.csv_tables import stages_csv
from llm_locust.report.run.analysis import build_report
from llm_locust.report.run.stage_reading import StageAnswer, StageQuestion, answer_of, main
from llm_locust.store import compact, write_manifest
from llm_locust.swarm.web.stages import MOST_ROWS, StageBoard, columns

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e"

#: Ends of 10 s, after a ramp and a warm-up of half a second, and a drain of a quarter.
SWEEP = [stage(0, 1.0, 11.0, asked=1.0), stage(1, 13.0, 23.0, asked=2.0)]


def records(until_s: float = 24.0) -> list[Any]:
    """One user, then two, with ten requests a second each."""
    found = [request(i / 10, (0.05, 0.08), user=0, request_id=f"a{i}") for i in range(5, 110)]
    for user in (0, 1):
        found += [
            request(i / 10 + user / 1000, (0.06, 0.09), user=user, request_id=f"b{i}-{user}")
            for i in range(125, 230)
        ]
    return [one for one in found if one.ended_ns <= ns(until_s)]


@pytest.mark.parametrize(
    ("at_s", "facts", "state"),
    [
        (0.4, {}, "to come"),
        (0.7, {}, "ramp"),
        (0.7, {"measured_ns": None, "ended_ns": None, "drained_ns": None}, "ramp"),
        (1.0, {"ended_ns": None, "drained_ns": None}, "measuring"),
        (11.0, {"drained_ns": None}, "draining"),
        (11.0, {"drained_ns": None, "fault": "a worker was lost"}, "over"),
        (11.3, {}, "drained"),
    ],
)
def test_a_stage_is_where_its_times_say(at_s: float, facts: dict[str, Any], state: str) -> None:
    assert state_of(stage(0, 1.0, 11.0, **facts), ns(at_s), is_sweep=True) == state


def test_a_stage_of_a_profile_has_no_drain() -> None:
    found = stage(0, 1.0, 11.0, drained_ns=None)
    assert state_of(found, ns(11.0), is_sweep=False) == "over"


def test_live_figures_since_a_time_have_the_requests_that_ended_since() -> None:
    run = Run()
    for _ in range(100):
        run.ended([request(arrivals=(0.05, 0.4))] * 4)
        run.report()
        run.clock.tick(4.0)
    assert figures_since(run.store, START_S + 380).requests == pytest.approx(20, abs=4)
    long_ago = figures_since(run.store, START_S + 40)  # further back than the finest cells reach
    assert long_ago.requests == pytest.approx(360, abs=24)
    assert long_ago.requests_per_s == pytest.approx(1.0, rel=0.06)
    assert figures_since(run.store, START_S + 500).requests == 0


def test_what_is_read_of_a_stage_that_has_ended_is_what_the_report_has(tmp_path: Path) -> None:
    options: dict[str, Any] = {"stages": SWEEP, "options": {"sweep": "users=1,2"}}
    with going_on(tmp_path, [("a", records())], **options):
        early = answer_of(tmp_path, StageQuestion(SWEEP[:1], figures=[0])).figures
        both = answer_of(tmp_path, StageQuestion(SWEEP, figures=[0, 1])).figures
        probe = answer_of(tmp_path, StageQuestion(SWEEP, find="max concurrency under p99_ttft<100ms")).probe
    write_manifest(tmp_path, manifest(24.0, **options, slo="ttft=1s", workers=[]))
    compact(tmp_path)
    report = build_report(tmp_path, allow_incomplete=True).summary
    text = stages_csv(report.stages)
    assert text is not None
    live = stages_csv(typed_stages(msgspec.json.decode(msgspec.json.encode(both))))
    assert live == text
    assert stages_csv(typed_stages(msgspec.json.decode(msgspec.json.encode(early)))) == "".join(
        text.splitlines(keepends=True)[:2]
    )
    assert probe is not None
    assert probe.load == 2.0


def test_a_stage_without_a_drain_waits_for_its_last_requests(tmp_path: Path) -> None:
    profile = [stage(0, 1.0, 11.0, drained_ns=None), stage(1, 11.0, 23.0, drained_ns=None)]
    asked = StageQuestion(profile, figures=[0], undrained=[0])
    with going_on(tmp_path, [("a", records(11.0))], stages=profile):
        assert answer_of(tmp_path, asked).figures == []
    with going_on(tmp_path / "later", [("a", records(14.0))], stages=profile):
        (found,) = answer_of(tmp_path / "later", asked).figures
        assert found["figures"]["requests"]["ok"] == 100


@pytest.mark.parametrize("question", ["", "{}", '{"stages": []}', "[1]", '{"stages": [{"number": -1}]}'])
def test_a_question_that_cannot_be_read_is_answered_with_one_line(
    question: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path), question]) == 1
    answer = msgspec.json.decode(capfd.readouterr().out, type=StageAnswer)
    assert answer.error
    assert "\n" not in answer.error


def board(facts: Sequence[StageFacts], at_s: float, **fields: Any) -> tuple[StageBoard, LiveStages]:
    run = Run()
    run.clock.now_s = ORIGIN_NS * 1e-9 + at_s
    shown = run.store.stages = LiveStages("run", Path("/nowhere"), lambda: facts, **fields)
    shown.has_records = lambda: False  # nothing is read here
    return StageBoard(run.store), shown


def test_a_run_without_stages_has_no_table() -> None:
    assert StageBoard(Run().store).told() is None
    assert board([], 1.0)[0].told() is None
    other, shown = board(SWEEP, 1.0)
    shown.run = "an earlier run"
    assert other.told() is None
    assert other.csv() is None


def test_a_search_says_what_it_tries_and_why() -> None:
    facts = [SWEEP[0], stage(1, 13.0, 23.0, asked=2.0, ended_ns=None, drained_ns=None)]
    whys = {0: "the first load", 1: f"all limits hold {HOSTILE}"}
    made, shown = board(
        facts, 14.0, is_sweep=True, planned=12, objective="max concurrency under ok>9%", whys=whys
    )
    told = made.told()
    assert told is not None
    assert [row["cells"][1] for row in told["rows"]] == ["drained", "measuring"]
    assert [row["cells"][-1] for row in told["rows"]] == [
        "the first load",
        "all limits hold <script>alert(1)</script>",  # a page writes it as text; nothing reorders it
    ]
    assert "stage 1 (2 of at most 12): 2 users, all limits hold" in told["lines"][0]["text"]
    assert {len(row["cells"]) for row in told["rows"]} == {len(columns())}
    shown.reading = 1
    again = StageBoard(made._store).told()
    assert again is not None
    assert "being read" in again["lines"][0]["text"]


def test_a_stage_that_is_measured_has_the_live_figures_of_what_ended_in_it() -> None:
    run = Run()
    begun_ns = round(START_S * 1e9)
    facts = StageFacts(
        number=0, kind="users", asked=4.0, begun_ns=begun_ns, measured_ns=begun_ns + 10 * 10**9
    )
    run.store.stages = LiveStages("run", Path("/nowhere"), lambda: [facts], is_sweep=True)
    for _ in range(20):  # 10 s of warm-up, 10 s of measured part
        run.ended([request(arrivals=(0.05, 0.4))] * 3)
        run.report()
        run.clock.tick()
    told = StageBoard(run.store).told()
    assert told is not None
    (row,) = told["rows"]
    heads = [column["head"] for column in columns()]
    found = dict(zip(heads, row["cells"], strict=False))
    assert (found["state"], found["requests"], found["measured"]) == ("measuring", "30", "10.0 s")
    assert found["result"].startswith("so far: client ")


def test_a_page_lists_the_last_stages_of_very_many() -> None:
    facts = [stage(i, 1.0 + i, 1.5 + i, begun_ns=ns(0.5 + i), drained_ns=ns(1.5 + i)) for i in range(1000)]
    told = board(facts, 2000.0, is_sweep=True)[0].told()
    assert told is not None
    assert len(told["rows"]) == MOST_ROWS
    assert told["hidden"] == 900
    assert told["rows"][-1]["cells"][0] == "999"
