"""A closed loop by the time of its users: what a share of its requests does not show.

A user who waits sends nothing. One that hangs is one request, beside the hundreds of those who are served;
a server that is down half of the time is asked seldom then, for users back off. So a share of requests is a
share of the fast ones."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from llm_locust.core.batch import Requests
from llm_locust.figures.figure import Run
from llm_locust.metrics.columns import Columns, Floats, Mask, Rows
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.requests.latency import begun_s
from llm_locust.metrics.standstill import LEAST_S, Silences, Waits
from llm_locust.metrics.stats.proportions import chi_square_tail
from llm_locust.metrics.structs import SummaryPart, key
from llm_locust.metrics.window import Window

_OF_USERS = "requests of users, in the window"

#: Users who hang for more of the time of all, or more of an open loop's requests, fail a run by themselves.
MOST_HUNG = 0.1


class HungUsers(SummaryPart, frozen=True):
    """Users that got nothing more, for longer than is usual, to the end or over several requests."""

    n: Annotated[
        int,
        key(
            "number of users that hung: see [the time of users](definitions.md#the-time-of-users)", _OF_USERS
        ),
    ]
    from_s: Annotated[
        float | None, key("since when the first of them did, s after the window's start", _OF_USERS)
    ]
    until_s: Annotated[
        float | None, key("when the last of them got an answer again, s; null if one did not", _OF_USERS)
    ]
    seconds: Annotated[float, key("for how long they did in all, s", _OF_USERS)]

    def text(self, users: int) -> str:
        """As "5 of 10 users hung from 8 s on"; empty if none did."""
        from_s = self.from_s or 0.0
        since = f"{from_s:.3g} s" if from_s >= 0 else "the warm-up"
        until = "on" if self.until_s is None else f"to {self.until_s:.3g} s"
        return f"{self.n} of {users} users hung from {since} {until}" if self.n else ""


class TimeShares(SummaryPart, frozen=True):
    """The time of users in requests of one kind as a share of that in those of this and of the other kind."""

    share: Annotated[
        float | None, key("their time / the time in these and in the others, and in back-off", _OF_USERS)
    ]
    by_user: Annotated[
        float | None,
        key("the same, where what a user got next stands for the time that it waited", _OF_USERS),
    ]
    by_user_at_most: Annotated[float | None, key("the upper end of that", _OF_USERS)]
    by_moment: Annotated[
        float | None,
        key(
            "the same, where what the latest request got stands for each moment; null of a few users",
            _OF_USERS,
        ),
    ]
    by_moment_at_most: Annotated[float | None, key("the upper end of that", _OF_USERS)]

    def breaks(self, holds: Callable[[float], bool]) -> bool:
        """Whether a limit that the requests hold is broken by the time of their users.

        Bad requests are longer ones too where they are so by chance: it is broken only if the bad time keeps
        together, in some users or at some times.
        """
        ends = (self.by_user_at_most, self.by_moment_at_most)
        is_broken = self.share is not None and not holds(self.share)
        return is_broken and any(end is not None and not holds(end) for end in ends)


class UserTime(SummaryPart, frozen=True):
    """A closed loop by the time of its users."""

    users: Annotated[int, key("number of users that had a request under way", _OF_USERS)]
    seconds: Annotated[float, key("how long they had one in all, s", _OF_USERS)]
    backoff_s: Annotated[float, key("how long they backed off after failures, s", _OF_USERS)]
    hung: HungUsers

    @property
    def hung_text(self) -> str:
        return self.hung.text(self.users)

    def have_hung(self, seconds: float) -> bool:
        """Whether users hung for more of a window of so many seconds than :data:`MOST_HUNG` of all have."""
        return self.hung.seconds > MOST_HUNG * self.users * seconds

    good: Annotated[TimeShares | None, key("the time in good requests; null without an SLO", _OF_USERS)]
    served: Annotated[TimeShares, key("the time in `ok` ones, beside those that failed or hung", _OF_USERS)]


#: A share is below a limit beyond chance if it is so by this many standard deviations: 0.5 % of chances are.
_SIGMAS = 2.58

#: Requests were given up in a row, or at once, by chance if it brings as many of these more often.
_BY_CHANCE = 0.05

#: Fewest users whose latest request tells of a moment: of a few the slow requests are the latest for longer.
_FEWEST_USERS = 5


def compute(run: Run) -> UserTime | None:
    """None of a part of the requests, of a sweep, and of an open loop."""
    if run.of_selection or run.manifest.is_sweep or run.manifest.open_loop:
        return None
    return user_time(run.requests, run.m, run.silences)


def user_time(
    requests: Requests, m: Measured, silences: Silences | None = None, *, are_all: bool = True
) -> UserTime | None:
    """The ``user_time`` of a summary; None where the records name no users.

    Of the requests from before the window only stuck ones, and those that hang, are good or bad: a slow
    warm-up does not reach into it.

    Args:
        silences: those of ``m``, where they are there.
        are_all: ``requests`` are all of their users'. In what they did between those of a part no back-off is
            looked for.
    """
    c, window, stuck, judgement = m.c, m.window, m.stuck, m.judgement
    silences = silences or Silences.of(c, m.holes, window, judgement)
    parts = [batch.floats("user") for batch in requests.parts(["user"])]
    users = np.concatenate([np.empty(0), *parts])
    begins_s = begun_s(c)
    known = np.flatnonzero(~np.isnan(users) & ~np.isnan(begins_s))
    rows = known[np.lexsort((begins_s[known], users[known]))]
    found = _Walks.of(c, window, rows, users[rows], are_all=are_all)
    present = np.unique(found.users[found.lasted_s > 0])
    if not len(present):
        return None
    inside, hung = window.scheduled(c)[rows], found.hung(silences)
    lost = hung | ~np.isnan(stuck.lasted_s)[rows]
    failed = lost | (inside & ~c.ok[rows] & ~c.cancelled[rows])
    served = found.shares(inside & c.ok[rows], failed, hung, len(present))
    good = None
    if judgement is not None:
        bad = lost | (inside & (judgement.judged & ~judgement.good)[rows])
        hung_or_bad = hung | (bad & found.crawls(silences))
        good = found.shares((judgement.good & window.scheduled(c))[rows], bad, hung_or_bad, len(present))
    return UserTime(
        users=len(present),
        seconds=float(found.lasted_s.sum()),
        backoff_s=float(found.backoff_s().sum()),
        hung=found.of_hung(hung),
        good=good,
        served=served,
    )


@dataclass(frozen=True, slots=True)
class _Walks:
    """The requests of each user one after another, in the order of users and of their beginnings.

    Arrays of shape (requests,): ``lasted_s`` in the window, ``is_first`` and ``is_last`` of its user. With
    ``are_all`` a user sent nothing else.
    """

    c: Columns
    window: Window
    rows: Rows
    users: Floats
    begins_s: Floats
    ends_s: Floats
    lasted_s: Floats
    is_first: Mask
    is_last: Mask
    are_all: bool

    @classmethod
    def of(cls, c: Columns, window: Window, rows: Rows, users: Floats, *, are_all: bool) -> "_Walks":
        begins_s, ends_s = begun_s(c)[rows], c.ended_s[rows]
        changes = users[1:] != users[:-1]
        edge = np.ones(min(1, len(rows)), np.bool_)
        return cls(
            c,
            window,
            rows,
            users,
            begins_s,
            ends_s,
            np.maximum(_inside(c, window, ends_s) - _inside(c, window, begins_s), 0.0),
            np.concatenate([edge, changes]),
            np.concatenate([changes, edge]),
            are_all,
        )

    def last_sign_s(self) -> Floats:
        """When a request was sent, or its last token came."""
        return np.fmax(self.begins_s, self.c.sent_s[self.rows] + self.c.last_event_s[self.rows])

    @property
    def _until_s(self) -> Floats:
        """When a user's next request began, or the window ended."""
        nexts_s = np.append(self.begins_s[1:], np.inf)[: len(self.rows)]
        nexts_s[self.is_last] = self.window.end_s(self.c)
        return nexts_s

    def hung(self, silences: Silences) -> Mask:
        """Requests that were given up after they had got nothing for longer than is usual, to the end of the
        window or so many in a row that it is not by chance; and those that crawled to the end."""
        c, signs_s = self.c, self.last_sign_s()
        ends_s = np.minimum(self.ends_s, self.window.end_s(c))
        silent = c.given_up[self.rows] & (ends_s - signs_s > LEAST_S)
        silent &= ~c.cancelled[self.rows] | c.abandoned[self.rows] | self._are_to_the_end
        found = np.flatnonzero(silent)
        rows = self.rows[found]
        waits = Waits(rows, c.events[rows].astype(np.int64), signs_s[found], self.ends_s[found])
        silent[found] = silences.usual.is_strange(waits, (ends_s - signs_s)[found])
        in_a_row, at_end = self._in_a_row(silent), silent & self.is_last & self._are_to_the_end
        n, share = int(silent.sum()), max(float(silent.mean()), 1e-9)
        lengths, of_row = np.unique(np.bincount(in_a_row, silent), return_inverse=True)
        several = np.array(
            [_is_more(int((lengths[of_row] >= k).sum()), n * share ** (k - 1)) for k in lengths.tolist()]
        )
        # As many are under way at any moment as timed out or left before, times how long those took.
        at_once = float((ends_s - signs_s)[silent & ~at_end].sum()) / self.window.seconds
        was_cut = c.cancelled[self.rows] & ~c.abandoned[self.rows]
        at_end &= was_cut | _is_more(int(at_end.sum()), at_once)
        hang = (silent & several[of_row][in_a_row]) | at_end
        return np.asarray(hang | (self.crawls(silences) & c.cancelled[self.rows]), dtype=np.bool_)

    def _in_a_row(self, some: Mask) -> Rows:
        """Of each of these requests the number of those of its user, one after another, that it is among."""
        before = np.append(False, some[:-1])[: len(some)] & ~self.is_first
        return np.asarray(np.cumsum(some & ~before), dtype=np.int64)

    def crawls(self, silences: Silences) -> Mask:
        """The last requests of users whose tokens came to the end, and far more slowly than is usual."""
        found = np.zeros(len(self.rows), np.bool_)
        asked = np.flatnonzero(self.is_last & self._are_to_the_end & (self.left_s() > LEAST_S))
        found[asked] = silences.usual.are_crawling(self.rows[asked])
        return found

    @property
    def _are_to_the_end(self) -> Mask:
        return np.asarray(self.ends_s >= self.window.end_s(self.c), dtype=np.bool_)

    def left_s(self) -> Floats:
        """The time of the window that each has from its begin to the user's next request."""
        return self._inside(self._until_s) - self._inside(self.begins_s)

    def of_hung(self, hung: Mask) -> HungUsers:
        """Who hung, from the last sign of the first such request of each."""
        if not hung.any():
            return HungUsers(n=0, from_s=None, until_s=None, seconds=0.0)
        in_a_row = self._in_a_row(hung)
        begins = hung & (np.diff(in_a_row, prepend=0) > 0)
        signs_s = self.last_sign_s()  # in the drain that of one that crawls
        since_s = np.where(begins & (signs_s < self.window.end_s(self.c)), signs_s, self.begins_s)
        seconds = self._inside(self._until_s) - self._inside(since_s)
        last = hung & np.isin(in_a_row, in_a_row[hung & self.is_last])
        to_the_end, start_s = bool(last.any()), self.window.start_s(self.c)
        return HungUsers(
            n=len(np.unique(self.users[hung])),
            from_s=float(since_s[last if to_the_end else hung].min()) - start_s,
            until_s=None if to_the_end else float(self._until_s[hung].max()) - start_s,
            seconds=float(seconds[hung].sum()),
        )

    def backoff_s(self, *, in_a_row: bool = False) -> Floats:
        """How much longer each user paused after a request of the window that failed than after others.

        After its last one it pauses to the window's end. ``in_a_row``: only after one that followed another.
        """
        if not self.are_all:
            return np.zeros(len(self.rows))
        pauses_s = self._inside(self._until_s) - self._inside(self.ends_s)
        ok = self.c.ok[self.rows]
        thought = pauses_s[ok & ~self.is_last]
        usual_s = float(np.median(thought)) if len(thought) else 0.0
        failed = ~ok & ~self.c.cancelled[self.rows] & self.window.scheduled(self.c)[self.rows]
        if in_a_row:
            failed = failed & (np.append(False, failed[:-1])[: len(failed)] & ~self.is_first | self.is_last)
        return np.where(failed, np.maximum(pauses_s - usual_s, 0.0), 0.0)

    def shares(self, good: Mask, bad: Mask, hung: Mask, users: int) -> TimeShares:
        """The time of good requests as a share of that of good and bad ones and of back-off, three times.

        Back-off after a single failure is as much by chance as that: what the user got next stands for it.
        """
        time_s = _share(self.lasted_s, good, bad, float(self.backoff_s().sum()))
        # What a user would have got while it waited is what it got next. The only request of a user stands
        # for itself, and so does one that hung.
        stands_s = np.append(0.0, np.where(hung, 0.0, self.lasted_s)[:-1])[: len(self.lasted_s)]
        stands_s = np.where(self.is_first, 0.0, stands_s)
        stands_s = np.where(self.is_first & self.is_last & ~hung, self.lasted_s, stands_s)
        hung_s = float(self.backoff_s(in_a_row=True).sum()) + float(self.lasted_s[hung].sum())
        by_user = _share(stands_s, good, bad, hung_s)
        by_moment, moments_s = None, np.empty(0)
        if users >= _FEWEST_USERS:
            order = np.argsort(self.begins_s, kind="stable")
            moments_s = np.zeros(len(order))
            moments_s[order] = self._until_the_next(order)
            by_moment = _share(moments_s, good, bad, 0.0)
        n = int((good | bad).sum())
        chance = math.sqrt(max(int(good.sum()) * int(bad.sum()), n - 1) / n**2) if n else 0.0
        judged = good | bad
        return TimeShares(
            share=time_s,
            by_user=by_user,
            by_user_at_most=_at_most(by_user, stands_s[judged], hung_s, chance),
            by_moment=by_moment,
            by_moment_at_most=_at_most(by_moment, moments_s[judged[: len(moments_s)]], 0.0, chance),
        )

    def _until_the_next(self, order: Rows) -> Floats:
        """The time from each request to the next one of any user, while any was under way."""
        begins_s, ends_s = self.begins_s[order], np.maximum.accumulate(self.ends_s[order])
        until_s = np.minimum(np.append(begins_s[1:], np.inf), ends_s)
        return np.maximum(self._inside(until_s) - self._inside(begins_s), 0.0)

    def _inside(self, times_s: Floats) -> Floats:
        return _inside(self.c, self.window, times_s)


