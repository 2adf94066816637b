"""A model's bytes and operations."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from roofline_cases import llama_8b, mixtral, roofs, shape

from llm_locust.roofline.bounds import Roof
from llm_locust.roofline.gpus import RooflineError


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
