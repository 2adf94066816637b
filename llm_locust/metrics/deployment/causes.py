"""What may have made replicas uneven, in words that name the evidence."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from llm_locust.core.figures import probability, quantity
from llm_locust.metrics.deployment.routing import Affinity
from llm_locust.metrics.stats.chance import Significance
from llm_locust.metrics.summary_types.deployment.replicas import LikelyCause, OutageSpan, ReplicaFigures

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
            yield from _slower(entry, steady, "")
        else:
            yield from _slower(then, e.together, ", while all served")


def _slower(entry: ReplicaFigures, among: Sequence[ReplicaFigures], when: str) -> Iterator[LikelyCause]:
    """By its pace, else by its first token; beyond chance, as the 95 % intervals of the medians tell, and
    beyond what it has more to do: a step takes longer with its batch, a queue may grow without bound."""
    others = [other for other in among if other is not entry]
    for key, name in (("tpot_p50_ms", "TPOT"), ("ttft_p50_ms", "TTFT")):
        value, (low, _) = entry.figure(key), entry.ci95[key] or (None, None)
        known = [
            (p50, ends[1], other)
            for other in others
            if (p50 := other.figure(key)) and (ends := other.ci95[key]) and ends[1] is not None
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


def _busier(entry: ReplicaFigures, others: Sequence[ReplicaFigures]) -> float:
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
    for key, what in (("session", "of a session"), ("prompt", "with the same prompt")):
        if e.affinities[key].decides:
            yield _cause(
                "affine",
                f"routing follows the prefix or the session: {_share(e.affinities[key])} {what} went where "
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
