"""Capacity of a deployment: the replicas that a rate needs, and what limits a request."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_high
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np

from llm_locust.figures.charts import FittedLine, load_while_streaming, theil_sen
from llm_locust.figures.client import ClientFacts, compute as client_of
from llm_locust.figures.curve import UslFigures
from llm_locust.figures.edge import SearchResult
from llm_locust.figures.fairness import LikelyCause, compute as deployment_of
from llm_locust.figures.figure import Run
from llm_locust.figures.objective import Probe, Shown
from llm_locust.figures.stages import Stage, over
from llm_locust.figures.text import (
    Column,
    Line,
    Section,
    Table,
    TableRow,
    Tone,
    clean,
    number,
    percent,
    plural,
    sentence,
)
from llm_locust.metrics.columns import Columns, Floats, Mask, Rows
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.server_roles import PREFILL, pool_sizes
from llm_locust.metrics.stats.censoring import ordered, percentile
from llm_locust.metrics.structs import SummaryPart, key

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary

_ANSWERS = "ok and streamed, scheduled in the window"


Limit = Literal["client", "balancer", "connection", "fixed", "prefill", "queue", "decode"]


class TimeParts(SummaryPart, frozen=True):
    """An answer's time from started to its last token, in parts."""

    connection: Annotated[float, key("sent − started, and a round trip of the TTFT", _ANSWERS)]
    fixed: Annotated[
        float, key("TTFT − rtt − prefill of a request that no other waits beside: the median", _ANSWERS)
    ]
    prefill: Annotated[float, key("slope of the TTFT over input tokens × input tokens", _ANSWERS)]
    queue: Annotated[float, key("rest of the TTFT", _ANSWERS)]
    decode: Annotated[float, key("last token − first token", _ANSWERS)]


class SlopeFigures(SummaryPart, frozen=True):
    """The slope of a line through a sample of the answers."""

    slope: Annotated[float, key("by Theil and Sen, in the unit of its key", _ANSWERS)]
    ci95: Annotated[tuple[float, float], key("its 95 % interval by Sen", _ANSWERS)]


_SLOPE = key("null where the amount hardly varies", _ANSWERS)


class Bottleneck(SummaryPart, frozen=True):
    """Where the time of answers went: [where the time goes](definitions.md#where-the-time-goes)."""

    verdict: Annotated[
        Limit,
        key(
            "what the time of an answer is limited by: the client if it is invalid, else the balancer if a "
            "replica is out, slow or stuck to, else the largest of `parts_ms`; a queue is `prefill` from "
            "`prefill_busy` 0.5 on"
        ),
    ]
    answers: Annotated[int, key("number of answers", _ANSWERS)]
    left_out: Annotated[int, key("requests that are not among them", "`requests.scheduled`")]
    mean_ms: Annotated[float, key("mean time from started to the last token, ms", _ANSWERS)]
    parts_ms: Annotated[TimeParts, key("mean of each part, ms; together `mean_ms`", _ANSWERS)]
    shares: Annotated[TimeParts, key("each part / `mean_ms`", _ANSWERS)]
    always_queued: Annotated[
        bool,
        key(
            "fewer than 20 requests were sent while no other waited: `fixed` is that of the fastest request, "
            "and `queue` may be too large",
            "ok and streamed, of the whole run",
        ),
    ]
    waiting_mean: Annotated[
        float, key("mean number of others that waited for their first token as each was sent", _ANSWERS)
    ]
    new_connections: Annotated[float, key("share that opened a connection", _ANSWERS)]
    prefill_us_per_token: Annotated[SlopeFigures | None, _SLOPE]
    prefill_busy: Annotated[
        float | None,
        key(
            "slope × input tokens / window / replicas with a name (1 without): time spent on prompts",
            _ANSWERS,
        ),
    ]
    tpot_us_per_request: Annotated[SlopeFigures | None, _SLOPE]
    tpot_us_per_context_token: Annotated[SlopeFigures | None, _SLOPE]
    cause: Annotated[str | None, key("what is wrong with a replica, in words")]


# --------------------
# How many replicas a rate needs, from the loads that a deployment took.
#
# The capacity of the deployment under test is shared out among its replicas, and a rate needs as many of
# them as the lower end of its interval asks for. That more replicas take proportionally more is an
# assumption: a balancer that spreads unevenly, or anything that replicas share, makes it too good.
# --------------------


