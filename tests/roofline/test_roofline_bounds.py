"""Bounds of a step, of a prompt and of a deployment."""

import pytest
from hypothesis import given, strategies as st
from roofline_cases import PLAIN_GPU, llama_8b, plain_roof, roofs, shape

from llm_locust.roofline.bounds import (
    Roof,
    decode_bound,
    mean_context,
    prefill_bound,
    ridge_batch,
    roof_of_options,
    saturation,
)
from llm_locust.roofline.gpus import RooflineError, gpu_named

BATCHES = st.integers(1, 4096)
CONTEXTS = st.integers(0, 200_000)
#: Sums of large floats.
NEARLY = 1 - 1e-12


def test_llama_3_8b_on_an_h100_by_hand() -> None:
    roof = Roof(llama_8b(), gpu_named("h100"))
    # 16.06 GB less the input embedding's 1.05 over 3.35 TB/s.
    assert decode_bound(roof, 1, 0).seconds == pytest.approx(4.4806e-3, rel=1e-4)
    assert decode_bound(roof, 1, 0).binds == "memory"
    # And 32 × 1,000 tokens of 131,072 bytes: 4.19 GB more.
    assert decode_bound(roof, 32, 1000).seconds == pytest.approx((15.0098e9 + 4.1943e9) / 3.35e12, rel=1e-4)
    # 512 × 2 × 6.9796 G, the output head's 1.05 once, 131,328 × 524,288, over 989.5 TFLOP/s.
    prompt = prefill_bound(roof, 512)
    assert prompt.flops == pytest.approx(7.1471e12 + 0.00105e12 + 0.06885e12, rel=1e-4)
    assert prompt.seconds == pytest.approx(7.2937e-3, rel=1e-3)
    assert prompt.binds == "compute"
    # A short prompt waits for the weights.
    assert prefill_bound(roof, 16).seconds == pytest.approx(4.4806e-3, rel=1e-4)


def test_a_step_has_every_term_that_it_is_made_of() -> None:
    step = decode_bound(plain_roof(), 10, 1000)
    assert (step.weights_bytes, step.kv_bytes) == (2e9, 10 * 1000 * 80_000)
    assert step.flops == pytest.approx(10 * (2e9 + 1000 * 40_000))
    assert step.memory_s == pytest.approx((2e9 + 0.8e9) / 1e12)
    assert step.compute_s == pytest.approx(20.4e9 / 100e12)


@given(roofs(), BATCHES, CONTEXTS)
def test_more_to_do_never_takes_less_and_more_gpus_never_take_more(
    roof: Roof, batch: int, context: int
) -> None:
    step = decode_bound(roof, batch, context).seconds
    assert decode_bound(roof, batch + 1, context).seconds >= step * NEARLY
    assert decode_bound(roof, batch, context + 1).seconds >= step * NEARLY
    twice = Roof(roof.model, roof.gpu, 2 * roof.gpus)
    assert decode_bound(twice, batch, context).seconds == pytest.approx(step / 2)


@given(roofs(), BATCHES, CONTEXTS)
def test_a_token_of_a_larger_batch_is_never_dearer(roof: Roof, batch: int, context: int) -> None:
    each = decode_bound(roof, batch, context).seconds / batch
    assert decode_bound(roof, 2 * batch, context).seconds / (2 * batch) <= each / NEARLY


@given(roofs(), st.integers(1, 100_000))
def test_a_prompt_is_never_faster_than_its_weights_nor_a_longer_one_than_a_shorter(
    roof: Roof, tokens: int
) -> None:
    prompt = prefill_bound(roof, tokens)
    assert prompt.seconds >= roof.model.read_bytes(float(tokens)) / roof.bandwidth_bytes_per_s
    assert prompt.seconds >= roof.model.prompt_token_flops * tokens / roof.peak_flops * NEARLY
    assert prefill_bound(roof, tokens + 1).seconds >= prompt.seconds * NEARLY


def test_the_ridge_is_where_operations_take_as_long_as_reads() -> None:
    # 2 GB / 1 TB/s = b × 2 GFLOP / 100 TFLOP/s without context.
    assert ridge_batch(plain_roof(), 0) == 100
    # 80 kB of keys and values a token of context take longer than its 40 kFLOP.
    assert ridge_batch(plain_roof(), 250) == 20_000
    assert ridge_batch(plain_roof(), 252) is None
    assert ridge_batch(Roof(llama_8b(), gpu_named("h100")), 0) == 296


