"""How evenly a deployment's replicas were used, whether chance explains it, and what else may."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Annotated, Protocol

import msgspec
import numpy as np
from msgspec import structs

from llm_locust.core import manifest as replica_headers
from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest
from llm_locust.core.texts import UNDEFINED, probability, quantity
from llm_locust.figures.autoscaling import Autoscaling, autoscaling, lives
from llm_locust.figures.figure import Run
from llm_locust.figures.parts import (
    LATENCY_COLUMNS,
    having_figures,
)
from llm_locust.figures.reliability import OutageSpan
from llm_locust.figures.routing import (
    Affinity,
    Carriers,
    ReplicaFigures,
    by_connection,
    by_key,
    dispersion,
    middle,
    replica_labels,
    replicas,
    while_all_serve,
    with_course,
)
from llm_locust.figures.text import (
    MOST_ROWS,
    Column,
    Line,
    Section,
    Table,
    TableRow,
    Tone,
    clean,
    count,
    estimate,
    is_cut,
    meaning_in,
    number,
    percent,
    rows_left_out,
    short_name,
)
from llm_locust.metrics.columns import Columns, Floats, Rows
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.stats.proportions import (
    Significance,
    equal_shares,
    median_interval,
    same_distribution,
)
from llm_locust.metrics.structs import Interval, SummaryPart, key

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary

#: Causes that are told; the rest are in summary.json.
MOST_CAUSES = 8


# --- Replicas, and how evenly they were used


_POPULATION = "the population"
_RUN = "the whole run"


class Evenness(SummaryPart, frozen=True):
    """A measure of evenness of each amount."""

    requests: Annotated[float | None, key("of requests", "replicas")]
    output_tokens: Annotated[float | None, key("of output tokens/s", "replicas")]
    in_flight: Annotated[float | None, key("of mean concurrency", "replicas")]
    ttft: Annotated[float | None, key("of the median TTFT", "replicas")]


class TestOfChance(SummaryPart, frozen=True):
    """A test of whether chance explains it."""

    statistic: Annotated[float, key("statistic of the test", "replicas")]
    p: Annotated[float, key("p of the test", "replicas")]


class ChanceTests(SummaryPart, frozen=True):
    """Whether chance explains the differences."""

    requests: Annotated[TestOfChance | None, key("χ² of equal shares", "replicas")]
    ttft: Annotated[TestOfChance | None, key("Kruskal–Wallis H of TTFT", "replicas")]


_PAIRS = "successive requests with the same key"


class AffinityFigures(SummaryPart, frozen=True):
    """Whether requests of one key go to one replica."""

    pairs: Annotated[int, key("pairs of successive requests", _PAIRS)]
    observed: Annotated[float, key("share served by one replica", _PAIRS)]
    expected: Annotated[float, key("share by chance", _PAIRS)]


class Affinities(SummaryPart, frozen=True):
    """By connection, by session, by prompt."""

    connection: AffinityFigures | None
    session: AffinityFigures | None
    prompt: AffinityFigures | None


class LikelyCause(SummaryPart, frozen=True):
    """What may have made replicas uneven."""

    kind: Annotated[
        str,
        key(
            "a likely cause: `out`, `added`, `slow`, `sticky`, `least_busy`, `affine`, `round_robin` or "
            "`unknown`"
        ),
    ]
    text: Annotated[str, key("the cause in words")]
    replica: Annotated[str | None, key("the replica that it is of")]


class ReplicaHeader(SummaryPart, frozen=True):
    """A response header that may name the replica; the first of them that an answer has does."""

    name: Annotated[str, key("a response header that may name the replica", _RUN)]
    answers: Annotated[int, key("answers with it", _RUN)]
    values: Annotated[int, key("its values, 64 where there are `more`", _RUN)]
    more: Annotated[bool, key("more than 64", _RUN)]
    value: Annotated[str, key("the first of its values", _RUN)]


class Fairness(SummaryPart, frozen=True):
    """How evenly the replicas were used."""

    requests: Annotated[float | None, key("Jain's index over replicas", "requests")]
    output_tokens: Annotated[float | None, key("Jain's index over replicas", "output tokens/s")]
    in_flight: Annotated[float | None, key("Jain's index over replicas", "mean concurrency")]
    ttft: Annotated[float | None, key("Jain's index over replicas", "median TTFT")]
    gini: Annotated[Evenness, key("Gini coefficient")]
    cv: Annotated[Evenness, key("coefficient of variation")]
    chance: ChanceTests
    named_by: Annotated[str | None, key("what names replicas", _POPULATION)]
    unnamed: Annotated[int, key("requests without a replica", _POPULATION)]
    headers: Annotated[list[ReplicaHeader], key("in the order in which they are asked")]
    better_header: Annotated[
        str | None,
        key("the header that tells replicas apart where that in use has one value in all answers", _RUN),
    ]
    dispersion: Annotated[float | None, key("evenness of short blocks of requests", _POPULATION)]
    affinity: Affinities
    causes: list[LikelyCause]


# --- What may have made replicas uneven, in words that name the evidence


#: A replica is slow from this many times the median of the others on.
SLOW_FACTOR = 1.5
#: From this many times the requests of another on, a later first token may be a queue.
_BUSIER = 1.25
#: Coefficients of variation from which on tokens or requests in flight are uneven.
UNEVEN_CV = 0.1
#: Below this dispersion each replica has its turn.
_IN_TURN = 0.5
#: An imbalance is beyond chance below this p-value.
BEYOND_CHANCE = 0.01


@dataclass(frozen=True, slots=True)
class Evidence:
    """``entries`` are those of a summary's ``replicas``, ``together`` the share and median latencies of each
    while all served, ``requests`` the test against chance, ``cv`` the coefficients of variation by amount.
    ``direct``: no balancer, the run itself shared the requests out. ``came`` are the replicas that were added
    while the run went on."""

    entries: Sequence[ReplicaFigures]
    together: Sequence[ReplicaFigures]
    requests: Significance | None
    dispersion: float | None
    cv: Mapping[str, float | None]
    affinities: Mapping[str, Affinity]
    direct: bool = False
    came: frozenset[str] = frozenset()

    @property
    def uneven_requests(self) -> bool:
        return self.requests is not None and self.requests.p < BEYOND_CHANCE

    def is_uneven(self, amount: str) -> bool:
        return (self.cv[amount] or 0.0) > UNEVEN_CV


def causes(e: Evidence) -> list[LikelyCause]:
    """The likely causes of what is uneven, the most certain first; none where nothing is."""
    if len(e.entries) < 2:
        return []
    found = [*_out(e), *_slow(e)]
    if e.direct:
        return found
    found += _sticky(e) or _as_they_finish(e)
    found += [*_affine(e), *_round_robin(e)]
    if not found and e.uneven_requests and e.is_uneven("requests") and e.requests is not None:
        found.append(
            _cause(
                "unknown",
                f"requests are distributed unevenly, beyond chance ({probability(e.requests.p)}) and follow "
                "neither connection nor session nor prompt: the balancer has weights, or leaves a replica "
                "out",
            )
        )
    return found


def _out(e: Evidence) -> Iterator[LikelyCause]:
    for entry in e.entries:
        for outage in entry.outages:
            if outage.from_s is None and outage.to_s is not None and entry.name in e.came:
                text = (
                    f"{entry.name} was added at {outage.to_s:.1f} s of the window: the others served before"
                )
                yield _cause("added", text, entry.name)
            else:
                yield _cause("out", f"{entry.name} {_outage(outage)}", entry.name)


def _outage(outage: OutageSpan) -> str:
    """What a replica did, after its name."""
    since, until = outage.from_s, outage.to_s
    meanwhile = f"while others started or ended {outage.others} answers"
    if since is None and until is None:
        return f"produced no token at all, {meanwhile}"
    if since is None:
        return f"produced its first token at {until:.1f} s of the window, {meanwhile}"
    if until is None:
        return f"stopped serving at {since:.1f} s of the window and did not come back, {meanwhile}"
    return f"produced no token from {since:.1f} s to {until:.1f} s of the window, {meanwhile}"


def _slow(e: Evidence) -> Iterator[LikelyCause]:
    """A replica that takes longer without having more to do. Those that served all the time are compared
    over all of it, one that did not with the others while all served: nobody is slow by the hour."""
    steady = [entry for entry in e.entries if not entry.outages]
    for entry, then in zip(e.entries, e.together, strict=True):
        if len(steady) > 1 and not entry.outages:
            yield from slower(entry, steady)
        else:
            yield from slower(then, e.together, ", while all served")


class Paced(Protocol):
    """The median latencies of a replica, with their intervals, and its share of the requests."""

    @property
    def name(self) -> str: ...

    @property
    def share(self) -> float | None: ...

    @property
    def ci95(self) -> Mapping[str, Interval]: ...

    def figure(self, name: str, /) -> float | None: ...


def slower(entry: Paced, among: Sequence[Paced], when: str = "") -> Iterator[LikelyCause]:
    """By its pace, else by its first token; beyond chance, as the 95 % intervals of the medians tell, and
    beyond what it has more to do: a step takes longer with its batch, a queue may grow without bound."""
    others = [other for other in among if other is not entry]
    for which, name in (("tpot_p50_ms", "TPOT"), ("ttft_p50_ms", "TTFT")):
        value, (low, _) = entry.figure(which), entry.ci95[which] or (None, None)
        known = [
            (p50, ends[1], other)
            for other in others
            if (p50 := other.figure(which)) and (ends := other.ci95[which]) and ends[1] is not None
        ]
        if value is None or low is None or not known:
            continue
        usual, busier = median(p50 for p50, *_ in known), _busier(entry, [other for *_, other in known])
        if name == "TTFT" and busier > _BUSIER:
            continue
        beyond = low > median(high for _, high, _ in known)
        if value >= SLOW_FACTOR * max(1.0, busier) * usual and beyond:
            whom = known[0][2].name if len(known) == 1 else "the others"
            share = f"{100 * (entry.share or 0):.0f} % of the requests{when}"
            yield _cause(
                "slow",
                f"{entry.name} is {value / usual:.1f} times slower than {whom}: {name} p50 "
                f"{quantity(value)} ms against {quantity(usual)} ms, with {share}",
                entry.name,
            )
            return


def _busier(entry: Paced, others: Sequence[Paced]) -> float:
    """How many times the requests of another it had."""
    usual = median(other.share or 0.0 for other in others)
    return (entry.share or 0.0) / usual if usual else 1.0


def _sticky(e: Evidence) -> list[LikelyCause]:
    connection = e.affinities["connection"]
    if not (connection.binds and (e.uneven_requests or e.is_uneven("in_flight"))):
        return []
    text = (
        f"connections stick to a replica: {_share(connection)} on a reused connection went where the one "
        "before it went; the balancer distributes connections, not requests: compare with "
        "--connection-reuse off"
    )
    return [_cause("sticky", text)]


def _as_they_finish(e: Evidence) -> list[LikelyCause]:
    """Requests are uneven because replicas are, and what is under way at each is not."""
    requests, in_flight = e.cv["requests"] or 0.0, e.cv["in_flight"]
    if not e.uneven_requests or requests <= UNEVEN_CV or in_flight is None or in_flight > requests / 2:
        return []
    text = (
        f"requests are uneven (variation {100 * requests:.0f} %) and those in flight are less so "
        f"({100 * in_flight:.0f} %): each replica gets what it finishes, as with a balancer that picks the "
        "least busy one"
    )
    return [_cause("least_busy", text)]


def _affine(e: Evidence) -> Iterator[LikelyCause]:
    """Where a connection decides already, its sessions go with it."""
    if e.affinities["connection"].binds:
        return
    for which, what in (("session", "of a session"), ("prompt", "with the same prompt")):
        if e.affinities[which].decides:
            yield _cause(
                "affine",
                f"routing follows the prefix or the session: {_share(e.affinities[which])} {what} went where "
                "the one before it went; a cache is used, and popular prefixes load their replica",
            )
            return


def _round_robin(e: Evidence) -> Iterator[LikelyCause]:
    uneven = [what for what in ("output_tokens", "in_flight") if e.is_uneven(what)]
    if e.dispersion is None or e.dispersion >= _IN_TURN or not uneven:
        return
    words = {"output_tokens": "output tokens", "in_flight": "requests in flight"}
    amounts = " and ".join(f"{words[what]} (variation {100 * (e.cv[what] or 0):.0f} %)" for what in uneven)
    yield _cause(
        "round_robin",
        f"requests are dealt out in turn (dispersion {e.dispersion:.2f}, chance is 1), {amounts} are not "
        "even: round robin looks at neither length nor load",
    )


def _cause(kind: str, text: str, replica: str | None = None) -> LikelyCause:
    return LikelyCause(kind=kind, text=text, replica=replica)


def _share(affinity: Affinity) -> str:
    return (
        f"{100 * affinity.observed:.0f} % of {affinity.pairs} requests "
        f"({100 * affinity.expected:.0f} % by chance)"
    )


Entries = Sequence[ReplicaFigures]

#: What evenness is told of, and the key of a replica's entry that holds it.
AMOUNTS = {
    "requests": "requests",
    "output_tokens": "output_tokens_per_s",
    "in_flight": "concurrency_mean",
    "ttft": "ttft_p50_ms",
}


@dataclass(frozen=True, slots=True)
class Deployment:
    """The replicas of a run, how even they were, and how their number changed, where it did."""

    replicas: list[ReplicaFigures]
    fairness: Fairness
    autoscaling: Autoscaling | None


def compute(run: Run) -> Deployment:
    return deployment(run.requests, run.m, run.manifest, None if run.of_selection else run.missing.known)


def replicas_of(run: Run) -> list[ReplicaFigures]:
    return run.figure(compute).replicas


def fairness_of(run: Run) -> Fairness:
    return run.figure(compute).fairness


def autoscaling_of(run: Run) -> Autoscaling | None:
    return run.figure(compute).autoscaling


def deployment(requests: Requests, m: Measured, manifest: Manifest, unrecorded: int | None) -> Deployment:
    """The ``replicas`` and ``fairness`` of a summary, and ``autoscaling`` where their number changed.

    ``fairness`` has Jain's index of each of :data:`AMOUNTS` by its own name, and in ``gini`` and ``cv`` its
    Gini coefficient and coefficient of variation. ``chance`` has the tests of requests and TTFT of
    :mod:`~llm_locust.metrics.stats.proportions`. ``named_by`` says what tells replicas apart, ``unnamed`` how
    many requests of the population have no name. How requests were routed, and the test of TTFT, are of a
    million of them at most, see :func:`~llm_locust.figures.routing.middle`. ``dispersion`` (of
    requests sent while no replica was out) and ``affinity`` are those of
    :mod:`~llm_locust.figures.routing`, ``causes`` the likely ones in words. With targets the run
    chose one for each request, so that how they were shared out is its own doing and no balancer's.

    Args:
        unrecorded: requests of the run without a record; None of a selection, which has no ``autoscaling``.
    """
    direct = bool(manifest.targets)
    carriers = Carriers.of(requests)
    labels, named_by = replica_labels(m.c, carriers)
    named_by = "target" if direct and named_by == "header" else named_by
    m = replace(m, c=replace(m.c, replica=labels))
    entries = with_course(replicas(m.c, m.credits, m.judgement, m.stuck), m.c, m.window)
    scaled = None if unrecorded is None else autoscaling(requests, m, manifest, unrecorded)
    headers, better = _headers(manifest)
    evenness = fairness(entries, m, carriers, named_by, direct=direct, headers=headers, better_header=better)
    return Deployment(entries, evenness, scaled or None)


def _headers(manifest: Manifest) -> tuple[list[ReplicaHeader], str | None]:
    """The headers that may name replicas, as all workers counted them, and a better one than that in use.

    With targets, or arms, each of them is asked by itself: headers do not have to tell them apart.
    """
    found = replica_headers.together(each for worker in manifest.workers for each in worker.replica_headers)
    better = None if manifest.targets or manifest.arms else replica_headers.better_header(found)
    headers = [
        ReplicaHeader(
            name=each.name,
            answers=each.answers,
            values=len(each.values),
            more=each.more,
            value=each.value,
        )
        for each in found
    ]
    return headers, None if better is None else better.name


def fairness(
    entries: Entries,
    m: Measured,
    carriers: Carriers,
    named_by: str | None,
    *,
    direct: bool,
    headers: Sequence[ReplicaHeader] = (),
    better_header: str | None = None,
) -> Fairness:
    """See :func:`deployment`; the requests have their replicas' labels."""
    c, values, start_s = m.c, m.values, m.window.start_s(m.c)
    judged = m.population(np.arange(len(c))).judged
    named = judged[c.replica.codes[judged] >= 0]
    looked_at = middle(c, named)
    requests = equal_shares([entry.requests for entry in entries])
    ttft = same_distribution([values["ttft"][rows] for rows in _by_replica(c, looked_at, entries)])
    affinities = {
        "connection": by_connection(c, carriers, c.replica, looked_at),
        "session": by_key(c, carriers.session, c.replica, looked_at),
        "prompt": by_key(c, carriers.prompt_id.codes.astype(np.int64) + 1, c.replica, looked_at),
    }
    outages = [(outage.from_s, outage.to_s) for entry in entries for outage in entry.outages]
    serving = while_all_serve(c, looked_at, outages, start_s)
    spread = dispersion(c, c.replica, serving)
    amounts = {name: [entry.figure(key) for entry in entries] for name, key in AMOUNTS.items()}
    cv = {name: variation(of) for name, of in amounts.items()}
    medians = _medians(values, c, named, entries)
    together = (
        _medians(values, c, while_all_serve(c, named, outages, start_s), entries) if outages else medians
    )
    compared = [structs.replace(e, ci95=of.ci95) for e, of in zip(entries, medians, strict=True)]
    late = any(since is None for since, _ in outages)
    came = frozenset(life.name for life in lives(c) if life.came) if late else frozenset()
    evidence = Evidence(compared, together, requests, spread, cv, affinities, direct, came)
    return Fairness(
        **{name: jain(of) for name, of in amounts.items()},
        gini=Evenness(**{name: gini(of) for name, of in amounts.items()}),
        cv=Evenness(**cv),
        chance=ChanceTests(requests=_plain(requests), ttft=_plain(ttft)),
        named_by=named_by,
        unnamed=len(judged) - len(named),
        headers=list(headers),
        better_header=better_header,
        dispersion=spread,
        affinity=Affinities(**{key: _affinity_figures(affinity) for key, affinity in affinities.items()}),
        causes=causes(evidence),
    )