class NoCapacityError(ValueError):
    """Loads that show no capacity; one line says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Requests/s that a deployment takes, with the 95 % interval as far as it is known.

    ``is_bracket``: ``low`` and ``high`` are the next loads that held and broke the SLO, because no stage was
    near enough to the edge for an interval. ``basis`` says in words what it rests on. ``is_bound``: it takes
    at least this much. ``is_model``: it is beyond what was measured.
    """

    rate: float
    low: float | None
    high: float | None
    basis: str
    is_bound: bool = False
    is_model: bool = False
    is_bracket: bool = False

    @property
    def sure(self) -> float:
        """What is planned with: the lower end, where there is one."""
        return self.rate if self.low is None else self.low


@dataclass(frozen=True, slots=True)
class CapacityNeed:
    """What to deploy for a rate.

    Attributes:
        replicas: with the spare ones. ``fewest`` and ``most`` are those of both ends of the interval.
        used: share of their capacity that the rate takes with all replicas, and with ``lost`` of them gone.
        gpus, cost_per_hour, cost_per_million: None where GPUs or their price are not known; the last is of
            a million requests at this rate.
    """

    rate: float
    replicas: int
    fewest: int
    most: int
    spare: int
    used: float
    used_after_loss: float
    gpus: float | None
    cost_per_hour: float | None
    cost_per_million: float | None


def capacity_under_slo(
    answer: SearchResult, stages: Sequence[Stage], kind: str, probes: Sequence[Probe], required: float
) -> Capacity:
    """The highest rate under which the SLO holds; of users the throughput of the highest load that holds.

    Raises:
        NoCapacityError: no load is shown to hold it.
    """
    load = answer.at_least if answer.load is None else answer.load
    if load is None:
        less = "" if answer.at_most is None else f": it is less than {answer.at_most:g}"
        raise NoCapacityError(f"the capacity is not known{less}; measure lower loads, and longer stages")
    is_bound = answer.load is None
    low, high, is_bracket = answer.low, answer.high, False
    if not is_bound and low is None:
        (low, high), is_bracket = _bracket(load, probes, required), True
    if kind == "rate":
        held = "no load broke it" if is_bound else f"{answer.limit} breaks first"
        basis = f"the highest rate under the SLO, {held}"
        return Capacity(load, low, high, basis, is_bound, is_bracket=is_bracket)
    sure = load if low is None else low
    held_stages = [s for s in stages if s.is_result and s.figures is not None and s.asked <= sure]
    if not held_stages:
        raise NoCapacityError(f"no stage with a result has {sure:g} users or fewer; measure lower loads")
    users = max(s.asked for s in held_stages)
    rate, low, high = _throughput([s for s in held_stages if s.asked == users])
    if not rate:
        raise NoCapacityError(f"at {users:g} users no request ended")
    basis = f"the throughput at {users:g} users, the most measured that hold the SLO"
    return Capacity(rate, low, high, basis, is_bound)


def _throughput(stages: Sequence[Stage]) -> tuple[float | None, float | None, float | None]:
    """Requests/s of one load: of one stage with its own interval, of repeats with that of their mean."""
    parts = [stage.figures.throughput for stage in stages if stage.figures is not None]
    if len(parts) == 1:
        return (parts[0].requests_per_s, *(parts[0].intervals().get("requests_per_s") or (None, None)))
    found = over([part.requests_per_s for part in parts])
    low, high = found.ci95 or (None, None)
    return found.mean, None if low is None else max(0.0, low), high


def _bracket(edge: float, probes: Sequence[Probe], required: float) -> tuple[float, float | None]:
    """The next loads that are shown to hold and to break; raises NoCapacityError without the first.

    A load that holds above one that breaks shows noise, not capacity: it is not planned with.
    """
    verdicts = [(probe.load, probe.shows((required,))) for probe in probes if probe.counts]
    held = [load for load, seen in verdicts if seen == Shown.HOLDS and load <= edge]
    broken = [load for load, seen in verdicts if seen == Shown.BROKEN]
    sure = max((load for load in held if load < min(broken, default=math.inf)), default=None)
    if sure is None and held:
        raise NoCapacityError(
            f"the capacity is not resolved: {max(held):g} held the SLO and {min(broken):g} broke it; "
            "measure lower loads, and longer stages"
        )
    if sure is None:
        raise NoCapacityError("no load is shown to hold the SLO: measure lower loads, and longer stages")
    return sure, min((load for load in broken if load > max(held)), default=None)


