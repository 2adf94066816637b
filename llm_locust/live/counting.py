"""Records counted on a worker: as they end, and in one pass over the columns of many."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from llm_locust.core.batch import ColumnSource, RecordRows
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.figures.agents import Walks, tool_s
from llm_locust.live.counts import (
    AGENTS,
    CODES,
    METRICS,
    MOST_OF_REPORT,
    MOST_SUM,
    Counts,
    KeyLimit,
    LiveKey,
    merged,
)
from llm_locust.live.state import LiveRun
from llm_locust.live.worker_report import LiveReport, LiveSlice, encode_report
from llm_locust.metrics.catalogue import FORMULAS
from llm_locust.metrics.columns import OUTCOMES, Floats, Mask, Part, Rows, filled
from llm_locust.metrics.limits import SLO_METRICS
from llm_locust.metrics.requests.gaps import first_token_wide, program_stamped
from llm_locust.metrics.requests.judgement import Judgement, judge
from llm_locust.metrics.requests.latency import Gaps, itl, per_request
from llm_locust.metrics.stats.sketch import BUCKETS, Integers, Tally, buckets_of

# --- Worker's side: records are counted as they end, and sent with each report


#: Records that are counted in one pass: it takes about 3 ms, in which nothing else runs.
PASS_ROWS = 256

#: Token arrivals that are counted in one pass. A longer answer has a pass of its own.
PASS_ARRIVALS = 1 << 15

_SECOND_NS = 1_000_000_000

_MADE_UP = RequestRecord(
    request_id="",
    name="",
    outcome=Outcome.OK,
    scheduled_ns=0,
    started_ns=0,
    ended_ns=3,
    sent_ns=0,
    arrivals_ns=np.array([1, 2, 3], dtype=np.int64),
    input_tokens=1,
    output_tokens=3,
)


class LiveCounts:
    """Counts one worker's requests between two reports, second by second.

    Adding a record is an append; counting is one vectorised pass for each second, or each :data:`PASS_ROWS`
    records.

    Args:
        clock_ns: a clock that is never set, in nanoseconds.
    """

    def __init__(self, run: LiveRun, clock_ns: Callable[[], int], epoch: int = 0) -> None:
        self.run = run
        self._clock_ns = clock_ns
        self.reset(epoch)
        self.add(_MADE_UP)  # the first pass takes 8 ms, which the load must not wait for
        self.report()
        self.reset(epoch)

    def reset(self, epoch: int) -> None:
        """Discard what was not reported yet and start a new epoch."""
        self.epoch = epoch
        self._limit = KeyLimit()
        self._seq = 0
        self._finished = 0
        self._waiting: dict[int, list[RequestRecord]] = {}  # records by their second, the newest last
        self._arrivals = 0  # token arrivals of the newest second's
        self._pass: Iterator[None] | None = None
        self._counted: dict[int, dict[LiveKey, Counts]] = {}

    def add(self, record: RequestRecord) -> None:
        """Add a request that has just ended."""
        second = self._clock_ns() // _SECOND_NS
        arrivals = len(record.arrivals_ns)
        records = self._waiting.get(second)
        if records is None:
            records, self._arrivals = self._waiting.setdefault(second, []), 0
        elif len(records) >= PASS_ROWS or self._arrivals + arrivals > PASS_ARRIVALS:
            self.count()
            records, self._arrivals = self._waiting.setdefault(second, []), 0
        records.append(record)
        self._arrivals += arrivals

    @property
    def is_due(self) -> bool:
        """Whether records should be counted soon: their second has passed, or they have many arrivals."""
        return self._pass is not None or len(self._waiting) > 1 or self._arrivals > PASS_ARRIVALS

    def report(self, *, whole: bool = True) -> bytes:
        """Return the counts since the last report, and forget them.

        Args:
            whole: count first what waits; else the next report has it.
        """
        if whole:
            self.count()
        counted, self._counted = self._counted, {}
        now_s = self._clock_ns() / _SECOND_NS
        slices = [LiveSlice.of(max(0.0, now_s - second - 0.5), counts) for second, counts in counted.items()]
        report = LiveReport(self.run.id, self.epoch, self._seq, self._finished, slices)
        self._seq += 1
        return encode_report(report)

    def count(self) -> None:
        """Count the waiting records."""
        while self.step():
            pass

    def step(self) -> bool:
        """Take one step of a pass over the oldest second; return whether there is another step to take."""
        if self._pass is None and self._waiting:
            second = next(iter(self._waiting))
            self._pass = self._count(second, self._waiting.pop(second))
            if not self._waiting:
                self._arrivals = 0
        if self._pass is not None and next(self._pass, self) is self:
            self._pass = None
        return self._pass is not None or bool(self._waiting)

    def _count(self, second: int, records: list[RequestRecord]) -> Iterator[None]:
        found = yield from count_in_steps(RecordRows(records, worker=""), self._limit, self.run)
        self._finished += len(records)
        self._counted[second] = merged(self._counted.get(second, {}), found)


# --- Conversion of records to counts, a batch in one pass over its columns


#: Steps of :func:`count_in_steps`.
STEPS = 3

#: An amount of each request.
Amounts = np.ndarray[tuple[int], np.dtype[np.generic]]


def count(batch: ColumnSource, limit: KeyLimit, run: LiveRun) -> dict[LiveKey, Counts]:
    """Counts of each key's requests. Without any limit none is good."""
    steps = count_in_steps(batch, limit, run)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: dict[LiveKey, Counts] = end.value
            return found


