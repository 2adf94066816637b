"""Parts: starts of the master that one run consists of, and the time without load between them."""

from typing import TYPE_CHECKING, Annotated

from llm_locust.figures.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.figures.text import clean, count, moment, percent, plural, seconds
from llm_locust.metrics.structs import SummaryPart, key

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary

_PART = "the part"
_PARTS = "all parts"


class PartFacts(SummaryPart, frozen=True):
    """One part: what one start of the master has recorded."""

    name: Annotated[str, key("directory of the part in that of the whole run", _PART)]
    run: Annotated[str, key("id of its run", _PART)]
    start: Annotated[str, key("its first scheduled request, ISO 8601, UTC", _PART)]
    end: Annotated[
        str, key("its stop; its last scheduled request where the master died before it, ISO 8601, UTC", _PART)
    ]
    seconds: Annotated[float, key("end − start, s", _PART)]
    requests: Annotated[int, key("number of records", _PART)]
    lost: Annotated[
        int, key("requests without a record; of a sweep those of the stage that was under way", _PART)
    ]
    ended_by: Annotated[str, key("why its load ended, in words", _PART)]


class PartGap(SummaryPart, frozen=True):
    """A time between two parts, in which no load was sent. It is in no rate."""

    after: Annotated[str, key("name of the part before it", _PARTS)]
    start: Annotated[str, key("end of that part's load, ISO 8601, UTC", _PARTS)]
    end: Annotated[str, key("first scheduled request of the next part, ISO 8601, UTC", _PARTS)]
    seconds: Annotated[float, key("end − start, s", _PARTS)]
    why: Annotated[str, key("what ended the part before it, in words", _PARTS)]


class Parts(SummaryPart, frozen=True):
    """Parts that were joined to one run, and the gaps between them."""

    parts: Annotated[list[PartFacts], key("the parts, in order", _PARTS)]
    gaps: Annotated[list[PartGap], key("the gaps between them, in order", _PARTS)]
    down_s: Annotated[float, key("sum of the gaps, s", _PARTS)]
    down_share: Annotated[
        float | None,
        key("down_s / (end of the last part − start of the first); null without length", _PARTS),
    ]


def show(summary: "Summary") -> Section | None:
    """Starts of the master that one run consists of, and the time without load between them."""
    found = summary.parts
    if found is None or len(found.parts) < 2:
        return None
    share = "" if found.down_share is None else f" ({percent(found.down_share)} of the whole)"
    lines = [Line(f"{seconds(found.down_s)} without load{share}, excluded from rates", Tone.WARN)]
    for gap in found.gaps:
        text = f"gap of {seconds(gap.seconds)} after {gap.after}, from {moment(gap.start)}: {clean(gap.why)}"
        lines.append(Line(text, verbatim=True))
    columns = (Column("part", verbatim=True), Column("from"), Column("load"), Column("requests"))
    rows = tuple(
        TableRow((clean(part.name), moment(part.start), seconds(part.seconds), count(part.requests)))
        for part in found.parts
    )
    return Section(plural(len(found.parts), "part"), tuple(lines), Table(columns, rows))