def capacity_of_law(usl: UslFigures) -> Capacity:
    """The plateau of the throughput, for a plan without an SLO.

    Raises:
        NoCapacityError: the throughput shows none.
    """
    rate, (low, high) = usl.plateau.value, usl.plateau.ci95
    if rate is None or low is None:
        raise NoCapacityError("the throughput shows no plateau yet: measure higher loads, or give --slo")
    peak, to = usl.peak.value, usl.measured_to
    is_model = peak is None or to is None or peak > to
    return Capacity(rate, low, high, "the plateau of the throughput, without an SLO", is_model=is_model)


def replicas_at_once(in_flight: Sequence[Sequence[float]]) -> int:
    """How many replicas served at a time: one that was restarted under another name counts once.

    Args:
        in_flight: of each name that answered, its concurrency in the same equal parts of the window.

    Returns:
        The median over the parts of how many had begun and not ended; at least 1.

    Raises:
        NoCapacityError: no name answered, so that nothing tells how many there were.
    """
    if not in_flight:
        raise NoCapacityError(
            "no answer named its replica: how many took the load is not known, and if several are taken for "
            "one, the plan has too few; give --replicas N (--replicas 1 if it is one)"
        )
    busy = [[part for part, mean in enumerate(course) if mean > 0] for course in in_flight]
    lives = [(parts[0], parts[-1]) for parts in busy if parts]
    parts = range(max((len(course) for course in in_flight), default=0))
    counts = [sum(first <= part <= last for first, last in lives) for part in parts]
    return max(1, median_high(counts)) if counts else len(in_flight)


def need(
    capacity: Capacity,
    rate: float,
    *,
    measured_replicas: int = 1,
    spare: int = 1,
    gpus_per_replica: float | None = None,
    gpu_hour_price: float | None = None,
) -> CapacityNeed:
    """Replicas, GPUs and cost for ``rate`` requests/s, with ``spare`` replicas that may be lost."""

    def replicas(of_all: float) -> int:
        return max(1, math.ceil(round(rate * measured_replicas / of_all, 9))) + spare

    count = replicas(capacity.sure)
    each = capacity.sure / measured_replicas
    gpus = None if gpus_per_replica is None else count * gpus_per_replica
    cost = None if gpus is None or gpu_hour_price is None else gpus * gpu_hour_price
    return CapacityNeed(
        rate=rate,
        replicas=count,
        fewest=replicas(capacity.rate if capacity.high is None else capacity.high),
        most=count,
        spare=spare,
        used=rate / (count * each),
        used_after_loss=rate / ((count - 1) * each) if count > 1 else math.inf,
        gpus=gpus,
        cost_per_hour=cost,
        cost_per_million=None if cost is None else cost / (rate * 3600) * 1e6,
    )


# --------------------
# Where the time of a request goes, and so what limits it, by the records alone.
#
# From started to the last token, each answer's time is the sum of five parts:
#
# - **connection**: sent − started, and one round trip of the TTFT (`rtt`);
# - **fixed**: what a prompt without length waits for while nobody else waits: the median of TTFT − rtt −
#   prefill over requests that were sent while no other waited for its first token. If there are fewer than
#   :data:`FEWEST_ALONE` of those, it is the least of all requests: then there was always a queue;
# - **prefill**: the slope of TTFT − rtt over input tokens (Theil and Sen) × the request's input tokens. If
#   all
#   prompts are about as long, it cannot be told from the fixed part and is in that;
# - **queue**: the rest of the TTFT;
# - **decode**: from the first to the last token.
#
# The part with the largest share of the mean time names the limit. Prompts also delay others: where engines
# are busy with prompts for half of the time or more, and the mean TPOT is twice its 5th percentile or more,
# a queue and slow decoding are prefill's. What makes all of this moot comes first: a client that measured
# itself, then a replica that is out or slower than the others. A request that is late because its
# connection took long is not the client's fault.
# --------------------


