"""Times in which nothing arrived although requests were under way: did the server stand still, or is it slow?

A time is *silent* if no event of any request arrives in it: no token, and no end of an answer. Silence alone
says little. One user of a reasoning model hears nothing for as long as it thinks. So each silence is held
against the waits of the requests that were under way in it, and these against those of others that ended
well: a server *stood still* if it kept everybody waiting for longer than anybody usually waits."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from llm_locust.core.record import Outcome
from llm_locust.core.texts import quantity
from llm_locust.metrics.catalogue import LATENCIES, End
from llm_locust.metrics.columns import OUTCOMES, Columns, Floats, Mask, Part, Rows, filled, lengths
from llm_locust.metrics.requests.judgement import Judgement
from llm_locust.metrics.requests.latency import begun_s
from llm_locust.metrics.requests.rates import Spans
from llm_locust.metrics.stats.censoring import Ascending, ordered, percentile
from llm_locust.metrics.structs import SummaryPart, key
from llm_locust.metrics.window import Window

_IN_WINDOW = "all requests, in the window"


class StandstillSpan(SummaryPart, frozen=True):
    """A time in which the server stood still."""

    start_s: Annotated[float, key("of the 20 longest: begin after the window's start, s", _IN_WINDOW)]
    seconds: Annotated[float, key("how long requests were under way in it, s", _IN_WINDOW)]
    in_flight: Annotated[int, key("how many at most", _IN_WINDOW)]


class Standstills(SummaryPart, frozen=True):
    """Times in which nothing came although requests were under way."""

    n: Annotated[int, key("number of standstills", _IN_WINDOW)]
    seconds: Annotated[float, key("how long they were in all, s", _IN_WINDOW)]
    spans: list[StandstillSpan]
    slow_n: Annotated[int, key("number of silences of more than 1 s that are as usual", _IN_WINDOW)]
    slow_seconds: Annotated[float, key("how long these were in all, s", _IN_WINDOW)]
    slow_longest_s: Annotated[float | None, key("the longest of them, s; null without any", _IN_WINDOW)]


#: A silence that counts lasts longer than this.
LEAST_S = 1.0

#: A wait is usual if at least ``_RARE`` of the requests that ended well had one as long, by themselves; or
#: ``_HABIT`` of them had one in the same place; or it is as short as so many ``_GAPS`` of an answer.
_AS_LONG, _TIMES, _RARE, _HABIT, _GAPS = 1 / 0.9, 3.0, 0.02, 0.1, 3.0

#: A stream that is so many times as slow as is usual crawls.
_CRAWLS = 10.0

#: A request tells of a silence in which it waits for this share of it at least. What is little beside it is
#: this share, or so many median waits for a first token. Twice as much may be beside one that is no measure.
_MOST_OF_IT, _LITTLE, _MEDIANS, _TWICE = 0.5, 0.05, 1.5, 2.0

#: Probability of a silence, at most, that chance does not make. Requests that were sent within this share of
#: the median wait of each other go in step, and count as one; it takes so many.
_CHANCE, _IN_STEP, _FEWEST = 1e-4, 0.1, 3

#: A server that stood still for more of the window has failed, whatever shares of its requests say: users who
#: wait for it send few.
MOST_STILL = 0.1

#: Standstills that are listed, the longest ones.
MOST = 20

#: Ends that are the client's doing: no answer of the deployment.
_NO_ANSWER = tuple(map(OUTCOMES.index, (Outcome.TIMEOUT, Outcome.CONNECT_ERROR, Outcome.CANCELLED)))

#: Limits on the wait for a first token, on all of an answer, and those that say that somebody reads along.
_OF_BEGINNING = frozenset(each.key for each in LATENCIES if each.is_limited and each.end is not None)
_OF_END = frozenset(each.key for each in LATENCIES if each.is_limited and each.end is End.LAST_TOKEN)
_OF_READING = frozenset(each.key for each in LATENCIES if each.is_limited) - _OF_END


def too_still(seconds: float, window_s: float) -> str:
    """That a server stood still for more than :data:`MOST_STILL` of the window; empty if it did not."""
    if seconds <= MOST_STILL * window_s:
        return ""
    return f"the server stood still for {quantity(seconds)} s of {quantity(window_s)} s"


class StreamHoles:
    """Times of more than :data:`LEAST_S` between two token events of a request, collected part by part."""

    def __init__(self) -> None:
        self._rows = 0
        self._found: list[tuple[Rows, Rows, Floats, Floats]] = []

    @classmethod
    def of(cls, c: Part) -> "StreamHoles":
        """Those of all requests, where they are in memory."""
        found = cls()
        found.add(c)
        return found

    def add(self, c: Part) -> None:
        """Add those of the next rows."""
        at_ns, offsets = c.arrivals.values, c.arrivals.offsets
        before = np.flatnonzero(np.diff(at_ns) > LEAST_S * 1e9)
        rows = np.searchsorted(offsets, before, side="right") - 1
        inside = before + 1 < offsets[rows + 1]
        before, rows = before[inside], rows[inside]
        if len(rows):
            sent_s = c.sent_s[rows]
            edges = (sent_s + at_ns[before] * 1e-9, sent_s + at_ns[before + 1] * 1e-9)
            self._found.append((self._rows + rows, before + 1 - offsets[rows], *edges))
        self._rows += len(lengths(c.arrivals))

    def waits(self) -> "Waits":
        empty = (np.empty(0, np.int64),) * 2 + (np.empty(0),) * 2
        return Waits(*(np.concatenate(column) for column in zip(empty, *self._found, strict=True)))


@dataclass(frozen=True, slots=True)
class Waits:
    """Times of requests in which nothing of theirs arrived; arrays of shape (waits,).

    ``events`` of its request had come before it: with 0 of them it is the wait for the first token, or for
    the whole answer that is not streamed.
    """

    rows: Rows
    events: Rows
    begins_s: Floats
    ends_s: Floats

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def seconds(self) -> Floats:
        return self.ends_s - self.begins_s

    def among(self, kept: Mask | Rows) -> "Waits":
        return Waits(self.rows[kept], self.events[kept], self.begins_s[kept], self.ends_s[kept])

    @classmethod
    def of(cls, c: Columns, holes: "Waits") -> "Waits":
        """Those of more than :data:`LEAST_S`: before a request's first event, between two, after its last."""
        begins_s, (firsts_s, lasts_s) = begun_s(c), _edges_s(c)
        first = np.flatnonzero(firsts_s - begins_s > LEAST_S)
        last = np.flatnonzero((c.events > 0) & (c.ended_s - lasts_s > LEAST_S))
        return cls(
            np.concatenate([first, holes.rows, last]),
            np.concatenate([np.zeros(len(first), np.int64), holes.events, c.events[last]]),
            np.concatenate([begins_s[first], holes.begins_s, lasts_s[last]]),
            np.concatenate([firsts_s[first], holes.ends_s, c.ended_s[last]]),
        )


