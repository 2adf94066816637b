"""Quality of the answers: accuracy and acceptance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llm_locust.core.batch import Labels, RecordBatch, Requests
from llm_locust.metrics.columns import Floats, Mask, Rows, read_whole
from llm_locust.metrics.stats.proportions import Proportion

# --- How many answers were the expected ones: overall, over time, against load, and beside another run


QUALITY_COLUMNS = (
    "correct",
    "rejected_by",
    "prompt_id",
    "answer_hash",
    "asked_output_tokens",
    "finish_reason",
)

_RIGHT, _UNKNOWN = 1, -1


@dataclass(frozen=True, slots=True)
class Answers:
    """What the answers were worth, one value a request: some 30 bytes each.

    ``correct`` is 1, 0, or -1 where nothing was expected. ``answer_hash`` is 0 where ``hashed`` is false.
    """

    correct: NDArray[np.int8]
    rejected_by: Labels
    prompt_id: Labels
    answer_hash: NDArray[np.int64]
    hashed: Mask
    asked_output_tokens: Floats
    finish_reason: Labels

    @classmethod
    def from_batch(cls, batch: RecordBatch) -> "Answers":
        """All rows of ``batch``, which has at least :data:`QUALITY_COLUMNS`."""
        correct = batch.floats("correct")
        hashes = batch.table.column("answer_hash").combine_chunks()
        return cls(
            correct=np.where(np.isnan(correct), _UNKNOWN, correct).astype(np.int8),
            rejected_by=batch.labels("rejected_by"),
            prompt_id=batch.labels("prompt_id"),
            # As integers: a hash does not fit a float.
            answer_hash=np.asarray(hashes.fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64),
            hashed=np.asarray(hashes.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_),
            asked_output_tokens=batch.floats("asked_output_tokens"),
            finish_reason=batch.labels("finish_reason"),
        )

    @classmethod
    def of(cls, requests: Requests) -> "Answers":
        """All requests, read part by part."""
        return read_whole(Answers, requests, QUALITY_COLUMNS, cls.from_batch)

    def right(self, rows: Rows) -> Proportion:
        """How many of ``rows`` are right, of those that were compared."""
        found = self.correct[rows]
        return Proportion(int((found == _RIGHT).sum()), int((found != _UNKNOWN).sum()))


@dataclass(frozen=True, slots=True)
class ByPrompt:
    """Answers that were compared, by the prompt they are of: right ones and all, per prompt id."""

    counts: Mapping[str, Proportion]

    @classmethod
    def of(cls, answers: Answers, rows: Rows) -> "ByPrompt":
        """Those of ``rows`` that were compared and whose prompt has an id."""
        labels, correct = answers.prompt_id, answers.correct[rows]
        codes = labels.codes[rows]
        counted = (codes >= 0) & (correct != _UNKNOWN)
        size = len(labels.names)
        n = np.bincount(codes[counted], minlength=size)
        hits = np.bincount(codes[counted & (correct == _RIGHT)], minlength=size)
        return cls({labels.names[i]: Proportion(int(hits[i]), int(n[i])) for i in np.flatnonzero(n).tolist()})

    def total(self, prompts: Sequence[str]) -> Proportion:
        chosen = [self.counts[prompt] for prompt in prompts]
        return Proportion(sum(p.hits for p in chosen), sum(p.n for p in chosen))