@given(roofs(), st.integers(0, 5000))
def test_below_the_ridge_memory_binds_and_from_it_on_compute(roof: Roof, context: int) -> None:
    ridge = ridge_batch(roof, context)
    if ridge is None:
        assert decode_bound(roof, 1 << 30, context).binds == "memory"
        return
    at = decode_bound(roof, ridge, context)
    assert at.compute_s >= at.memory_s
    if ridge > 1:
        before = decode_bound(roof, ridge - 1, context)
        assert before.compute_s < before.memory_s
    later = decode_bound(roof, 2 * ridge, context)
    assert later.compute_s >= later.memory_s * NEARLY


def test_a_full_deployment_has_what_fits_beside_the_weights() -> None:
    full = saturation(plain_roof(), 900, 200)
    # 90 GB − 2 GB hold 1.1 million tokens: 1,100 sequences of 900 + 200 / 2.
    assert (full.kv_cache_tokens, full.batch) == (1_100_000, 1100)
    assert mean_context(900, 200) == 1000
    # A step begins 1,100 / 200 answers, whose prompts it computes, and gives all others a token.
    begun, decoding = 5.5, 1094.5
    prompts = begun * (2e9 * 900 + 40_000 * 900 * 901 / 2)
    assert full.step.flops == pytest.approx(prompts + decoding * (2e9 + 40_000 * 1000))
    assert full.step.kv_bytes == pytest.approx(decoding * 1000 * 80_000)
    assert full.output_tokens_per_s == pytest.approx(1100 / full.step.seconds)
    assert full.requests_per_s == pytest.approx(full.output_tokens_per_s / 200)


def test_answers_of_one_token_are_prompts_alone() -> None:
    full = saturation(plain_roof(), 1000, 1)
    assert full.step.kv_bytes == 0
    assert full.requests_per_s == pytest.approx(100e12 / (2e9 * 1000 + 40_000 * 1000 * 1001 / 2), rel=1e-3)


@given(roofs(), st.integers(1, 4000), st.integers(1, 4000))
def test_no_deployment_gives_more_than_its_arithmetic_allows(roof: Roof, inputs: int, outputs: int) -> None:
    try:
        full = saturation(roof, inputs, outputs)
    except RooflineError:  # it does not fit
        return
    of_request = roof.model.prompt_flops(float(inputs)) + (outputs - 1) * roof.model.flops_per_token(0.0)
    assert full.requests_per_s <= roof.peak_flops / of_request * (1 + 1e-9)


def test_what_does_not_fit_is_refused_with_the_gpus_that_it_needs() -> None:
    large = Roof(shape(parameters=200_000_000_000), PLAIN_GPU, 2)
    with pytest.raises(RooflineError) as e:
        saturation(large, 100, 100)
    assert str(e.value) == (
        "the 400.0 GB of billion do not fit into 90% of 2 × plain (200.0 GB): give 5 GPUs or more, or "
        "weights of fewer bytes"
    )
    with pytest.raises(RooflineError, match="a request of 2,000,000 tokens does not fit"):
        saturation(plain_roof(), 1_000_000, 1_000_000)
    with pytest.raises(RooflineError, match="gpus is 0: write how many GPUs serve"):
        plain_roof(0)


def test_the_options_of_a_run_make_a_roof_by_a_document() -> None:
    document = {
        "name": "own", "parameters": 1e9, "layers": 10, "hidden_size": 1000, "attention_heads": 10,
        "vocabulary": 1000,
    }  # fmt: skip
    roof = roof_of_options({"gpu_type": "h100", "gpus": "4", "model_shape": document})
    assert str(roof) == "own (bf16) on 4 × H100 SXM"
    assert roof_of_options({"gpus": "4", "gpu_type": None, "model_shape": ""}) is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gpu_type": "h100"}, "give --model-shape and --gpus too"),
        ({"model_shape": "m.yaml", "gpus": 1}, "give --gpu-type too"),
        ({"gpu_type": "h100", "model_shape": {}, "gpus": 1}, "give --model-shape too"),
        ({"gpu_type": "h100", "model_shape": {"layers": 1}, "gpus": 1}, "model_shape: parameters is missing"),
        ({"gpu_type": "h100", "model_shape": "/etc/passwd", "gpus": 1}, "model_shape is no model's shape"),
    ],
)
def test_half_of_a_roof_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(RooflineError) as e:
        roof_of_options(options)
    assert said in str(e.value)