def _edges_s(c: Columns) -> tuple[Floats, Floats]:
    """When the first and the last event of each request came; its end, without any."""
    has = (c.events > 0) & ~np.isnan(c.sent_s)
    first_s = np.where(has, c.sent_s + c.first_event_s, c.ended_s)
    return first_s, np.where(has, c.sent_s + c.last_event_s, c.ended_s)


@dataclass(frozen=True, slots=True)
class Silences:
    """Times of a window in which nothing arrived, for more than :data:`LEAST_S` with requests under way.

    Arrays of shape (silences,): ``since_s`` and ``until_s``, ``busy_s`` of which requests were under way, and
    ``still``: whether the server stood still.
    """

    c: Columns = field(repr=False)
    window: Window
    usual: "Usual"
    since_s: Floats
    until_s: Floats
    busy_s: Floats
    still: Mask

    @classmethod
    def of(cls, c: Columns, holes: StreamHoles, window: Window, judgement: Judgement | None) -> "Silences":
        """Of all requests, in the window alone: the drain is a load of its own.

        A silence is a standstill if none of the requests that waited through most of it is *usually* silent
        for so long (:class:`Usual`), for then the server may have worked on that one, and if

        * at least two of them waited for little more than it (1.5 median first waits, or three gaps), or were
          given up; not even a third of it is usual for them; and they did not end well within a limit of
          their SLO on that wait;
        * or one waited alone, to which that applies, and that was given up, failed, or broke a limit;
        * or chance makes no such silence of requests that wait independently of each other
          (:meth:`Usual.chance`).
        """
        found = holes.waits()
        waits = Waits.of(c, found)
        since_s, until_s, busy_s = _silent(c, found, window)
        in_wait, in_silence = _pairs(waits, since_s, until_s)
        begins_s = np.maximum(waits.begins_s[in_wait], since_s[in_silence])
        lasted_s = np.minimum(waits.ends_s[in_wait], until_s[in_silence]) - begins_s
        given_up = c.given_up[waits.rows][in_wait]
        # What is outside of the window is neither in a silence nor beside one.
        before_s = np.where(np.isin(since_s, [span.start_s(c) for span in window.spans]), -np.inf, since_s)
        after_s = np.where(np.isin(until_s, [span.end_s(c) for span in window.spans]), np.inf, until_s)
        beyond_s = np.maximum(before_s[in_silence] - waits.begins_s[in_wait], 0.0)
        beyond_s += np.maximum(waits.ends_s[in_wait] - after_s[in_silence], 0.0)
        kinds = Kinds.of(c)
        slack_s = kinds.slack_s(waits)[in_wait]
        nearly_all = beyond_s <= np.maximum(slack_s, _LITTLE * lasted_s)
        is_in_it = beyond_s <= np.maximum(_TWICE * slack_s, _LITTLE * lasted_s)
        tells = (lasted_s >= _MOST_OF_IT * busy_s[in_silence]) | (given_up & (lasted_s > LEAST_S))
        n = len(since_s)

        def count(pairs: Mask | Rows) -> Rows:
            return np.bincount(in_silence[pairs], minlength=n)

        k = count(tells)
        together = np.zeros(len(waits), np.bool_)
        together[in_wait[tells & is_in_it & (k > 1)[in_silence]]] = True
        usual = Usual.of(kinds, waits, together)
        told = waits.among(in_wait), lasted_s, k[in_silence], count(tells & ~together[in_wait])[in_silence]
        allowed = _allowed(c, waits, judgement)[in_wait]
        strange = tells & ~usual.are(*told, _TIMES) & (nearly_all | given_up)
        alone = (k == 1) & (count(strange & _bad(c, judgement)[waits.rows[in_wait]]) > 0)
        counts = np.flatnonzero(tells & ~allowed)
        waited = waits.among(in_wait[counts]), lasted_s[counts], in_silence[counts]
        by_no_chance = usual.chance(*waited, n, window.seconds) < _CHANCE
        still = (count(strange & ~allowed) > 1) | alone | by_no_chance
        still &= count(tells & usual.are(*told, _AS_LONG)) == 0
        return cls(c, window, usual, since_s, until_s, busy_s, still)

    def hung(self) -> Rows:
        """Requests of the window that were cancelled, and before had got nothing for longer than is usual."""
        c = self.c
        rows = np.flatnonzero(c.cancelled & self.window.scheduled(c))
        lasts_s = np.where(c.events[rows] > 0, _edges_s(c)[1][rows], begun_s(c)[rows])
        waits = Waits(rows, c.events[rows].astype(np.int64), lasts_s, c.ended_s[rows])
        waits = waits.among(waits.seconds > LEAST_S)
        return waits.rows[self.usual.is_strange(waits, waits.seconds)]

    def standstills(self) -> Standstills:
        """The ``reliability.standstill`` of a summary."""
        c, start_s = self.c, self.window.start_s(self.c)
        begins_s, ends_s = _under_way(c)
        busy_from, busy_to = _merged(begins_s, ends_s)
        found = np.flatnonzero(self.still)
        longest = found[np.argsort(-self.busy_s[found], kind="stable")][:MOST]
        spans = []
        for i in np.sort(longest).tolist():
            since_s, until_s = float(self.since_s[i]), float(self.until_s[i])
            # Where nothing was under way it begins with the next request.
            at = int(np.searchsorted(busy_to, since_s, side="right"))
            spans.append(
                StandstillSpan(
                    start_s=max(since_s, float(busy_from[at])) - start_s,
                    seconds=float(self.busy_s[i]),
                    in_flight=Spans(begins_s, ends_s).peak(since_s, until_s),
                )
            )
        slow_s = self.busy_s[~self.still]
        return Standstills(
            n=len(found),
            seconds=float(self.busy_s[found].sum()),
            spans=spans,
            slow_n=len(slow_s),
            slow_seconds=float(slow_s.sum()),
            slow_longest_s=float(slow_s.max()) if len(slow_s) else None,
        )


