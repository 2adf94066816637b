"""Presets, and protocols that the package ships: each parses, has the figures of its source, can be sent."""

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from protocol_files import needed_files, needs

from llm_locust.figures.objective import parse_objective
from llm_locust.metrics.limits import Slo, parse_gates, parse_slo
from llm_locust.options.load import parse_sweep
from llm_locust.options.settings import Settings, UsageError, parse_settings
from llm_locust.options.table import GRAMMAR, KEYS, OPTION
from llm_locust.scenario.document import (
    FOLDER,
    PRESETS,
    Preset,
    Scenario,
    load_scenario,
    plan_points,
    protocol_names,
    scenario_path,
)
from llm_locust.scenario.tree import ScenarioError
from llm_locust.workload.arrivals import parse_rate
from llm_locust.workload.draws import parse_lengths
from llm_locust.workload.plan import Workload

# --- Protocols that the package ships: each parses, has its source, and has the figures of its source


ROOT = Path(__file__).parents[2]

# Facts, as their sources write them.

#: mlcommons/inference, loadgen/mlperf.conf: MODEL.Server.ttft_latency and tpot_latency in ms; the most new
#: tokens of the reference implementations.
MLPERF = {
    "llama2-70b": (2000, 200, 1024),
    "llama2-70b-interactive": (450, 40, 1024),
    "llama3.1-8b": (2000, 100, 128),
    "llama3.1-8b-interactive": (500, 30, 128),
    "llama3.1-405b": (6000, 175, 20_000),
    "llama3.1-405b-interactive": (4500, 80, 20_000),
    "mixtral-8x7b": (2000, 200, 1024),
    "deepseek-r1": (2000, 80, 20_000),
    "deepseek-r1-interactive": (1500, 15, 20_000),
    "gpt-oss-120b": (3000, 80, 10_000),
    "gpt-oss-120b-interactive": (2000, 15, 10_000),
}

#: The same file: MODEL.Server.target_latency in ms, of those without limits on tokens.
MLPERF_E2EL = {"gptj": 20_000, "qwen3-vl-235b-a22b": 12_000}

#: artificialanalysis.ai/methodology/agentperf: model -> (p25 of output speed in tokens/s, p95 of TTFT in s).
AGENTPERF = {
    "deepseek-v4-pro": [(20, 10), (60, 5), (180, 3)],
    "gpt-oss-120b": [(100, 5), (250, 3), (500, 2), (2000, 1)],
}

#: Name -> loads in order. InferenceX at 843c625; artificialanalysis.ai/methodology/system-load-test;
#: inference-perf's and llm-d's files, `load.stages[].concurrency_level`.
LADDERS = {
    "aa-slt": [1, 2, 4, 8, 16, 32, *range(64, 513, 64)],
    "inferencex-8k1k": [4, 8, 16, 32, 64],
    "inference-perf-agentic-trace-replay": [5, 10, 20, 30, 40],
    "inference-perf-interactive-chat": [10, 20, 30, 40, 50],
    "inference-perf-code-generation": [5, 10, 20, 30, 40],
    "inference-perf-deep-research": [1, 2, 3, 4, 5],
    "inference-perf-reasoning": [2, 4, 6, 8, 10],
    "inference-perf-summarization-rag": [6, 12, 18, 24, 30],
    "inference-perf-synthetic-data": [8, 16, 24, 32, 40],
    "llm-d-kimi-k3": [1, 3, 5, 10, 20],
    "mlperf-endpoints": [1, 4, 16, 32, 64, 128, 256],
}

#: Name -> (users, requests) of one load. llm-d's files.
CLOSED = {"llm-d-wide-ep": (2048, 8192), "llm-d-p2p-kv": (128, 1152), "llm-d-predicted-latency": (32, 192)}

