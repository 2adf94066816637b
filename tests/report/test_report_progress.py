"""A running load test in a few lines, on a terminal and in a log."""

import io
from dataclasses import replace

import pytest
from live_cases import LIMITS, Run, observation, worker
from metrics_cases import failed, request
from rich.cells import cell_len
from rich.console import Console

from llm_locust.core.manifest import StageFacts
from llm_locust.figures.agents import PerTurn
from llm_locust.live.counts import METRICS
from llm_locust.live.figures import AgentFigures, LiveLatency
from llm_locust.live.snapshot import snapshot
from llm_locust.live.state import MISSING, LiveRun, Observation, State
from llm_locust.report.console import PresentStage, Progress, ProgressPanel, progress_line


def progress(run: Run, **facts: object) -> Progress:
    told = LiveRun(id="run", limits=LIMITS, **facts)  # type: ignore[arg-type]
    return Progress(told, snapshot(run.store), snapshot(run.store, 10))


def drawn(progress: Progress, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(ProgressPanel(progress))
    assert isinstance(console.file, io.StringIO)
    *lines, last = console.file.getvalue().splitlines()
    assert last == "", "the cursor is on a line of its own, where a terminal has room for its ^C"
    return lines


@pytest.fixture(scope="module")
def going() -> Run:
    """65 s: a good and a late answer each second, and in the first ten a failure."""
    run = Run()
    for second in range(65):
        run.ended([request(arrivals=(0.05, 0.07)), request(arrivals=(0.2, 0.23))])
        run.ended([failed()] if second < 10 else [])
        run.report()
        run.clock.tick()
    run.store.observe(observation(50, worker("a", in_flight=30), worker("b", in_flight=18)))
    return run


def test_a_line_says_what_matters(going: Run) -> None:
    assert progress_line(progress(going, run_time_s=300)) == (
        "1:05 of 5:00 · 50 users · 48 in flight · 2 workers · 4.00 tokens/s · "
        "TTFT p50 125 p99 200 ms · goodput 46.4 % · 10 errors · client ok"
    )


@pytest.mark.parametrize(
    ("goodput", "state", "is_bound", "said"),
    [
        (0.98, "measuring", False, "stage 3 (4 of 8): 4 users, measuring, goodput 98.0 % · "),
        (None, "ramp", True, "stage 3 (4 of at most 8): 4 users, ramp · "),
        (None, "draining", False, "stage 3 (4 of 8): 4 users, draining · "),
    ],
)
def test_of_a_sweep_the_present_stage_is_told_with_its_load_and_its_own_goodput(
    going: Run, goodput: float | None, state: State, is_bound: bool, said: str
) -> None:
    facts = StageFacts(number=3, kind="users", asked=4.0, begun_ns=0)
    told = replace(progress(going), stage=PresentStage(facts, state, 8, is_bound, goodput))
    assert said in progress_line(told)
    assert "46.4 %" not in progress_line(told), "of all stages together it says nothing"
    assert said.removesuffix(" · ") in "\n".join(drawn(told, 80))


def test_long_answers_that_are_still_streamed_are_no_rate_of_0() -> None:
    run = Run()
    run.report()
    run.clock.tick(20)
    run.report()
    run.store.observe(observation(2, worker("a", in_flight=2)))
    text = progress_line(progress(run))
    assert "2 in flight · no request ended in the last 10.0 s · 0 errors" in text
    assert "tokens/s" not in text


@pytest.mark.parametrize("width", [80, 140])
def test_the_panel_fits_its_width_and_loses_no_figure(going: Run, width: int) -> None:
    lines = drawn(progress(going, run_time_s=300), width)
    assert all(cell_len(text) == width for text in lines)
    assert 7 <= len(lines) <= 8
    text = "\n".join(lines)
    assert "1:05 of 5:00" in text
    assert "50 users · 48 in flight · 2 workers" in text
    assert "last 10 s" in text
    assert "since start" in text
    assert "46.4 %" in text
    assert "client ok" in text
    assert "…" not in text


@pytest.mark.parametrize("width", [80, 100, 140])
def test_what_does_not_fit_goes_by_columns_and_goodput_stays(going: Run, width: int) -> None:
    found = progress(going)
    agents = AgentFigures(
        turns=1, ok=1, jobs=12_345, jobs_failed=234, tools_s=1.0, output_tokens_per_s_p25=123.4
    )
    large = replace(
        found.whole.total,
        failures=1_234_567,
        agents=agents,
        inputs_per_s=123_456.7,
        input_tokens_per_s=12_345_678.9,
        output_tokens_per_s=1_234_567.8,
        latencies=dict.fromkeys(METRICS, LiveLatency(1, 12_345.6, 123_456.7, 234_567.8)),
    )
    lines = drawn(replace(found, whole=replace(found.whole, total=large)), width)
    assert all(cell_len(text) == width for text in lines)
    assert "…" not in "\n".join(lines)
    heads, figures = next(
        (a.split(), c.split()) for a, c in zip(lines, lines[2:], strict=False) if "req/s" in a
    )
    assert (heads[-2], figures[-3:-1]) == ("goodput", ["46.4", "%"])
    assert "1,234,567" in figures
    assert ("TTFT" in heads) <= ("p99" in heads)


def test_a_wide_panel_has_more_columns(going: Run) -> None:
    told = progress(going)
    assert "TPOT p50" in "\n".join(drawn(told, 140))
    assert "TPOT p50" not in "\n".join(drawn(told, 80))


@pytest.mark.parametrize("width", [80, 140])
def test_what_is_not_defined_yet_is_a_dash(width: int) -> None:
    told = progress(Run())
    text = "\n".join(drawn(told, width))
    assert "–" in text
    assert "nan" not in text.lower()
    assert progress_line(told) == (
        "0:00 · 0 users · – in flight · – tokens/s · TTFT p50 – p99 – ms · 0 errors · client –"
    )


def test_hours_are_told_as_such(going: Run) -> None:
    told = progress(going, run_time_s=26 * 3600 + 180)
    assert progress_line(told).startswith("1:05 of 26:03:00 · ")


def test_a_ramp_says_how_far_it_is() -> None:
    run = Run()
    run.store.observe(observation(20, target=50))
    assert " · 20 of 50 users · " in progress_line(progress(run))


def test_an_open_loop_says_its_rate() -> None:
    run = Run()
    run.store.observe(Observation(users=1, target=1, rate=12.5))
    assert " · 12.5 requests/s asked for · " in progress_line(progress(run, open_loop=True))


def test_an_open_loop_whose_rate_is_not_known_does_not_show_users() -> None:
    run = Run()
    run.store.observe(observation(1))
    assert " · open loop · " in progress_line(progress(run, open_loop=True))


def test_lost_workers_and_lost_reports_are_said() -> None:
    run = Run()
    run.ended([request()])
    run.worker().report()
    run.report()
    run.store.observe(observation(1, worker("a"), worker("b", MISSING)))
    text = progress_line(progress(run))
    assert "1 worker · 1 worker lost · " in text
    assert "1 request not in these numbers" in text


def test_a_client_that_cannot_be_trusted_says_why() -> None:
    run = Run()
    run.ended([request(kernel_stamps=False)])
    run.report()
    run.clock.tick(2)
    run.store.observe(observation(1, worker("a", cpu_percent=99.0)))
    text = "\n".join(drawn(progress(run), 140))
    assert "client invalid: the busiest worker used 99 % of its core: use more workers" in text


def test_a_run_that_generates_nothing_shows_inputs_and_its_whole_latency() -> None:
    run = Run()
    for _ in range(10):
        run.ended([request(0, (), ended=0.2, streamed=False, inputs=32, output_tokens=None)])
        run.report()
        run.clock.tick()
    text = progress_line(progress(run))
    assert "32.0 inputs/s · E2EL p50 200 p99 200 ms" in text
    assert "tokens/s" not in text
    panel = "\n".join(drawn(progress(run), 80))
    assert "inputs/s" in panel
    assert "TTFT" not in panel


def test_agents_have_their_jobs_and_the_speed_of_their_turns_at_any_width() -> None:
    run = Run()
    run.store.begin(LiveRun(id="run", limits=LIMITS, roots=1, pauses_s=PerTurn.of([[1.0, 0.0]])))
    walks = [request(arrivals=(0.05, 0.07), session=f"r{i}-t0-of2", turn=1) for i in range(6)]
    run.ended([*walks, failed(session="r9-t0-of2", turn=0)])
    run.report()
    run.store.observe(observation(4, worker(in_flight=3)))
    run.clock.tick()
    found = progress(run, pauses_s=PerTurn.of([[1.0, 0.0]]))
    assert " · 4 agents · " in progress_line(found)
    assert " · 6 jobs, 1 failed · " in progress_line(found)
    for width in (80, 100, 120, 140):
        lines = drawn(found, width)
        assert all(cell_len(text) == width for text in lines)
        text = "\n".join(lines)
        assert "4 agents" in text
        assert "…" not in text
        heads = next(text for text in lines if "req/s" in text)
        assert "jobs" in heads
        assert ("p25 tok/s" in heads) == (width >= 120)
