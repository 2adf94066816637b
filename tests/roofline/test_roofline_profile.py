"""What an engine's step costs at least."""

import pytest
from hypothesis import given
from roofline_cases import PLAIN_GPU, llama_8b, roofs, shape

from llm_locust.roofline.bounds import Roof, decode_bound, step_costs
from llm_locust.roofline.gpus import RooflineError, gpu_named


def test_llama_3_8b_on_an_h100_by_hand() -> None:
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
