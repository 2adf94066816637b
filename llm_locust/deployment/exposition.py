"""Readings from a page of Prometheus text, under the same names for every server.

=====================  ==============================================================
name                   meaning
=====================  ==============================================================
running, waiting       requests in the batch, in the queue
kv_cache_usage         share of the KV cache in use, 0 to 1
prefix_cache_queries   prompt tokens looked for in the prefix cache, since the start
prefix_cache_hits      those that were found there
prefix_cache_hit_rate  for servers that report only a share
preemptions            sequences put back into the queue
spec_drafts            steps of speculative decoding that had a draft, since the start
spec_draft_tokens      tokens of all drafts
spec_accepted_tokens   those that the model accepted
spec_accept_length     for servers that report only means: tokens a step, 1 + those
spec_accept_rate       accepted, and their share of the draft's
prompt_tokens          processed since the start, wherever their keys and values came from
prompt_tokens_computed those that were computed, and not found in a cache or received
prompt_tokens_received those whose KV cache came from another server
generation_tokens      generated since the start
finished               requests that ended, since the start
ttft_s, tpot_s, itl_s  histograms in seconds (``_bucket``, ``_sum``, ``_count``); tpot_s is
queue_s, e2el_s        a request's mean, itl_s a gap between tokens
kv_transfer_s          histogram: a KV cache's way from a prefill to a decode server
kv_transfer_bytes      histogram: bytes of such a transfer
kv_transfers_failed    since the start
gpu_utilisation        0 to 1
gpu_memory_used_bytes  of one GPU
power_w                of one GPU
energy_j               of one GPU, since its driver was loaded
=====================  ==============================================================
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from llm_locust.wire.foreign_text import one_line

#: Bounds of one page: larger ones are not an exposition, and parsing them could take forever.
MOST_LINE_CHARS = 16_384
MOST_READINGS = 50_000
#: Larger values are no counts, bytes or seconds of a server: sums of them would be infinite.
MOST_VALUE = 1e18
_MOST_REASON_CHARS = 160

_MIB = 1024.0 * 1024.0
_PARTS = ("_bucket", "_sum", "_count")


class ExpositionError(ValueError):
    """A page that is not Prometheus text; one line that says why."""

    def __init__(self, why: str) -> None:
        super().__init__(one_line(why))


class MappingError(ValueError):
    """An invalid mapping of names; one line that says what to write."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A server's own name of a figure, times ``scale`` in our unit; only samples with all of ``labels``.

    If a page has several names of one figure (an old one kept next to the new one), the first rule counts.
    """

    raw: str
    name: str
    scale: float = 1.0
    labels: tuple[tuple[str, str], ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Reading:
    name: str
    labels: Mapping[str, str]
    value: float


def _rules(prefix: str, **names: str) -> tuple[Rule, ...]:
    return tuple(Rule(prefix + raw, name) for raw, name in names.items())


VLLM = (
    *_rules(
        "vllm:",
        num_requests_running="running",
        num_requests_waiting="waiting",
        kv_cache_usage_perc="kv_cache_usage",
        gpu_cache_usage_perc="kv_cache_usage",
        prefix_cache_queries="prefix_cache_queries",
        gpu_prefix_cache_queries="prefix_cache_queries",
        prefix_cache_hits="prefix_cache_hits",
        gpu_prefix_cache_hits="prefix_cache_hits",
        num_preemptions="preemptions",
        spec_decode_num_drafts="spec_drafts",
        spec_decode_num_draft_tokens="spec_draft_tokens",
        spec_decode_num_accepted_tokens="spec_accepted_tokens",
        prompt_tokens="prompt_tokens",
        generation_tokens="generation_tokens",
        request_success="finished",
        time_to_first_token_seconds="ttft_s",
        request_time_per_output_token_seconds="tpot_s",
        inter_token_latency_seconds="itl_s",
        time_per_output_token_seconds="itl_s",
        request_queue_time_seconds="queue_s",
        e2e_request_latency_seconds="e2el_s",
        nixl_xfer_time_seconds="kv_transfer_s",
        nixl_bytes_transferred="kv_transfer_bytes",
        nixl_num_failed_transfers="kv_transfers_failed",
    ),
    Rule("vllm:prompt_tokens_by_source", "prompt_tokens_computed", labels=(("source", "local_compute"),)),
    Rule(
        "vllm:prompt_tokens_by_source", "prompt_tokens_received", labels=(("source", "external_kv_transfer"),)
    ),
)
SGLANG = (
    *_rules(
        "sglang:",
        num_running_reqs="running",
        num_queue_reqs="waiting",
        token_usage="kv_cache_usage",
        cache_hit_rate="prefix_cache_hit_rate",
        cached_tokens="prefix_cache_hits",
        spec_accept_length="spec_accept_length",
        spec_accept_rate="spec_accept_rate",
        num_retracted_reqs="preemptions",
        num_retracted_requests="preemptions",
        prompt_tokens="prompt_tokens",
        generation_tokens="generation_tokens",
        num_requests="finished",
        time_to_first_token_seconds="ttft_s",
        request_time_per_output_token_seconds="tpot_s",
        time_per_output_token_seconds="tpot_s",
        inter_token_latency_seconds="itl_s",
        queue_time_seconds="queue_s",
        e2e_request_latency_seconds="e2el_s",
        num_transfer_failed_reqs="kv_transfers_failed",
    ),
    Rule("sglang:realtime_tokens", "prompt_tokens_computed", labels=(("mode", "prefill_compute"),)),
    Rule("sglang:kv_transfer_latency_ms", "kv_transfer_s", 1e-3),
    Rule("sglang:kv_transfer_total_mb", "kv_transfer_bytes", _MIB),
)
TGI = _rules(
    "tgi_",
    batch_current_size="running",
    queue_size="waiting",
    request_input_length_sum="prompt_tokens",
    request_generated_tokens_sum="generation_tokens",
    request_success="finished",
    request_mean_time_per_token_duration="tpot_s",
    request_queue_duration="queue_s",
    request_duration="e2el_s",
)
TRTLLM = (
    *_rules(
        "trtllm_",
        num_requests_running="running",
        num_requests_waiting="waiting",
        kv_cache_utilization="kv_cache_usage",
        kv_cache_hit_rate="prefix_cache_hit_rate",
        request_success="finished",
        time_to_first_token_seconds="ttft_s",
        time_per_output_token_seconds="tpot_s",
        request_queue_time_seconds="queue_s",
        e2e_request_latency_seconds="e2el_s",
    ),
    Rule("nv_trt_llm_request_metrics", "running", labels=(("request_type", "scheduled"),)),
    Rule("nv_trt_llm_request_metrics", "waiting", labels=(("request_type", "waiting"),)),
    Rule(
        "nv_trt_llm_kv_cache_block_metrics", "kv_cache_usage", labels=(("kv_cache_block_type", "fraction"),)
    ),
    Rule("nv_inference_request_success", "finished"),
    Rule("nv_inference_first_response_histogram_ms", "ttft_s", 1e-3),
    Rule("nv_gpu_utilization", "gpu_utilisation"),
    Rule("nv_gpu_memory_used_bytes", "gpu_memory_used_bytes"),
    Rule("nv_gpu_power_usage", "power_w"),
    Rule("nv_energy_consumption", "energy_j"),
)
LLAMA_CPP = _rules(
    "llamacpp:",
    requests_processing="running",
    requests_deferred="waiting",
    kv_cache_usage_ratio="kv_cache_usage",
    prompt_tokens="prompt_tokens",
    tokens_predicted="generation_tokens",
)
DCGM = (
    Rule("DCGM_FI_DEV_GPU_UTIL", "gpu_utilisation", 0.01),
    Rule("DCGM_FI_DEV_FB_USED", "gpu_memory_used_bytes", _MIB),
    Rule("DCGM_FI_DEV_POWER_USAGE", "power_w"),
    Rule("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "energy_j", 1e-3),
)
KNOWN = (*VLLM, *SGLANG, *TGI, *TRTLLM, *LLAMA_CPP, *DCGM)


def parse_mapping(text: str) -> Rule:
    """Parse ``theirs=ours`` or ``theirs=ours*0.001``; ``ours`` may be a new name.

    Raises:
        MappingError: another form.
    """
    raw, equals, rest = (part.strip() for part in text.partition("="))
    name, _, factor = (part.strip() for part in rest.partition("*"))
    try:
        scale = float(factor) if factor else 1.0
    except ValueError:
        scale = math.nan
    if not (raw and equals and name) or not math.isfinite(scale) or " " in raw + name:
        raise MappingError(f'"{text}" is not a mapping: write theirs=ours, as my_queue_depth=waiting')
    return Rule(raw.removesuffix("_total"), name, scale)


def readings(text: str, rules: Sequence[Rule] = KNOWN) -> list[Reading]:
    """Readings of one page's samples that match ``rules``; other samples, NaN, values beyond
    :data:`MOST_VALUE` and buckets without an edge (``le``) are left out.

    Raises:
        ExpositionError: the page is not Prometheus text.
    """
    if any(len(line) > MOST_LINE_CHARS for line in text.splitlines()):
        raise ExpositionError(f"a line has over {MOST_LINE_CHARS:,} characters")
    places: dict[str, list[int]] = {}
    for place, rule in enumerate(rules):
        places.setdefault(rule.raw, []).append(place)
    found: dict[str, list[tuple[int, Reading]]] = {}
    count = 0
    try:
        for family in text_string_to_metric_families(_EXEMPLARS.sub("", text)):
            for sample in family.samples:
                for place, reading in _matches(sample.name, sample.labels, sample.value, places, rules):
                    found.setdefault(rules[place].name, []).append((place, reading))
                    count += 1
            if count > MOST_READINGS:
                raise ExpositionError(f"it has over {MOST_READINGS:,} matching samples")
    except ExpositionError:
        raise
    except Exception as e:  # the parser may raise anything for invalid input
        why = " ".join(str(e).split())[:_MOST_REASON_CHARS] or type(e).__name__
        raise ExpositionError(f"not Prometheus text: {why}") from e
    return [reading for each in found.values() for reading in _of_first_rule(each)]


# An old parser of prometheus_client takes the exemplar behind a sample, of OpenMetrics, for its value.
_EXEMPLARS = re.compile(r" # \{[^{}\n]*\} \S+(?: \S+)?$", re.MULTILINE)


def _matches(
    sample: str,
    labels: Mapping[str, str],
    value: float,
    places: Mapping[str, list[int]],
    rules: Sequence[Rule],
) -> list[tuple[int, Reading]]:
    base = sample.removesuffix("_total")  # added by the parser to counters without it
    part = ""
    if base not in places:
        part = next((end for end in _PARTS if base.endswith(end)), "")
        base = base.removesuffix(part) if part else base
    return [
        (place, _reading(rules[place], part, labels, value))
        for place in places.get(base, ())
        if max(abs(value), abs(value * rules[place].scale)) <= MOST_VALUE
        and not (part == "_bucket" and math.isnan(_edge(labels)))
        and all(labels.get(key) == wanted for key, wanted in rules[place].labels)
    ]


def _reading(rule: Rule, part: str, labels: Mapping[str, str], value: float) -> Reading:
    """Reading in our unit: a histogram's edges and sum are scaled, its counts are not."""
    if part == "_bucket" and rule.scale != 1.0:
        labels = {**labels, "le": f"{_edge(labels) * rule.scale:g}"}
    return Reading(rule.name + part, labels, value if part in ("_bucket", "_count") else value * rule.scale)


def _edge(labels: Mapping[str, str]) -> float:
    """A bucket's upper edge; NaN without one."""
    try:
        return float(labels.get("le", math.nan))
    except ValueError:
        return math.nan


def _of_first_rule(found: Sequence[tuple[int, Reading]]) -> list[Reading]:
    first = min(place for place, _ in found)
    return [reading for place, reading in found if place == first]
