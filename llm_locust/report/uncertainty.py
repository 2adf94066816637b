"""How sure a percentile is: its 95 % interval, a mark where the data cannot tell one, and another
where many of the requests were cut."""

from collections.abc import Iterator
from dataclasses import replace

from llm_locust.metrics.summary_types.base import Figures
from llm_locust.report.section import Line, Section, Table, Tone
from llm_locust.report.text import UNDEFINED, number

MARK = "~"
_LEAST = {"p50": 40, "p99": 1000}
MARK_MEANING = (
    f"{MARK} too few independent samples for a 95 % interval: requests that waited together count as fewer"
)


#: Behind latencies of which more than this share of the requests was cut by the run's end.
CUT_MARK = "†"
NOTABLE_CUT = 0.01
_CUT_MEANING = (
    f"{CUT_MARK} the end of the run cut more than 1 % of the requests: these are estimates that count them "
    "in, > is a lower bound"
)


def is_cut(cut_share: float | None) -> bool:
    """Whether the run's end cut so many of the requests that their latencies are marked."""
    return (cut_share or 0.0) > NOTABLE_CUT


def cut_note(cut_share: float | None) -> Line | None:
    """What the mark of latencies of cut requests means, where these have it."""
    return Line(_CUT_MEANING, Tone.WARN) if is_cut(cut_share) else None


def mark(stats: Figures, key: str) -> str:
    """What stands before a percentile without its interval, which its samples cannot bound."""
    return MARK if stats.figure(key) is not None and stats.intervals().get(key, ()) is None else ""


def counted(value: float | None, key: str, n: int) -> str:
    """A percentile of ``n`` samples whose interval is not known, marked if they are too few for one."""
    return f"{MARK if value is not None and n < _LEAST[key] else ''}{number(value)}"


def estimate(stats: Figures, key: str, *, cut: bool = False) -> str:
    """A percentile with its marks; ``> 28,200`` where cut requests leave it open but for its lower bound.

    Args:
        cut: whether it is marked as one of requests of which many were cut.
    """
    bound, value = stats.bound(key), stats.figure(key)
    behind = CUT_MARK if cut and (value is not None or bound is not None) else ""
    if value is None and bound is not None:
        return f"> {number(bound)}{behind}"
    return f"{mark(stats, key)}{number(value)}{behind}"


def bounds(stats: Figures, key: str) -> str:
    """The interval of a percentile: ``53.9–54.6``."""
    ends = stats.intervals().get(key)
    return UNDEFINED if ends is None else "–".join("∞" if end is None else number(end) for end in ends)


def meaning(*marked: str) -> Iterator[Line]:
    """What the mark means, where one of these texts has it."""
    if any(text.startswith(MARK) for text in marked):
        yield Line(MARK_MEANING, Tone.FAINT)


def meaning_in(table: Table) -> Iterator[Line]:
    """What the mark means, where a figure has it; on a wide page only, where only ``wide`` ones do."""
    marked = [
        column.wide
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
        if not column.left and cell.startswith(MARK)
    ]
    if marked:
        yield Line(MARK_MEANING, Tone.FAINT, wide=all(marked))
    if any(cell.endswith(CUT_MARK) for row in table.rows for cell in row.cells):
        yield Line(_CUT_MEANING, Tone.WARN)


def explained_once(sections: list[Section]) -> list[Section]:
    """The sections with the mark's meaning below the first one only that has it.

    On a page without ``wide`` lines that may be a later one than on a page with them.
    """
    told: set[bool] = set()
    return [replace(section, notes=tuple(_untold(section.notes, told))) for section in sections]


def _untold(notes: tuple[Line, ...], told: set[bool]) -> Iterator[Line]:
    for note in notes:
        if note.text == MARK_MEANING:
            if False in told or note.wide in told:
                continue
            told.add(note.wide)
        yield note
