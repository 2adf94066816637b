"""Which stage of a run a request belongs to."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from llm_locust.core.arrow import SCHEMA, from_numpy, values_of
from llm_locust.core.batch import RecordBatch, Requests
from llm_locust.core.manifest import Manifest, StageFacts

_TYPE = SCHEMA.field("stage").type

#: Far above any error of a clock, and below the notice with which a stage begins.
_MOST_EARLY_NS = 250_000_000


def staged(batches: Iterable[RecordBatch], manifest: Manifest | None) -> Iterator[RecordBatch]:
    """The batches with the column ``stage`` of a run's stages; unchanged in a run without stages."""
    for batch in batches:
        yield (
            with_stages(batch, manifest.stages, manifest.open_loop) if manifest and manifest.stages else batch
        )


def with_stages(batch: RecordBatch, stages: Sequence[StageFacts], open_loop: bool) -> RecordBatch:
    """The same requests with their stage: the last one that had begun when the request was sent.

    Between two stages of a sweep nothing is sent, and the clock of a worker, which begins a stage by it, may
    be corrected later. So a request from half of the pause before a stage, at most 250 ms, is of this one.
    In an open loop the time at which it was due counts, also if it was sent later. A request that was never
    sent counts from when a worker started it. One from before the first stage has none (null).
    """
    at_ns = batch.ints("scheduled_ns") if open_loop else _sent_ns(batch)
    ordered = sorted(stages, key=lambda stage: stage.begun_ns)
    befores = [None, *ordered[:-1]]
    begun_ns = np.array([_from_ns(*each) for each in zip(befores, ordered, strict=True)], dtype=np.int64)
    numbers = np.array([-1, *(stage.number for stage in ordered)], dtype=np.int32)
    found = numbers[np.searchsorted(begun_ns, at_ns, side="right")]
    column = pc.if_else(from_numpy(found >= 0), from_numpy(found).cast(_TYPE), pa.scalar(None, _TYPE))
    place = batch.table.schema.get_field_index("stage")
    return RecordBatch(batch.table.set_column(place, SCHEMA.field("stage"), column))


def _from_ns(before: StageFacts | None, stage: StageFacts) -> int:
    """From when on requests are of a stage, and not of the one before it."""
    ends_ns = () if before is None else (before.drained_ns, before.ended_ns, before.begun_ns)
    end_ns = next((ns for ns in ends_ns if ns is not None), stage.begun_ns - 2 * _MOST_EARLY_NS)
    return stage.begun_ns - min(_MOST_EARLY_NS, max(0, stage.begun_ns - end_ns) // 2)


def resumed(parts: Sequence[Sequence[StageFacts]]) -> list[StageFacts]:
    """All stages of a sweep that was resumed, of each part in order; their numbers go on from part to part.

    The last stage of a part that another one follows was under way if it has not drained. It has no measured
    part then, and the next stage repeats it.
    """
    found: list[StageFacts] = []
    for at, stages in enumerate(parts):
        found += stages
        if at + 1 < len(parts) and stages and stages[-1].drained_ns is None:
            found[-1] = replace(
                stages[-1],
                measured_ns=None,
                ended_ns=None,
                fault=f"the run ended while it was under way; stage {len(found)} repeats it",
                repeated_as=len(found),
            )
    return found


def finished(stages: Iterable[StageFacts]) -> list[StageFacts]:
    """Those that no other stage repeats."""
    return [stage for stage in stages if stage.repeated_as is None]


def records_missing(requests: Requests, made: Mapping[str, int], until_ns: int) -> int:
    """Records that workers had made of the requests due before a time, and that are not here.

    Worker by worker: a record too many of one makes up for none of another.

    Args:
        made: by worker.
    """
    here: Counter[str] = Counter()
    for part in requests.parts(["scheduled_ns", "worker"]):
        labels, due = part.labels("worker"), part.ints("scheduled_ns") < until_ns
        counts = np.bincount(labels.codes[due], minlength=len(labels.names))
        here.update(dict(zip(labels.names, counts.tolist(), strict=True)))
    return sum(max(0, n - here[worker]) for worker, n in made.items())


def of_lengths(stages: Sequence[StageFacts], lengths: str | None) -> list[StageFacts]:
    """The stages at one pair of lengths: a curve, an edge or a capacity over several would be of no requests.

    Args:
        lengths: as in ``--sweep``, ``128:32``; None: the stages have one pair, or the run's own lengths.

    Raises:
        ValueError: it has to be said, or no stage has it.
    """
    if any(stage.prefix for stage in stages):
        raise ValueError("its sweep is over shares of a shared prefix, at one load: there is no edge to find")
    pairs = list(dict.fromkeys(str(stage.lengths) for stage in stages if stage.lengths is not None))
    if lengths is None and len(pairs) < 2:
        return list(stages)
    there = f"the stages have the lengths {', '.join(pairs)}" if pairs else "its sweep is not over lengths"
    if lengths is None:
        raise ValueError(f"{there}, and the answer is of one pair: add --lengths {pairs[0]}")
    if lengths not in pairs:
        raise ValueError(f"--lengths {lengths}: {there}")
    return [stage for stage in stages if str(stage.lengths) == lengths]


def _sent_ns(batch: RecordBatch) -> NDArray[np.int64]:
    column = pc.coalesce(batch.table.column("sent_ns"), batch.table.column("started_ns"))
    return np.asarray(values_of(column.combine_chunks()), dtype=np.int64)