#: Fewer answers say nothing of where their time went.
FEWEST_ANSWERS = 50

#: Of all requests at least so many must have been answered: those that hung have no parts.
LEAST_ANSWERED = 0.5

#: Requests that were sent while no other waited, from which on the fixed part is their median.
FEWEST_ALONE = 20

#: Share of the time that an engine spends on prompts, from which on these delay the other requests. Each step
#: then takes 1 / (1 − share) times as long, which must show in the TPOT: behind an address there may be more
#: engines than are known.
BUSY = 0.5

#: Causes of unevenness that are a fault of the replicas or the balancer, not a way to share out requests.
_FAULTS = frozenset({"out", "slow", "sticky"})

#: Points of a slope: all their pairs are looked at.
_MOST_POINTS = 400

#: Amounts whose 5th and 95th percentile differ by less than this share are one amount.
_LEAST_SPREAD = 0.1

#: A delay is explained by what is this share of it.
_MOST_OF = 0.9

PARTS: tuple[Limit, ...] = ("connection", "fixed", "prefill", "queue", "decode")


@dataclass(frozen=True, slots=True)
class _Split:
    """The parts of each answer's time in seconds, shape (answers,), and what the split is made of.

    ``slope`` is TTFT over input tokens, None where all prompts are about as long. ``always_queued``: too few
    requests were sent while no other waited.
    """

    parts: Mapping[str, Floats]
    slope: FittedLine | None
    always_queued: bool


def compute(run: Run) -> Bottleneck | str:
    prefills, causes = pool_sizes(run.server).get(PREFILL, 0), run.figure(deployment_of).fairness.causes
    client = run.figure(client_of)
    return bottleneck(run.m, client, causes, prefills, of_selection=run.of_selection)


def bottleneck(
    m: Measured,
    client: ClientFacts,
    causes: Sequence[LikelyCause],
    prefills: int = 0,
    *,
    of_selection: bool = False,
) -> Bottleneck | str:
    """Where the time went; why not where the records cannot tell.

    Args:
        causes: of what is uneven among the replicas.
        prefills: servers that only prefill: prompts then delay each other there, and no decoding.
        of_selection: these are only some of the requests: who else waited is not known.
    """
    if of_selection:
        return "only some of the requests are looked at, and who else waited is unknown"
    c, population = m.c, m.population(np.arange(len(m.c)))
    known = c.streamed & (c.events > 0) & ~np.isnan(c.sent_s)
    answers = _in_order(c, population.ok[known[population.ok]])
    scheduled = len(population.all)
    if why := _too_few(len(answers), scheduled):
        return why
    waiting = _waiting(c)
    split = _split(c, answers, known & c.ok, waiting)
    mean_s = {part: float(values.mean()) for part, values in split.parts.items()}
    if not (total_s := sum(mean_s.values())) > 0:
        return "the answers took no time"
    busy = _prefill_busy(c, answers, split.slope, m.window.seconds, prefills)
    fault = next((cause for cause in causes if cause.kind in _FAULTS), None)
    # Rounded, because loads that differ by the rounding of sums alone have no slope.
    load, tpot_s = np.round(load_while_streaming(c)[answers], 6), m.values["tpot"][answers]
    largest: Limit = max(PARTS, key=lambda part: mean_s[part])
    if largest in ("queue", "decode") and busy is not None and not prefills and _are_delayed(busy, tpot_s):
        largest = "prefill"
    if client.verdict == "invalid" and not (largest == "connection" and _is_connecting(c, answers, client)):
        largest = "client"
    elif fault is not None:
        largest = "balancer"
    return Bottleneck(
        verdict=largest,
        answers=len(answers),
        left_out=scheduled - len(answers),
        mean_ms=_rounded(total_s * 1e3),
        parts_ms=TimeParts(**{part: _rounded(mean_s[part] * 1e3) for part in PARTS}),
        shares=TimeParts(**{part: _rounded(mean_s[part] / total_s) for part in PARTS}),
        always_queued=split.always_queued,
        waiting_mean=_rounded(float(waiting[answers].mean())),
        new_connections=_rounded(float((~c.reused[answers]).mean())),
        prefill_us_per_token=_slope_us(split.slope),
        prefill_busy=None if busy is None else _rounded(busy),
        tpot_us_per_request=_slope_us(_line(load, tpot_s)),
        tpot_us_per_context_token=_slope_us(_line(_context(c, answers), tpot_s)),
        cause=fault.text if fault is not None else None,
    )