def longest_usual_s(first_s: Ascending, gaps_s: Ascending) -> float:
    """The longest wait that is usual of requests of one kind, where only these are known of them.

    The rule of :meth:`Usual.is_strange`: 2 % of the others wait for at least a third of it, or one does.
    """
    fewest = max(1, math.ceil(_RARE * len(first_s)))
    waits_s = [some[len(some) - fewest] for some in (first_s, gaps_s) if len(some) >= fewest]
    return _TIMES * max(waits_s, default=0.0)


@dataclass(frozen=True, slots=True)
class Kinds:
    """Requests of one name, of one class, and streamed or not, are of one kind: ``of_row`` is its number."""

    c: Columns = field(repr=False)
    of_row: Rows
    first_s: Floats

    @classmethod
    def of(cls, c: Columns) -> "Kinds":
        pairs = c.name.codes.astype(np.int64) * (len(c.slo_class.names) + 1) + c.slo_class.codes
        return cls(c, 2 * pairs + c.streamed, _edges_s(c)[0] - begun_s(c))

    def ok(self, kind: int) -> Rows:
        """The requests of a kind that ended well."""
        return np.flatnonzero(self.c.ok & (self.of_row == kind))

    def gap_s(self, rows: Rows) -> float:
        """The median of the mean gaps of these answers; NaN where none has two events."""
        return percentile(ordered(self.paces_s(rows)), 50.0)

    def paces_s(self, rows: Rows) -> Floats:
        """The mean gap of each of these; NaN of those with fewer than two events."""
        c, gaps = self.c, self.c.events[rows] - 1
        return np.where(gaps > 0, (c.last_event_s - c.first_event_s)[rows] / np.maximum(gaps, 1), np.nan)

    def slack_s(self, waits: Waits) -> Floats:
        """What a wait usually takes beside a silence that it lies in; NaN where none ended well."""
        slack_s, kinds = np.zeros(len(waits)), self.of_row[waits.rows]
        for kind in np.unique(kinds).tolist():
            rows, asked = self.ok(kind), kinds == kind
            first_s = _MEDIANS * percentile(ordered(self.first_s[rows]), 50.0)
            slack_s[asked] = np.where(waits.events[asked] == 0, first_s, _GAPS * self.gap_s(rows))
        return slack_s


