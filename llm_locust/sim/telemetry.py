"""What a simulated deployment tells of itself: Prometheus pages, and logs of true times as JSON Lines."""

import sys
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from llm_locust.sim.engine import EngineCounters

# --- Counters of a replica, and their Prometheus text with the names that vLLM uses

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
_TRANSFER_EDGES_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
# fmt: on
_TRANSFER_EDGES_BYTES = tuple(2.0**power for power in range(11, 35, 2))

#: Bytes of keys and values of one token: those of an 8B Llama with grouped-query attention, 2 bytes each.
KV_BYTES_PER_TOKEN = 131_072


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


#: Where the keys and values of prompt tokens come from, in vLLM's words.
PROMPT_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")


@dataclass(slots=True)
class ReplicaStats:
    """Counters since the start of one replica.

    ``queue_s`` is from being ready for the scheduler to the first step with a part of the prompt,
    ``prefill_s`` from there to the first token; both are observed at the request's end, as in vLLM.
    ``prompt_sources`` are the prompt tokens by where their keys and values came from. Of KV transfers
    ``transfer_s`` and ``transfer_bytes`` have the successful ones.
    """

    prompt_tokens: int = 0
    prompt_sources: Counter[str] = field(default_factory=Counter)  # of PROMPT_SOURCES
    generation_tokens: int = 0
    finished: Counter[str] = field(default_factory=Counter)  # by finish reason
    ttft_s: BucketHistogram = field(default_factory=lambda: BucketHistogram(_TTFT_EDGES_S))
    itl_s: BucketHistogram = field(default_factory=lambda: BucketHistogram(_TPOT_EDGES_S))
    tpot_s: BucketHistogram = field(default_factory=lambda: BucketHistogram(_TPOT_EDGES_S))
    e2el_s: BucketHistogram = field(default_factory=lambda: BucketHistogram(_REQUEST_EDGES_S))
    queue_s: BucketHistogram = field(default_factory=lambda: BucketHistogram(_REQUEST_EDGES_S))
    prefill_s: BucketHistogram = field(default_factory=lambda: BucketHistogram(_REQUEST_EDGES_S))
    transfer_s: BucketHistogram = field(default_factory=lambda: BucketHistogram(_TRANSFER_EDGES_S))
    transfer_bytes: BucketHistogram = field(default_factory=lambda: BucketHistogram(_TRANSFER_EDGES_BYTES))
    transfers_failed: int = 0

    def count_prompt(self, tokens: int, *, cached: int = 0, received: int = 0) -> None:
        self.prompt_tokens += tokens
        counts = (tokens - cached - received, cached, received)
        self.prompt_sources.update(dict(zip(PROMPT_SOURCES, counts, strict=True)))

    def count_transfer(self, seconds: float, tokens: int) -> None:
        """Observe a KV transfer of that many tokens; of none, one that failed."""
        if tokens:
            self.transfer_s.observe(seconds)
            self.transfer_bytes.observe(tokens * KV_BYTES_PER_TOKEN)
        else:
            self.transfers_failed += 1


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

#: Those that a vLLM with the NIXL connector has too.
_TRANSFERS: tuple[tuple[str, str, Callable[[ReplicaStats], BucketHistogram]], ...] = (
    ("nixl_xfer_time_seconds", "Of a KV transfer to this replica.", lambda stats: stats.transfer_s),
    ("nixl_bytes_transferred", "Bytes of such a transfer.", lambda stats: stats.transfer_bytes),
)


def exposition(model: str, readings: Sequence[ReplicaReading], *, transfers: bool = False) -> str:
    """All replicas' metrics as Prometheus text (format 0.0.4), distinguished by the label ``engine``; with
    those of KV ``transfers``, if prefill and decode are separate."""
    rows = [(f'engine="{_escape(r.engine)}",model_name="{_escape(model)}"', r) for r in readings]
    families = [
        _family(name, kind, text, (f"{name}{{{label}}} {of(r)}" for label, r in rows))
        for name, kind, text, of in _SINGLES
    ]
    finished = (line for label, r in rows for line in _finished(label, r.stats.finished))
    families.append(_family("request_success_total", "counter", "Finished requests.", finished))
    sources = (line for label, r in rows for line in _sources(label, r.stats.prompt_sources))
    families.append(_family("prompt_tokens_by_source_total", "counter", "Prompt tokens by origin.", sources))
    if transfers:
        name = "nixl_num_failed_transfers_total"
        failed = (f"{name}{{{label}}} {r.stats.transfers_failed}" for label, r in rows)
        families.append(_family(name, "counter", "Failed KV transfers to this replica.", failed))
    for name, text, histogram in (*_HISTOGRAMS, *(_TRANSFERS if transfers else ())):
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