def _too_few(answers: int, scheduled: int) -> str:
    """Why so many answers of so many requests cannot tell; empty where they can."""
    if answers < FEWEST_ANSWERS:
        return f"{answers} streamed answers in the window; {FEWEST_ANSWERS} are needed"
    if answers < LEAST_ANSWERED * scheduled:
        return (
            f"only {answers} of {scheduled} requests were answered by a stream: "
            "what held up the others is not in their records"
        )
    return ""


def _in_order(c: Columns, rows: Rows) -> Rows:
    """In the order of the run: that in which workers delivered has no effect on a sample."""
    ordered: Rows = rows[np.lexsort((c.ended_s[rows], c.scheduled_s[rows]))]
    return ordered


def _are_delayed(busy: float, tpot_s: Floats) -> bool:
    """Whether prompts make steps longer, by the time spent on them and by the pace of the answers."""
    known = tpot_s[~np.isnan(tpot_s)]
    if busy < BUSY or not len(known):
        return False
    return bool(known.mean() >= percentile(ordered(known), 5.0) / (1 - BUSY))


def _is_connecting(c: Columns, answers: Rows, client: ClientFacts) -> bool:
    """Whether the client is called invalid only because requests were sent late, as connecting took long."""
    late_s = (c.sent_s - c.scheduled_s)[answers]
    connecting_s = np.where(c.reused, 0.0, np.nan_to_num(c.connected_s - c.started_s))[answers]
    explained = connecting_s.sum() >= _MOST_OF * late_s.sum() > 0
    return bool(explained) and len(client.reasons) == 1 and client.schedule_delay_ms_p99 is not None


def _split(c: Columns, answers: Rows, known: Mask, waiting: Rows) -> _Split:
    rtt_s = np.minimum(np.nan_to_num(c.rtt_s), np.nan_to_num(c.first_event_s))
    served_s = c.first_event_s - rtt_s
    calm = answers[waiting[answers] <= np.median(waiting[answers])]
    slope = _line(c.input_tokens[calm], served_s[calm])
    per_token_s = max(0.0, slope.slope) if slope is not None and not slope.is_flat else 0.0
    prefill_s = per_token_s * np.nan_to_num(c.input_tokens)
    rest_s = served_s - prefill_s
    alone = np.flatnonzero(known & (waiting == 0))
    always_queued = len(alone) < FEWEST_ALONE
    least_s = float(rest_s[known].min() if always_queued else np.median(rest_s[alone]))
    fixed_s = np.clip(least_s, 0.0, served_s[answers])
    prefill_s = np.minimum(prefill_s[answers], served_s[answers] - fixed_s)
    return _Split(
        {
            "connection": np.maximum(0.0, c.sent_s - c.started_s)[answers] + rtt_s[answers],
            "fixed": fixed_s,
            "prefill": prefill_s,
            "queue": served_s[answers] - fixed_s - prefill_s,
            "decode": np.maximum(0.0, c.last_token_s - c.first_event_s)[answers],
        },
        slope,
        always_queued,
    )


def _waiting(c: Columns) -> Rows:
    """How many other requests waited for their first token, on the same replica, as each was sent.

    Where a request has no replica's name, all are taken as one.
    """
    sent = ~np.isnan(c.sent_s)
    place = c.replica.codes if (c.replica.codes[sent] >= 0).all() else np.zeros(len(c), dtype=np.int32)
    first_s = np.where(np.isnan(c.first_event_s), c.ended_s, c.sent_s + c.first_event_s)
    found = np.zeros(len(c), dtype=np.int64)
    for one in np.unique(place[sent]).tolist():
        rows = np.flatnonzero(sent & (place == one))
        at_s = c.sent_s[rows]
        begun = np.searchsorted(np.sort(at_s), at_s, side="left")
        found[rows] = np.maximum(0, begun - np.searchsorted(np.sort(first_s[rows]), at_s, side="right"))
    return found


