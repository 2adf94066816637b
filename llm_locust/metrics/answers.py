"""Quality of the answers: accuracy and acceptance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_locust.core.batch import Labels, RecordBatch, Requests
from llm_locust.core.record import Outcome
from llm_locust.metrics.columns import OUTCOMES, Columns, Floats, Mask, Rows, read_whole
from llm_locust.metrics.stats.proportions import Proportion, difference, summarise_proportion
from llm_locust.metrics.window import Window

# --------------------
# How many answers were the expected ones: overall, over time, against load, and beside another run.
# --------------------


QUALITY_COLUMNS = (
    "correct",
    "rejected_by",
    "prompt_id",
    "answer_hash",
    "asked_output_tokens",
    "finish_reason",
)

#: Equal parts of the window that accuracy is told of.
TIME_PARTS = 10

_RIGHT, _UNKNOWN = 1, -1
_LOADS = ("low", "middle", "high")


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


def accuracy_difference(now: ByPrompt, baseline: ByPrompt) -> dict[str, Any] | None:
    """Accuracy beside that of the same prompts elsewhere: another run, or an idle server.

    Only prompts that both have are counted, by their ids. The interval is Newcombe's for independent
    shares: that the prompts are the same makes the truth narrower, not wider.

    Returns:
        ``{prompts, accuracy, baseline, difference, ci95}``, the difference being now − baseline;
        None where no prompt is in both.
    """
    shared = sorted(now.counts.keys() & baseline.counts.keys())
    if not shared:
        return None
    a, b = now.total(shared), baseline.total(shared)
    return {
        "prompts": len(shared),
        "accuracy": summarise_proportion(a, "correct"),
        "baseline": summarise_proportion(b, "correct"),
        **difference(a, b),
    }


def accuracy(
    answers: Answers, c: Columns, rows: Rows, window: Window, baseline: ByPrompt | None
) -> dict[str, Any]:
    """The parts of a summary's quality that are of right answers among the complete ones ``rows``."""
    right = answers.right(rows)
    found: dict[str, Any] = {
        "accuracy": summarise_proportion(right, "correct"),
        "over_time": [],
        "by_load": [],
        "load_effect": None,
        "baseline": None,
    }
    if not right.n:  # most runs compare nothing: they need not know their concurrency at every request
        return found
    load = concurrency_at_sent(c)
    beside = baseline or ByPrompt.of(answers, _idle(c, load, window))
    return found | {
        "over_time": _over_time(answers, c, rows, window),
        "by_load": _by_load(answers, load, rows),
        "load_effect": _load_effect(answers, load, rows),
        "baseline": accuracy_difference(ByPrompt.of(answers, rows), beside),
    }


def complete(c: Columns) -> Mask:
    """The requests that got a whole answer, whatever validators said of it."""
    return c.ok | np.equal(c.outcome, OUTCOMES.index(Outcome.REJECTED))


def concurrency_at_sent(c: Columns) -> NDArray[np.int64]:
    """Requests under way when each was sent, itself included, over the whole run; 0 where it was not."""
    lasts = c.ended_s > c.sent_s
    starts, ends = np.sort(c.sent_s[lasts]), np.sort(c.ended_s[lasts])
    under_way = np.searchsorted(starts, c.sent_s, side="right") - np.searchsorted(
        ends, c.sent_s, side="right"
    )
    return np.where(lasts, under_way, 0).astype(np.int64)


def _over_time(answers: Answers, c: Columns, rows: Rows, window: Window) -> list[dict[str, Any]]:
    """Accuracy of the answers by when they were scheduled, per part of the window."""
    if window.seconds <= 0:
        return []
    start_s = window.start_s(c)
    edges = start_s + np.linspace(0, (window.end_ns - window.start_ns) * 1e-9, TIME_PARTS + 1)
    place = np.clip(np.searchsorted(edges, c.scheduled_s[rows], side="right") - 1, 0, TIME_PARTS - 1)
    return [
        {
            "start_s": float(edges[i] - start_s),
            "end_s": float(edges[i + 1] - start_s),
            **summarise_proportion(answers.right(rows[place == i]), "correct"),
        }
        for i in range(TIME_PARTS)
    ]


def _thirds(answers: Answers, load: NDArray[np.int64], rows: Rows) -> list[Rows]:
    """The compared answers by concurrency when sent: at most its 1/3 quantile, its 2/3 quantile, the rest."""
    compared = rows[answers.correct[rows] != _UNKNOWN]
    if not len(compared):
        return []
    level = load[compared]
    low, high = np.quantile(level, [1 / 3, 2 / 3], method="inverted_cdf")
    place = (level > low).astype(np.int64) + (level > high)
    return [compared[place == i] for i in range(len(_LOADS))]


def _by_load(answers: Answers, load: NDArray[np.int64], rows: Rows) -> list[dict[str, Any]]:
    """Accuracy by thirds of the load; one that has no answers, because loads are equal, is left out."""
    return [
        {
            "load": name,
            "concurrency": [int(load[third].min()), int(load[third].max())],
            **summarise_proportion(answers.right(third), "correct"),
        }
        for name, third in zip(_LOADS, _thirds(answers, load, rows), strict=False)
        if len(third)
    ]