def _sources(label: str, tokens: Counter[str]) -> list[str]:
    return [
        f'prompt_tokens_by_source_total{{{label},source="{source}"}} {tokens[source]}'
        for source in PROMPT_SOURCES
    ]


def _buckets(name: str, label: str, histogram: BucketHistogram) -> list[str]:
    lines, below = [], 0
    for edge, count in zip((*map(repr, histogram.edges), "+Inf"), histogram.counts, strict=True):
        below += count
        lines.append(f'{name}_bucket{{{label},le="{edge}"}} {below}')
    return [*lines, f"{name}_sum{{{label}}} {histogram.total}", f"{name}_count{{{label}}} {below}"]


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


# --------------------
# A page as from NVIDIA's DCGM exporter, for the simulated GPUs of each replica, at ``/gpu/metrics``.
#
# Nothing of it is measured. A device draws :data:`BUSY_W` while its engine is in a step, whatever the step
# contains, and otherwise :data:`IDLE_W`; so energy = idle power · time + (busy − idle power) · time in
# steps. Utilisation and power are current values: all or nothing. Its memory is its share of the weights
# and of the KV cache.
# --------------------


#: Round figures of the size of a data centre's GPU, of no particular model.
IDLE_W, BUSY_W = 100.0, 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuKind:
    """Hardware of a replica: ``count`` devices, each with its share of the weights and of the KV cache."""

    model: str = "simulated"
    count: int = 1
    weights_mib: float = 16_000.0
    kv_cache_mib: float = 50_000.0


@dataclass(frozen=True, slots=True)
class GpuReading:
    """Reading of a replica's devices, for each. ``busy_ns`` of the ``total_ns`` since its start were in
    steps; ``in_step`` is set during a step."""

    label: str
    total_ns: int
    busy_ns: int
    in_step: bool
    kv_cache_usage: float

    @property
    def power_w(self) -> float:
        return BUSY_W if self.in_step else IDLE_W

    @property
    def energy_j(self) -> float:
        return (IDLE_W * self.total_ns + (BUSY_W - IDLE_W) * self.busy_ns) / 1e9


_FAMILIES: tuple[tuple[str, str, str, Callable[[GpuReading, GpuKind], float]], ...] = (
    ("GPU_UTIL", "gauge", "GPU utilization (in %).", lambda r, _: 100.0 * r.in_step),
    ("POWER_USAGE", "gauge", "Power draw (in W).", lambda r, _: r.power_w),
    (
        "TOTAL_ENERGY_CONSUMPTION",
        "counter",
        "Energy since the start (in mJ).",
        lambda r, _: 1e3 * r.energy_j,
    ),
    (
        "FB_USED",
        "gauge",
        "Framebuffer memory used (in MiB).",
        lambda r, kind: kind.weights_mib + kind.kv_cache_mib * r.kv_cache_usage,
    ),
)


def gpu_exposition(readings: Sequence[GpuReading], kind: GpuKind) -> str:
    """All devices as Prometheus text (format 0.0.4), with the exporter's names and labels."""
    lines = []
    for name, metric_type, text, value in _FAMILIES:
        full = f"DCGM_FI_DEV_{name}"
        lines += [f"# HELP {full} {text} Simulated.", f"# TYPE {full} {metric_type}"]
        for reading in readings:
            lines += [f"{full}{{{labels}}} {value(reading, kind):.3f}" for labels in _labels(reading, kind)]
    return "\n".join(lines) + "\n"


def _labels(reading: GpuReading, kind: GpuKind) -> list[str]:
    """Labels of each device of the replica whose index is in the reading's label."""
    first = int(reading.label) * kind.count
    return [
        f'gpu="{number}",UUID="GPU-sim-{number}",modelName="{kind.model}"'
        for number in range(first, first + kind.count)
    ]


# --- Logs of what happened, as JSON Lines: each request, and what was done to replicas