def _prefill_busy(
    c: Columns, answers: Rows, slope: FittedLine | None, seconds: float, prefills: int
) -> float | None:
    """Share of the window in which an engine computes prompts, if each replica with a name, or each server
    that only prefills, is one engine."""
    if slope is None or slope.is_flat or not seconds > 0:
        return None
    codes = c.replica.codes[answers]
    engines = prefills or max(1, len(np.unique(codes[codes >= 0])))
    return max(0.0, slope.slope) * float(np.nansum(c.input_tokens[answers])) / seconds / engines


def _context(c: Columns, answers: Rows) -> Floats:
    """Tokens that an answer's steps attend to, in the mean: its prompt and half of its output."""
    context: Floats = c.input_tokens[answers] + c.paced_tokens[answers] / 2
    return context


def _line(x: Floats, y: Floats) -> FittedLine | None:
    """Through a sample of the points, the same each time; None where x hardly varies, or points are few."""
    known = ~np.isnan(x) & ~np.isnan(y)
    x, y = x[known], y[known]
    if not len(x):
        return None
    ascending = ordered(x)
    low, high = percentile(ascending, 5.0), percentile(ascending, 95.0)
    if not high - low > _LEAST_SPREAD * abs(high):
        return None
    chosen = np.random.default_rng(0).permutation(len(x))[:_MOST_POINTS]
    return theil_sen(x[chosen], y[chosen])


def _slope_us(line: FittedLine | None) -> SlopeFigures | None:
    """In microseconds."""
    if line is None:
        return None
    return SlopeFigures(
        slope=_rounded(line.slope * 1e6),
        ci95=(_rounded(line.low * 1e6), _rounded(line.high * 1e6)),
    )


def _rounded(value: float) -> float:
    """To ten digits: sums of floats differ in their last ones by the order of the records."""
    return float(f"{value:.10g}")


_PARTS = ("connection", "fixed", "prefill", "queue", "decode")


def show(summary: "Summary") -> Section | None:
    """Where the time of answers went, with its evidence, and what shortens it."""
    part = summary.bottleneck
    if isinstance(part, str):
        return None
    remedy = f"{'what to do' if part.verdict == 'client' else 'to shorten it'}: {_remedy(summary, part)}"
    lines = (Line(_VERDICTS[part.verdict](summary, part)), Line(remedy), *_of_the_bounds(summary))
    rows = tuple(
        TableRow(
            (
                name,
                number(getattr(part.parts_ms, name)),
                percent(getattr(part.shares, name)),
                _evidence(part, name),
            )
        )
        for name in _PARTS
    )
    columns = (
        Column("Time of an answer", left=True),
        Column("mean ms"),
        Column("share"),
        Column("seen in", left=True, wraps=True),
    )
    return Section(
        "Where the time goes", lines, Table(columns, rows), tuple(_reservations(part)), stacked=True
    )


def _of_the_bounds(summary: "Summary") -> Iterator[Line]:
    """What prefill and decode reach of the roofline, medians beside medians; nothing without a roofline."""
    roof = summary.roofline
    if roof is None or isinstance(roof, str):
        return
    ttft, tpot = summary.latency_ms["ttft"].known.p50, summary.latency_ms["tpot"].known.p50
    yield from _reached("prefill", "TTFT", ", its queue included", ttft, roof.ttft_bound_ms)
    yield from _reached("decode", "TPOT", "", tpot, roof.tpot_bound_ms)


def _reached(part: str, metric: str, more: str, p50: float | None, bound: float | None) -> Iterator[Line]:
    if not p50 or not bound:
        return
    beside = f"{metric} p50 {number(p50)} ms{more}, {number(bound)} ms by the roofline"
    if bound > p50:
        text = "the given GPU, number of GPUs or model is wrong, or tokens are not made one a step"
        yield Line(f"{part} is faster than its bound: {beside}: {text}", Tone.WARN)
        return
    yield Line(f"{part} reaches {percent(bound / p50)} of its bound: {beside}")


def _largest(name: str, words: str) -> "Callable[[Summary, Bottleneck], str]":
    def verdict(_summary: "Summary", part: Bottleneck) -> str:
        return f"mostly {name}: {percent(getattr(part.shares, name))} of the time of an answer is {words}"

    return verdict


