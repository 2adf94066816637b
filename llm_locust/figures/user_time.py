"""A closed loop by the time of its users: what a share of its requests does not show.

A user who waits sends nothing. One that hangs is one request, beside the hundreds of those who are served;
a server that is down half of the time is asked seldom then, for users back off. So a share of requests is a
share of the fast ones."""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec.structs import replace

from llm_locust.core.batch import Requests
from llm_locust.figures.figure import Run
from llm_locust.metrics.columns import Columns, Floats, Mask, Rows
from llm_locust.metrics.measured import Measured
from llm_locust.metrics.requests.latency import begun_s
from llm_locust.metrics.standstill import LEAST_S, Silences, Waits
from llm_locust.metrics.structs import SummaryPart, key
from llm_locust.metrics.window import Window

_OF_USERS = "requests of users, in the window"


class HungUsers(SummaryPart, frozen=True):
    """Users whose last request got nothing more to the end, for longer than is usual."""

    n: Annotated[
        int,
        key(
            "number of users that hung to the end: see [the time of users](definitions.md#the-time-of-users)",
            _OF_USERS,
        ),
    ]
    from_s: Annotated[
        float | None, key("since when the first of them did, s after the window's start", _OF_USERS)
    ]
    seconds: Annotated[float, key("for how long they did in all, s", _OF_USERS)]

    def text(self, users: int) -> str:
        """As "5 of 10 users hung from 8 s on"; empty if none did."""
        from_s = self.from_s or 0.0
        since = f"{from_s:.3g} s" if from_s >= 0 else "the warm-up"
        return f"{self.n} of {users} users hung from {since} on" if self.n else ""


class UserTime(SummaryPart, frozen=True):
    """A closed loop by the time of its users."""

    users: Annotated[int, key("number of users that had a request under way", _OF_USERS)]
    seconds: Annotated[float, key("how long they had one in all, s", _OF_USERS)]
    backoff_s: Annotated[float, key("how long they backed off after failures, s", _OF_USERS)]
    hung: HungUsers

    @property
    def hung_text(self) -> str:
        return self.hung.text(self.users)

    good_share: Annotated[
        float | None,
        key(
            "time in good requests / time in good and bad ones and in back-off; null without an SLO",
            _OF_USERS,
        ),
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


#: A share is below a limit beyond chance if it is so by this many standard deviations: 0.5 % of chances are.
_SIGMAS = 2.58

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
    hung = found.hung(silences)
    of_hung = HungUsers(
        n=int(hung.sum()),
        from_s=float(found.last_sign_s()[hung].min()) - window.start_s(c) if hung.any() else None,
        seconds=float(found.left_s()[hung].sum()),
    )
    whole = UserTime(
        users=len(present),
        seconds=float(found.lasted_s.sum()),
        backoff_s=float(found.backoff_s().sum()),
        hung=of_hung,
        good_share=None,
        by_user=None,
        by_user_at_most=None,
        by_moment=None,
        by_moment_at_most=None,
    )
    if judgement is None:
        return whole
    inside = window.scheduled(c)
    bad = hung | ~np.isnan(stuck.lasted_s)[rows] | (judgement.judged & ~judgement.good & inside)[rows]
    good = (judgement.good & inside)[rows]
    return replace(whole, **found.shares(good, bad, hung, len(present)))


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

    def left_s(self) -> Floats:
        """The time of the window after that."""
        end_s = np.full(len(self.rows), self.window.end_s(self.c))
        return _inside(self.c, self.window, end_s) - _inside(self.c, self.window, self.last_sign_s())

    def hung(self, silences: Silences) -> Mask:
        """The last requests of users that got nothing more to the end, for longer than is usual."""
        c, left_s = self.c, self.left_s()
        to_the_end = c.cancelled[self.rows] & ~c.abandoned[self.rows] & (self.ends_s >= self.window.end_s(c))
        found = np.flatnonzero(self.is_last & to_the_end & (left_s > LEAST_S))
        rows = self.rows[found]
        waits = Waits(rows, c.events[rows].astype(np.int64), self.last_sign_s()[found], self.ends_s[found])
        hung = np.zeros(len(self.rows), np.bool_)
        hung[found[silences.usual.is_strange(waits, left_s[found])]] = True
        return hung

    def backoff_s(self) -> Floats:
        """How much longer each user paused after a request of the window that failed than after others.

        After its last one it pauses to the window's end.
        """
        if not self.are_all:
            return np.zeros(len(self.rows))
        nexts_s = np.append(self.begins_s[1:], np.inf)
        nexts_s[self.is_last] = self.window.end_s(self.c)
        pauses_s = _inside(self.c, self.window, nexts_s) - _inside(self.c, self.window, self.ends_s)
        ok = self.c.ok[self.rows]
        thought = pauses_s[ok & ~self.is_last]
        usual_s = float(np.median(thought)) if len(thought) else 0.0
        failed = ~ok & ~self.c.cancelled[self.rows] & self.window.scheduled(self.c)[self.rows]
        return np.where(failed, np.maximum(pauses_s - usual_s, 0.0), 0.0)

    def shares(self, good: Mask, bad: Mask, hung: Mask, users: int) -> dict[str, float | None]:
        """The time of good requests as a share of that of good and bad ones and of back-off, three times."""
        lost_s = float(self.backoff_s().sum())
        time_s = _share(self.lasted_s, good, bad, lost_s)
        # What a user would have got while it waited is what it got next. The only request of a user stands
        # for itself, and one that hung for what was left.
        stands_s = np.where(self.is_first, 0.0, np.append(0.0, self.lasted_s[:-1])[: len(self.lasted_s)])
        stands_s = np.where(self.is_first & self.is_last & ~hung, self.lasted_s, stands_s)
        hung_s = lost_s + float(self.lasted_s[hung].sum())
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
        return {
            "good_share": time_s,
            "by_user": by_user,
            "by_user_at_most": _at_most(by_user, stands_s[judged], hung_s, chance),
            "by_moment": by_moment,
            "by_moment_at_most": _at_most(by_moment, moments_s[judged[: len(moments_s)]], 0.0, chance),
        }

    def _until_the_next(self, order: Rows) -> Floats:
        """The time from each request to the next one of any user, while any was under way."""
        begins_s, ends_s = self.begins_s[order], np.maximum.accumulate(self.ends_s[order])
        until_s = np.minimum(np.append(begins_s[1:], np.inf), ends_s)
        return np.maximum(_inside(self.c, self.window, until_s) - _inside(self.c, self.window, begins_s), 0.0)


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