@dataclass(slots=True, kw_only=True)
class TruthEntry:
    """One request as seen by the server, written when it is over.

    Times are CLOCK_REALTIME nanoseconds. ``token_ns`` are the times just before each token's bytes were
    passed to the socket, so that a client cannot have received one earlier; an answer without streaming has
    none. ``eos_ns`` is that of an end without text. ``output_tokens`` were sent, including such an end.
    ``status`` is None if no status line was sent. ``complete``: the whole answer was passed to the socket as
    requested. ``disconnected``: the client left before that. ``scheduled_ns`` is the start of the engine's
    first step with a part of its prompt, by the engine's clock; the time between ``received_ns`` and that is
    the wait in the queue and the engine's base time. ``cached_tokens`` of its prompt were in the prefix cache
    then; None without such a cache. ``preemptions`` is how often it lost its KV cache and was prefilled
    again. A request that no engine started has neither of the first two. ``session_replica`` is the replica
    that its session's header names, None without one. ``prefill_replica`` computed its prompt, up to
    ``prefilled_ns``, when the transfer of its KV cache began; None where ``replica`` did.
    """

    request_id: str
    replica: str | None = None
    path: str
    received_ns: int
    first_token_ns: int | None = None
    token_ns: list[int] = field(default_factory=list)
    eos_ns: int | None = None
    ended_ns: int | None = None
    input_tokens: int | None = None
    output_tokens: int = 0
    status: int | None = None
    fault: str | None = None
    complete: bool = False
    disconnected: bool = False
    scheduled_ns: int | None = None
    cached_tokens: int | None = None
    preemptions: int = 0
    session_replica: str | None = None
    prefill_replica: str | None = None
    prefilled_ns: int | None = None


class TruthError(OSError):
    """The log's file cannot be written; the text says which file and why."""


class JsonLines:
    """Appends objects to a file, each in one write, so that a kill loses no finished one.

    Args:
        path: an existing file is replaced; None: nothing is written.
        what: name of the log in messages.

    Raises:
        TruthError: the file cannot be written.
    """

    def __init__(self, path: Path | None, what: str) -> None:
        self._path = path
        self._what = what
        try:
            self._file: BinaryIO | None = None if path is None else path.open("wb", buffering=0)
        except OSError as e:
            raise TruthError(f"{what} {path}: {e.strerror}; name a file that can be written") from e

    def write(self, entry: object) -> None:
        """Append one line. The first failure to write is reported on stderr and ends the log."""
        if self._file is None:
            return
        try:
            self._file.write(msgspec.json.encode(entry) + b"\n")
        except OSError as e:
            print(f"{self._what} {self._path}: {e.strerror}; nothing more is written to it", file=sys.stderr)
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()


# --- Log of the plan's actions on replicas and the gateway's reactions, as lines and JSON Lines


@dataclass(frozen=True, slots=True)
class Event:
    """One event. ``time_ns`` is CLOCK_REALTIME; ``who`` caused it: the plan, the gateway, or a client."""

    time_ns: int
    who: str
    replica: str
    action: str
    factor: float | None = None  # of ``slow``


#: Text of actions whose name is not a phrase.
_SAID = {
    "kill": "killed",
    "start": "started",
    "drain": "drained",
    "slow": "slowed",
    "normal": "back to its own speed",
    "out": "out of rotation",
    "in": "back in rotation",
}


def events_path(truth: Path) -> Path:
    """Path of the events, next to the truth log: ``<truth>.events.jsonl``."""
    return truth.with_name(truth.name + ".events.jsonl")


class EventLog(JsonLines):
    """Reports each event as one line, ``plan: replica-2 killed at 10.003 s``, and appends it to a file.

    Times in lines count from the last ``begin``.
    """

    def __init__(self, path: Path | None, say: Callable[[str], None]) -> None:
        super().__init__(path, "event log")
        self._say = say
        self._began_ns = time.time_ns()

    def begin(self) -> None:
        """Set the start of the deployment's time to now."""
        self._began_ns = time.time_ns()

    def add(self, who: str, replica: str, action: str, factor: float | None = None) -> None:
        """Record an action that was just taken."""
        event = Event(time.time_ns(), who, replica, action, factor)
        said = _SAID.get(action, action) + (f" {factor:g}x" if factor is not None else "")
        self._say(f"{who}: {replica} {said} at {(event.time_ns - self._began_ns) * 1e-9:.3f} s")
        self.write(event)
