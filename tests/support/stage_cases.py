"""Simulated stages: when requests were due and ended, of queues with known behaviour.

Times are seconds after the start of the measured part, which lasts ``seconds``; the load ends with it, and
requests in flight then are answered in the drain, or cut ``drain_s`` later.
"""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from llm_locust.metrics.stage_course import StageCourse

Floats = NDArray[np.float64]
Random = np.random.Generator

#: Factors of the durations, by the shares of the stage at which requests are sent.
Slowing = Callable[[Random, Floats], Floats]


@dataclass(frozen=True, slots=True)
class Times:
    """A stage's requests, in no order, and the length of its measured part."""

    due_s: Floats
    ended_s: Floats
    seconds: float
    open_loop: bool

    def touching(self) -> "Times":
        """Those that were due before the end, and had not ended at the start."""
        theirs = (self.due_s < self.seconds) & (self.ended_s >= 0)
        return Times(self.due_s[theirs], self.ended_s[theirs], self.seconds, self.open_loop)

    def course(self) -> StageCourse:
        return StageCourse(
            start_s=0.0,
            end_s=self.seconds,
            begun_s=self.due_s,
            ended_s=self.ended_s,
            open_loop=self.open_loop,
        )


def lognormal(rng: Random, sigma: float, size: int) -> Floats:
    """Mean 1."""
    return np.asarray(rng.lognormal(-sigma * sigma / 2, sigma, size) if sigma else np.ones(size))


def single_queue(rng: Random, load: float, requests: int) -> Times:
    """M/M/1 at rate ``load`` with mean service 1, in its steady state where the load is below 1."""
    before = round(40 / (1 - min(load, 0.95)) ** 2)
    n = before + round(requests * 1.2)
    between, service = rng.exponential(1 / load, n), rng.exponential(1.0, n)
    due = np.cumsum(between)
    # Lindley: waiting time as the distance of a random walk from its running minimum.
    walk = np.concatenate([[0.0], np.cumsum(service[:-1] - between[1:])])
    ended = due + walk - np.minimum.accumulate(walk) + service
    return Times(due - due[before], ended - due[before], requests / load, True).touching()


def many_servers(rng: Random, rate: float, sigma: float, requests: int, slow: Slowing | None = None) -> Times:
    """Poisson arrivals, each answered after a time of its own (M/G/∞) with mean 1."""
    seconds = requests / rate
    n = round((requests + 60 * rate) * 1.2) + 50
    due = np.cumsum(rng.exponential(1 / rate, n)) - 60
    took = lognormal(rng, sigma, n)
    if slow is not None:
        took = took * slow(rng, due / seconds)
    return Times(due, due + took, seconds, True).touching()


def closed_loop(
    rng: Random,
    users: int,
    sigma: float,
    requests: int,
    *,
    hang: tuple[float, float, int] | None = None,
    slow: Slowing | None = None,
    drain: float = 0.5,
) -> Times:
    """Users that each send their next request when the last has ended, with independent answers.

    Args:
        hang: from and to, as shares of the stage, in which so many users get no answer: what they have in
            flight or send then is answered at its end at the earliest, and that answer takes its time again.
        slow: factor of the duration by the share of the stage at which a request is sent.
        drain: of a stage's length; what takes longer is cut.
    """
    seconds = requests / users
    due, ended = [], []
    for user in range(users):
        n = round(seconds * 1.3 + 80)
        took = lognormal(rng, sigma, n)
        now = -float(rng.uniform(20, 25))
        if hang is None and slow is None:
            edges = np.cumsum([now, *took])
            edges = edges[: np.searchsorted(edges, seconds) + 1]
            due += edges[:-1].tolist()
            ended += np.minimum(edges[1:], seconds * (1 + drain)).tolist()
            continue
        for each in took:
            sent, lasts = now, float(each)
            if slow is not None:
                lasts *= float(slow(rng, np.array([sent / seconds]))[0])
            now += lasts
            if hang is not None and user < hang[2]:
                first, last = hang[0] * seconds, hang[1] * seconds
                if sent < last and now > first:
                    now += last - max(sent, first)
            due.append(sent)
            ended.append(min(now, seconds * (1 + drain)))
            if now >= seconds:
                break
    return Times(np.array(due), np.array(ended), seconds, False).touching()


def shared_server(rng: Random, users: int, servers: int, requests: int, sigma: float = 1.0) -> Times:
    """Closed loop of users before one queue with ``servers`` servers, of mean service time 1."""
    free = [0.0] * servers
    heapify(free)
    ready = [(0.0, user) for user in range(users)]
    heapify(ready)
    total = requests + 20 * users
    service = lognormal(rng, sigma, total * 2)
    due, ended = [], []
    for i in range(total * 2):
        now, user = heappop(ready)
        end = max(now, heappop(free)) + float(service[i])
        heappush(free, end)
        heappush(ready, (end, user))
        due.append(now)
        ended.append(end)
    start = ended[20 * users]
    seconds = requests / min(users, servers)
    at, to = np.array(due) - start, np.array(ended) - start
    return Times(at, to, seconds, False).touching()


def lockstep(rng: Random, users: int, rounds: int) -> Times:
    """All users send at once and are answered at once, ``rounds`` times, with a little noise."""
    took = 1 + rng.normal(0, 0.01, rounds + 2)
    edges = np.cumsum(took) - took[0] * rng.uniform()
    due = np.repeat(np.concatenate([[edges[0] - 1], edges[:-1]]), users)
    ended = np.repeat(edges, users)
    return Times(due, ended, float(rounds), False).touching()
