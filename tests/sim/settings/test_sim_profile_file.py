"""Deployment profiles: what is computed, what is stated, and what is wrong."""

from dataclasses import replace
from pathlib import Path

import pytest

from llm_locust.sim.engine.engine import Engine
from llm_locust.sim.engine.scheduler import EngineProfile, EngineSequence
from llm_locust.sim.settings import SettingsError, read_profile

EXAMPLES = Path(__file__).parents[3] / "examples"

#: A model and a GPU whose costs can be told by heart: 1 ms to read the weights, 1 µs a token.
VALUES = """
model: {name: toy, parameters: 1000000, layers: 1, hidden_size: 8, attention_heads: 1, kv_heads: 1,
        head_dim: 8, vocabulary: 10, tied_embeddings: true}
gpu: {name: toy, memory_bytes: 20000000, bandwidth_bytes_per_s: 2000000000, bf16_flops: 2000000000000}
"""


def profile(folder: Path, text: str) -> Path:
    path = folder / "profile.yaml"
    path.write_text(text)
    return path


def test_costs_follow_from_values_that_the_file_states(tmp_path: Path) -> None:
    read = read_profile(profile(tmp_path, VALUES + "memory_utilization: 0.5"))
    assert read.engine == {
        "ttft_base_ns": 0,
        "step_per_sequence_ns": 0,
        "step_base_ns": 1_000_000,  # 2 MB / 2 GB/s
        "prefill_per_token_ns": pytest.approx(1_000.0, rel=1e-3),  # 2 · 10⁶ FLOP / 2 TFLOP/s
        "context_per_token_ns": pytest.approx(16.0),  # 2 · 8 values of 2 bytes / 2 GB/s
        "kv_cache_tokens": 250_000,  # 8 MB beside the weights, 32 bytes each
        "overlap": True,
    }
    assert read.max_model_len is None
    assert "toy" in read.source


def test_several_gpus_share_the_work_and_efficiencies_make_it_slower(tmp_path: Path) -> None:
    text = VALUES + "gpus: 4\nmemory_efficiency: 0.5\ncompute_efficiency: 0.25"
    read = read_profile(profile(tmp_path, text))
    assert read.engine["step_base_ns"] == 500_000
    assert read.engine["prefill_per_token_ns"] == pytest.approx(1_000.0, rel=1e-3)
    assert read.gpu.count == 4
    assert read.gpu.weights_mib == pytest.approx(500_000 / 2**20)


def test_what_the_file_states_of_the_engine_is_taken_as_it_stands(tmp_path: Path) -> None:
    stated = "engine: {step_base: 7ms, max_num_seqs: 3, prefix_cache: on, noise: 0, max_model_len: 100}"
    read = read_profile(profile(tmp_path, VALUES + stated))
    assert read.engine["step_base_ns"] == 7_000_000
    assert (read.engine["max_num_seqs"], read.engine["prefix_cache"], read.engine["noise"]) == (3, True, 0.0)
    assert read.max_model_len == 100


def test_a_model_is_found_beside_the_profile(tmp_path: Path) -> None:
    model = EXAMPLES / "models" / "llama-3-8b.yaml"
    (tmp_path / "m.yaml").write_text(model.read_text())
    read = read_profile(profile(tmp_path, "model: m.yaml\ngpu: h100"))
    assert read.engine["step_base_ns"] == pytest.approx(15.01e9 / 3.35e12 * 1e9, rel=1e-3)


@pytest.mark.parametrize("path", sorted((EXAMPLES / "deployments").glob("*.yaml")), ids=lambda p: p.stem)
def test_the_examples_make_engines(path: Path) -> None:
    read = read_profile(path)
    engine = EngineProfile(**read.engine)
    assert read.max_model_len is not None
    assert engine.longest_sequence_tokens >= read.max_model_len
    assert engine.overlap


def test_an_idle_engine_of_a_profile_runs_at_its_roofline(tmp_path: Path) -> None:
    read = read_profile(profile(tmp_path, VALUES))
    engine, ends_ns = Engine(replace(EngineProfile(**read.engine), noise=0.0), 0), list[int]()
    engine.submit(EngineSequence(prompt_tokens=2, output_tokens=51, ready_ns=0))
    while (end_ns := engine.start_step()) is not None:
        ends_ns.append(end_ns)
        engine.finish_step()
    # 50 steps of 1 ms and of 16 ns for each of up to 53 tokens of context.
    assert len(ends_ns) == 51
    assert 50_000_000 < ends_ns[-1] - ends_ns[0] < 50_000_000 + 50 * 16 * 53


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[1", "broken YAML"),
        ("- model", "not a mapping: write lines such as gpu: h100"),
        ("gpu: h100", "model is missing"),
        ("model: m.yaml\ngpuu: h100", "there is no key 'gpuu'; did you mean 'gpu'?"),
        ("model: m.yaml\ngpu: h100", "m.yaml: cannot be read: No such file"),
        (VALUES.replace("gpu: {", "gpu: h1000 #"), 'there is no GPU "h1000": did you mean "h100"'),
        (VALUES.replace("layers: 1, ", ""), "model: Object missing required field `layers`"),
        (VALUES.replace("layers: 1", "layers: -1"), "layers of toy is -1: write a number above 0"),
        (VALUES.replace("layers", "layer"), "model: there is no key 'layer'; did you mean 'layers'?"),
        (VALUES.replace("20000000,", "much,"), "gpu: Expected `float`, got `str` - at `$.memory_bytes`"),
        (VALUES.replace("20000000,", "2000000,"), "do not fit into 90% of"),
        (VALUES + "gpus: 0", "gpus is 0: write a whole number of at least 1"),
        (VALUES + "memory_efficiency: 2", "memory_efficiency is 2: write a number above 0 and at most 1"),
        (VALUES + "engine: fast", "engine is 'fast': write a mapping"),
        (VALUES + "engine: {step: 1ms}", "engine: there is no key 'step'; did you mean 'step_base'?"),
        (VALUES + "engine: {step_base: 1}", "engine: step_base: '1': a number without a unit"),
        (VALUES + "engine: {prefix_cache: 1}", "engine: prefix_cache is 1: write on or off"),
        (VALUES + "engine: {noise: loud}", "engine: noise is 'loud': write a number of at least 0"),
    ],
)
def test_a_bad_profile_is_one_line_with_the_files_name(tmp_path: Path, text: str, says: str) -> None:
    path = profile(tmp_path, text)
    with pytest.raises(SettingsError) as caught:
        read_profile(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
