"""Bounds of a step, of a prompt and of a deployment, by GPUs' names or values."""

import pytest
from hypothesis import given, strategies as st
from roofline_cases import PLAIN_GPU, llama_8b, plain_roof, roofs, shape

from llm_locust.roofline import (
    GPUS,
    Gpu,
    Roof,
    RooflineError,
    decode_bound,
    gpu_named,
    mean_context,
    prefill_bound,
    ridge_batch,
    roof_of_options,
    saturation,
    step_costs,
)

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


def test_llama_3_8b_on_an_h100_by_hand_of_profile() -> None:
    costs = step_costs(llama_8b(), gpu_named("h100"))
    assert costs.weights_bytes == 16_060_522_496
    assert costs.step_base_ns == pytest.approx(4.4806e6, rel=1e-4)
    assert costs.context_per_token_ns == pytest.approx(131_072 / 3.35e12 * 1e9)
    assert costs.prefill_per_token_ns == pytest.approx(2 * 6_979_588_096 / 989.5e12 * 1e9)
    # 90 % of 80 GiB less the weights, of 131,072 bytes each.
    assert costs.kv_cache_tokens == int((0.9 * 80 * 2**30 - 16_060_522_496) / 131_072) == 467_291
    assert costs.source == (
        "roofline of Llama 3 8B (bf16) on 1 × H100 SXM by data sheet, at 100% of its bandwidth and 100% of "
        "its FLOP/s"
    )


def test_shares_of_the_peaks_make_steps_longer_by_as_much() -> None:
    full = step_costs(shape(), PLAIN_GPU)
    part = step_costs(shape(), PLAIN_GPU, memory_efficiency=0.8, compute_efficiency=0.5)
    assert part.step_base_ns == pytest.approx(full.step_base_ns / 0.8)
    assert part.context_per_token_ns == pytest.approx(full.context_per_token_ns / 0.8)
    assert part.prefill_per_token_ns == pytest.approx(full.prefill_per_token_ns / 0.5)
    assert part.kv_cache_tokens == full.kv_cache_tokens
    assert "at 80% of its bandwidth and 50% of its FLOP/s" in part.source


@given(roofs())
def test_a_step_of_many_tokens_costs_what_the_bound_has(roof: Roof) -> None:
    try:
        costs = step_costs(roof.model, roof.gpu, gpus=int(roof.gpus))
    except RooflineError:
        return
    # So many that every expert is touched.
    batch, context = 1_000_000, 10
    bound = decode_bound(roof, batch, context)
    assert costs.step_base_ns + costs.context_per_token_ns * batch * context == pytest.approx(
        bound.memory_s * 1e9
    )
    attention = roof.model.attention_flops * context * batch / roof.peak_flops
    assert costs.prefill_per_token_ns * batch == pytest.approx((bound.compute_s - attention) * 1e9)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"memory_efficiency": 0.0}, "memory_efficiency is 0: write a number above 0 and at most 1"),
        ({"compute_efficiency": 1.5}, "compute_efficiency is 1.5"),
        ({"memory_utilization": float("nan")}, "memory_utilization is nan"),
        ({"gpus": 0}, "gpus is 0: write how many GPUs one copy of the model has"),
    ],
)
def test_what_is_no_share_or_no_gpu_is_refused(arguments: dict[str, float], said: str) -> None:
    with pytest.raises(RooflineError, match=said):
        step_costs(shape(), PLAIN_GPU, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["h100", "H100", "h100-sxm", "H100 SXM", " h100_sxm "])
def test_a_name_is_found_whatever_its_case_and_its_blanks(name: str) -> None:
    assert gpu_named(name) is GPUS["h100"]


def test_an_h100_is_that_of_its_data_sheet() -> None:
    gpu = gpu_named("h100")
    assert gpu.memory_bytes == 80 * 2**30
    assert gpu.bandwidth_bytes_per_s == 3.35e12
    assert gpu.bf16_flops == 1979e12 / 2  # the data sheet's has sparsity
    assert gpu.peak_flops("fp8") == gpu.peak_flops("int8") == 1979e12


def test_without_units_of_eight_bits_a_gpu_computes_in_sixteen() -> None:
    assert gpu_named("a100").peak_flops("fp8") == gpu_named("a100").peak_flops("bf16") == 312e12
    assert gpu_named("a100").peak_flops("int8") == 624e12


def test_eight_bits_are_never_slower_than_sixteen_and_dense_peaks_are_no_sparse_ones() -> None:
    for gpu in GPUS.values():
        assert gpu.peak_flops("fp8") >= gpu.bf16_flops
        # Bytes that one operation would need to be bound by memory: a sparse peak would double it.
        assert 100 < gpu.bf16_flops / gpu.bandwidth_bytes_per_s < 450, gpu.name


def test_an_unknown_name_is_told_with_the_nearest_one_and_all_others() -> None:
    with pytest.raises(RooflineError) as e:
        gpu_named("h10")
    assert str(e.value).startswith('there is no GPU "h10": did you mean "h100"? known are a100-40gb, ')
    with pytest.raises(RooflineError, match="mi325x"):
        gpu_named("")


def test_a_gpu_is_given_by_its_values_in_the_units_of_data_sheets() -> None:
    gpu = gpu_named("memory=80, bandwidth=3.35, bf16=989.5, fp8=1979")
    known = gpu_named("h100")
    assert (gpu.memory_bytes, gpu.bandwidth_bytes_per_s) == (known.memory_bytes, known.bandwidth_bytes_per_s)
    assert (gpu.bf16_flops, gpu.fp8_flops, gpu.int8_flops) == (known.bf16_flops, known.fp8_flops, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("memory=80,bandwidth=3", "bf16 is missing: write memory=80,"),
        ("memory=80,speed=3", '"speed" is not one of memory, bandwidth, bf16, fp8, int8'),
        ("memory=80,memory=3", '"memory" is given twice'),
        ("memory=lots,bandwidth=3,bf16=1", 'memory is "lots": write a number'),
        ("memory=0,bandwidth=3,bf16=1", "memory_bytes of GPU by its values is 0: write a number above 0"),
        ("memory=1,bandwidth=nan,bf16=1", "is nan: write a number above 0"),
        ("memory=1,bandwidth=1,bf16=1,fp8=0", "fp8_flops of GPU by its values is 0"),
    ],
)
def test_values_that_are_none_are_told_in_one_line(text: str, said: str) -> None:
    with pytest.raises(RooflineError) as e:
        gpu_named(text)
    assert said in str(e.value)
    assert "\n" not in str(e.value)


def test_a_gpu_without_bandwidth_is_refused() -> None:
    with pytest.raises(RooflineError, match="bandwidth_bytes_per_s of none is -1"):
        Gpu(name="none", memory_bytes=1, bandwidth_bytes_per_s=-1, bf16_flops=1)
