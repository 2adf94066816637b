"""How evenly a deployment's replicas were used, whether chance explains it, and what else may."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from llm_locust.core import replica_headers
from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest
from llm_locust.metrics.columns import Columns, Floats, Rows
from llm_locust.metrics.deployment.autoscaling import autoscaling, lives
from llm_locust.metrics.deployment.causes import Evidence, causes
from llm_locust.metrics.deployment.replicas import course, replicas
from llm_locust.metrics.deployment.routing import (
    Affinity,
    Carriers,
    by_connection,
    by_key,
    dispersion,
    middle,
    replica_labels,
    while_all_serve,
)
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.stats.chance import Significance, equal_shares, median_interval, same_distribution
from llm_locust.metrics.summary_types.deployment.replicas import (
    Affinities,
    AffinityFigures,
    ChanceTests,
    Evenness,
    Fairness,
    ReplicaFigures,
    ReplicaHeader,
    TestOfChance,
)

Entries = Sequence[ReplicaFigures]

#: What evenness is told of, and the key of a replica's entry that holds it.
AMOUNTS = {
    "requests": "requests",
    "output_tokens": "output_tokens_per_s",
    "in_flight": "concurrency_mean",
    "ttft": "ttft_p50_ms",
}


def deployment(requests: Requests, m: Measured, manifest: Manifest, unrecorded: int | None) -> dict[str, Any]:
    """The ``replicas`` and ``fairness`` of a summary, and ``autoscaling`` where their number changed.

    ``fairness`` has Jain's index of each of :data:`AMOUNTS` by its own name, and in ``gini`` and ``cv`` its
    Gini coefficient and coefficient of variation. ``chance`` has the tests of requests and TTFT of
    :mod:`~llm_locust.metrics.stats.chance`. ``named_by`` says what tells replicas apart, ``unnamed`` how
    many requests of the population have no name. How requests were routed, and the test of TTFT, are of a
    million of them at most, see :func:`~llm_locust.metrics.deployment.routing.middle`. ``dispersion`` (of
    requests sent while no replica was out) and ``affinity`` are those of
    :mod:`~llm_locust.metrics.deployment.routing`, ``causes`` the likely ones in words. With targets the run
    chose one for each request, so that how they were shared out is its own doing and no balancer's.

    Args:
        unrecorded: requests of the run without a record; None of a selection, which has no ``autoscaling``.
    """
    direct = bool(manifest.targets)
    carriers = Carriers.of(requests)
    labels, named_by = replica_labels(m.c, carriers)
    named_by = "target" if direct and named_by == "header" else named_by
    m = replace(m, c=replace(m.c, replica=labels))
    told = course(m.c, m.window)
    found = replicas(m.c, m.credits, m.judgement, m.stuck)
    entries = [structs.replace(entry, **told[entry.name]) for entry in found]
    scaled = None if unrecorded is None else autoscaling(requests, m, manifest, unrecorded)
    evenness = fairness(entries, m, carriers, named_by, direct=direct, **_headers(manifest))
    return {"replicas": entries, "fairness": evenness} | ({"autoscaling": scaled} if scaled else {})


def _headers(manifest: Manifest) -> dict[str, Any]:
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
    return {"headers": headers, "better_header": None if better is None else better.name}


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
        affinity=Affinities(**{key: _told(affinity) for key, affinity in affinities.items()}),
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


def _told(affinity: Affinity) -> AffinityFigures | None:
    return msgspec.convert(affinity, AffinityFigures, from_attributes=True) if affinity.pairs else None