@dataclass(frozen=True, slots=True)
class Usual:
    """How long requests are usually silent: those of the same kind that ended ok.

    ``waits`` are theirs of more than :data:`LEAST_S`, and ``together`` marks those that lay in a silence of
    several requests: such a silence is what is judged, and no measure of it.
    """

    kinds: Kinds = field(repr=False)
    waits: Waits
    together: Mask

    @classmethod
    def of(cls, kinds: Kinds, waits: Waits, together: Mask) -> "Usual":
        ok = kinds.c.ok[waits.rows]
        return cls(kinds, waits.among(ok), together[ok])

    def are(self, waits: Waits, lasted_s: Floats, k: Rows, alone: Rows, times: float) -> Mask:
        """Whether requests are usually silent for ``lasted_s``, where each of ``waits`` is in its answer.

        It is usual if at least 2 % of the others were, by themselves (one, if nobody else waits). A habit is
        usual too: at least 10 % of them, in the same place (before the first token, or after as many), alone
        or together. So is what three gaps of the pace of the median answer take.

        Args:
            k: requests of each silence, which are none of the others.
            alone: those of them that waited by themselves.
            times: a wait that is by this factor shorter is as long.
        """
        usual = np.zeros(len(waits), np.bool_)
        kinds, begins = self.kinds.of_row[waits.rows], waits.events == 0
        for kind in np.unique(kinds).tolist():
            theirs = self.kinds.ok(kind)
            own = self.kinds.of_row[self.waits.rows] == kind
            for at_first in (True, False):
                asked = np.flatnonzero((kinds == kind) & (begins == at_first))
                judged = self._first if at_first else self._later
                usual[asked] = judged(
                    theirs, own, waits.among(asked), lasted_s[asked], k[asked], alone[asked], times
                )
        return usual

    def is_strange(self, waits: Waits, lasted_s: Floats) -> Mask:
        """Whether not even a third of this is usual, of requests by themselves that were given up."""
        none = np.zeros(len(waits), np.int64)
        return ~self.are(waits, lasted_s, none, none, _TIMES)

    def are_crawling(self, rows: Rows) -> Mask:
        """Whether the mean gap of each is ten times as long as those of the slowest 2 % that ended ok."""
        found = np.zeros(len(rows), np.bool_)
        paces_s = self.kinds.paces_s(rows)
        for kind in np.unique(self.kinds.of_row[rows]).tolist():
            own = self.kinds.of_row[rows] == kind
            others = np.setdiff1d(self.kinds.ok(kind), rows)
            usual_s = ordered(self.kinds.paces_s(others))
            if len(usual_s):
                fewest = max(1, math.ceil(_RARE * len(usual_s)))
                found[own] = paces_s[own] > _CRAWLS * usual_s[len(usual_s) - fewest]
        return found

    def chance(self, waits: Waits, lasted_s: Floats, silence: Rows, n: int, window_s: float) -> Floats:
        """Probability of each of ``n`` silences, if the requests in it waited independently of each other.

        One that waits at a random moment goes on for ``lasted_s`` with the probability Σ (W − lasted)⁺ / Σ T
        over the waits W of the others in as much of their time T: that before the first token, or after it.
        The product of these is that of one moment, and the window has room for so many of them. Requests that
        were sent in step count as one. It is 1 of fewer than three.
        """
        if not len(waits):
            return np.ones(n)
        logs, kinds = np.zeros(len(waits)), self.kinds.of_row[waits.rows]
        for kind in np.unique(kinds).tolist():
            for at_first in (True, False):
                asked = np.flatnonzero((kinds == kind) & ((waits.events == 0) == at_first))
                own = waits.among(asked)
                logs[asked] = np.log(self._goes_on(kind, at_first, own, lasted_s[asked], silence[asked], n))
        longest_s = np.ones(n)
        np.maximum.at(longest_s, silence, lasted_s)
        first_s, ok = self.kinds.first_s, self.kinds.c.ok
        width_s = np.fmax(1e-3, _IN_STEP * percentile(ordered(first_s[ok]), 50.0))
        step = np.floor(begun_s(self.kinds.c)[waits.rows] / width_s).astype(np.int64)
        step -= step.min()
        of_step = np.unique(silence * (step.max() + 1) + step) // (step.max() + 1)
        steps = np.bincount(of_step, minlength=n)
        log_of_one = np.bincount(silence, logs, n) / np.maximum(np.bincount(silence, minlength=n), 1)
        chance = np.exp(np.minimum(steps * log_of_one + np.log(window_s / longest_s), 0.0))
        return np.where(steps < _FEWEST, 1.0, chance)

    def _goes_on(
        self, kind: int, at_first: bool, waits: Waits, lasted_s: Floats, silence: Rows, n: int
    ) -> Floats:
        """Probability that a request of a kind, at its beginning or later, waits on for ``lasted_s``."""
        c, rows = self.kinds.c, self.kinds.ok(kind)
        times_s = self.kinds.first_s if at_first else c.last_event_s - c.first_event_s
        later = (self.kinds.of_row[self.waits.rows] == kind) & (self.waits.events > 0)
        every = ordered(times_s[rows] if at_first else self.waits.seconds[later])

        def others(all_s: Floats | float, own_s: Floats) -> Floats:
            """A sum, less what the requests of the same silence have of it."""
            own_s = np.where(c.ok[waits.rows], filled(own_s, 0.0), 0.0)
            return np.maximum(all_s - np.bincount(silence, own_s, n)[silence], 0.0)

        sums = np.concatenate([[0.0], np.cumsum(every)])
        at = np.searchsorted(every, lasted_s)
        beyond_s = sums[-1] - sums[at] - lasted_s * (len(every) - at)
        beyond_s = others(beyond_s, np.maximum(waits.seconds - lasted_s, 0.0))
        total_s = others(float(np.nansum(times_s[rows])), times_s[waits.rows])
        likely: Floats = (beyond_s + lasted_s) / (np.maximum(total_s, beyond_s) + lasted_s)
        return likely

    def _first(
        self, theirs: Rows, own: Mask, waits: Waits, lasted_s: Floats, k: Rows, alone: Rows, times: float
    ) -> Mask:
        """Waits for a first token. Without any other to compare with, the wait of an ok answer is usual."""
        own = own & (self.waits.events == 0)
        every = ordered(self.kinds.first_s[theirs])
        not_alone = ordered(self.waits.seconds[own & self.together])
        others = len(every) - k
        by_one = _as_long(every, lasted_s / times) - _as_long(not_alone, lasted_s / times) - alone
        habit = _as_long(every, lasted_s / times) - k
        return (
            _enough(by_one, _of_one(k), others)
            | _enough(habit, _HABIT, others)
            | ((others <= 0) & self.kinds.c.ok[waits.rows])
        )

    def _later(
        self, theirs: Rows, own: Mask, waits: Waits, lasted_s: Floats, k: Rows, alone: Rows, times: float
    ) -> Mask:
        """Waits for a further token, or for the end after the last one."""
        c, found = self.kinds.c, self.waits.among(own & (self.waits.events > 0))
        streams = theirs[c.events[theirs] > 1]
        others = len(streams) - k
        single = self.waits.among(own & (self.waits.events > 0) & ~self.together)
        longest_s = np.zeros(len(c))
        np.maximum.at(longest_s, single.rows, single.seconds)
        by_one = _as_long(ordered(longest_s[longest_s > 0]), np.maximum(lasted_s / times, LEAST_S)) - alone
        place = np.sort(_placed(found.events, found.seconds))
        at_least = np.searchsorted(place, _placed(waits.events, lasted_s / times))
        habit = np.searchsorted(place, _placed(waits.events + 1, np.zeros(len(waits)))) - at_least - k
        slow = lasted_s <= _GAPS * self.kinds.gap_s(streams)  # False without a stream
        return _enough(by_one, _of_one(k), others) | _enough(habit, _HABIT, others) | slow


