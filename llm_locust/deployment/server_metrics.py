"""Servers' own metrics: readings of a page, under the same names for every server, and samples in a file.

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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families

from llm_locust.core.arrow import check_group, from_numpy, from_values, open_parquet, values_of, whole_batches
from llm_locust.core.files import own_file, replacing
from llm_locust.wire.foreign_text import one_line
from llm_locust.wire.payload import DECODE_ERRORS

# --- Readings of a page of Prometheus text


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
    matching = 0
    try:
        for family in text_string_to_metric_families(_EXEMPLARS.sub("", text)):
            for sample in family.samples:
                for place, reading in _matches(sample.name, sample.labels, sample.value, places, rules):
                    found.setdefault(rules[place].name, []).append((place, reading))
                    matching += 1
            if matching > MOST_READINGS:
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


# --- ``server_metrics.parquet``: samples in a form that survives a kill of their writer
#
# A Parquet file can be read only once its end is written. So during a run samples are appended to a stream of
# Arrow batches next to it, ``server_metrics-0.arrows``; each writing process has a number of its own.
# :func:`compact_samples` makes the Parquet file of all of them, when the scraper ends or, if it was killed,
# when a reader needs it. Memory is bounded by a row group.


SERVER_METRICS_FILE = "server_metrics.parquet"

_TEXT = pa.dictionary(pa.int32(), pa.string())

#: One row per sample: ``labels`` is a JSON object with sorted keys.
SCHEMA = pa.schema(
    [
        pa.field("at_ns", pa.int64(), nullable=False),
        pa.field("target", _TEXT, nullable=False),
        pa.field("name", _TEXT, nullable=False),
        pa.field("labels", _TEXT, nullable=False),
        pa.field("value", pa.float64(), nullable=False),
    ],
    metadata={b"llm_locust.server_metrics": b"1"},
)

#: A stream's texts are plain: growing dictionaries would have to be sent again with each batch.
_STREAM = pa.schema([pa.field(f.name, pa.string() if f.type == _TEXT else f.type, False) for f in SCHEMA])

_ROWS_A_GROUP = 131_072

#: The same as read, with the rest of the batch that filled it.
_MOST_ROWS_A_GROUP = 1 << 20


class SamplesError(ValueError):
    """Samples that cannot be read; the text names the file and says why."""


@dataclass(frozen=True, slots=True)
class ServerSample:
    """One value of one target at one time on the run's axis."""

    at_ns: int
    target: str
    name: str
    labels: str
    value: float


