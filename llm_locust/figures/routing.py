"""How requests were shared out among replicas, as far as their records tell.

What a balancer does shows in who gets the next request: requests that share a key (a connection, a session,
a prompt) go to one replica more often than their shares alone would make them, or do not."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from llm_locust.core.batch import Labels, RecordBatch, Requests
from llm_locust.figures.reliability import OutageSpan, in_flight, outages, signs
from llm_locust.metrics.catalogue import View, shown_in
from llm_locust.metrics.columns import Columns, Rows, groups, read_whole
from llm_locust.metrics.requests.judgement import Judgement
from llm_locust.metrics.requests.latency import latency_figures
from llm_locust.metrics.requests.rates import Credits, Spans, rate_per_s
from llm_locust.metrics.stats.censoring import ordered, percentile
from llm_locust.metrics.steady_window import Stuck
from llm_locust.metrics.structs import Interval, SummaryPart, key
from llm_locust.metrics.window import Population, Window

# --- Replicas, and how evenly they were used


_POPULATION = "the population"
_LATENCY = key("latency, ms", "as `latency_ms`, its requests")
_ITS = "its requests"


class ReplicaFigures(SummaryPart, frozen=True):
    """What one replica did."""

    name: Annotated[str, key("its name")]
    requests: Annotated[int, key("number of requests", _POPULATION)]
    share: Annotated[float | None, key("share of the requests whose replica is known", _POPULATION)]
    cut_share: Annotated[float | None, key("as `requests.cut_share`", _ITS)]
    ttft_p50_ms: Annotated[float | None, _LATENCY]
    ttft_p99_ms: Annotated[float | None, _LATENCY]
    tpot_p50_ms: Annotated[float | None, _LATENCY]
    tpot_p99_ms: Annotated[float | None, _LATENCY]
    e2el_p50_ms: Annotated[float | None, _LATENCY]
    e2el_p99_ms: Annotated[float | None, _LATENCY]
    ci95: Annotated[dict[str, Interval], key("95 % intervals of these latencies, ms", "as the latency")]
    at_least: Annotated[
        dict[str, float], key("lower bounds of those that are undetermined, ms", "as the latency")
    ]
    output_tokens_per_s: Annotated[float | None, key("output tokens / second", _ITS)]
    concurrency_mean: Annotated[float | None, key("mean concurrency", _ITS)]
    error_rate: Annotated[float | None, key("as of the whole", _ITS)]
    goodput_ratio: Annotated[float | None, key("as of the whole; null where requests were lost", _ITS)]
    in_flight: Annotated[list[float], key("concurrency in equal parts of the window", _ITS)]
    outages: list[OutageSpan]


CARRIER_COLUMNS = ("worker", "peer", "local_port", "session", "prompt_id")

#: Seconds from and to; None: it has no such end.
Span = tuple[float | None, float | None]

#: A block that requests are dealt out in, in turns of all replicas; and how few blocks tell nothing.
BLOCK_TURNS, LEAST_BLOCKS = 8, 30

#: Requests that routing is told from: more would tell the same, and take a gigabyte.
MOST_LOOKED_AT = 1_000_000

#: Fewest pairs of requests with the same key that tell anything.
LEAST_PAIRS = 30

#: Beyond chance: one request in a million would do so by itself, in the normal approximation.
_NOTABLE_DEVIATIONS = 5.0

#: The share of what could be above chance, from which on a key decides where a request goes.
_DECIDES = 0.5

#: The same of a key that binds: a balancer of connections lets none of them change its replica. One that
#: picks the least busy replica keeps four of five requests in a closed loop where they were: a user's next
#: request goes where its last one has just made room.
_BINDS = 0.95


@dataclass(frozen=True, slots=True)
class Carriers:
    """What carried each request and what it belongs to, some 30 bytes each. ``port`` is the client's of its
    connection, 0 where it is not known; ``session`` is a number that the turns of one conversation share, 0
    where there is none."""

    worker: Labels
    peer: Labels
    port: NDArray[np.int64]
    prompt_id: Labels
    session: NDArray[np.int64]

    @classmethod
    def from_batch(cls, batch: RecordBatch) -> "Carriers":
        """All rows of ``batch``, which has at least :data:`CARRIER_COLUMNS`."""
        encoded = batch.table.column("session").combine_chunks().dictionary_encode()
        # 64 bits of Python's hash stand for the name; the last is that of no session.
        hashes = [hash(name) or 1 for name in encoded.dictionary.to_pylist()]
        codes = encoded.indices.fill_null(len(hashes)).to_numpy(zero_copy_only=False)
        return cls(
            worker=batch.labels("worker"),
            peer=batch.labels("peer"),
            port=np.nan_to_num(batch.floats("local_port")).astype(np.int64),
            prompt_id=batch.labels("prompt_id"),
            session=np.array([*hashes, 0], dtype=np.int64)[codes],
        )

    @classmethod
    def of(cls, requests: Requests) -> "Carriers":
        """All requests, read part by part."""
        return read_whole(Carriers, requests, CARRIER_COLUMNS, cls.from_batch)


def replica_labels(c: Columns, carriers: Carriers) -> tuple[Labels, str | None]:
    """Each request's replica, and what named it: a ``header``, the ``peer`` address, or nothing.

    The address of the connection counts only where no response of the run had a header, and only where
    there are several: a single one is that of a balancer, or of a server that is alone.
    """
    if (c.replica.codes >= 0).any():
        return c.replica, "header"
    peers = np.unique(carriers.peer.codes[carriers.peer.codes >= 0])
    return (carriers.peer, "peer") if len(peers) > 1 else (c.replica, None)


def middle(c: Columns, rows: Rows, most: int = MOST_LOOKED_AT) -> Rows:
    """Of more than ``most`` requests about as many from the middle of their time: all that were sent then,
    so that each still has its neighbours."""
    if len(rows) <= most:
        return rows
    sent_s, share = c.sent_s[rows], most / len(rows)
    ascending = ordered(sent_s)
    first_s, last_s = (percentile(ascending, 50 * (1 + sign * share)) for sign in (-1, 1))
    chosen: Rows = rows[(sent_s >= first_s) & (sent_s <= last_s)]
    return chosen


@dataclass(frozen=True, slots=True)
class Affinity:
    """Of ``pairs`` of successive requests with the same key, the share that one replica served both of, and
    the share that chance would give: Σ (share of each replica)²."""

    pairs: int
    observed: float
    expected: float

    @property
    def decides(self) -> bool:
        """Whether the key says where a request goes: half of what could be above chance is."""
        return self._is_above(_DECIDES)

    @property
    def binds(self) -> bool:
        """Whether next to all requests with the same key go to one replica."""
        return self._is_above(_BINDS)

    def _is_above(self, share: float) -> bool:
        if self.pairs < LEAST_PAIRS or self.expected >= 1:
            return False
        deviation = (self.expected * (1 - self.expected) / self.pairs) ** 0.5
        above = self.observed - self.expected
        return above > _NOTABLE_DEVIATIONS * deviation and above > share * (1 - self.expected)


def by_connection(c: Columns, carriers: Carriers, replica: Labels, rows: Rows) -> Affinity:
    """Of successive requests on one connection: the same worker, address and port of the client.

    A port that is used again is another connection, whose first request is not on a reused one.
    """
    mine = rows[carriers.port[rows] != 0]
    keys = (carriers.worker.codes[mine], carriers.peer.codes[mine], carriers.port[mine])
    order = np.lexsort((c.started_s[mine], *keys))
    same = c.reused[mine][order[1:]]
    for which in keys:
        same &= which[order[1:]] == which[order[:-1]]
    return _affinity(mine[order[:-1][same]], mine[order[1:][same]], replica, rows)


def by_key(c: Columns, keys: NDArray[np.int64], replica: Labels, rows: Rows) -> Affinity:
    """Of successive requests, as they were sent, with the same key; a key of 0 is none."""
    mine = rows[keys[rows] != 0]
    order = mine[np.lexsort((c.sent_s[mine], keys[mine]))]
    same = keys[order[1:]] == keys[order[:-1]]
    return _affinity(order[:-1][same], order[1:][same], replica, rows)


def dispersion(c: Columns, replica: Labels, rows: Rows) -> float | None:
    """How evenly requests are dealt out in the short run: the mean of Pearson's statistic over blocks of
    :data:`BLOCK_TURNS` requests a replica, in the order in which they were sent, / (k − 1).

    1 is chance, near 0 that each has its turn. None for fewer than two replicas or :data:`LEAST_BLOCKS`
    blocks, of which chance makes less than a half once in a thousand runs at most.
    """
    known = rows[(replica.codes[rows] >= 0) & ~np.isnan(c.sent_s[rows])]
    found, places = np.unique(
        replica.codes[known[np.argsort(c.sent_s[known], kind="stable")]], return_inverse=True
    )
    k = len(found)
    blocks = len(places) // (BLOCK_TURNS * k) if k else 0
    if k < 2 or blocks < LEAST_BLOCKS:
        return None
    length = BLOCK_TURNS * k
    block = np.repeat(np.arange(blocks), length)
    counts = np.bincount(block * k + places[: blocks * length], minlength=blocks * k)
    return float(((counts - BLOCK_TURNS) ** 2).sum() / BLOCK_TURNS / blocks / (k - 1))


def while_all_serve(c: Columns, rows: Rows, outages: Iterable[Span], start_s: float) -> Rows:
    """Those of ``rows`` that were sent while no replica was out; ``outages`` are from and to, in seconds
    after ``start_s``, None where the one or the other did not happen. One that lasted all the time hides
    nothing: what a balancer did before and after is told apart."""
    sent_s, serve = c.sent_s[rows] - start_s, np.ones(len(rows), np.bool_)
    for since, until in outages:
        if (since, until) != (None, None):
            begin = -np.inf if since is None else since
            serve &= (sent_s < begin) | (sent_s >= (np.inf if until is None else until))
    chosen: Rows = rows[serve]
    return chosen


def _affinity(before: Rows, after: Rows, replica: Labels, rows: Rows) -> Affinity:
    codes = replica.codes
    first, second = codes[before], codes[after]
    known = (first >= 0) & (second >= 0)
    shares = np.bincount(codes[rows][codes[rows] >= 0], minlength=1) / max(1, int((codes[rows] >= 0).sum()))
    n = int(known.sum())
    return Affinity(n, float((first == second)[known].mean()) if n else 0.0, float(shares @ shares))


# --- The deployment's replicas side by side


#: The equal parts of the window that ``in_flight`` is told of.
COURSE_PARTS = 60

_PLACES = {"p50": 50.0, "p99": 99.0}
_LATENCIES = tuple(metric.key for metric in shown_in(View.GROUPS))

#: Key of an entry -> latency and figure.
_PERCENTILES = {f"{metric}_{place}_ms": (metric, place) for metric in _LATENCIES for place in _PLACES}


def replicas(c: Columns, credits: Credits, judgement: Judgement | None, stuck: Stuck) -> list[ReplicaFigures]:
    """One entry a replica that answered, by name.

    ``requests`` counts its ok and failed ones scheduled in the window; ``share`` is of all those
    whose replica is known. ``ci95`` has the interval of each percentile, ``at_least`` the lower bound of one
    that cut requests leave open. ``output_tokens_per_s`` and
    ``concurrency_mean`` are of all its requests, whenever they were scheduled. What it did over time is
    :func:`with_course`'s.
    """
    window = credits.window
    scheduled = window.scheduled(c)
    found = [(name, rows, Population.of(c, scheduled, rows)) for name, rows in groups(c.replica)]
    known = sum(len(population.judged) for _, _, population in found)
    stuck_s = [partial(stuck.bounds_s, rows) for _, rows, _ in found]
    latencies = latency_figures(c, [population for *_, population in found], _LATENCIES, _PLACES, stuck_s)
    entries = []
    for (name, rows, population), stats in zip(found, latencies, strict=True):
        judged, cut = population.judged, int((~c.abandoned[population.cancelled]).sum())
        tokens, finished = credits.output_tokens[rows], credits.finished[rows]
        entries.append(
            ReplicaFigures(
                name=name,
                requests=len(judged),
                share=len(judged) / known if known else None,
                cut_share=cut / (len(judged) + cut) if len(judged) + cut else None,
                **{key: stats[name][place] for key, (name, place) in _PERCENTILES.items()},
                ci95={key: stats[name]["ci95"][place] for key, (name, place) in _PERCENTILES.items()},
                at_least={
                    key: stats[name]["at_least"][place]
                    for key, (name, place) in _PERCENTILES.items()
                    if place in stats[name]["at_least"]
                },
                output_tokens_per_s=rate_per_s(tokens, finished, window.seconds),
                concurrency_mean=_concurrency(c, rows, window),
                error_rate=len(population.failed) / len(judged) if len(judged) else None,
                goodput_ratio=_goodput_ratio(judgement, population, len(stuck.among(rows))),
                in_flight=[],
                outages=[],
            )
        )
    return entries


def with_course(replicas: Iterable[ReplicaFigures], c: Columns, window: Window) -> list[ReplicaFigures]:
    """The replicas with what each did over time.

    ``in_flight`` is its mean concurrency in each of :data:`COURSE_PARTS` equal parts of the window,
    ``outages`` are the times in which it gave no token while others did.
    """
    rows_of = dict(groups(c.replica))
    every = cache(lambda: signs(c, np.flatnonzero(c.replica.codes >= 0)))
    return [
        structs.replace(
            replica,
            in_flight=in_flight(c, rows, window, COURSE_PARTS).tolist() if window.seconds > 0 else [],
            outages=outages(c, rows, every, window),
        )
        for replica in replicas
        for rows in [rows_of[replica.name]]
    ]


def _goodput_ratio(judgement: Judgement | None, population: Population, stuck: int) -> float | None:
    if judgement is None:
        return None
    judged = population.all[judgement.judged[population.all]]
    n = len(judged) + stuck
    return int(judgement.good[judged].sum()) / n if n else None


def _concurrency(c: Columns, rows: Rows, window: Window) -> float | None:
    """Time-weighted mean number of requests between sent and ended; None for an empty window."""
    spans = [span for span in window.spans if span.seconds > 0]
    if not spans:
        return None
    lasting = Spans.of(c, rows)
    means = [lasting.means(np.array([span.start_s(c), span.end_s(c)]))[0] for span in spans]
    return max(0.0, float(np.average(means, weights=[span.seconds for span in spans])))
