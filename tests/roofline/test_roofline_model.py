"""A model's bytes and operations, and its shape from files."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from roofline_cases import MODELS, llama_8b, mixtral, roofs, shape

from llm_locust.roofline import Roof, RooflineError, model_of, read_model


def test_llama_3_8b_by_hand() -> None:
    model = llama_8b()
    assert model.weights_bytes == 2 * 8_030_261_248
    assert model.kv_bytes_per_token == 32 * 2 * 8 * 128 * 2 == 131_072
    of_embedding = 128_256 * 4096
    assert model.read_bytes(1.0) == model.flops_per_token(0.0) == 2 * (8_030_261_248 - of_embedding)
    # Of a prompt only the last token asks for what follows.
    assert model.prompt_token_flops == 2 * (8_030_261_248 - 2 * of_embedding)
    assert model.prompt_flops(1.0) == model.flops_per_token(1.0)
    assert model.flops_per_token(1000.0) - model.flops_per_token(0.0) == 4 * 32 * 32 * 128 * 1000
    assert model.embedding_bytes == 128_256 * 4096 * 2


def test_the_operations_of_a_prompt_are_those_of_its_tokens_one_by_one() -> None:
    model = shape(vocabulary=1000, hidden_size=1000)
    head = 2.0 * model.vocabulary * model.hidden_size
    by_token = sum(model.flops_per_token(float(i)) - head for i in range(1, 101)) + head
    assert model.prompt_flops(100.0) == pytest.approx(by_token)
    cached = sum(model.flops_per_token(float(i)) - head for i in range(1, 41))
    assert model.prompt_flops(100.0, 40.0) == pytest.approx(by_token - cached)
    assert model.prompt_flops(100.0, 100.0) == 0


def test_amounts_may_be_arrays() -> None:
    model, tokens = mixtral(), np.array([1.0, 10.0])
    assert model.prompt_flops(tokens).tolist() == [model.prompt_flops(1.0), model.prompt_flops(10.0)]
    assert model.read_bytes(tokens) == pytest.approx([model.read_bytes(1.0), model.read_bytes(10.0)])


def test_fewer_bytes_of_a_weight_and_of_a_cached_value_are_counted_so() -> None:
    assert shape(weights="int4").weights_bytes == 5e8
    assert shape(weights="fp8").kv_bytes_per_token == shape().kv_bytes_per_token
    assert shape(kv_cache="fp8").kv_bytes_per_token == shape().kv_bytes_per_token / 2
    assert shape(kv_bytes=123.0).kv_bytes_per_token == 123.0


def test_a_latent_takes_the_place_of_keys_and_values_by_head() -> None:
    assert shape(kv_latent_dim=576).kv_bytes_per_token == 10 * 576 * 2


def test_a_tied_embedding_is_read_as_a_whole() -> None:
    assert shape(tied_embeddings=True).embedding_bytes == 0


@pytest.mark.parametrize(
    ("weights", "arithmetic", "computed"),
    [
        ("fp16", None, "bf16"),
        ("fp8", None, "fp8"),
        ("int8", None, "int8"),
        ("int4", None, "bf16"),
        ("fp4", "fp8", "fp8"),
    ],
)
def test_arithmetic_is_that_of_the_weights_unless_it_is_given(
    weights: str, arithmetic: str | None, computed: str
) -> None:
    assert shape(weights=weights, arithmetic=arithmetic).computed_in == computed


def test_one_token_of_mixtral_reads_its_active_parameters_and_many_read_all() -> None:
    model = mixtral()
    assert model.experts_touched(1.0) == pytest.approx(2)
    assert model.read_bytes(1.0) == pytest.approx(2 * (12_879_925_248 - 32_000 * 4096))
    # Of two tokens the second finds each expert taken by the first with a chance of 2/8.
    assert model.experts_touched(2.0) == pytest.approx(2 + 2 * 6 / 8)
    assert model.read_bytes(1e4) == pytest.approx(model.weights_bytes - model.embedding_bytes)


@given(roofs(), st.integers(1, 5000))
def test_a_step_reads_active_parameters_at_least_all_at_most_and_never_less_for_more_tokens(
    roof: Roof, tokens: int
) -> None:
    model = roof.model
    read, more = model.read_bytes(float(tokens)), model.read_bytes(float(tokens + 1))
    of_one = model.read_bytes(1.0)
    assert of_one == pytest.approx(model.active / model.parameters * model.weights_bytes)
    assert of_one * (1 - 1e-9) <= read <= more * (1 + 1e-9)
    assert more <= model.weights_bytes * (1 + 1e-9)
    # Each token reads no more than it would alone.
    assert read <= tokens * of_one * (1 + 1e-9)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"layers": 0}, "layers of billion is 0: write a number above 0"),
        ({"kv_bytes": float("nan")}, "kv_bytes of billion is nan"),
        ({"weights": "bf8"}, 'weights of billion is "bf8": write one of bf16, fp16, fp8'),
        ({"arithmetic": "int4"}, 'arithmetic of billion is "int4": write one of bf16, fp8, int8'),
        ({"experts": 8}, "a mixture of experts needs all three"),
        (
            {"experts": 2, "experts_per_token": 3, "active_parameters": 10**8},
            "experts_per_token of billion is 3: write no more than its 2 experts",
        ),
        (
            {"experts": 8, "experts_per_token": 2, "active_parameters": 10**10},
            "active_parameters of billion is 10,000,000,000: write no more than its 1,000,000,000",
        ),
        (
            {"experts": 8, "experts_per_token": 4, "active_parameters": 10**8},
            "active_parameters of billion is 100,000,000: 4 of 8 experts are more than that",
        ),
    ],
)
def test_values_that_go_together_in_no_model_are_refused(fields: dict[str, object], said: str) -> None:
    with pytest.raises(RooflineError) as e:
        shape(**fields)
    assert said in str(e.value)


LINES = (
    "parameters: 8.03e9",
    "layers: 32",
    "hidden_size: 4096",
    "attention_heads: 32",
    "vocabulary: 128_256",
)


#: Parameters counted by their published shapes: what their checkpoints have.
PUBLISHED = {
    "llama-3-8b": (8_030_261_248, 131_072),
    "llama-3-70b": (70_553_706_496, 327_680),
    "qwen-2.5-7b": (7_615_616_512, 57_344),
    "qwen-2.5-72b": (72_706_203_648, 327_680),
    "mixtral-8x7b": (46_702_792_704, 131_072),
    "deepseek-v3": (671_026_419_200, 70_272),
}


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "own.yaml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(RooflineError) as e:
        read_model(path)
    said = str(e.value)
    assert said.startswith(f"{path}: ")
    assert "\n" not in said
    return said.removeprefix(f"{path}: ")


@pytest.mark.parametrize("name", PUBLISHED)
def test_an_example_is_the_published_model(name: str) -> None:
    model = read_model(MODELS / f"{name}.yaml")
    assert (model.parameters, model.kv_bytes_per_token) == PUBLISHED[name]


def test_every_example_is_looked_at_and_names_its_source() -> None:
    assert {path.stem for path in MODELS.glob("*.yaml")} == set(PUBLISHED)
    assert all("source: https://huggingface.co/" in path.read_text() for path in MODELS.glob("*.yaml"))


def test_deepseek_computes_in_eight_bits_and_reads_one_token_as_its_active_parameters() -> None:
    model = read_model(MODELS / "deepseek-v3.yaml")
    assert model.computed_in == "fp8"
    assert model.active == pytest.approx(37.5e9, rel=0.01)
    assert model.read_bytes(1.0) == pytest.approx(model.active - 129_280 * 7168)


def test_what_is_not_written_follows_from_the_rest(tmp_path: Path) -> None:
    model = read_model(written(tmp_path, *LINES))
    assert (model.name, model.parameters) == ("own", 8_030_000_000)
    assert (model.head_dim, model.kv_heads, model.weights) == (128, 32, "bf16")


def test_a_shape_is_a_document_of_itself() -> None:
    model = read_model(MODELS / "mixtral-8x7b.yaml")
    assert model_of(asdict(model), "manifest") == model


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("kv_head: 8", "there is no key 'kv_head': did you mean \"kv_heads\"? known are parameters"),
        ("1: 8", "there is no key 1: known are parameters"),
        ("kv_heads: many", "kv_heads is 'many': write a whole number above 0, as 32 or 8.03e9"),
        ("kv_heads: 2.5", "kv_heads is 2.5: write a whole number above 0"),
        ("kv_heads: true", "kv_heads is True: write a whole number above 0"),
        ("kv_heads: .inf", "kv_heads is inf: write a whole number above 0"),
        ("kv_heads: [8]", "kv_heads is a list: write a whole number above 0"),
        ("kv_bytes: -1", "kv_bytes is -1: write a number above 0"),
        ("weights: bf8", "weights is 'bf8': write one of bf16, fp16, fp8, int8, fp4, int4"),
        ("kv_cache: [fp8]", "kv_cache is a list: write one of"),
        ("tied_embeddings: 1", "tied_embeddings is 1: write true or false"),
        ("name: [a]", "name is a list: write a text of one line"),
        ('name: "a\\nb"', "name is 'a\\nb': write a text of one line"),
        ("kv_heads: &a [1, 2]\nexperts: [*a, *a]", "kv_heads is a list"),
        ("experts: 8", "own has some of active_parameters, experts and experts_per_token"),
    ],
)
def test_what_is_wrong_is_told_with_its_key_and_what_is_allowed(tmp_path: Path, line: str, said: str) -> None:
    assert refusal(written(tmp_path, *LINES, line)).startswith(said)


@pytest.mark.parametrize("line", LINES)
def test_a_line_that_is_needed_is_missed_by_its_name(tmp_path: Path, line: str) -> None:
    key = line.partition(":")[0]
    assert refusal(written(tmp_path, *(other for other in LINES if other != line))).startswith(
        f"{key} is missing"
    )


def test_a_head_dim_that_does_not_follow_has_to_be_written(tmp_path: Path) -> None:
    lines = [line.replace("4096", "4100") for line in LINES]
    assert "hidden_size 4100 is no multiple of attention_heads 32: write it" in refusal(
        written(tmp_path, *lines)
    )
    assert read_model(written(tmp_path, *lines, "head_dim: 64")).head_dim == 64


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "not a mapping"),
        (b"- 1", "not a mapping"),
        (b"layers: [", "broken YAML"),
        (b"layers: !!python/object:os.system 1", "broken YAML"),
        (b"\xff\xfe\xff", "cannot be read: it is not UTF-8"),
        (b"[" * 1000, "broken YAML: too deep"),
        (b"#" * 70_000, "longer than 64 KiB"),
        (b'layers: "\\U99999999"', "broken YAML"),
    ],
)
def test_a_file_that_is_none_is_refused_in_one_line(tmp_path: Path, text: bytes, said: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_bytes(text)
    assert refusal(path).startswith(said)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.yaml").startswith("cannot be read: No such file")
    assert refusal(tmp_path).startswith("cannot be read: Is a directory")


def test_a_name_without_a_value_is_the_file_s(tmp_path: Path) -> None:
    assert read_model(written(tmp_path, *LINES, "name:")).name == "own"
    with pytest.raises(RooflineError, match="where: name is missing"):
        model_of({**asdict(read_model(written(tmp_path, *LINES))), "name": None}, "where")
