"""What may have made replicas uneven, in words that name the evidence."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from llm_locust.metrics.deployment.routing import Affinity
from llm_locust.metrics.stats.chance import Significance

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
class Cause:
    """``kind`` is out, slow, sticky, least_busy, affine, round_robin or unknown; ``replica`` is that of the
    first two."""

    kind: str
    text: str
    replica: str | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """``entries`` are those of a summary's ``replicas``, ``together`` the share and median latencies of each
    while all served, ``requests`` the test against chance, ``cv`` the coefficients of variation by amount.
    ``direct``: no balancer, the run itself shared the requests out."""

    entries: Sequence[Mapping[str, Any]]
    together: Sequence[Mapping[str, Any]]
    requests: Significance | None
    dispersion: float | None
    cv: Mapping[str, float | None]
    affinities: Mapping[str, Affinity]
    direct: bool = False

    @property
    def uneven_requests(self) -> bool:
        return self.requests is not None and self.requests.p < BEYOND_CHANCE

    def is_uneven(self, amount: str) -> bool:
        return (self.cv[amount] or 0.0) > UNEVEN_CV


def causes(e: Evidence) -> list[Cause]:
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
            Cause(
                "unknown",
                f"requests are shared out unevenly beyond chance (p {e.requests.p:.2g}) and follow neither "
                "connection nor session nor prompt: weights of the balancer, or a replica that it left out",
            )
        )
    return found


def _out(e: Evidence) -> Iterator[Cause]:
    for entry in e.entries:
        for outage in entry["outages"]:
            yield Cause("out", f"{entry['name']} {_outage(outage)}", entry["name"])


def _outage(outage: Mapping[str, Any]) -> str:
    """What a replica did, after its name."""
    since, until, others = outage["from_s"], outage["to_s"], outage["others"]
    meanwhile = f"while others began or ended {others} answers"
    if since is None and until is None:
        return f"gave no token at all, {meanwhile}"
    if since is None:
        return f"gave its first token at {until:.1f} s of the window, {meanwhile}"
    if until is None:
        return f"stopped serving at {since:.1f} s of the window and did not come back, {meanwhile}"
    return f"gave no token from {since:.1f} s to {until:.1f} s of the window, {meanwhile}"


def _slow(e: Evidence) -> Iterator[Cause]:
    """A replica that takes longer without having more to do. Those that served all the time are compared
    over all of it, one that did not with the others while all served: nobody is slow by the hour."""
    steady = [entry for entry in e.entries if not entry["outages"]]
    for entry, then in zip(e.entries, e.together, strict=True):
        if len(steady) > 1 and not entry["outages"]:
            yield from _slower(entry, steady, "")
        else:
            yield from _slower(then, e.together, ", while all served")


def _slower(entry: Mapping[str, Any], among: Sequence[Mapping[str, Any]], when: str) -> Iterator[Cause]:
    """By its pace, else by its first token; beyond chance, as the 95 % intervals of the medians tell, and
    beyond what it has more to do: a step takes longer with its batch, a queue may grow without bound."""
    others = [other for other in among if other is not entry]
    for key, name in (("tpot_p50_ms", "TPOT"), ("ttft_p50_ms", "TTFT")):
        known = [other for other in others if other[key] and other["ci95"][key] is not None]
        if entry[key] is None or not known or entry["ci95"][key] is None:
            continue
        usual, busier = median(other[key] for other in known), _busier(entry, known)
        if name == "TTFT" and busier > _BUSIER:
            continue
        beyond = entry["ci95"][key][0] > median(other["ci95"][key][1] for other in known)
        if entry[key] >= SLOW_FACTOR * max(1.0, busier) * usual and beyond:
            whom = known[0]["name"] if len(known) == 1 else "the others"
            share = f"{100 * (entry['share'] or 0):.0f} % of the requests{when}"
            yield Cause(
                "slow",
                f"{entry['name']} is {entry[key] / usual:.1f} times slower than {whom}: {name} p50 "
                f"{entry[key]:.3g} ms against {usual:.3g} ms, with {share}",
                entry["name"],
            )
            return


def _busier(entry: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> float:
    """How many times the requests of another it had."""
    usual: float = median(other["share"] or 0.0 for other in others)
    return (entry["share"] or 0.0) / usual if usual else 1.0


def _sticky(e: Evidence) -> list[Cause]:
    connection = e.affinities["connection"]
    if not (connection.binds and (e.uneven_requests or e.is_uneven("in_flight"))):
        return []
    text = (
        f"connections stick to a replica: {_share(connection)} on a reused connection went where the one "
        "before it went; the balancer shares out connections, not requests: compare with "
        "--connection-reuse off"
    )
    return [Cause("sticky", text)]


def _as_they_finish(e: Evidence) -> list[Cause]:
    """Requests are uneven because replicas are, and what is under way at each is not."""
    requests, in_flight = e.cv["requests"] or 0.0, e.cv["in_flight"]
    if not e.uneven_requests or requests <= UNEVEN_CV or in_flight is None or in_flight > requests / 2:
        return []
    text = (
        f"requests are uneven (variation {100 * requests:.0f} %) and those in flight are less so "
        f"({100 * in_flight:.0f} %): each replica gets what it finishes, as by a balancer that picks the "
        "least busy one"
    )
    return [Cause("least_busy", text)]


def _affine(e: Evidence) -> Iterator[Cause]:
    """Where a connection decides already, its sessions go with it."""
    if e.affinities["connection"].binds:
        return
    for key, what in (("session", "of a session"), ("prompt", "with the same prompt")):
        if e.affinities[key].decides:
            yield Cause(
                "affine",
                f"routing follows the prefix or the session: {_share(e.affinities[key])} {what} went where "
                "the one before it went; a cache is used, and popular prefixes load their replica",
            )
            return


def _round_robin(e: Evidence) -> Iterator[Cause]:
    uneven = [what for what in ("output_tokens", "in_flight") if e.is_uneven(what)]
    if e.dispersion is None or e.dispersion >= _IN_TURN or not uneven:
        return
    words = {"output_tokens": "output tokens", "in_flight": "requests in flight"}
    amounts = " and ".join(f"{words[what]} (variation {100 * (e.cv[what] or 0):.0f} %)" for what in uneven)
    yield Cause(
        "round_robin",
        f"requests are dealt out in turn (dispersion {e.dispersion:.2f}, chance is 1), {amounts} are not "
        "even: round robin looks at neither length nor load",
    )


def _share(affinity: Affinity) -> str:
    return (
        f"{100 * affinity.observed:.0f} % of {affinity.pairs} requests "
        f"({100 * affinity.expected:.0f} % by chance)"
    )
