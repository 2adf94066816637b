"""What a report says of a roofline."""

from typing import Any

from report_cases import summary, told

from llm_locust.figures.bottleneck import show as bottleneck
from llm_locust.figures.roofline import show as roofline
from llm_locust.figures.section import Tone

PART: dict[str, Any] = {
    "model": "Llama 3 8B",
    "weights": "bf16",
    "gpu": "H100 SXM",
    "gpus": 4.0,
    "models_asked": 1,
    "peak_flops": 3958e12,
    "bandwidth_bytes_per_s": 13.4e12,
    "mfu": 0.05,
    "flops_per_s": 197.9e12,
    "prompt_flops_share": 0.82,
    "mbu": 0.28,
    "bytes_per_s": 3.752e12,
    "kv_share": 0.024,
    "steps_per_s": 230.0,
    "engines": 4,
    "batch_mean": 9.5,
    "context_mean": 327.0,
    "tpot_bound_ms": 5.0,
    "tpot_bound_by": "memory",
    "ttft_bound_ms": 8.0,
    "ttft_bound_by": "compute",
    "prompts": 694,
    "prompts_unknown": 0,
    "prompts_cache_unknown": 0,
    "cached_share": 0.0,
}


def lines(**changed: Any) -> list[str]:
    latencies = {**summary()["latency_ms"]}
    latencies |= {key: {**latencies[key], "p50": p50} for key, p50 in (("tpot", 17.5), ("ttft", 80.0))}
    found = roofline(told(roofline={**PART, **changed}, latency_ms=latencies))
    assert found is not None
    return [line.text for line in (*found.lines, *found.notes)]


def test_without_a_gpu_and_a_model_nothing_is_said() -> None:
    assert roofline(told()) is None


def test_what_was_reached_stands_beside_what_is_possible() -> None:
    assert lines() == [
        "Llama 3 8B (bf16) on 4 × H100 SXM, by data sheet",
        "MFU 5.0 % · 198 of 3,958 TFLOP/s · 82.0 % of it for prompts",
        "MBU 28.0 % at least · 3.75 of 13.4 TB/s · 2.4 % of it for keys and values",
        "4 engines, 230 decode steps/s at least · 9.50 sequences per step · 327 tokens each",
        "TPOT p50 17.5 ms, 3.50 × its bound of 5.00 ms by bandwidth",
        "TTFT p50 80.0 ms, 10.0 × its bound of 8.00 ms by FLOP/s",
    ]


def test_what_is_not_known_is_said_and_is_no_zero() -> None:
    unknown = dict.fromkeys(
        (
            *("mfu", "flops_per_s", "prompt_flops_share", "mbu", "bytes_per_s", "kv_share", "steps_per_s"),
            *("batch_mean", "context_mean", "tpot_bound_ms", "tpot_bound_by", "ttft_bound_ms"),
        )
    )
    assert lines(**unknown)[1:] == [
        "MFU unknown: no prompt length is known",
        "MBU unknown: no answer was streamed",
    ]


def test_doubts_are_said() -> None:
    said = lines(mbu=1.2, prompts_unknown=1, prompts_cache_unknown=3)[6:]
    assert said[0] == "MBU over 100 %: the given GPU, number of GPUs or model is wrong"
    assert said[1] == "1 prompt of unknown length left out"
    assert said[2].startswith("usage does not report cached tokens for 3 prompts")


def test_several_models_are_a_doubt() -> None:
    (doubt,) = lines(models_asked=3)[6:]
    assert doubt.startswith("requests named 3 models, each counted as Llama 3 8B")


def test_a_selection_has_no_figures() -> None:
    found = roofline(told(roofline={"missing": "only some of the requests are looked at"}))
    assert found is not None
    assert [(line.text, line.tone) for line in found.lines] == [
        ("no figures: only some of the requests are looked at", Tone.WARN)
    ]


def where_the_time_goes(**changed: Any) -> list[tuple[str, Tone]]:
    latencies = {**summary()["latency_ms"]}
    latencies |= {key: {**latencies[key], "p50": p50} for key, p50 in (("tpot", 17.5), ("ttft", 80.0))}
    found = bottleneck(told(latency_ms=latencies, **changed))
    assert found is not None
    return [(line.text, line.tone) for line in found.lines[2:]]


def test_where_the_time_goes_has_the_share_of_the_bound_that_was_reached() -> None:
    assert where_the_time_goes(roofline=PART) == [
        (
            "prefill reaches 10.0 % of its bound: TTFT p50 80.0 ms, its queue included, "
            "8.00 ms by the roofline",
            Tone.PLAIN,
        ),
        ("decode reaches 28.6 % of its bound: TPOT p50 17.5 ms, 5.00 ms by the roofline", Tone.PLAIN),
    ]


def test_where_the_time_goes_has_no_bound_that_is_not_known() -> None:
    assert where_the_time_goes() == []
    assert where_the_time_goes(roofline={"missing": "only some of the requests are looked at"}) == []
    (decode,) = where_the_time_goes(roofline={**PART, "ttft_bound_ms": None})
    assert decode[0].startswith("decode reaches 28.6 %")


def test_what_is_faster_than_its_bound_is_a_warning_and_no_share() -> None:
    ((text, tone),) = where_the_time_goes(roofline={**PART, "tpot_bound_ms": 20.0, "ttft_bound_ms": None})
    assert text.startswith("decode is faster than its bound: TPOT p50 17.5 ms, 20.0 ms by the roofline: ")
    assert tone is Tone.WARN