_BASELINE = (
    "15@50 3@20 10@20 15@20 20@38 22@34 25@30 30@25 35@21 40@38 43@36 46@33 49@30 52@29 55@27 57@26 60@25"
)
#: Name -> requests/s @ seconds. llm-d's files, `load.stages`; the Gateway API Inference Extension's runs.
RATES = {
    "llm-d-optimized-baseline-1": _BASELINE,
    "llm-d-precise-prefix-1": _BASELINE,
    "llm-d-optimized-baseline-2": "1@30 3@20 5@20 7@25 9@25 11@30 13@30 15@40",
    "llm-d-precise-prefix-2": "15@50 3@20 10@20 15@20 20@38 22@34 25@30 30@40",
    "llm-d-tiered-prefix": " ".join(f"{rate}@60" for rate in range(5, 41, 5)),
    "llm-d-pd-disaggregation-1": "45@120",
    "llm-d-pd-disaggregation-2": "1@120",
    "llm-d-priority-mix": "6@90",
    "gie-high-cache": "100@30 300@30 500@30",
    "gie-low-cache": " ".join(f"{rate}@30" for rate in range(100, 801, 100)),
    "gie-prefill-heavy": "300@30 310@30 320@30 330@30",
    "gie-decode-heavy": "200@60 210@60 220@60",
    # Grafana k6: 5 users for 2 min, 100 for 1 min, 5 for 3 min.
    "spike": "5@120 100@60 5@180",
}

#: Name -> (groups, tokens) of shared prefixes; for conversations the mean of their starts with all parts.
PREFIXES = {
    "llm-d-optimized-baseline-1": (150, 6000),
    "llm-d-optimized-baseline-2": (150, 2000),
    "llm-d-precise-prefix-1": (150, 6000),
    "llm-d-precise-prefix-2": (150, 2000),
    "llm-d-tiered-prefix": (250, 16_000),
    "llm-d-p2p-kv": (192, 49_152 + 256),
    "llm-d-predicted-latency": (32, 55_000 + 3000),
    "gie-high-cache": (256, 2048),
    "gie-low-cache": (256, 256),
    "inference-perf-interactive-chat": (50, 4000 + 1000),
    "inference-perf-code-generation": (40, 160_000 + 3000),
    "inference-perf-deep-research": (5, 45_000 + 2000),
    "inference-perf-reasoning": (1, 250),
    "inference-perf-summarization-rag": (1, 500),
    "inference-perf-synthetic-data": (1, 2000),
}

#: Name -> new input tokens of a request, output tokens: (mean, sd, min, max), or one number for all of them.
Law = float | tuple[str, float, float, float, float]
LENGTHS: dict[str, tuple[Law, Law]] = {
    "aa-slt": (1000, 1000),
    "aiconfigurator": (4000, 1000),
    "inferencex-8k1k": (("uniform", 0, 0, 6553, 8192), ("uniform", 0, 0, 819, 1024)),
    "guidellm-chat": (("normal", 512, 128, 1, 1024), ("normal", 256, 64, 1, 1024)),
    "guidellm-rag": (("normal", 4096, 512, 2048, 6144), ("normal", 512, 128, 1, 1024)),
    "inference-perf-interactive-chat": (("lognormal", 50, 40, 10, 1000), ("normal", 300, 150, 10, 1000)),
    "inference-perf-code-generation": (
        ("lognormal", 1500, 1200, 100, 10_000),
        ("lognormal", 425, 825, 50, 10_000),
    ),
    "inference-perf-deep-research": (("lognormal", 3000, 2500, 500, 15_000), ("normal", 300, 850, 50, 4000)),
    "inference-perf-reasoning": (("lognormal", 1000, 800, 100, 5000), ("lognormal", 8000, 6500, 500, 32_000)),
    "inference-perf-summarization-rag": (
        ("normal", 15_000, 22_000, 1000, 80_000),
        ("normal", 500, 300, 50, 2000),
    ),
    "inference-perf-synthetic-data": (("lognormal", 500, 1200, 50, 15_000), ("uniform", 0, 0, 500, 8000)),
    "llm-d-optimized-baseline-1": (1200, 1000),
    "llm-d-optimized-baseline-2": (500, 500),
    "llm-d-precise-prefix-1": (1200, 1000),
    "llm-d-precise-prefix-2": (500, 500),
    "llm-d-tiered-prefix": (256, 256),
    "llm-d-pd-disaggregation-1": (5000, 250),
    "llm-d-pd-disaggregation-2": (1024, 1024),
    "llm-d-wide-ep": (2000, 2000),
    "llm-d-kimi-k3": (4000, 1000),
    "llm-d-p2p-kv": (256, 256),
    "llm-d-predicted-latency": (("lognormal", 1500, 1200, 100, 10_000), ("lognormal", 800, 600, 50, 4000)),
    "gie-high-cache": (256, 256),
    "gie-low-cache": (2048, 256),
}

