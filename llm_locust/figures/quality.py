"""Quality: whether the answers were any good: right, accepted, alike where they should be, as long as asked.

A server that is overloaded, or wrongly set up, can be fast and wrong. What one answer was worth is in its
record (``rejected_by``, ``correct``, ``answer_hash``); here it is counted over a window.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray

from llm_locust.core.batch import Labels
from llm_locust.core.record import Doubt, Outcome
from llm_locust.core.texts import UNDEFINED
from llm_locust.figures.figure import Run
from llm_locust.figures.text import (
    Column,
    Line,
    Section,
    Table,
    TableRow,
    Tone,
    clean,
    count,
    number,
    percent,
    plural,
    seconds,
    sentence,
    short,
)
from llm_locust.metrics.answers import Answers, ByPrompt
from llm_locust.metrics.columns import OUTCOMES, Columns, Mask, Rows
from llm_locust.metrics.stats.proportions import Proportion, difference
from llm_locust.metrics.structs import SummaryPart, key
from llm_locust.metrics.window import Window
from llm_locust.wire.dialects import DIALECTS
from llm_locust.wire.ends import AnswerEnd, end_of

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary

# --- Whether the answers were any good


_ACCURACY = "answers with an expected one"
_PROMPTS = "prompts in both"
_REPEATED = "prompts answered more than once"
_COMPLETE = "`quality.answers`"
_KNOWN = "`quality.answers`, both known"


class Rejected(SummaryPart, frozen=True):
    """Answers that validators said no to."""

    n: Annotated[int, key("number rejected by validators", _COMPLETE)]
    ratio: Annotated[float | None, key("rejected / complete", _COMPLETE)]
    by: Annotated[dict[str, int], key("number rejected, by validator", _COMPLETE)]


class RightAnswers(SummaryPart, frozen=True):
    """Answers that were the expected ones."""

    n: Annotated[int, key("number compared", _ACCURACY)]
    correct: Annotated[int, key("number right", _ACCURACY)]
    ratio: Annotated[float | None, key("right / compared", _ACCURACY)]
    ci95: Annotated[tuple[float, float] | None, key("Wilson's interval of the ratio", _ACCURACY)]


class RightOverTime(SummaryPart, frozen=True):
    """Right answers in a part of the window."""

    start_s: Annotated[float, key("beginning of a tenth of the window, s after its start", _ACCURACY)]
    end_s: Annotated[float, key("end of a tenth of the window, s after its start", _ACCURACY)]
    n: Annotated[int, key("as `quality.accuracy`", _ACCURACY)]
    correct: Annotated[int, key("as `quality.accuracy`", _ACCURACY)]
    ratio: Annotated[float | None, key("as `quality.accuracy`", _ACCURACY)]
    ci95: Annotated[tuple[float, float] | None, key("as `quality.accuracy`", _ACCURACY)]


class RightByLoad(SummaryPart, frozen=True):
    """Right answers at a load."""

    load: Annotated[str, key("a third by concurrency: `low`, `middle` or `high`", _ACCURACY)]
    concurrency: Annotated[
        tuple[int, int], key("least and largest number of requests under way in it", _ACCURACY)
    ]
    n: Annotated[int, key("as `quality.accuracy`", _ACCURACY)]
    correct: Annotated[int, key("as `quality.accuracy`", _ACCURACY)]
    ratio: Annotated[float | None, key("as `quality.accuracy`", _ACCURACY)]
    ci95: Annotated[tuple[float, float] | None, key("as `quality.accuracy`", _ACCURACY)]


class RightDifference(SummaryPart, frozen=True):
    """A difference of accuracies."""

    difference: Annotated[float | None, key("accuracy at the highest load − at the lowest", _ACCURACY)]
    ci95: Annotated[tuple[float, float] | None, key("Newcombe's interval of that difference", _ACCURACY)]


class BesideBaseline(SummaryPart, frozen=True):
    """Accuracy here and elsewhere, on shared prompts."""

    prompts: Annotated[int, key("number of shared prompts", _PROMPTS)]
    accuracy: Annotated[RightAnswers, key("accuracy here", _PROMPTS)]
    baseline: Annotated[RightAnswers, key("accuracy idle, or of the baseline run", _PROMPTS)]
    difference: Annotated[float | None, key("accuracy here − that of the baseline", _PROMPTS)]
    ci95: Annotated[tuple[float, float] | None, key("Newcombe's interval of that difference", _PROMPTS)]


class Consistency(SummaryPart, frozen=True):
    """Equal answers to equal prompts."""

    prompts: Annotated[int, key("number of prompts", _REPEATED)]
    answers: Annotated[int, key("number of answers to them", _REPEATED)]
    prompts_equal: Annotated[float | None, key("share of prompts all of whose answers are equal", _REPEATED)]
    pairs_equal: Annotated[
        float | None, key("share of pairs of answers to one prompt that are equal", _REPEATED)
    ]


class AnswerLengths(SummaryPart, frozen=True):
    """Generated against asked output tokens."""

    n: Annotated[int, key("number of answers", _KNOWN)]
    at_limit: Annotated[float | None, key("share with exactly as many tokens as asked", _KNOWN)]
    over: Annotated[float | None, key("share with more tokens than asked", _KNOWN)]
    mean_relative: Annotated[float | None, key("mean of (generated − asked) / asked", _KNOWN)]


class PartQuality(SummaryPart, frozen=True):
    """Of the answers with one name or of one class."""

    answers: Annotated[int, key("number of complete answers", "ok or rejected, scheduled in the window")]
    rejected: Rejected
    accuracy: RightAnswers


class Quality(SummaryPart, frozen=True):
    """Whether answers were right, accepted, alike where they should be, as long as asked."""

    answers: Annotated[int, key("number of complete answers", "ok or rejected, scheduled in the window")]
    finish_reasons: Annotated[dict[str, int], key("number with each finish reason", _COMPLETE)]
    rejected: Rejected
    accuracy: RightAnswers
    over_time: list[RightOverTime]
    by_load: list[RightByLoad]
    load_effect: RightDifference | None
    baseline: BesideBaseline | None
    consistency: Consistency
    length: AnswerLengths


_RIGHT, _UNKNOWN = 1, -1

#: Equal parts of the window that accuracy is told of.
TIME_PARTS = 10
_LOADS = ("low", "middle", "high")


def accuracy_difference(now: ByPrompt, baseline: ByPrompt) -> BesideBaseline | None:
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
    apart = difference(a, b)
    return BesideBaseline(
        prompts=len(shared),
        accuracy=right_answers(a),
        baseline=right_answers(b),
        difference=apart.difference,
        ci95=apart.ci95,
    )


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


def _over_time(answers: Answers, c: Columns, rows: Rows, window: Window) -> list[RightOverTime]:
    """Accuracy of the answers by when they were scheduled, per part of the window."""
    if window.seconds <= 0:
        return []
    start_s = window.start_s(c)
    edges = start_s + np.linspace(0, (window.end_ns - window.start_ns) * 1e-9, TIME_PARTS + 1)
    place = np.clip(np.searchsorted(edges, c.scheduled_s[rows], side="right") - 1, 0, TIME_PARTS - 1)
    return [
        RightOverTime(
            start_s=float(edges[i] - start_s),
            end_s=float(edges[i + 1] - start_s),
            n=right.n,
            correct=right.hits,
            ratio=right.ratio,
            ci95=right.interval(),
        )
        for i in range(TIME_PARTS)
        for right in [answers.right(rows[place == i])]
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


def _by_load(answers: Answers, load: NDArray[np.int64], rows: Rows) -> list[RightByLoad]:
    """Accuracy by thirds of the load; one that has no answers, because loads are equal, is left out."""
    return [
        RightByLoad(
            load=name,
            concurrency=(int(load[third].min()), int(load[third].max())),
            n=right.n,
            correct=right.hits,
            ratio=right.ratio,
            ci95=right.interval(),
        )
        for name, third in zip(_LOADS, _thirds(answers, load, rows), strict=False)
        if len(third)
        for right in [answers.right(third)]
    ]


def _load_effect(answers: Answers, load: NDArray[np.int64], rows: Rows) -> RightDifference | None:
    """Accuracy at the highest load there was − at the lowest; None where all loads are one."""
    thirds = [third for third in _thirds(answers, load, rows) if len(third)]
    if len(thirds) < 2:
        return None
    apart = difference(answers.right(thirds[-1]), answers.right(thirds[0]))
    return RightDifference(difference=apart.difference, ci95=apart.ci95)


def _idle(c: Columns, load: NDArray[np.int64], window: Window) -> Rows:
    """Complete answers from before the window that were alone at the server when they were sent."""
    before = c.scheduled_s < window.start_s(c)
    return np.flatnonzero(before & (load == 1) & complete(c))


#: Kinds that are counted one by one; a server may send any text as a finish reason.
MOST_KINDS = 20
OTHER = "other"


def compute(run: Run) -> Quality:
    """Of the population's complete answers (ok or rejected).

    They are compared with those of another run where the question says so; without it with the answers that
    were scheduled before the window and had the server for themselves, if there are such.
    """
    c, judged, window, baseline = run.m.c, run.population.judged, run.m.window, run.question.quality_baseline
    answers = run.answers
    rows = judged[complete(c)[judged]]
    right = answers.right(rows)
    over_time, by_load, effect, beside = [], [], None, None
    if right.n:  # most runs compare nothing: they need not know their concurrency at every request
        load = concurrency_at_sent(c)
        over_time, by_load = _over_time(answers, c, rows, window), _by_load(answers, load, rows)
        effect = _load_effect(answers, load, rows)
        others = baseline or ByPrompt.of(answers, _idle(c, load, window))
        beside = accuracy_difference(ByPrompt.of(answers, rows), others)
    return Quality(
        answers=len(rows),
        finish_reasons=_kinds(answers.finish_reason, rows),
        rejected=rejected(answers, c, rows),
        accuracy=right_answers(right),
        over_time=over_time,
        by_load=by_load,
        load_effect=effect,
        baseline=beside,
        consistency=consistency(answers, c, rows),
        length=length_fidelity(answers, c, rows),
    )


def right_answers(p: Proportion) -> RightAnswers:
    return RightAnswers(n=p.n, correct=p.hits, ratio=p.ratio, ci95=p.interval())


def quality_of_part(answers: Answers, c: Columns, judged: Rows) -> PartQuality:
    """What a summary tells of the answers with one name, or of one class."""
    rows = judged[complete(c)[judged]]
    return PartQuality(
        answers=len(rows),
        rejected=rejected(answers, c, rows),
        accuracy=right_answers(answers.right(rows)),
    )


def rejected(answers: Answers, c: Columns, rows: Rows) -> Rejected:
    """Rejected answers, their share of the complete ones ``rows``, and how many by which validator."""
    refused = rows[~c.ok[rows]]
    share = Proportion(len(refused), len(rows))
    return Rejected(
        n=share.hits,
        ratio=share.ratio,
        by=_kinds(answers.rejected_by, refused),
    )


def consistency(answers: Answers, c: Columns, rows: Rows) -> Consistency:
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
    return Consistency(
        prompts=n,
        answers=int(asked[repeated].sum()),
        prompts_equal=float((kinds[repeated] == 1).mean()) if n else None,
        pairs_equal=equal / pairs if pairs else None,
    )


def length_fidelity(answers: Answers, c: Columns, rows: Rows) -> AnswerLengths:
    """Generated against asked output tokens, of the answers whose both are known.

    ``at_limit`` is the share that has exactly as many as asked, ``over`` the share that has more (the
    bound was not kept, or tokens are counted otherwise), ``mean_relative`` the mean of
    (generated − asked) / asked. None where n is 0.
    """
    asked, generated = answers.asked_output_tokens[rows], c.output_tokens[rows]
    known = (asked > 0) & ~np.isnan(generated)
    relative = (generated[known] - asked[known]) / asked[known]
    n = len(relative)
    return AnswerLengths(
        n=n,
        at_limit=float((relative == 0).mean()) if n else None,
        over=float((relative > 0).mean()) if n else None,
        mean_relative=float(np.sort(relative).mean()) if n else None,
    )


def _kinds(labels: Labels, rows: Rows) -> dict[str, int]:
    """How often each text is there, most frequent first; the rarest are counted together."""
    codes = labels.codes[rows]
    counts = np.bincount(codes[codes >= 0], minlength=len(labels.names))
    found = sorted((-int(counts[i]), labels.names[i]) for i in np.flatnonzero(counts).tolist())
    kinds = {name: -n for n, name in found[:MOST_KINDS]}
    rest = -sum(n for n, _ in found[MOST_KINDS:])
    return {**kinds, OTHER: kinds.get(OTHER, 0) + rest} if rest else kinds


# --- Whether the answers were any good, where the run has something to say of that


#: Ends of answers that are nothing to remark on.
_USUAL_FINISHES = tuple(
    dict.fromkeys(reason for dialect in DIALECTS.values() for reason in dialect.usual_finishes)
)

_NAME_LENGTH = 60

#: A share of doubtful answers that has to be known before any number.
_ALARMING = 0.01

#: What is said of doubtful answers of each kind after their number, and what that means.
_DOUBTS = {
    Doubt.CONTENT_FILTER: ("cut by a content filter, or refused", "not good in goodput"),
    Doubt.NO_ANSWER: (
        "with reasoning and no answer",
        "not good in goodput; allow more tokens or less reasoning",
    ),
    Doubt.NO_FINISH_REASON: (
        "ended without a finish reason",
        "whole or cut is unknown; not good in goodput",
    ),
    Doubt.UNKNOWN_FINISH_REASON: (
        "with a finish reason that the API does not have",
        "whole or cut is unknown",
    ),
}


def sections(summary: "Summary") -> Iterator[Section]:
    for found in (few_doubtful(summary), show(summary)):
        if found is not None:
            yield found


def doubtful(summary: "Summary") -> Section | None:
    """Answers that ended ok and may not be what was asked for; None without any.

    The most frequent kind comes first. It is an alarm if they are more than a few.
    """
    part = summary.requests
    found = sorted(((n, doubt) for doubt in Doubt if (n := part.doubtful.get(doubt.value))), reverse=True)
    if not found:
        return None
    lines = [
        Line(f"{plural(n, 'answer')} ({percent(n / part.population)}) {': '.join(_DOUBTS[doubt])}", Tone.WARN)
        for n, doubt in found
    ]
    unknown = {
        reason: n
        for reason, n in summary.quality.finish_reasons.items()
        if end_of(reason, _USUAL_FINISHES) is AnswerEnd.UNKNOWN
    }
    if unknown and part.doubtful.get(Doubt.UNKNOWN_FINISH_REASON.value):
        lines.append(Line(_named(unknown), Tone.WARN, verbatim=True))
    limited = any("doubtful_rate" in gate.text for gate in summary.gates)
    notes = () if limited else (Line('--gate "doubtful_rate<1%" limits their share', Tone.FAINT),)
    is_alarm = (part.doubtful_rate or 0.0) >= _ALARMING
    return Section("Doubtful answers", tuple(lines), notes=notes, alarm=is_alarm, key="doubtful")


def few_doubtful(summary: "Summary") -> Section | None:
    """The same of a few among many, which is no alarm."""
    found = doubtful(summary)
    return None if found is None or found.alarm else found


#: Answers that are shorter than asked by this share, on average, are hardly the load that was meant.
_HARDLY_ANY = 0.9


def show(summary: "Summary") -> Section | None:
    """Accuracy, rejections, consistency, finish reasons that are not usual, and answers of which hardly
    anything came; None without any of them.

    How long other answers were and how they usually ended goes with it, and makes no section of its own.
    """
    part = summary.quality
    accuracy, rejected = part.accuracy, part.rejected
    repeated, finishes = part.consistency, part.finish_reasons
    unusual = [reason for reason in finishes if end_of(reason, _USUAL_FINISHES) > AnswerEnd.LENGTH]
    is_short = (part.length.mean_relative or 0.0) <= -_HARDLY_ANY
    if not (accuracy.n or rejected.n or repeated.prompts or unusual or is_short):
        return None
    lines = [
        *_accuracy_remark(accuracy),
        *_baseline(part.baseline),
        *_effect_remark(part),
        *_rejected_remark(rejected),
        *_consistency_remark(repeated),
    ]
    notes = [*_length_remark(part.length), *_finishes(finishes, bool(unusual))]
    return Section("Quality", tuple(lines), _time_table(part.over_time), tuple(notes))


def _accuracy_remark(accuracy: RightAnswers) -> Iterator[Line]:
    if accuracy.n:
        yield Line(
            f"{percent(accuracy.ratio)} correct of {plural(accuracy.n, 'answer')} compared "
            f"(95 %: {_interval(accuracy.ci95)})"
        )


def _baseline(beside: BesideBaseline | None) -> Iterator[Line]:
    if beside is None:
        return
    there, ends = beside.baseline, beside.ci95
    worse = ends is not None and ends[1] < 0
    text = (
        f"baseline, the same {plural(beside.prompts, 'prompt')}: {percent(there.ratio)} correct; "
        f"{'WORSE:' if worse else 'difference'} {_change(beside)}"
    )
    yield Line(text, Tone.BAD if worse else Tone.PLAIN)


def _effect_remark(part: Quality) -> Iterator[Line]:
    """The highest third of the load against the lowest."""
    effect, thirds = part.load_effect, part.by_load
    if effect is None or effect.ci95 is None or len(thirds) < 2:
        return
    low, high = (f"{percent(t.ratio)} at {_range(t.concurrency)}" for t in (thirds[0], thirds[-1]))
    worse = effect.ci95[1] < 0
    text = f"by load: {low} in flight, {high}; {'WORSE:' if worse else 'difference'} {_change(effect)}"
    yield Line(text, Tone.WARN if worse else Tone.FAINT)


def _rejected_remark(rejected: Rejected) -> Iterator[Line]:
    if not rejected.n:
        return
    by = rejected.by
    yield Line(
        f"{plural(rejected.n, 'answer')} rejected ({percent(rejected.ratio)} of the complete answers)",
        Tone.WARN,
    )
    for name, n in by.items():
        yield Line(f"{count(n)} by {short(clean(name), _NAME_LENGTH)}", verbatim=True)


def _consistency_remark(repeated: Consistency) -> Iterator[Line]:
    if repeated.prompts:
        yield Line(
            f"same prompt, same answer: {percent(repeated.prompts_equal)} of "
            f"{plural(repeated.prompts, 'repeated prompt')}, "
            f"{percent(repeated.pairs_equal)} of the pairs of {count(repeated.answers)} answers"
        )


def _length_remark(length: AnswerLengths) -> Iterator[Line]:
    mean = length.mean_relative or 0.0
    if mean <= -_HARDLY_ANY:
        yield Line(f"answers were {percent(-mean)} shorter than asked, on average", Tone.WARN)
    elif length.n:
        yield Line(
            sentence(
                [
                    f"length: {percent(length.at_limit)} exactly as requested",
                    f"{percent(length.over)} longer" if length.over else "",
                    f"{number(_times_100(length.mean_relative))} % off on average (n {count(length.n)})",
                ]
            ),
            Tone.FAINT,
        )


def _finishes(finishes: Mapping[str, int], unusual: bool) -> Iterator[Line]:
    if finishes:
        yield Line(_named(finishes), Tone.WARN if unusual else Tone.FAINT, verbatim=unusual)


def _named(finishes: Mapping[str, int]) -> str:
    named = [f"{clean(short(str(reason), _NAME_LENGTH))} {count(n)}" for reason, n in finishes.items()]
    return f"ended by: {sentence(named)}"


def _time_table(parts: Sequence[RightOverTime]) -> Table | None:
    rows = tuple(
        TableRow(
            (
                f"{seconds(part.start_s)} .. {seconds(part.end_s)}",
                percent(part.ratio),
                _interval(part.ci95),
                count(part.n),
            )
        )
        for part in parts
        if part.n
    )
    columns = (Column("Window", left=True), Column("right"), Column("95 %"), Column("n"))
    return Table(columns, rows) if len(rows) > 1 else None


def _interval(ends: tuple[float, float] | None) -> str:
    return UNDEFINED if ends is None else f"{percent(ends[0])} .. {percent(ends[1])}"


def _change(found: BesideBaseline | RightDifference) -> str:
    """A difference of shares in percentage points, with its interval."""
    low, high = (number(_times_100(end)) for end in found.ci95 or (None, None))
    return f"{number(_times_100(found.difference))} points (95 %: {low} .. {high})"


def _times_100(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _range(concurrency: tuple[int, int]) -> str:
    low, high = concurrency
    return count(low) if low == high else f"{count(low)} .. {count(high)}"