def _as_long(ascending: Floats, lasted_s: Floats) -> Rows:
    """How many of these durations are at least as long as each."""
    found: Rows = len(ascending) - np.searchsorted(ascending, lasted_s)
    return found


def _enough(n: Rows, share: Floats | float, of: Rows) -> Mask:
    return np.asarray(n >= np.maximum(1, share * of), dtype=np.bool_)


def _of_one(k: Rows) -> Floats:
    """The share of others whose waits make one usual: beside one that waits alone a single other does."""
    return np.where(k == 1, 0.0, _RARE)


def _placed(events: Rows, seconds: Floats) -> Floats:
    """Durations after a number of events as one number each, in the order of both."""
    return np.asarray(events * 1e7 + np.minimum(seconds, 0.9e7), dtype=np.float64)


def _bad(c: Columns, judgement: Judgement | None) -> Mask:
    """Requests that were given up, failed, or broke a limit."""
    return ~c.ok if judgement is None else ~c.ok | (judgement.judged & ~judgement.good)


def _allowed(c: Columns, waits: Waits, judgement: Judgement | None) -> Mask:
    """Waits of good requests that a limit of their SLO is on.

    A limit on a first token, or on the whole, is on the wait before the first. One on the whole alone is on
    all of them, for nobody reads along. The pace of an answer is a mean, and so no limit on a hole in it.
    """
    if judgement is None:
        return np.zeros(len(waits), np.bool_)
    of_code = [*map(judgement.limits.of, c.slo_class.names), judgement.limits.slo]  # -1: no class
    first, later = (np.array([allow(slo.limits) for slo in of_code])[c.slo_class.codes] for allow in _ON)
    allows = np.where(waits.events == 0, first[waits.rows], later[waits.rows])
    return np.asarray(allows & judgement.good[waits.rows], dtype=np.bool_)


