"""How evenly the replicas were used, and what may have made them uneven."""

from collections.abc import Iterator, Mapping
from typing import Any

from llm_locust.report.section import Column, Line, Row, Section, Table, Tone
from llm_locust.report.text import UNDEFINED, clean, count, number, percent

Part = Mapping[str, Any]

_AMOUNTS = (
    ("requests", "requests"),
    ("output_tokens", "output tokens/s"),
    ("in_flight", "mean in flight"),
    ("ttft", "TTFT p50"),
)
_COLUMNS = (
    Column("Fairness", left=True),
    Column("Jain"),
    Column("Gini"),
    Column("variation"),
    Column("by chance"),
)

#: Causes that are told; the rest are in summary.json.
MOST_CAUSES = 8


def fairness(summary: Part) -> Section | None:
    """The indices and likely causes; None for fewer than two replicas."""
    part = summary.get("fairness") or {}
    if len(summary.get("replicas") or ()) < 2:
        return None
    table = Table(_COLUMNS, tuple(_row(part, key, words) for key, words in _AMOUNTS))
    return Section("Fairness", table=table, notes=(*_causes(part), *_naming(part)))


def _row(part: Part, key: str, words: str) -> Row:
    return Row(
        (
            words,
            number(part.get(key)),
            number((part.get("gini") or {}).get(key)),
            percent((part.get("cv") or {}).get(key)),
            _chance((part.get("chance") or {}).get(key)),
        )
    )


def _chance(tested: Part | None) -> str:
    """The p-value; below one in a million its digits say nothing more."""
    if not tested or tested.get("p") is None:
        return UNDEFINED
    return "p < 1e-6" if tested["p"] < 1e-6 else f"p {number(tested['p'])}"


def _causes(part: Part) -> Iterator[Line]:
    causes = part.get("causes") or ()
    for cause in causes[:MOST_CAUSES]:
        yield Line(clean(cause.get("text")), Tone.WARN, verbatim=True)
    if len(causes) > MOST_CAUSES:
        yield Line(f"{count(len(causes) - MOST_CAUSES)} more causes in summary.json", Tone.FAINT)


def _naming(part: Part) -> Iterator[Line]:
    if part.get("named_by") == "peer":
        yield Line("no response named its replica: told apart by the address of the connection", Tone.FAINT)
    if part.get("named_by") == "target":
        yield Line(
            "sent straight to each target: how requests are shared out is this run's own choice", Tone.FAINT
        )
    if part.get("unnamed"):
        yield Line(_unnamed(part["unnamed"]), Tone.FAINT)


def _unnamed(n: int) -> str:
    """Answered by nobody, as a rule: the balancer found no replica, or the connection broke before."""
    which = "1 request has" if n == 1 else f"{count(n)} requests have"
    return f"{which} no replica: no answer named one"
