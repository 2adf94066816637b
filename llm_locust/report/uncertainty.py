"""How sure a percentile is: its 95 % interval, or a mark where there are too few samples for one."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from llm_locust.report.section import Line, Section, Table, Tone
from llm_locust.report.text import UNDEFINED, number

Part = Mapping[str, Any]

MARK = "~"
_MEANING = f"{MARK} too few samples for a 95 % interval (p50 needs 6, p99 368, p99.9 3,688)"


def has_too_few(stats: Part, key: str) -> bool:
    """Whether a percentile stands without its interval: its n cannot bound it."""
    intervals = stats.get("ci95") or {}
    return stats.get(key) is not None and key in intervals and intervals[key] is None


def mark(stats: Part, key: str) -> str:
    """What stands before the percentile: nothing, where its interval is known."""
    return MARK if has_too_few(stats, key) else ""


def estimate(stats: Part, key: str) -> str:
    """A percentile with its mark; ``> 28,200`` where cut requests leave it open but for its lower bound."""
    bound = (stats.get("at_least") or {}).get(key)
    if stats.get(key) is None and bound is not None:
        return f"> {number(bound)}"
    return mark(stats, key) + number(stats.get(key))


def bounds(stats: Part, key: str) -> str:
    """The interval of a percentile: ``53.9–54.6``."""
    ends = (stats.get("ci95") or {}).get(key)
    return UNDEFINED if ends is None else "–".join(map(number, ends))


def meaning(*marked: str) -> Iterator[Line]:
    """What the mark means, where one of these texts has it."""
    if any(text.startswith(MARK) for text in marked):
        yield Line(_MEANING, Tone.FAINT)


def meaning_in(table: Table) -> Iterator[Line]:
    """What the mark means, where a figure has it; on a wide page only, where only ``wide`` ones do."""
    marked = [
        column.wide
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
        if not column.left and cell.startswith(MARK)
    ]
    if marked:
        yield Line(_MEANING, Tone.FAINT, wide=all(marked))


def explained_once(sections: list[Section]) -> list[Section]:
    """The sections with the mark's meaning below the first one only that has it.

    On a page without ``wide`` lines that may be a later one than on a page with them.
    """
    told: set[bool] = set()
    return [replace(section, notes=tuple(_untold(section.notes, told))) for section in sections]


def _untold(notes: tuple[Line, ...], told: set[bool]) -> Iterator[Line]:
    for note in notes:
        if note.text == _MEANING:
            if False in told or note.wide in told:
                continue
            told.add(note.wide)
        yield note