def _on_first(limits: Mapping[str, float]) -> bool:
    return not _OF_BEGINNING.isdisjoint(limits)


def _on_later(limits: Mapping[str, float]) -> bool:
    return not _OF_END.isdisjoint(limits) and _OF_READING.isdisjoint(limits)


_ON = (_on_first, _on_later)


def _pairs(waits: Waits, since_s: Floats, until_s: Floats) -> tuple[Rows, Rows]:
    """Each wait with each of the silences, which are ascending and apart, that it overlaps."""
    first = np.searchsorted(until_s, waits.begins_s, side="right")
    counts = np.maximum(np.searchsorted(since_s, waits.ends_s) - first, 0)
    in_wait = np.repeat(np.arange(len(waits)), counts)
    within = np.arange(len(in_wait)) - np.repeat(np.cumsum(counts) - counts, counts)
    return in_wait, first[in_wait] + within


def _silent(c: Columns, holes: Waits, window: Window) -> tuple[Floats, Floats, Floats]:
    """Times of the window without an event, and how long requests were under way in each."""
    alive_from, alive_to = _merged(*_alive(c, holes))
    busy_from, busy_to = _merged(*_under_way(c))
    found = [(np.empty(0),) * 3]
    for span in window.spans:
        start_s, end_s = span.start_s(c), span.end_s(c)
        since_s = np.clip(np.concatenate([[start_s], alive_to]), start_s, end_s)
        until_s = np.clip(np.concatenate([alive_from, [end_s]]), start_s, end_s)
        long = until_s - since_s > LEAST_S
        since_s, until_s = since_s[long], until_s[long]
        busy_s = _covered(busy_from, busy_to, until_s) - _covered(busy_from, busy_to, since_s)
        busy = busy_s > LEAST_S
        found.append((since_s[busy], until_s[busy], busy_s[busy]))
    since_s, until_s, busy_s = map(np.concatenate, zip(*found, strict=True))
    return since_s, until_s, busy_s