def _load_effect(answers: Answers, load: NDArray[np.int64], rows: Rows) -> dict[str, Any] | None:
    """Accuracy at the highest load there was − at the lowest; None where all loads are one."""
    thirds = [third for third in _thirds(answers, load, rows) if len(third)]
    return difference(answers.right(thirds[-1]), answers.right(thirds[0])) if len(thirds) > 1 else None


def _idle(c: Columns, load: NDArray[np.int64], window: Window) -> Rows:
    """Complete answers from before the window that were alone at the server when they were sent."""
    before = c.scheduled_s < window.start_s(c)
    return np.flatnonzero(before & (load == 1) & complete(c))


# --------------------
# Whether the answers were any good: right, accepted, alike where they should be, as long as asked.
#
# A server that is overloaded, or wrongly set up, can be fast and wrong. What one answer was worth is in its
# record (``rejected_by``, ``correct``, ``answer_hash``); here it is counted over a window.
# --------------------


#: Kinds that are counted one by one; a server may send any text as a finish reason.
MOST_KINDS = 20
OTHER = "other"


def quality(
    answers: Answers, c: Columns, judged: Rows, window: Window, baseline: ByPrompt | None = None
) -> dict[str, Any]:
    """The ``quality`` of a summary.

    Args:
        judged: the population, ok and failed: of it, the complete answers (ok or rejected) count.
        baseline: where another run says what to compare with. Without it, the answers that were
            scheduled before the window and had the server for themselves, if there are such.
    """
    rows = judged[complete(c)[judged]]
    return {
        "answers": len(rows),
        "finish_reasons": _kinds(answers.finish_reason, rows),
        "rejected": rejected(answers, c, rows),
        **accuracy(answers, c, rows, window, baseline),
        "consistency": consistency(answers, c, rows),
        "length": length_fidelity(answers, c, rows),
    }


def quality_of_part(answers: Answers, c: Columns, judged: Rows) -> dict[str, Any]:
    """What a summary tells of the answers with one name, or of one class."""
    rows = judged[complete(c)[judged]]
    return {
        "answers": len(rows),
        "rejected": rejected(answers, c, rows),
        "accuracy": summarise_proportion(answers.right(rows), "correct"),
    }


def rejected(answers: Answers, c: Columns, rows: Rows) -> dict[str, Any]:
    """Rejected answers, their share of the complete ones ``rows``, and how many by which validator."""
    refused = rows[~c.ok[rows]]
    share = Proportion(len(refused), len(rows))
    return {
        "n": share.hits,
        "ratio": share.ratio,
        "by": _kinds(answers.rejected_by, refused),
    }


def consistency(answers: Answers, c: Columns, rows: Rows) -> dict[str, Any]:
    """Whether the same prompt got the same answer, of prompts that were asked more than once.

    A prompt is told by its id and the class of the request. ``prompts_equal`` is the share of prompts
    all of whose answers are equal; ``pairs_equal`` that of pairs of answers to one prompt that are
    equal, Σ C(m, 2) / Σ C(k, 2) with m equal ones of k. None where no prompt came twice.
    """
    known = rows[answers.hashed[rows] & (answers.prompt_id.codes[rows] >= 0)]
    codes = answers.prompt_id.codes[known].astype(np.int64) << 32 | (c.slo_class.codes[known] + 1)
    _, prompt, asked = np.unique(codes, return_inverse=True, return_counts=True)
    _, answer = np.unique(answers.answer_hash[known], return_inverse=True)
    same, alike = np.unique(prompt.astype(np.int64) << 32 | answer, return_counts=True)
    kinds = np.bincount(same >> 32, minlength=len(asked))
    repeated = asked > 1
    pairs = int((asked * (asked - 1) // 2).sum())
    equal = int((alike * (alike - 1) // 2).sum())
    n = int(repeated.sum())
    return {
        "prompts": n,
        "answers": int(asked[repeated].sum()),
        "prompts_equal": float((kinds[repeated] == 1).mean()) if n else None,
        "pairs_equal": equal / pairs if pairs else None,
    }


def length_fidelity(answers: Answers, c: Columns, rows: Rows) -> dict[str, Any]:
    """Generated against asked output tokens, of the answers whose both are known.

    ``at_limit`` is the share that has exactly as many as asked, ``over`` the share that has more (the
    bound was not kept, or tokens are counted otherwise), ``mean_relative`` the mean of
    (generated − asked) / asked. None where n is 0.
    """
    asked, generated = answers.asked_output_tokens[rows], c.output_tokens[rows]
    known = (asked > 0) & ~np.isnan(generated)
    relative = (generated[known] - asked[known]) / asked[known]
    n = len(relative)
    return {
        "n": n,
        "at_limit": float((relative == 0).mean()) if n else None,
        "over": float((relative > 0).mean()) if n else None,
        "mean_relative": float(np.sort(relative).mean()) if n else None,
    }


def _kinds(labels: Labels, rows: Rows) -> dict[str, int]:
    """How often each text is there, most frequent first; the rarest are counted together."""
    codes = labels.codes[rows]
    counts = np.bincount(codes[codes >= 0], minlength=len(labels.names))
    found = sorted((-int(counts[i]), labels.names[i]) for i in np.flatnonzero(counts).tolist())
    kinds = {name: -n for n, name in found[:MOST_KINDS]}
    rest = -sum(n for n, _ in found[MOST_KINDS:])
    return {**kinds, OTHER: kinds.get(OTHER, 0) + rest} if rest else kinds