def jain(amounts: Sequence[float | None]) -> float | None:
    """(Σx)² / (k Σx²): 1 when even, 1/k when one has all. None for fewer than two, for an unknown one, and
    where all are 0."""
    return _evenness(amounts, lambda x: float(x.sum()) ** 2 / (len(x) * float(x @ x)))


def gini(amounts: Sequence[float | None]) -> float | None:
    """Σ_i Σ_j |x_i − x_j| / (2 k Σx): 0 when even, 1 − 1/k when one has all. None as :func:`jain`."""

    def coefficient(x: Floats) -> float:
        k = len(x)
        ranks = 2 * np.arange(1, k + 1) - k - 1
        return max(0.0, float(ranks @ np.sort(x)) / (k * float(x.sum())))

    return _evenness(amounts, coefficient)


def variation(amounts: Sequence[float | None]) -> float | None:
    """Standard deviation (of the population) / mean: 0 when even. None as :func:`jain`."""
    return _evenness(amounts, lambda x: float(x.std() / x.mean()))


def _evenness(amounts: Sequence[float | None], of: Callable[[Floats], float]) -> float | None:
    if len(amounts) < 2 or any(a is None or not math.isfinite(a) for a in amounts):
        return None
    x = np.array(amounts, dtype=np.float64)
    return of(x / x.max()) if x.any() else None  # of shares: no square overflows