def count_in_steps(
    batch: ColumnSource, limit: KeyLimit, run: LiveRun
) -> Generator[None, None, dict[LiveKey, Counts]]:
    """The same in :data:`STEPS`, each of 1 to 2 ms for some records, for a loop that has other work."""
    if not len(batch):
        return {}
    part = Part.from_batch(batch, int(batch.ints("scheduled_ns")[0]))
    values = per_request(part)
    judgement = judge(part, values, run.limits, run.measured_from) if run.limits else None
    yield
    latencies = {metric: _latency(part, values, metric) for metric in METRICS if metric in FORMULAS}
    keys, group = _grouped(part, limit)
    gaps = itl(part)
    turns = _turns(part, batch, run)
    yield
    scalars = _sums(_amounts(part, judgement, latencies, turns), group)
    tallies = _tallies(part, latencies, gaps, group, len(keys))
    return {key: Counts(scalars[:, g], tallies[g]) for g, key in enumerate(keys)}


def _latency(part: Part, values: Mapping[str, Floats], metric: str) -> Floats:
    """Latency of the ok requests; negative values become 0, because an early client is not late."""
    return np.where(part.ok, np.maximum(values[metric], 0), np.nan)


def _grouped(part: Part, limit: KeyLimit) -> tuple[list[LiveKey], Rows]:
    """The keys, and the index of each row's key among them."""
    labels = (part.name, part.slo_class, part.replica)
    codes = np.zeros(len(part), np.int64)
    for label in labels:
        codes = codes * (len(label.names) + 1) + label.codes + 1
    _, first, kind = np.unique(codes, return_index=True, return_inverse=True)
    raw = [
        LiveKey(*(label.names[c] if (c := label.codes[row]) >= 0 else "" for label in labels))
        for row in first
    ]
    folded = [limit.fold(key) for key in raw]
    keys = list(dict.fromkeys(folded))
    return keys, np.array([keys.index(key) for key in folded])[kind]