class SampleWriter:
    """Appends batches to a new stream next to ``path``; what was flushed can be read after a kill.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        for number in count():
            with suppress(FileExistsError):
                self._file = path.with_name(f"{path.stem}-{number}.arrows").open("xb")
                break
        options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
        self._stream = pa.ipc.new_stream(self._file, _STREAM, options=options)

    def write(self, samples: Sequence[ServerSample]) -> None:
        """Write one batch, which is in the file when this returns."""
        if samples:
            columns = [from_values([getattr(s, f.name) for s in samples], f.type, None) for f in _STREAM]
            self._stream.write_batch(pa.record_batch(columns, schema=_STREAM))
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        self._file.close()


def compact_samples(path: Path) -> int | None:
    """Merge all streams next to ``path`` and its present content into one Parquet file; return its number of
    rows.

    None if there is neither. The streams are removed after the file is complete; a batch that a kill has cut
    off is left out.

    Raises:
        SamplesError: the existing Parquet file cannot be read.
        OSError: a file cannot be read or written.
    """
    segments = _segments(path)
    if not segments:
        return _rows(path) if path.exists() else None
    rows = 0
    with replacing(path) as file, pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        for table in read_samples(path):
            writer.write_table(table.cast(SCHEMA).unify_dictionaries(), row_group_size=_ROWS_A_GROUP)
            rows += len(table)
    for segment in segments:
        segment.unlink(missing_ok=True)
    return rows


def holds_samples(path: Path) -> bool:
    """Whether there is anything for :func:`read_samples`."""
    return path.exists() or bool(_segments(path))


def read_samples(path: Path) -> Iterator[pa.Table]:
    """Samples of ``path`` and of the streams next to it, some 100,000 at a time, in the order written.

    Nothing if there is neither.

    Raises:
        SamplesError: a file has no samples.
    """
    if path.exists():
        with _as_samples(path), own_file(path).open("rb") as plain, open_parquet(plain) as file:
            for group in range(file.num_row_groups):
                check_group(plain, file.metadata.row_group(group), _MOST_ROWS_A_GROUP)
                yield _checked(file.read_row_group(group))
    for segment in _segments(path):
        with _as_samples(segment):
            yield from _groups(_stream_batches(segment))


def _stream_batches(segment: Path) -> Iterator[pa.Table]:
    """Complete batches; a killed writer may have left a part of one."""
    with own_file(segment).open("rb") as file:
        for batch in whole_batches(file):
            yield _checked(pa.Table.from_batches([batch]))


def _groups(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table.cast(_STREAM))
        if sum(map(len, waiting)) >= _ROWS_A_GROUP:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _checked(table: pa.Table) -> pa.Table:
    if table.schema.names != SCHEMA.names:
        raise pa.ArrowInvalid(f"its columns are {', '.join(table.schema.names)}")
    table.validate(full=True)  # that texts are UTF-8, too, which neither format sees to
    return table.cast(SCHEMA)


def _rows(path: Path) -> int:
    with _as_samples(path):
        return int(pq.read_metadata(own_file(path)).num_rows)


@contextmanager
def _as_samples(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as e:  # plain, of a null where none may be
        reason = next(iter(str(e).splitlines()), type(e).__name__)
        raise SamplesError(f"{str(path)!r} cannot be read as server metrics: {reason}") from e


def _segments(path: Path) -> list[Path]:
    found = path.parent.glob(f"{path.stem}-*.arrows")
    numbered = [(part, p) for p in found if (part := p.stem.removeprefix(f"{path.stem}-")).isdecimal()]
    return [p for _, p in sorted(numbered, key=lambda each: int(each[0]))]


# --------------------
# Samples of a file that no scrape of this program can have written: left out, and named.
#
# Pages are checked when they are scraped (:func:`readings`). A file may have been written by an earlier
# version, or by anyone.
# --------------------


Mask = NDArray[np.bool_]

#: Latest valid time, in the year 2116.
_LAST_NS = 1 << 62

_MOST_NAMED = 3

_labels_of = msgspec.json.Decoder(dict[str, str]).decode


class CheckedSamples:
    """Iterates over the samples of tables that can be used, and counts the others by name and reason."""

    def __init__(self, tables: Iterable[pa.Table]) -> None:
        self._tables = tables
        self._left_out: Counter[tuple[str, str]] = Counter()

    def __iter__(self) -> Iterator[pa.Table]:
        for table in self._tables:
            yield self._usable(table)

    @property
    def failure(self) -> str:
        """What was left out so far, in a few words; empty if it is nothing."""
        if not self._left_out:
            return ""
        named = [
            f"{n:,} of {one_line(name)[:40]!r} ({why})"
            for (name, why), n in self._left_out.most_common(_MOST_NAMED)
        ]
        more = len(self._left_out) - len(named)
        others = f" and {more:,} other kinds" if more else ""
        return (
            f"{self._left_out.total():,} samples cannot be right and were left out: "
            + ", ".join(named)
            + others
        )

    def _usable(self, table: pa.Table) -> pa.Table:
        table = table.cast(SCHEMA).unify_dictionaries().combine_chunks()
        kept = np.ones(len(table), dtype=np.bool_)
        for why, is_wrong in _RULES.items():
            wrong = is_wrong(table) & kept
            if wrong.any():
                kept &= ~wrong
                names = table.column("name").filter(from_numpy(wrong)).to_pylist()
                self._left_out.update((str(name), why) for name in names)
        return table if kept.all() else table.filter(from_numpy(kept))


#: Why a sample cannot be used, and which are such.
_RULES: dict[str, Callable[[pa.Table], Mask]] = {
    # A dictionary may have a null of its own, which no column counts.
    "target or name is missing": lambda table: (
        ~(_where(table, "target", lambda _: True) & _where(table, "name", lambda _: True))
    ),
    # NaN is not less or equal.
    f"the value is not within ±{MOST_VALUE:.0e}": lambda table: (
        ~_mask(pc.less_equal(pc.abs(table.column("value")), MOST_VALUE))
    ),
    "the time is not between 1970 and 2116": lambda table: (
        ~_mask(
            pc.and_(
                pc.greater_equal(table.column("at_ns"), 0), pc.less_equal(table.column("at_ns"), _LAST_NS)
            )
        )
    ),
    "the labels are no JSON object of texts": lambda table: (
        ~_where(table, "labels", lambda text: _decoded(text) is not None)
    ),
    "a bucket's 'le' is no number": lambda table: (
        _where(table, "name", lambda name: name.endswith("_bucket")) & ~_where(table, "labels", _is_with_edge)
    ),
}


def _decoded(text: str) -> dict[str, str] | None:
    try:
        return _labels_of(text)
    except DECODE_ERRORS:
        return None


def _is_with_edge(text: str) -> bool:
    try:
        return not math.isnan(float((_decoded(text) or {}).get("le", math.nan)))
    except ValueError:
        return False


def _where(table: pa.Table, name: str, holds: Callable[[str], bool]) -> Mask:
    """The rows of whose text in a column something holds: asked once for each text."""
    found = [np.zeros(0, dtype=np.bool_)]
    for chunk in table.column(name).chunks:
        texts = chunk.dictionary.to_pylist()
        of_text = np.array([text is not None and holds(text) for text in texts], dtype=np.bool_)
        found.append(of_text[values_of(chunk.indices)])
    return np.concatenate(found)


def _mask(column: pa.ChunkedArray) -> Mask:
    chunks = [values_of(chunk) for chunk in column.chunks]
    return np.concatenate([np.zeros(0, dtype=np.bool_), *chunks])