#: Name -> law of turns (mean, sd, min, max), law of pauses in seconds.
CONVERSATIONS: dict[str, tuple[Law, Law | None]] = {
    "inference-perf-interactive-chat": (("lognormal", 4, 2.5, 1, 15), ("lognormal", 45, 40, 5, 300)),
    "inference-perf-code-generation": (("lognormal", 540, 48_600, 1, 3000), ("lognormal", 15, 55, 1, 100)),
    "inference-perf-deep-research": (("normal", 15, 8.5, 2, 50), ("normal", 25, 12, 5, 60)),
    "llm-d-p2p-kv": (6, ("lognormal", 1, 1, 1, 2)),
    "llm-d-predicted-latency": (("normal", 6, 3.5, 2, 20), None),
}

#: Name -> limits of each load in ms. inference-perf's `metadata.slos`.
LIMITS = {
    "inference-perf-interactive-chat": {"p99_ttft": 1000, "p99_itl": 50},
    "inference-perf-code-generation": {"p95_ttft": 30_000, "p99_itl": 100},
    "inference-perf-deep-research": {"p90_ttft": 10_000, "p99_itl": 100},
    "inference-perf-reasoning": {"p99_ttft": 2000, "p99_itl": 100},
    "inference-perf-summarization-rag": {"p90_ttft": 15_000, "p95_itl": 150, "p99_e2el": 630_000},
    "inference-perf-synthetic-data": {"p99_e2el": 2_080_000},
}


def protocol(name: str) -> Scenario:
    return load_scenario(scenario_path(name), GRAMMAR)


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"[0-9]+(?:\.[0-9]+)?", text)]


def figures(law: Law | None) -> list[float]:
    if law is None:
        return []
    if not isinstance(law, tuple):
        return [float(law)]
    return list(law[3:] if law[0] == "uniform" else law[1:])


def assert_law(text: str, law: Law) -> None:
    name = law[0] if isinstance(law, tuple) else ""
    assert text.startswith(f"{name}:") if name else text.isdecimal()
    assert numbers(text) == figures(law)


@pytest.mark.parametrize("name", protocol_names())
def test_a_protocol_has_its_source_and_its_date_and_calls_no_run_official(name: str) -> None:
    about = protocol(name).about
    assert about is not None
    assert about.source
    assert re.fullmatch(r"20[0-9]{2}-[0-9]{2}-[0-9]{2}", about.date)
    assert len(about.title) <= 90
    assert "official" not in (FOLDER / f"{name}.yaml").read_text().lower()
    if name.startswith(("mlperf", "inferencex", "aa-")):
        assert any("rehearsal" in line for line in about.differs)


def test_the_folder_of_the_examples_is_the_one_that_the_package_ships() -> None:
    assert (ROOT / "examples" / "protocols").resolve() == FOLDER
    assert '"protocols/*.yaml"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("model", MLPERF)
def test_limits_of_mlperf_are_those_of_its_configuration(model: str) -> None:
    ttft_ms, tpot_ms, most = MLPERF[model]
    found = protocol(f"mlperf-{model}")
    gates = parse_gates(found.options["gate"])
    assert [(g.metric, g.limit, g.is_certified) for g in gates] == [
        ("p99_ttft_scheduled", ttft_ms, True),
        ("p99_tpot", tpot_ms, True),
    ]
    assert found.options["slo"] == f"ttft={ttft_ms}ms tpot={tpot_ms}ms"
    assert found.options["slo_from"] == "scheduled"
    assert found.options["arrival"] == "poisson"
    assert found.options["run_time"] == "600s"
    assert found.options["output_tokens"] == str(most)


@pytest.mark.parametrize("model", MLPERF_E2EL)
def test_end_to_end_limits_of_mlperf_are_those_of_its_configuration(model: str) -> None:
    options = protocol(f"mlperf-{model}").options
    (gate,) = parse_gates(options["gate"])
    assert (gate.metric, gate.limit, gate.is_certified) == ("p99_e2el_scheduled", MLPERF_E2EL[model], True)
    assert (options["arrival"], options["run_time"]) == ("poisson", "600s")


