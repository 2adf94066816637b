"""Whether the answers were any good, where the run has something to say of that."""

from collections.abc import Iterator, Mapping
from typing import Any

from llm_locust.report.section import Column, Line, Row, Section, Table, Tone
from llm_locust.report.text import UNDEFINED, clean, count, number, percent, plural, seconds, sentence, short

Part = Mapping[str, Any]

#: Ends of answers that are nothing to remark on, in the words of the APIs that are spoken.
USUAL_FINISHES = frozenset(
    {
        *("stop", "length", "tool_calls", "function_call", "eos", "eos_token"),  # chat, completions
        *("completed", "max_output_tokens"),  # responses
        *("end_turn", "max_tokens", "stop_sequence", "tool_use"),  # messages
    }
)

_NAME_LENGTH = 60


def quality(summary: Part) -> Section | None:
    """Accuracy, rejections, consistency, and finish reasons that are not usual; None without any of them.

    How long answers were and how they usually ended goes with it, and makes no section of its own.
    """
    part = summary.get("quality") or {}
    accuracy, rejected = part.get("accuracy") or {}, part.get("rejected") or {}
    repeated, finishes = part.get("consistency") or {}, part.get("finish_reasons") or {}
    unusual = {str(reason): n for reason, n in finishes.items() if reason not in USUAL_FINISHES}
    if not (accuracy.get("n") or rejected.get("n") or repeated.get("prompts") or unusual):
        return None
    lines = [
        *_accuracy(accuracy),
        *_baseline(part.get("baseline") or {}),
        *_load_effect(part),
        *_rejected(rejected),
        *_consistency(repeated),
    ]
    notes = [*_length(part.get("length") or {}), *_finishes(finishes, bool(unusual))]
    return Section("Quality", tuple(lines), _over_time(part.get("over_time") or ()), tuple(notes))


def _accuracy(accuracy: Part) -> Iterator[Line]:
    if accuracy.get("n"):
        yield Line(
            f"{percent(accuracy.get('ratio'))} right of {plural(accuracy['n'], 'answer')} that were compared "
            f"(95 %: {_interval(accuracy.get('ci95'))})"
        )


def _baseline(beside: Part) -> Iterator[Line]:
    if not beside:
        return
    there, ends = beside.get("baseline") or {}, beside.get("ci95")
    worse = ends is not None and ends[1] < 0
    text = (
        f"baseline, the same {plural(beside.get('prompts'), 'prompt')}: {percent(there.get('ratio'))} right; "
        f"{'WORSE:' if worse else 'difference'} {_change(beside)}"
    )
    yield Line(text, Tone.BAD if worse else Tone.PLAIN)


def _load_effect(part: Part) -> Iterator[Line]:
    """The highest third of the load against the lowest."""
    effect, thirds = part.get("load_effect"), part.get("by_load") or []
    if not effect or effect.get("difference") is None or len(thirds) < 2:
        return
    low, high = (
        f"{percent(t.get('ratio'))} at {_range(t.get('concurrency'))}" for t in (thirds[0], thirds[-1])
    )
    worse = effect["ci95"][1] < 0
    text = f"against load: {low} under way, {high}; {'WORSE:' if worse else 'difference'} {_change(effect)}"
    yield Line(text, Tone.WARN if worse else Tone.FAINT)


def _rejected(rejected: Part) -> Iterator[Line]:
    if not rejected.get("n"):
        return
    by = rejected.get("by") or {}
    yield Line(
        f"{plural(rejected['n'], 'answer')} rejected ({percent(rejected.get('ratio'))} of the complete ones)",
        Tone.WARN,
    )
    for name, n in by.items():
        yield Line(f"{count(n)} by {short(clean(name), _NAME_LENGTH)}", verbatim=True)


def _consistency(repeated: Part) -> Iterator[Line]:
    if repeated.get("prompts"):
        yield Line(
            f"same prompt, same answer: {percent(repeated.get('prompts_equal'))} of "
            f"{plural(repeated['prompts'], 'repeated prompt')}, "
            f"{percent(repeated.get('pairs_equal'))} of the pairs of {count(repeated.get('answers'))} answers"
        )


def _length(length: Part) -> Iterator[Line]:
    if length.get("n"):
        yield Line(
            sentence(
                [
                    f"length: {percent(length.get('at_limit'))} exactly as asked",
                    f"{percent(length['over'])} longer" if length.get("over") else "",
                    f"{number(100 * length['mean_relative'])} % off on average (n {count(length['n'])})",
                ]
            ),
            Tone.FAINT,
        )


def _finishes(finishes: Part, unusual: bool) -> Iterator[Line]:
    if finishes:
        named = [f"{clean(short(str(reason), _NAME_LENGTH))} {count(n)}" for reason, n in finishes.items()]
        yield Line(f"ended by: {sentence(named)}", Tone.WARN if unusual else Tone.FAINT, verbatim=unusual)


def _over_time(parts: Any) -> Table | None:
    rows = tuple(
        Row(
            (
                f"{seconds(part.get('start_s'))} .. {seconds(part.get('end_s'))}",
                percent(part.get("ratio")),
                _interval(part.get("ci95")),
                count(part.get("n")),
            )
        )
        for part in parts
        if part.get("n")
    )
    columns = (Column("Window", left=True), Column("right"), Column("95 %"), Column("n"))
    return Table(columns, rows) if len(rows) > 1 else None


def _interval(ends: Any) -> str:
    return UNDEFINED if ends is None else f"{percent(ends[0])} .. {percent(ends[1])}"


def _change(found: Part) -> str:
    """A difference of shares in percentage points, with its interval."""
    low, high = (number(100 * end) for end in found["ci95"])
    return f"{number(100 * found['difference'])} points (95 %: {low} .. {high})"


def _range(concurrency: Any) -> str:
    low, high = concurrency or (None, None)
    return count(low) if low == high else f"{count(low)} .. {count(high)}"