def _client_bound(summary: "Summary", _part: Bottleneck) -> str:
    why = "".join(f": {clean(reason)}" for reason in summary.client.reasons[:1])
    return f"not known: the client is invalid, and its own delays are in these times{why}"


def _prefill_bound(summary: "Summary", part: Bottleneck) -> str:
    own = f"mostly prefill: {percent(part.shares.prefill)} of the time of an answer is its own prompt"
    if part.prefill_busy is None or (summary.server is not None and summary.server.pools is not None):
        return own
    return f"{own}; an engine spends {percent(part.prefill_busy)} of its time on prompts, which delays others"


_VERDICTS: "Mapping[str, Callable[[Summary, Bottleneck], str]]" = {
    "client": _client_bound,
    "balancer": lambda _, part: f"mostly balancer: {clean(part.cause or '')}",
    "connection": _largest("connection", "connecting and the round trip of the network"),
    "fixed": _largest("fixed", "the same for every request, whatever its length and the load"),
    "prefill": _prefill_bound,
    "queue": _largest("queue", "waiting before the prompt is begun"),
    "decode": _largest("decode", "from its first to its last token"),
}

_REMEDIES = {
    "client": "more workers, or less load for each; then measure again",
    "balancer": "take that replica out of rotation, or balance by requests in flight",
    "connection": "keep connections open, and run client and server nearer to each other",
    "fixed": "look at gateway, tokenizer and authentication, which come before the engine",
    "prefill": "a prefix cache, shorter prompts, separate replicas for prefill, or more FLOP/s",
    "queue": "a larger batch limit (max_num_seqs) if the KV cache has room, or more replicas",
    "decode": "smaller or quantised weights, more memory bandwidth, speculative decoding, or shorter answers",
}


_WITH_POOLS = "a prefix cache, shorter prompts, or more prefill servers"


def _remedy(summary: "Summary", part: Bottleneck) -> str:
    """What would help; of prefill and decode servers they tell more than the client can."""
    pools = None if summary.server is None else summary.server.pools
    if pools is not None and part.verdict == "prefill":
        return _WITH_POOLS
    parts = None if pools is None else pools.ttft
    if parts is None or part.verdict != "fixed":
        return _REMEDIES[part.verdict]
    known = {"prefill": parts.prefill_ms, "the KV transfer": parts.transfer_ms}
    rest = {"gateway, tokenizer and authentication": parts.client_ms - sum(known.values())}
    shares = [
        f"{name} {number(ms)} ms" for name, ms in sorted((known | rest).items(), key=lambda each: -each[1])
    ]
    return f"of {number(parts.client_ms)} ms of TTFT {', '.join(shares)}: begin with the first"


def _evidence(part: Bottleneck, name: str) -> str:
    if name == "connection":
        return f"{percent(part.new_connections)} of requests opened a connection"
    if name == "fixed":
        return "the fastest request" if part.always_queued else "requests that were alone"
    if name == "prefill":
        if part.prefill_us_per_token is None:
            return "prompts of about one length: it is part of fixed"
        return (
            _slope_text(part.prefill_us_per_token, "µs per prompt token") or "TTFT does not grow beyond noise"
        )
    if name == "queue":
        return f"{number(part.waiting_mean)} others waited on average"
    found = [
        _slope_text(part.tpot_us_per_request, "µs of TPOT per request in flight"),
        _slope_text(part.tpot_us_per_context_token, "µs of TPOT per token of context"),
    ]
    return sentence(found) or "TPOT changes with neither load nor context, beyond noise"


def _slope_text(line: SlopeFigures | None, unit: str) -> str:
    """The slope with its interval; empty where it is not beyond noise."""
    if line is None or line.ci95[0] <= 0 <= line.ci95[1]:
        return ""
    return f"{number(line.slope)} {unit} ({number(line.ci95[0])} to {number(line.ci95[1])})"


def _reservations(part: Bottleneck) -> Iterator[Line]:
    if part.always_queued:
        yield Line(
            "hardly any request was alone: how much of fixed and queue is which is uncertain", Tone.WARN
        )
    if part.left_out:
        yield Line(
            f"without {plural(part.left_out, 'request')} that failed, were cut or not streamed", Tone.WARN
        )