def _alive(c: Columns, holes: Waits) -> tuple[Floats, Floats]:
    """Sorted begins and sorted ends of streams without holes, an end of an answer being one of no length."""
    answered_s = c.ended_s[~np.isin(c.outcome, _NO_ANSWER)]
    streamed = (c.events > 0) & ~np.isnan(c.sent_s)
    firsts_s, lasts_s = _edges_s(c)
    begins_s = np.concatenate([answered_s, firsts_s[streamed], holes.ends_s])
    ends_s = np.concatenate([answered_s, lasts_s[streamed], holes.begins_s])
    return np.sort(begins_s), np.sort(ends_s)


def _under_way(c: Columns) -> tuple[Floats, Floats]:
    """Sorted start times, of connecting if a request was never sent, and sorted end times."""
    begins_s = begun_s(c)
    lasts = c.ended_s > begins_s
    return np.sort(begins_s[lasts]), np.sort(c.ended_s[lasts])


def _merged(begins_s: Floats, ends_s: Floats) -> tuple[Floats, Floats]:
    """Spans in which at least one lasts; begins and ends are sorted separately."""
    # One begins where everything that began before has ended.
    if not len(begins_s):
        return begins_s, ends_s
    first = np.flatnonzero(np.concatenate([[True], ends_s[:-1] < begins_s[1:]]))
    return begins_s[first], ends_s[np.append(first[1:], len(ends_s)) - 1]


def _covered(begins_s: Floats, ends_s: Floats, times_s: Floats) -> Floats:
    """How much of the time before each of ``times_s`` lies in the spans, which are disjoint and ascending."""
    if not len(begins_s):
        return np.zeros(len(times_s))
    total = np.concatenate([[0.0], np.cumsum(ends_s - begins_s)])
    begun = np.searchsorted(begins_s, times_s)
    last = np.maximum(begun - 1, 0)
    return np.where(begun > 0, total[last] + np.minimum(times_s, ends_s[last]) - begins_s[last], 0.0)
