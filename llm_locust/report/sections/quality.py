"""Whether the answers were any good, where the run has something to say of that."""

from collections.abc import Iterator, Mapping, Sequence

from llm_locust.core.record import Doubt
from llm_locust.metrics.summary_types.quality import (
    AnswerLengths,
    BesideBaseline,
    Consistency,
    Quality,
    Rejected,
    RightAnswers,
    RightDifference,
    RightOverTime,
)
from llm_locust.metrics.summary_types.summary import Summary
from llm_locust.report.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.report.text import UNDEFINED, clean, count, number, percent, plural, seconds, sentence, short
from llm_locust.wire.dialects.table import DIALECTS
from llm_locust.wire.ends import AnswerEnd, end_of

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


def doubtful(summary: Summary) -> Section | None:
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
    return Section("Doubtful answers", tuple(lines), notes=notes, alarm=is_alarm)


def few_doubtful(summary: Summary) -> Section | None:
    """The same of a few among many, which is no alarm."""
    found = doubtful(summary)
    return None if found is None or found.alarm else found


def quality(summary: Summary) -> Section | None:
    """Accuracy, rejections, consistency, and finish reasons that are not usual; None without any of them.

    How long answers were and how they usually ended goes with it, and makes no section of its own.
    """
    part = summary.quality
    accuracy, rejected = part.accuracy, part.rejected
    repeated, finishes = part.consistency, part.finish_reasons
    unusual = [reason for reason in finishes if end_of(reason, _USUAL_FINISHES) > AnswerEnd.LENGTH]
    if not (accuracy.n or rejected.n or repeated.prompts or unusual):
        return None
    lines = [
        *_accuracy(accuracy),
        *_baseline(part.baseline),
        *_load_effect(part),
        *_rejected(rejected),
        *_consistency(repeated),
    ]
    notes = [*_length(part.length), *_finishes(finishes, bool(unusual))]
    return Section("Quality", tuple(lines), _over_time(part.over_time), tuple(notes))


def _accuracy(accuracy: RightAnswers) -> Iterator[Line]:
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


def _load_effect(part: Quality) -> Iterator[Line]:
    """The highest third of the load against the lowest."""
    effect, thirds = part.load_effect, part.by_load
    if effect is None or effect.ci95 is None or len(thirds) < 2:
        return
    low, high = (f"{percent(t.ratio)} at {_range(t.concurrency)}" for t in (thirds[0], thirds[-1]))
    worse = effect.ci95[1] < 0
    text = f"by load: {low} in flight, {high}; {'WORSE:' if worse else 'difference'} {_change(effect)}"
    yield Line(text, Tone.WARN if worse else Tone.FAINT)


def _rejected(rejected: Rejected) -> Iterator[Line]:
    if not rejected.n:
        return
    by = rejected.by
    yield Line(
        f"{plural(rejected.n, 'answer')} rejected ({percent(rejected.ratio)} of the complete answers)",
        Tone.WARN,
    )
    for name, n in by.items():
        yield Line(f"{count(n)} by {short(clean(name), _NAME_LENGTH)}", verbatim=True)


def _consistency(repeated: Consistency) -> Iterator[Line]:
    if repeated.prompts:
        yield Line(
            f"same prompt, same answer: {percent(repeated.prompts_equal)} of "
            f"{plural(repeated.prompts, 'repeated prompt')}, "
            f"{percent(repeated.pairs_equal)} of the pairs of {count(repeated.answers)} answers"
        )


def _length(length: AnswerLengths) -> Iterator[Line]:
    if length.n:
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


def _over_time(parts: Sequence[RightOverTime]) -> Table | None:
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