def _by_replica(c: Columns, rows: Rows, entries: Entries) -> list[Rows]:
    """The ok ones among ``rows``, by replica."""
    ok = rows[c.ok[rows]]
    code_of = {name: code for code, name in enumerate(c.replica.names)}
    return [ok[c.replica.codes[ok] == code_of[entry.name]] for entry in entries]


def _medians(values: Mapping[str, Floats], c: Columns, rows: Rows, entries: Entries) -> Entries:
    """The entries with the share, and the median TTFT and TPOT, of ``rows`` only.

    The intervals take requests as independent.
    """
    counts = np.bincount(c.replica.codes[rows], minlength=len(c.replica.names))
    of_replica = _by_replica(c, rows, entries)
    known = {f"{name}_p50_ms": [values[name][mine] * 1e3 for mine in of_replica] for name in ("ttft", "tpot")}
    codes = [c.replica.names.index(entry.name) for entry in entries]
    return [
        structs.replace(
            entry,
            share=float(counts[code]) / max(1, len(rows)),
            ci95={key: median_interval(of[i]) for key, of in known.items()},
            **{key: _median(of[i]) for key, of in known.items()},
        )
        for i, (entry, code) in enumerate(zip(entries, codes, strict=True))
    ]


def _median(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else None


def _plain(tested: Significance | None) -> TestOfChance | None:
    return None if tested is None else TestOfChance(statistic=tested.statistic, p=tested.p)


def _affinity_figures(affinity: Affinity) -> AffinityFigures | None:
    return msgspec.convert(affinity, AffinityFigures, from_attributes=True) if affinity.pairs else None


# --- How evenly the replicas were used, and what may have made them uneven


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

#: Causes of which a box tells, see :mod:`~llm_locust.report.headline`: a user notices them. The
#: others say how the balancer works.
BOXED = ("out", "slow")


def show(summary: "Summary") -> Section | None:
    """The indices and likely causes; None for fewer than two replicas, and for replicas that were alike."""
    part = summary.fairness
    if len(summary.replicas) < 2:
        return None
    amounts = _AMOUNTS if not summary.is_without_output else _WITHOUT_OUTPUT
    table = Table(_COLUMNS, tuple(_row(part, key, words) for key, words in amounts)).without_empty(UNDEFINED)
    causes = tuple(_cause_remarks(part))
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


def _cause_remarks(part: Fairness) -> Iterator[Line]:
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


def show_replicas(summary: "Summary") -> Section | None:
    """The figures by replica; None where no answer named the replica that it is from."""
    found = summary.replicas
    if not found:
        return None
    columns = (
        Column("Replica", left=True, verbatim=True),
        Column("requests"),
        Column("share"),
        Column("errors"),
        *LATENCY_COLUMNS.values(),
        Column("in flight", wide=True),
        Column("tokens/s", over="output"),
        Column("goodput"),
    )
    table = having_figures(Table(columns, tuple(map(_replica_row, found[:MOST_ROWS]))), summary)
    return Section(
        "Replicas",
        table=table,
        notes=(*meaning_in(table), *naming(summary.fairness), *rows_left_out(len(found))),
    )


def _replica_row(replica: ReplicaFigures) -> TableRow:
    cut = is_cut(replica.cut_share)
    return TableRow(
        (
            short_name(replica.name),
            count(replica.requests),
            percent(replica.share),
            percent(replica.error_rate),
            *(estimate(replica, f"{key}_{place}_ms", cut=cut) for key, place in LATENCY_COLUMNS),
            number(replica.concurrency_mean),
            number(replica.output_tokens_per_s),
            percent(replica.goodput_ratio),
        )
    )
