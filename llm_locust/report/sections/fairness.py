"""How evenly the replicas were used, and what may have made them uneven."""

from collections.abc import Iterator

from llm_locust.metrics.deployment.causes import BEYOND_CHANCE, UNEVEN_CV
from llm_locust.metrics.summary_types.deployment.replicas import Fairness, ReplicaHeader, TestOfChance
from llm_locust.metrics.summary_types.summary import Summary
from llm_locust.report.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.report.text import UNDEFINED, clean, count, number, percent

_AMOUNTS = (
    ("requests", "requests"),
    ("output_tokens", "output tokens/s"),
    ("in_flight", "mean in flight"),
    ("ttft", "TTFT p50"),
)
_WITHOUT_OUTPUT = tuple(each for each in _AMOUNTS if each[0] in ("requests", "in_flight"))
_COLUMNS = (
    Column("Fairness", left=True),
    Column("Jain"),
    Column("Gini"),
    Column("variation"),
    Column("by chance"),
)

#: Causes of which a box tells, see :mod:`~llm_locust.report.sections.findings`: a user notices them. The
#: others say how the balancer works.
BOXED = ("out", "slow")

#: Causes that are told; the rest are in summary.json.
MOST_CAUSES = 8


def fairness(summary: Summary) -> Section | None:
    """The indices and likely causes; None for fewer than two replicas, and for replicas that were alike."""
    part = summary.fairness
    if len(summary.replicas) < 2:
        return None
    amounts = _AMOUNTS if not summary.is_without_output else _WITHOUT_OUTPUT
    table = Table(_COLUMNS, tuple(_row(part, key, words) for key, words in amounts)).without_empty(UNDEFINED)
    causes = tuple(_causes(part))
    return None if not causes and _is_even(part) else Section("Fairness", table=table, notes=causes)


def _is_even(part: Fairness) -> bool:
    """Whether the indices would say nothing but that the replicas were alike."""
    tests = (part.chance.requests, part.chance.ttft)
    by_chance = all(test is None or test.p >= BEYOND_CHANCE for test in tests)
    return by_chance and all((part.cv.figure(key) or 0.0) <= UNEVEN_CV for key, _ in _AMOUNTS)


def _row(part: Fairness, key: str, words: str) -> TableRow:
    chance = {"requests": part.chance.requests, "ttft": part.chance.ttft}
    return TableRow(
        (
            words,
            number(part.figure(key)),
            number(part.gini.figure(key)),
            percent(part.cv.figure(key)),
            _chance(chance.get(key)),
        )
    )


def _chance(tested: TestOfChance | None) -> str:
    """The p-value; below one in a million its digits say nothing more."""
    if tested is None:
        return UNDEFINED
    return "p < 1e-6" if tested.p < 1e-6 else f"p {number(tested.p)}"


def _causes(part: Fairness) -> Iterator[Line]:
    causes = [cause for cause in part.causes if cause.kind not in BOXED]
    for cause in causes[:MOST_CAUSES]:
        yield Line(clean(cause.text), Tone.WARN, verbatim=True)
    if len(causes) > MOST_CAUSES:
        yield Line(f"{count(len(causes) - MOST_CAUSES)} more causes in summary.json", Tone.FAINT)


def naming(part: Fairness) -> Iterator[Line]:
    """What told the replicas apart, where it was not a header that names each of them."""
    named = [each for each in part.headers if each.answers]
    for better in (each for each in named[1:] if each.name == part.better_header):
        yield Line(_better(named[0], better), Tone.WARN, verbatim=True)
    if part.named_by == "peer":
        yield Line("no response named its replica: distinguished by connection address", Tone.FAINT)
    if part.named_by == "target":
        yield Line("sent directly to each target: this run chose how requests are distributed", Tone.FAINT)
    if part.unnamed:
        yield Line(_unnamed(part.unnamed), Tone.FAINT)


def _better(used: ReplicaHeader, better: ReplicaHeader) -> str:
    """That one header names a single replica, and which names several."""
    name = clean(better.name)
    return (
        f"every answer has {clean(used.name)}: {clean(used.value)}, but {name} names {better.values} "
        f"replicas: use --replica-header {name}"
    )


def _unnamed(n: int) -> str:
    """Answered by nobody, as a rule: the balancer found no replica, or the connection broke before."""
    which = "1 request has" if n == 1 else f"{count(n)} requests have"
    return f"{which} no replica: no answer named one"
