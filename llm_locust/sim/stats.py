"""What a replica counts, and its Prometheus text with the names that vLLM uses."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

# fmt: off
_TTFT_EDGES_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)
_TPOT_EDGES_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)
_E2EL_EDGES_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)
# fmt: on


@dataclass(slots=True)
class Histogram:
    """Counts per bucket; an edge belongs to the bucket below it, as Prometheus' ``le`` has it."""

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
    """Counters since the start of one replica."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: Counter[str] = field(default_factory=Counter)  # by finish reason
    ttft_s: Histogram = field(default_factory=lambda: Histogram(_TTFT_EDGES_S))
    tpot_s: Histogram = field(default_factory=lambda: Histogram(_TPOT_EDGES_S))
    e2el_s: Histogram = field(default_factory=lambda: Histogram(_E2EL_EDGES_S))


@dataclass(frozen=True, slots=True)
class ReplicaReading:
    """One replica at one moment."""

    engine: str
    running: int
    waiting: int
    kv_cache_usage: float
    stats: ReplicaStats


def exposition(model: str, readings: Sequence[ReplicaReading]) -> str:
    """All replicas' metrics as Prometheus text (format 0.0.4), told apart by the label ``engine``."""
    labels = [f'engine="{_escape(r.engine)}",model_name="{_escape(model)}"' for r in readings]
    rows = list(zip(labels, readings, strict=True))

    def family(name: str, kind: str, text: str, samples: Iterable[str]) -> str:
        head = f"# HELP vllm:{name} {text}\n# TYPE vllm:{name} {kind}\n"
        return head + "".join(f"vllm:{sample}\n" for sample in samples)

    def single(name: str, kind: str, text: str, values: Iterable[float]) -> str:
        samples = (f"{name}{{{label}}} {value}" for label, value in zip(labels, values, strict=True))
        return family(name, kind, text, samples)

    return "".join(
        (
            single("num_requests_running", "gauge", "Sequences in the batch.", (r.running for r in readings)),
            single("num_requests_waiting", "gauge", "Sequences in the queue.", (r.waiting for r in readings)),
            single(
                "kv_cache_usage_perc",
                "gauge",
                "Share of the KV cache in use, 1 is all.",
                (r.kv_cache_usage for r in readings),
            ),
            single(
                "prompt_tokens_total",
                "counter",
                "Prompt tokens processed.",
                (r.stats.prompt_tokens for r in readings),
            ),
            single(
                "generation_tokens_total",
                "counter",
                "Tokens generated.",
                (r.stats.generation_tokens for r in readings),
            ),
            family(
                "request_success_total",
                "counter",
                "Finished requests.",
                (line for label, r in rows for line in _finished(label, r.stats.finished)),
            ),
            single(
                "num_preemptions_total",
                "counter",
                "Sequences put back into the queue: none, the whole length of each is reserved.",
                (0 for _ in readings),
            ),
            *(
                family(
                    name,
                    "histogram",
                    text,
                    [line for label, r in rows for line in _buckets(name, label, of(r.stats))],
                )
                for name, text, of in _HISTOGRAMS
            ),
        )
    )


def _finished(label: str, finished: Counter[str]) -> list[str]:
    return [
        f'request_success_total{{{label},finished_reason="{reason}"}} {finished[reason]}'
        for reason in ("stop", "length")
    ]


_HISTOGRAMS: tuple[tuple[str, str, Callable[[ReplicaStats], Histogram]], ...] = (
    ("time_to_first_token_seconds", "Time to first token.", lambda stats: stats.ttft_s),
    (
        "request_time_per_output_token_seconds",
        "A request's mean time per output token after the first.",
        lambda stats: stats.tpot_s,
    ),
    ("e2e_request_latency_seconds", "From arrival to the last token.", lambda stats: stats.e2el_s),
)


def _buckets(name: str, label: str, histogram: Histogram) -> list[str]:
    lines, below = [], 0
    for edge, count in zip((*map(repr, histogram.edges), "+Inf"), histogram.counts, strict=True):
        below += count
        lines.append(f'{name}_bucket{{{label},le="{edge}"}} {below}')
    return [*lines, f"{name}_sum{{{label}}} {histogram.total}", f"{name}_count{{{label}}} {below}"]


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