def _amounts(
    part: Part,
    judgement: Judgement | None,
    latencies: Mapping[str, Floats],
    turns: Sequence[Amounts],
) -> list[Integers]:
    """Contribution of each request to each of ``SCALARS``, in their order."""
    none = np.zeros(len(part), np.bool_)
    good = none if judgement is None else judgement.good
    asked = part.outcome != OUTCOMES.index(Outcome.RESENT)
    judged = asked & ~part.cancelled
    limited: dict[str, Mask] = (
        {} if judgement is None else {metric: mask & asked for metric, mask in judgement.limited.items()}
    )
    held = {metric: mask & judgement.held[metric] for metric, mask in limited.items()} if judgement else {}
    answered = (part.events > 0) | part.ok
    first = judged & part.streamed & (part.events > 0)
    amounts: list[Amounts] = [
        *(part.outcome == place for place in range(len(OUTCOMES))),
        good,
        none if judgement is None else judgement.judged & asked,
        *(limited.get(metric, none) for metric in SLO_METRICS),
        *(held.get(metric, none) for metric in SLO_METRICS),
        _whole(part.input_tokens * answered),
        _whole(part.output_tokens),
        _whole(part.output_tokens * good),
        _whole(part.inputs * answered),
        *turns,
        _whole(part.images * answered),
        _ns((part.ended_s - part.sent_s) * asked),
        ~program_stamped(part) & judged,
        first,
        first & first_token_wide(part),
        none if judgement is None else judgement.by_delay & asked,
        *(_ns(latencies[metric] if metric in FORMULAS else _gap_sums(part)) for metric in METRICS),
    ]
    return [np.maximum(amount.astype(np.int64), 0) for amount in amounts]


def _turns(part: Part, batch: ColumnSource, run: LiveRun) -> list[Amounts]:
    """Contribution of each request to each of ``AGENTS``, in their order."""
    if run.pauses_s is None:
        return [np.zeros(len(part), np.int64)] * len(AGENTS)
    walks = Walks.of_batch(batch)
    turns = (walks.session >= 0) & (part.outcome != OUTCOMES.index(Outcome.RESENT))
    own = turns & (walks.trajectory < run.roots)
    return [
        turns,
        turns & part.ok,
        own & part.ok & (walks.turn + 1 == walks.planned),
        own & ~part.ok & ~part.cancelled,
        _ns(tool_s(walks, run.roots, run.pauses_s) * (own & part.ok)),
    ]


def _whole(amounts: Floats) -> Integers:
    return np.clip(filled(amounts, 0.0), 0, MOST_OF_REPORT).astype(np.int64)


def _ns(durations_s: Floats) -> Integers:
    return _whole(np.rint(durations_s * 1e9))


def _gap_sums(part: Part) -> Floats:
    """Sum of each ok request's inter-token latencies."""
    having = part.ok & part.streamed & (part.events > 1)
    return np.where(having, part.last_event_s - part.first_event_s, np.nan)


def _sums(amounts: list[Integers], group: Rows) -> Integers:
    """Sum of each amount over each group, shape (amounts, groups)."""
    order = np.argsort(group, kind="stable")
    begins = np.searchsorted(group[order], np.arange(group.max() + 1))
    each = np.stack(amounts)[:, order]
    sums: Integers = np.add.reduceat(each, begins, axis=1)
    if len(order) > 1 and each.max() > MOST_SUM // len(order):  # they may not fit into 64 bits
        sums = np.where(np.add.reduceat(each.astype(np.float64), begins, axis=1) < MOST_SUM, sums, MOST_SUM)
    return sums


def _tallies(
    part: Part, latencies: Mapping[str, Floats], gaps: Gaps, group: Rows, groups: int
) -> list[Tally]:
    """Tally of each group, for all metrics."""
    begins = group * CODES
    of_ok = np.repeat(part.ok, np.diff(gaps.offsets))
    pieces = []
    for place, metric in enumerate(METRICS):
        if metric not in FORMULAS:
            durations_s, begin = gaps.values_s[of_ok], np.repeat(begins, np.diff(gaps.offsets))[of_ok]
        else:
            defined = ~np.isnan(latencies[metric])
            durations_s, begin = latencies[metric][defined], begins[defined]
        pieces.append(begin + (place * BUCKETS + buckets_of(durations_s)))
    # Narrower integers sort several times as fast.
    codes = np.concatenate(pieces).astype(np.int32)
    occurring, counts = np.unique(codes, return_counts=True)
    edges = np.searchsorted(occurring, np.arange(groups + 1) * CODES)
    return [
        Tally((occurring[a:b] - g * CODES).astype(np.uint16), counts[a:b].astype(np.int64))
        for g, (a, b) in enumerate(pairwise(edges))
    ]