def _is_more(n: int, expected: float) -> bool:
    """Whether so many are beyond chance, where so many are ``expected``: by Poisson's distribution, of which
    P(fewer than n) = P(χ² ≥ 2 · expected) with 2 n degrees of freedom."""
    return n > 0 and 1 - chi_square_tail(2 * expected, 2 * n) < _BY_CHANCE


def _share(seconds: Floats, good: Mask, bad: Mask, lost_s: float) -> float | None:
    well_s = float(seconds[good].sum())
    all_s = well_s + float(seconds[bad].sum()) + lost_s
    return well_s / all_s if all_s > 0 else None


def _at_most(share: float | None, seconds: Floats, lost_s: float, deviation: float) -> float | None:
    """The upper end of a share of time, if each request is good or bad by chance, for its ``seconds``."""
    total_s = float(seconds.sum()) + lost_s
    if share is None or total_s <= 0:
        return share
    return min(1.0, share + _SIGMAS * deviation * math.sqrt(float((seconds**2).sum())) / total_s)


def _inside(c: Columns, window: Window, times_s: Floats) -> Floats:
    """How much of the window is before each of these times."""
    spans = [(span.start_s(c), span.end_s(c)) for span in window.spans]
    found: Floats = np.sum([np.clip(times_s, start_s, end_s) - start_s for start_s, end_s in spans], axis=0)
    return found
