"""What a run made use of, counted from its records, beside the bounds of its GPUs."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from metrics_cases import batch, failed, manifest, ns, plain, request
from report_cases import summary, told
from roofline_cases import plain_roof

from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.figures.bottleneck import show as bottleneck
from llm_locust.figures.roofline import show as roofline, utilisation as utilisation_of
from llm_locust.figures.text import Tone
from llm_locust.metrics.measured import measure
from llm_locust.metrics.question import Question
from llm_locust.metrics.window import Window
from llm_locust.roofline import Roof


def utilisation(*given: Any, **more: Any) -> Any:
    found: Any = plain(utilisation_of(*given, **more))
    return found


TEN_SECONDS = Window(ns(0.0), ns(10.0), "test")


#: Of plain_roof: operations of a token, of a token for each of its context; bytes of weights and of a token.
TOKEN, CONTEXT, WEIGHTS, KV = 2e9, 40_000, 2e9, 80_000


def found(
    *records: RequestRecord, roof: Roof | None = None, window: Window = TEN_SECONDS, servers: int = 0
) -> Any:
    rows = batch(*records)
    measured = measure(rows, manifest(), Question(slo="", window=window, warmup_s=0.0))
    return utilisation(rows, measured, roof or plain_roof(), servers)


def stream(at: float, tokens: int, step_s: float = 0.02, **fields: Any) -> RequestRecord:
    """``tokens`` events, one a step, the first one step after it was sent."""
    return request(at, tuple(step_s * (k + 1) for k in range(tokens)), **fields)


def test_operations_of_one_request_by_hand() -> None:
    told = found(stream(1.0, 5, input_tokens=100))
    prompt = TOKEN * 100 + CONTEXT * 100 * 101 / 2
    # Four tokens after the prompt's own, which attend to 101 .. 104 tokens.
    outputs = 4 * TOKEN + CONTEXT * (101 + 102 + 103 + 104)
    assert told["flops_per_s"] == pytest.approx((prompt + outputs) / 10)
    assert told["mfu"] == pytest.approx((prompt + outputs) / 10 / 100e12)
    assert told["prompt_flops_share"] == pytest.approx(prompt / (prompt + outputs))


def test_reads_of_one_request_by_hand() -> None:
    told = found(stream(1.0, 5, input_tokens=100))
    # Five steps, one a token; four of them read what the sequence holds.
    assert told["steps_per_s"] == pytest.approx(0.5)
    assert told["bytes_per_s"] == pytest.approx((5 * WEIGHTS + KV * (101 + 102 + 103 + 104)) / 10)
    assert told["mbu"] == pytest.approx(told["bytes_per_s"] / 1e12)
    assert told["kv_share"] == pytest.approx(KV * 410 / (5 * WEIGHTS + KV * 410))
    assert (told["batch_mean"], told["context_mean"]) == (pytest.approx(1), pytest.approx(102.5))
    assert told["tpot_bound_ms"] == pytest.approx((WEIGHTS + KV * 102.5) / 1e12 * 1e3)
    assert told["tpot_bound_by"] == "memory"


def test_sequences_of_one_step_share_its_weights() -> None:
    told = found(*(stream(1.0, 50) for _ in range(8)))
    assert told["steps_per_s"] == pytest.approx(5)
    assert told["batch_mean"] == pytest.approx(8)


def test_more_gpus_make_less_use_of_each() -> None:
    one, four = (found(stream(1.0, 5), roof=plain_roof(gpus)) for gpus in (1, 4))
    assert four["mfu"] == pytest.approx(one["mfu"] / 4)
    assert four["mbu"] == pytest.approx(one["mbu"] / 4)


def test_replicas_step_on_their_own_where_they_are_told_apart() -> None:
    both = [stream(1.0, 50, replica=name) for name in ("a", "b")]
    told = found(*both, roof=plain_roof(2))
    assert (told["engines"], told["steps_per_s"]) == (2, pytest.approx(10))
    # Each has one GPU of the two.
    assert told["tpot_bound_ms"] == pytest.approx(found(both[0])["tpot_bound_ms"])
    unnamed = found(*(stream(1.0, 50) for _ in both), roof=plain_roof(2))
    assert (unnamed["engines"], unnamed["steps_per_s"]) == (1, pytest.approx(5))


def test_gpus_of_servers_that_only_prefill_make_no_decode_step_faster() -> None:
    """Answers name one decode server; another one of the two GPUs computes their prompts."""
    apart = found(stream(1.0, 50, replica="d"), roof=plain_roof(2), servers=2)
    assert apart["tpot_bound_ms"] == pytest.approx(found(stream(1.0, 50, replica="d"))["tpot_bound_ms"])


def test_more_names_than_gpus_are_no_engines() -> None:
    told = found(*(stream(1.0, 50, replica=name) for name in "abc"), roof=plain_roof(2))
    assert (told["engines"], told["steps_per_s"]) == (1, pytest.approx(5))


def test_models_that_requests_named_are_counted() -> None:
    assert found(*(stream(1.0, 5, model=name) for name in ("base", "adapter", "base")))["models_asked"] == 2


def test_a_request_without_a_name_makes_no_step_where_others_have_one() -> None:
    named = [stream(1.0, 50, replica=name) for name in ("a", "b")]
    told = found(*named, stream(1.0, 50), roof=plain_roof(2))
    assert told["steps_per_s"] == pytest.approx(10)


#: Sequences as (first step, tokens), and how long each step lasts, in milliseconds.
SEQUENCES = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 60)), min_size=1, max_size=12)
STEPS_MS = st.lists(st.integers(4, 50), min_size=100, max_size=100)


def engine_run(
    sequences: list[tuple[int, int]], steps_ms: list[int], jitter_s: float, seed: int = 0
) -> tuple[float, int]:
    """The steps that are told of an engine which gives each sequence a token in each of its steps, and
    those that it made; each event comes up to ``jitter_s`` late."""
    ends_s, rng = 0.4 + np.cumsum(steps_ms) * 1e-3, np.random.default_rng(seed)
    records = [
        request(0.1, tuple(ends_s[first : first + tokens] + rng.uniform(0, jitter_s, tokens)))
        for first, tokens in sequences
    ]
    made = {step for first, tokens in sequences for step in range(first, first + tokens)}
    return found(*records)["steps_per_s"] * 10, len(made)


@given(SEQUENCES, STEPS_MS)
def test_steps_are_counted_exactly_where_all_their_events_are_seen(
    sequences: list[tuple[int, int]], steps_ms: list[int]
) -> None:
    told, made = engine_run(sequences, steps_ms, jitter_s=0.0)
    assert told == pytest.approx(made)


@given(SEQUENCES, STEPS_MS, st.integers(0, 1000))
def test_the_network_never_makes_more_steps_than_there_were(
    sequences: list[tuple[int, int]], steps_ms: list[int], seed: int
) -> None:
    told, made = engine_run(sequences, steps_ms, 0.9e-3, seed)
    assert told <= made * (1 + 1e-9)


def test_events_of_one_step_sent_one_by_one_are_one_step() -> None:
    # Three tokens a step, 20 µs apart: as speculative decoding may be sent.
    arrivals = tuple(0.02 * (k + 1) + 0.00002 * i for k in range(10) for i in range(3))
    told = found(request(1.0, arrivals))
    assert told["steps_per_s"] == pytest.approx(1)
    # In one event the same tokens are the same operations.
    merged = found(request(1.0, arrivals[::3], output_tokens=30))
    assert merged["steps_per_s"] == pytest.approx(1)
    assert merged["flops_per_s"] == pytest.approx(told["flops_per_s"], rel=1e-3)


def test_of_a_mixture_the_experts_of_its_batch_are_read() -> None:
    roof = plain_roof(experts=10, experts_per_token=1, active_parameters=100_000_000)
    alone = found(stream(1.0, 50), roof=roof)
    assert alone["bytes_per_s"] * (1 - alone["kv_share"]) == pytest.approx(5 * WEIGHTS / 10)
    two = found(stream(1.0, 50), stream(1.0, 50), roof=roof)
    assert two["bytes_per_s"] * (1 - two["kv_share"]) == pytest.approx(5 * WEIGHTS * 0.19)


def test_cached_tokens_of_a_prompt_are_not_computed_but_read() -> None:
    told = found(stream(1.0, 5, input_tokens=100, cached_tokens=90))
    cold = found(stream(1.0, 5, input_tokens=100, cached_tokens=0))
    saved = TOKEN * 90 + CONTEXT * 90 * 91 / 2
    assert told["flops_per_s"] == pytest.approx(cold["flops_per_s"] - saved / 10)
    assert told["bytes_per_s"] == cold["bytes_per_s"]
    assert (told["cached_share"], told["prompts_cache_unknown"]) == (pytest.approx(0.9), 0)
    assert found(stream(1.0, 5))["prompts_cache_unknown"] == 1


def test_the_bound_of_ttft_is_that_of_the_median_prompt_without_what_was_cached() -> None:
    told = found(*(stream(1.0, 5, input_tokens=n, cached_tokens=1000) for n in (1100, 3000, 9000)))
    assert told["ttft_bound_ms"] == pytest.approx((TOKEN * 2000 + CONTEXT * 2000 * 2001 / 2) / 100e12 * 1e3)
    assert told["ttft_bound_by"] == "compute"


def test_only_what_came_in_the_window_counts() -> None:
    late = Window(ns(2.0), ns(4.0), "test")
    # From 1.5 to 2.5 s, half of it inside; its prompt was done before.
    told = found(stream(1.48, 51, input_tokens=0), window=late)
    assert told["steps_per_s"] == pytest.approx(26 / 2)
    assert (told["prompts"], told["prompt_flops_share"]) == (0, 0)
    assert found(stream(5.0, 5), window=late)["mbu"] == 0


def test_work_for_failed_and_cancelled_requests_was_done_too() -> None:
    told = found(
        stream(1.0, 50, outcome=Outcome.TRUNCATED), stream(3.0, 50, outcome=Outcome.CANCELLED), failed(5.0)
    )
    assert told["steps_per_s"] == pytest.approx(10)
    assert (told["prompts"], told["prompts_unknown"]) == (2, 0)


def test_a_prompt_of_unknown_length_is_left_out_and_told() -> None:
    told = found(stream(1.0, 5, input_tokens=None), stream(3.0, 5, input_tokens=100))
    assert (told["prompts"], told["prompts_unknown"]) == (2, 1)
    none = found(stream(1.0, 5, input_tokens=None))
    assert none["mfu"] is none["flops_per_s"] is none["ttft_bound_ms"] is None
    assert none["mbu"] > 0


def test_answers_that_came_whole_have_operations_but_no_steps() -> None:
    whole = request(1.0, (), ended=3.0, streamed=False, output_tokens=11, input_tokens=100)
    told = found(whole)
    prompt = TOKEN * 100 + CONTEXT * 100 * 101 / 2
    assert told["flops_per_s"] == pytest.approx((prompt + 10 * (TOKEN + CONTEXT * 105.5)) / 10)
    assert told["mbu"] is told["steps_per_s"] is told["batch_mean"] is told["tpot_bound_ms"] is None


def test_without_any_answer_nothing_was_used_and_without_a_window_nothing_is_known() -> None:
    told = found(failed(1.0))
    assert (told["mfu"], told["mbu"]) == (0, 0)
    empty = found(stream(1.0, 5), window=Window(ns(2.0), ns(2.0), "test"))
    assert empty["mfu"] is empty["mbu"] is None


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


def test_where_the_time_goes_has_no_bound_that_is_not_known() -> None:
    assert where_the_time_goes() == []
    assert where_the_time_goes(roofline={"missing": "only some of the requests are looked at"}) == []
    (decode,) = where_the_time_goes(roofline={**PART, "ttft_bound_ms": None})
    assert decode[0].startswith("decode reaches 28.6 %")


def test_what_is_faster_than_its_bound_is_a_warning_and_no_share() -> None:
    ((text, tone),) = where_the_time_goes(roofline={**PART, "tpot_bound_ms": 20.0, "ttft_bound_ms": None})
    assert text.startswith("decode is faster than its bound: TPOT p50 17.5 ms, 20.0 ms by the roofline: ")
    assert tone is Tone.WARN