@pytest.mark.parametrize(
    ("model", "speed", "ttft_s"), [(model, *tier) for model, tiers in AGENTPERF.items() for tier in tiers]
)
def test_tiers_of_agentperf_are_searched_under_their_speed_as_tpot(
    model: str, speed: int, ttft_s: int
) -> None:
    found = protocol(f"aa-agentperf-{model}-{speed}")
    objective = parse_objective(found.options["find"])
    slowest, first = objective.limits
    assert (objective.axis, found.needs) == ("concurrency", ("trajectories",))
    assert (slowest.metric, slowest.required, first.metric, first.required) == ("tpot", 0.75, "ttft", 0.95)
    assert slowest.limit_s is not None
    assert speed <= 1 / slowest.limit_s < speed * 1.0002
    assert first.limit_s == ttft_s
    assert found.options["slo"] == f"ttft={ttft_s}s tpot={slowest.limit_s * 1e3:.10g}ms"
    assert (found.options["first_load"], found.options["stage_time"]) == ("2", "10m")
    assert found.options["output_tokens"] == "16000"


def test_there_is_a_protocol_for_each_tier_of_agentperf_and_no_other() -> None:
    tiers = {f"aa-agentperf-{model}-{speed}" for model, of in AGENTPERF.items() for speed, _ in of}
    assert {name for name in protocol_names() if name.startswith("aa-agentperf")} == tiers


def test_agentx_is_an_hour_of_agents_with_recorded_lengths() -> None:
    found = protocol("inferencex-agentx")
    assert (found.options["run_time"], found.options["seed"]) == ("3600s", 42)
    assert (found.needs, found.options["body"]) == (("trajectories",), '{"ignore_eos": true}')


@pytest.mark.parametrize("name", LADDERS)
def test_loads_of_a_ladder_are_those_of_its_source(name: str) -> None:
    assert list(parse_sweep(protocol(name).options["sweep"]).values) == LADDERS[name]


@pytest.mark.parametrize("name", CLOSED)
def test_one_load_has_the_users_and_the_requests_of_its_source(name: str) -> None:
    options = protocol(name).options
    assert (options["users"], options["num_requests"]) == CLOSED[name]


@pytest.mark.parametrize("name", RATES)
def test_rates_last_as_long_as_in_their_source(name: str) -> None:
    options = protocol(name).options
    wanted = [tuple(map(float, word.split("@"))) for word in RATES[name].split()]
    at, begins = 0.0, []
    for rate, seconds in wanted:
        begins.append((at, rate))
        at += seconds
    segments: Sequence[tuple[float, float]] = [
        (s.start_s, s.rate) for s in parse_rate(str(options["request_rate"])).segments
    ]
    assert list(segments[: len(begins)]) == begins
    assert options["run_time"] == f"{at:.0f}s"


@pytest.mark.parametrize("name", protocol_names())
def test_prefixes_lengths_turns_and_limits_are_those_of_their_source(name: str) -> None:
    found = protocol(name)
    (first, *_) = found.classes
    prefix = first.shared_prefix
    assert (None if prefix is None else (prefix.groups, prefix.tokens)) == PREFIXES.get(name)
    if name in LENGTHS:
        for key, law in zip(("input_tokens", "output_tokens"), LENGTHS[name], strict=True):
            assert_law(str(found.options[key]), law)
    talk = first.conversation
    assert (talk is not None) == (name in CONVERSATIONS)
    if talk is not None:
        turns, pauses = CONVERSATIONS[name]
        assert_law(talk.turns.text, turns)
        assert numbers(talk.think_time or "") == figures(pauses)
    assert found.about is not None
    assert {gate.metric: gate.limit for gate in parse_gates(found.about.limits)} == LIMITS.get(name, {})


def test_classes_of_the_priority_mix_name_their_objective_and_no_priority_that_vllm_reads_backwards() -> None:
    classes = protocol("llm-d-priority-mix").classes
    assert [(c.name, c.weight, c.headers["x-gateway-inference-objective"], c.body) for c in classes] == [
        ("critical", 0.2, "app-critical", {}),
        ("normal", 0.6, "app-normal", {}),
        ("batch", 0.2, "app-batch", {}),
    ]


def test_the_default_of_aiconfigurator_has_its_limits() -> None:
    assert protocol("aiconfigurator").options["slo"] == "ttft=2000ms tpot=30ms"


@pytest.mark.parametrize(
    ("c_min", "c_max", "low", "medium", "high", "highest"),
    [
        # mlcommons/endpoints_policies v1.0, its own examples.
        (16, 1024, (17, 26), (27, 117), (118, 1024), 1127),
        (1, 256, (2, 7), (8, 41), (42, 256), 282),
        (32, 8192, (33, 52), (53, 437), (438, 8192), 9012),
    ],
)
def test_points_of_mlperf_endpoints_lie_in_its_regions(
    c_min: int, c_max: int, low: tuple[int, int], medium: tuple[int, int], high: tuple[int, int], highest: int
) -> None:
    points = plan_points(c_min, c_max)
    assert (points.low, points.medium, points.high, points.highest) == (low, medium, high, highest)
    assert points.planned[0] == c_min
    assert points.planned[-1] == c_max
    for first, last in (low, medium, high):
        assert sum(first <= p <= last for p in points.planned) == 2


