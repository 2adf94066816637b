"""Arms of an interleaved comparison: the figures of each, and which differences are beyond noise."""

from collections.abc import Iterator
from dataclasses import replace

from llm_locust.core.texts import UNDEFINED
from llm_locust.figures.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.figures.summary import Summary
from llm_locust.figures.text import (
    clean,
    count,
    estimate,
    figure_label,
    is_cut,
    meaning_in,
    number,
    percent,
    sentence,
)
from llm_locust.metrics.compare.comparison import Verdict
from llm_locust.metrics.compare.sides import METRICS
from llm_locust.metrics.summary_types.stages import ArmDifferences, ArmRow, ArmSummary
from llm_locust.report.sections.groups import LATENCY_COLUMNS, RATE_COLUMNS, having_figures, rate_cells
from llm_locust.report.sections.verdicts import unplaced

_TONES = {Verdict.BETTER: Tone.GOOD, Verdict.WORSE: Tone.BAD, Verdict.UNDETERMINED: Tone.WARN}

_SHORT = {str(Verdict.NO_DIFFERENCE): "no difference"}


def arms(summary: Summary) -> Iterator[Section]:
    """The arms side by side, then each against the first; nothing in a run without arms."""
    found = summary.arms
    if not found:
        return
    yield _figures(summary, found)
    for arm in found:
        if arm.against is not None:
            yield _differences(arm, arm.against)


def _figures(summary: Summary, found: list[ArmSummary]) -> Section:
    columns = (
        Column("Arm", left=True, verbatim=True, wraps=True),
        Column("requests"),
        Column("share", wide=True),
        Column("errors"),
        *LATENCY_COLUMNS.values(),
        *(replace(column, wide=True) for column in RATE_COLUMNS),
        Column("goodput"),
    )
    table = having_figures(Table(columns, tuple(map(_figures_row, found))), summary)
    where = (
        Line(clean(f"{arm.name}: {', '.join((arm.host, *arm.differs_in))}"), Tone.FAINT, verbatim=True)
        for arm in found
    )
    return Section(
        "Arms",
        table=table,
        notes=(
            *where,
            *_of_models(found),
            *(
                Line(f"NO ANSWER from {arm.name}: it holds no gate", Tone.BAD)
                for arm in found
                if _is_silent(arm)
            ),
            *_unrecorded(summary, found[0]),
            Line(
                "requests were assigned at random; figures of all arms together are of none, and not shown",
                Tone.FAINT,
            ),
            *meaning_in(table),
        ),
    )


def _of_models(found: list[ArmSummary]) -> Iterator[Line]:
    if len({arm.model for arm in found}) > 1:
        yield Line(
            "the arms have different models: a token of one is not a token of another, and times per token "
            "and tokens/s compare the models too",
            Tone.WARN,
        )


def _unrecorded(summary: Summary, arm: ArmSummary) -> Iterator[Line]:
    words = unplaced(summary, arm.figures.requests)
    if words:
        yield Line(
            f"{words}: it is not known to which arm they belong, and no arm's figures have them", Tone.WARN
        )


def _is_silent(arm: ArmSummary) -> bool:
    return not arm.figures.requests.ok


def _figures_row(arm: ArmSummary) -> TableRow:
    part = arm.figures
    cut = is_cut(part.requests.cut_share)
    return TableRow(
        (
            clean(arm.name),
            count(part.requests.population),
            percent(arm.share),
            percent(part.requests.error_rate),
            *(estimate(part.latency_ms[key], place, cut=cut) for key, place in LATENCY_COLUMNS),
            *rate_cells(part.throughput.output_tokens_per_s, part.throughput.inputs_per_s),
            percent(part.goodput.ratio),
        ),
        Tone.BAD if _is_silent(arm) else Tone.PLAIN,
    )


def _differences(arm: ArmSummary, against: ArmDifferences) -> Section:
    columns = (
        Column("Figure", left=True),
        Column(clean(against.arm)),
        Column(clean(arm.name)),
        Column("difference"),
        Column("interval"),
        Column("change", wide=True),
        Column("verdict", left=True, wraps=True, toned=True),
    )
    table = Table(columns, tuple(map(_difference_row, against.rows)))
    return Section(
        f"{clean(arm.name)} against {clean(against.arm)}",
        lines=tuple(_in_words(arm, against)),
        table=table,
        notes=(
            Line(
                f"intervals of {100 * against.confidence:.4g} % each, paired in time: all hold together "
                "with 95 %; latencies in ms, shares in percentage points",
                Tone.FAINT,
            ),
        ),
        key=f"arm_{arm.name}",
        stacked=True,
    )


def _in_words(arm: ArmSummary, against: ArmDifferences) -> Iterator[Line]:
    """What became worse and what better."""
    said = False
    for verdict in (Verdict.WORSE, Verdict.BETTER):
        rows = [row for row in against.rows if row.verdict == verdict]
        if rows:
            said = True
            named = ", ".join(f"{_label(row)} {_signed(row)}" for row in rows)
            yield Line(f"{clean(arm.name)} is {verdict} than {clean(against.arm)}: {named}", _TONES[verdict])
    few = sum(row.verdict == Verdict.TOO_FEW for row in against.rows)
    left_open = sum(row.verdict == Verdict.UNDETERMINED for row in against.rows)
    if not said:
        tone = Tone.WARN if few + left_open else Tone.GOOD
        yield Line(
            f"{clean(arm.name)} and {clean(against.arm)}: no difference beyond noise in any figure", tone
        )
    rest = [
        f"{few} of {len(against.rows)} figures with too few samples" if few else "",
        f"{left_open} undetermined" if left_open else "",
    ]
    if any(rest):
        yield Line(sentence(rest), Tone.FAINT)


def _difference_row(row: ArmRow) -> TableRow:
    return TableRow(
        (
            _label(row),
            _shown(row, row.base),
            _shown(row, row.new),
            _signed(row),
            _interval(row),
            UNDEFINED if row.change is None else f"{100 * row.change:+.1f} %",
            f"undetermined: {clean(row.reason)}" if row.reason else _SHORT.get(row.verdict, row.verdict),
        ),
        next((tone for verdict, tone in _TONES.items() if row.verdict == verdict), Tone.PLAIN),
    )


def _label(row: ArmRow) -> str:
    return figure_label(METRICS[row.metric])


def _shown(row: ArmRow, value: float | None) -> str:
    return percent(value) if row.unit == "share" else number(value)


def _signed(row: ArmRow) -> str:
    """The difference with its sign, in ms or percentage points."""
    if row.difference is None:
        return UNDEFINED
    return f"{_with_sign(row, row.difference)} {'pp' if row.unit == 'share' else row.unit}"


def _interval(row: ArmRow) -> str:
    if row.difference_interval is None:
        return UNDEFINED
    low, high = (None if end is None else _with_sign(row, end) for end in row.difference_interval)
    return f"{low} … {high}"


def _with_sign(row: ArmRow, value: float) -> str:
    if row.unit == "share":
        return f"{100 * value:+.2f}"
    text = number(abs(value))
    return text if text == "0" else ("-" if value < 0 else "+") + text
