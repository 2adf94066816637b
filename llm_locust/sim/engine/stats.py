"""Counters of a replica, and their Prometheus text with the names that vLLM uses."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from llm_locust.sim.engine.engine import EngineCounters

# fmt: off
_TTFT_EDGES_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)
_TPOT_EDGES_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)
_REQUEST_EDGES_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)
# fmt: on


@dataclass(slots=True)
class BucketHistogram:
    """Counts per bucket; an edge belongs to the bucket below it, as in Prometheus' ``le``."""

    edges: tuple[float, ...]
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.edges) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.edges, value)] += 1
        self.total += value


@dataclass(slots=True)
class ReplicaStats:
    """Counters since the start of one replica.

    ``queue_s`` is from being ready for the scheduler to the first step with a part of the prompt,
    ``prefill_s`` from there to the first token; both are observed at the request's end, as in vLLM.
    """

    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: Counter[str] = field(default_factory=Counter)  # by finish reason
    ttft_s: BucketHistogram = field(default_factory=lambda: BucketHistogram(_TTFT_EDGES_S))
    itl_s: BucketHistogram = field(default_factory=lambda: BucketHistogram(_TPOT_EDGES_S))
    tpot_s: BucketHistogram = field(default_factory=lambda: BucketHistogram(_TPOT_EDGES_S))
    e2el_s: BucketHistogram = field(default_factory=lambda: BucketHistogram(_REQUEST_EDGES_S))
    queue_s: BucketHistogram = field(default_factory=lambda: BucketHistogram(_REQUEST_EDGES_S))
    prefill_s: BucketHistogram = field(default_factory=lambda: BucketHistogram(_REQUEST_EDGES_S))


@dataclass(frozen=True, slots=True)
class ReplicaReading:
    """State of one replica at one time."""

    engine: str
    running: int
    waiting: int
    kv_cache_usage: float
    stats: ReplicaStats
    counters: EngineCounters = field(default_factory=EngineCounters)


_SINGLES: tuple[tuple[str, str, str, Callable[[ReplicaReading], float]], ...] = (
    ("num_requests_running", "gauge", "Sequences in the batch.", lambda r: r.running),
    ("num_requests_waiting", "gauge", "Sequences in the queue.", lambda r: r.waiting),
    (
        "kv_cache_usage_perc",
        "gauge",
        "Share of the KV cache's blocks in use, 1 is all.",
        lambda r: r.kv_cache_usage,
    ),
    (
        "prefix_cache_queries_total",
        "counter",
        "Prompt tokens looked up in the prefix cache.",
        lambda r: r.counters.prefix_queries,
    ),
    ("prefix_cache_hits_total", "counter", "Prompt tokens found there.", lambda r: r.counters.prefix_hits),
    (
        "num_preemptions_total",
        "counter",
        "Sequences put back into the queue for want of KV cache.",
        lambda r: r.counters.preemptions,
    ),
    ("prompt_tokens_total", "counter", "Prompt tokens processed.", lambda r: r.stats.prompt_tokens),
    ("generation_tokens_total", "counter", "Tokens generated.", lambda r: r.stats.generation_tokens),
)

_HISTOGRAMS: tuple[tuple[str, str, Callable[[ReplicaStats], BucketHistogram]], ...] = (
    ("time_to_first_token_seconds", "Time to first token.", lambda stats: stats.ttft_s),
    ("inter_token_latency_seconds", "Between two tokens of a request.", lambda stats: stats.itl_s),
    (
        "request_time_per_output_token_seconds",
        "A request's mean time per output token after the first.",
        lambda stats: stats.tpot_s,
    ),
    ("e2e_request_latency_seconds", "From arrival to the last token.", lambda stats: stats.e2el_s),
    ("request_queue_time_seconds", "In the queue, up to the first step.", lambda stats: stats.queue_s),
    ("request_prefill_time_seconds", "From there to the first token.", lambda stats: stats.prefill_s),
)


def exposition(model: str, readings: Sequence[ReplicaReading]) -> str:
    """All replicas' metrics as Prometheus text (format 0.0.4), distinguished by the label ``engine``."""
    rows = [(f'engine="{_escape(r.engine)}",model_name="{_escape(model)}"', r) for r in readings]
    families = [
        _family(name, kind, text, (f"{name}{{{label}}} {of(r)}" for label, r in rows))
        for name, kind, text, of in _SINGLES
    ]
    finished = (line for label, r in rows for line in _finished(label, r.stats.finished))
    families.append(_family("request_success_total", "counter", "Finished requests.", finished))
    for name, text, histogram in _HISTOGRAMS:
        lines = (line for label, r in rows for line in _buckets(name, label, histogram(r.stats)))
        families.append(_family(name, "histogram", text, lines))
    return "".join(families)


def _family(name: str, kind: str, text: str, samples: Iterable[str]) -> str:
    head = f"# HELP vllm:{name} {text}\n# TYPE vllm:{name} {kind}\n"
    return head + "".join(f"vllm:{sample}\n" for sample in samples)


def _finished(label: str, finished: Counter[str]) -> list[str]:
    return [
        f'request_success_total{{{label},finished_reason="{reason}"}} {finished[reason]}'
        for reason in ("stop", "length")
    ]


def _buckets(name: str, label: str, histogram: BucketHistogram) -> list[str]:
    lines, below = [], 0
    for edge, count in zip((*map(repr, histogram.edges), "+Inf"), histogram.counts, strict=True):
        below += count
        lines.append(f'{name}_bucket{{{label},le="{edge}"}} {below}')
    return [*lines, f"{name}_sum{{{label}}} {histogram.total}", f"{name}_count{{{label}}} {below}"]


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