@pytest.mark.parametrize("c_min", [1, 2, 31, 32])
def test_every_plan_of_points_has_no_point_twice(c_min: int) -> None:
    for c_max in range(33, 400):
        points = plan_points(c_min, c_max).planned
        assert sorted(set(points)) == list(points), c_max
        assert len(points) == 7 or c_max - c_min < 30, c_max


def test_a_file_of_the_working_directory_is_taken_before_a_protocol_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_scenario("guidellm-chat", GRAMMAR).about is not None
    (tmp_path / "guidellm-chat").write_text("users: 3\n")
    assert load_scenario("guidellm-chat", GRAMMAR).options == {"users": 3}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("about: {source: x}", "about lacks 'title'"),
        ("about: {title: x, sauce: y}", "unknown key 'sauce'"),
        ('about: {title: "a\\tb"}', "one line of printable characters"),
    ],
)
def test_what_is_said_about_a_scenario_is_checked(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(ScenarioError, match=re.escape(said)):
        load_scenario(tmp_path / "s.yaml", GRAMMAR)


# --- Protocols that the package ships: the run of each can be set up, and its first requests made


def settings(name: str, **given: str) -> Settings:
    """Of a run with nothing but the protocol's scenario, and what it needs besides."""
    scenario = load_scenario(scenario_path(name), GRAMMAR)
    options = {KEYS[key]: value for key, value in scenario.options.items()}
    text = scenario.text_for_workers()
    return parse_settings(argparse.Namespace(**options, **given, llm_scenario=text), {})


@pytest.mark.parametrize("name", protocol_names())
def test_the_run_of_a_protocol_can_be_set_up_and_its_requests_be_made(name: str, tmp_path: Path) -> None:
    given = needed_files(name, tmp_path)
    found = settings(name, **given)
    assert (found.pool is None) == ("trajectories" not in given)
    for kind in found.kinds:
        workload = Workload(kind.spec, seed=1, worker_index=0, worker_count=1, salt="s")
        template = kind.spec.body_template("m")
        for _, prompt in zip(range(3), workload.prompts(0), strict=False):
            assert json.loads(template.encode(prompt))["model"] == "m"
        if kind.plan is not None and kind.plan.turns is not None:
            assert kind.plan.turns.draw(np.random.default_rng(1), 9).min() >= 1


@pytest.mark.parametrize("name", [name for name in protocol_names() if needs(name)])
def test_a_protocol_that_needs_a_file_is_refused_without_it_by_its_name(name: str) -> None:
    (option,) = needs(name)
    with pytest.raises(UsageError) as error:
        settings(name)
    assert f"--scenario: {name} needs {OPTION[option].flag} FILE: " in str(error.value)


def test_an_option_that_is_none_is_named_with_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("needs: [trajectorys]\n")
    with pytest.raises(UsageError, match="needs 'trajectorys': did you mean \"trajectories\""):
        settings(str(path))


# --- Presets: each is usable as it is, has the limits that its case is known for


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS.keys())
def test_lengths_and_limits_parse(preset: Preset) -> None:
    rng = np.random.default_rng(1)
    for text in (preset.input_tokens, preset.output_tokens):
        lengths = parse_lengths(text).draw(rng, 4000)
        median = float(text.removeprefix("lognormal:").split(",")[0])
        assert np.median(lengths) == pytest.approx(median, rel=0.1)
    assert isinstance(parse_slo(preset.slo), Slo)


@pytest.mark.parametrize(
    ("name", "slo"),
    [
        ("chat", Slo(ttft_s=0.5)),
        ("code", Slo(ttft_s=0.1)),
        ("voice", Slo(ttft_s=0.1)),
        ("agent", Slo(ttft_s=1.0, tpot_s=0.025)),
        ("batch", Slo()),
    ],
)
def test_limits_are_the_usual_ones_of_the_case(name: str, slo: Slo) -> None:
    assert parse_slo(PRESETS[name].slo) == slo
