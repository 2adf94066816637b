"""Whether the answers were any good: right, accepted, alike where they should be, as long as asked.

A server that is overloaded, or wrongly set up, can be fast and wrong. What one answer was worth is in its
record (``rejected_by``, ``correct``, ``answer_hash``); here it is counted over a window.
"""

from typing import Any

import numpy as np

from llm_locust.core.batch import Labels
from llm_locust.metrics.answers.accuracy import Answers, ByPrompt, accuracy, complete
from llm_locust.metrics.columns import Columns, Rows
from llm_locust.metrics.stats.proportions import Proportion, summarise_proportion
from llm_locust.metrics.window import Window

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
