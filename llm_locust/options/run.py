"""Options of a run as a whole: its limits, its length, where its records are."""

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from llm_locust.client.http.timers import Timeouts
from llm_locust.core.texts import parse_time
from llm_locust.metrics.limits import parse_gates, parse_slo
from llm_locust.metrics.question import FromTo, parse_window
from llm_locust.metrics.stats.censoring import at_most
from llm_locust.metrics.stats.trend import PARTS, QueueCount, grows
from llm_locust.options.option import (
    Group,
    OwnSpool,
    option,
    parse_size,
    parse_timeouts,
    parse_warmup,
    verbatim,
    whole_from,
)
from llm_locust.scenario import readers


def parse_stamps(text: str) -> str:
    """``kernel`` or ``program`` (raises ValueError)."""
    if text in ("packet", "read", "auto"):
        raise ValueError(
            f"{text!r} is no longer needed: a thread reads each packet when it comes. Leave --stamps out, "
            "or give kernel or program"
        )
    if text not in ("kernel", "program"):
        raise ValueError(f"{text!r} is neither kernel nor program")
    return text


class RunSettings(Group, frozen=True, kw_only=True):
    """The run as a whole."""

    slo: str = option(
        "--slo",
        'limits per request, for goodput: "ttft=500ms tpot=50ms e2el=10s"',
        verbatim(parse_slo),
        "LIMITS",
        form=readers.LIMITS,
        ui=True,
        is_load=False,
        otherwise="",
    )
    slo_from: str | None = option(
        "--slo-from",
        "where the limits of ttft, ttfo and e2el begin (default: scheduled in an open loop, else sent)",
        choices=("sent", "scheduled"),
    )
    gates: str = option(
        "--gate",
        'limits for the run, such as "goodput>=0.95 p99_ttft<800ms output_tps>2000"; '
        "a failed one gives exit code 1",
        verbatim(parse_gates),
        "GATES",
        form=readers.GATES,
        ui=True,
        is_load=False,
        otherwise="",
    )
    warmup_s: float = option(
        "--warmup",
        'excluded from the measured window, such as 30s (default 0s); "up to 30s" gives way if all requests '
        "begin in it",
        parse_warmup,
        "TIME",
        default="0s",
        form=readers.TIME,
        ui=True,
        is_load=False,
    )
    window: str | FromTo = option(
        "--window",
        "part of the run that the report and the gates cover: run, without warm-up and drain; steady, the "
        "longest span in which the load stays on its plateau; 30s-90s, a span after the start (default run)",
        parse_window,
        "WINDOW",
        default="run",
        is_load=False,
    )
    out: Path | None = option(
        "--out",
        "run directory (default runs/<time>-<name>)",
        metavar="DIR",
        is_load=False,
        parse=Path,
    )
    restartable: bool = option(
        "--restartable",
        "for a soak, with --out: each start of the master writes a part of one run into that directory, "
        "until the run time of the whole is over; the report joins the parts and names the gaps",
        kind="truth",
        is_load=False,
    )
    spool: str | None = option(
        "--spool",
        "where a worker keeps batches of records until the master has them, or off "
        "(default: spool/ in the run directory)",
        metavar="DIR",
        action=OwnSpool,
        is_load=False,
    )
    seed: int | None = option(
        "--seed",
        "reproducible lengths and prompts (default: drawn and recorded)",
        whole_from(0),
        "N",
        kind="whole",
        form=readers.WHOLE_FROM_0,
        is_load=False,
    )
    swarm_secret_env: str | None = option(
        "--swarm-secret-env",
        "environment variable of master and workers that holds the run's secret, 16 characters or more: "
        "processes without it cannot join the run and get none of its options (default: none; "
        "--workers makes its own)",
        metavar="NAME",
        scope=None,  # each process's own: workers show theirs before they are sent a scenario
        record=None,
    )
    timeouts: Timeouts = option(
        "--timeouts",
        'timeouts of one request (default "first=60s gap=30s total=600s")',
        parse_timeouts,
        "BOUNDS",
        default="first=60s gap=30s total=600s",
        form=readers.Form("text, or mapping", partial(readers.bounds, parse=parse_timeouts)),
    )
    max_answer_bytes: int = option(
        "--max-answer",
        "maximum size of one answer; a larger one is cut off, and invalid (default 64MiB)",
        parse_size,
        "SIZE",
        default="64MiB",
        is_load=False,
    )
    stamps: str = option(
        "--stamps",
        "where arrival times come from. kernel: its receive time of each read, where it has one; program: "
        "the program's own clock after each read (default kernel)",
        parse_stamps,
        "SOURCE",
        default="kernel",
        is_load=False,
    )
    calibrate: bool = option(
        "--calibrate",
        "before the load, stream from a server of known times on this machine, at the streams of one worker, "
        "and show the client's error in the head of the report (takes 5 s)",
        kind="truth",
        is_load=False,
    )
    calibrate_streams: int | None = option(
        "--calibrate-streams",
        "the same at this number of streams, for an open loop, a sweep and the web UI",
        whole_from(1),
        "N",
        kind="whole",
        is_load=False,
    )
    drain_s: float = option(
        "--drain",
        "how long to wait for requests in flight when the load ends; 0 cuts them immediately (default 60s)",
        parse_time,
        "TIME",
        default="60s",
        ui=True,
    )
    flush_timeout_s: float = option(
        "--flush-timeout",
        "how long to wait for the workers' last records (default 30s)",
        parse_time,
        "TIME",
        default="30s",
        is_load=False,
    )
    replica_headers: tuple[str, ...] = option(
        "--replica-header",
        "response header that names the replica (repeatable; common ones are recognised)",
        metavar="NAME",
        kind="list",
        is_load=False,
    )

    @property
    def calibration(self) -> bool | int:
        """The number of streams to calibrate at; true: those of one worker."""
        return self.calibrate_streams or self.calibrate


# --- What ends a run before its time: a number of requests, and rules on how it goes
#
# Rules are written as text, several of them with a comma between:
#
# =============================== ===================================================================
# ``error_rate>20% over 30s``     more than 20 % of the requests fail, beyond chance: by those that ended
#                                 in the last 30 s, see :class:`ErrorRate`
# ``oversaturation``              the queue grows without end, see :class:`Oversaturation`
# =============================== ===================================================================


ALLOWED_RULES = '"error_rate>20% over 30s" or "oversaturation", with a comma between several'

#: A share of fewer requests says nothing.
LEAST_ENDED = 10

#: Confidence that the share of failures is above its limit.
CONFIDENCE = 0.99

#: Over-saturation is looked for in the last minute, two and four minutes: a small excess takes longer to see.
SPANS_S = (60.0, 120.0, 240.0)

#: The rule's name, with which its reason begins.
OVERSATURATION = "oversaturation"

_ERROR_RATE = re.compile(
    r"error_rate\s*>\s*(?P<share>[0-9]{1,3}(?:\.[0-9]{1,9})?)\s*%(?:\s*over\s+(?P<time>\S+))?"
)


class Totals(NamedTuple):
    """Counts since the run's start, over all workers.

    ``ok`` and ``failed`` have ended and are judged; ``ended`` counts the cancelled ones too. ``backlog``
    is what is under way or held back now.
    """

    ok: int = 0
    failed: int = 0
    ended: int = 0
    backlog: int = 0

    @property
    def arrived(self) -> int:
        return self.ended + self.backlog


class Sample(NamedTuple):
    at_s: float
    totals: Totals


@dataclass(frozen=True, slots=True)
class ErrorRate:
    """More than ``share`` (0 .. 1) of the requests that end within ``over_s`` fail, beyond chance.

    So many of :data:`LEAST_ENDED` or more must have failed as do in less than 1 % of cases where the share of
    failures is no larger: the lower 99 % bound of the share (Clopper and Pearson) is above the limit. Ten
    requests of which two fail show nothing of a limit of 10 %.
    """

    share: float
    over_s: float

    @property
    def least_s(self) -> float:
        return self.over_s

    @property
    def most_s(self) -> float:
        return self.over_s

    def broken(self, samples: Sequence[Sample]) -> str | None:
        """Why the run has to stop, given samples that reach back over ``over_s``; None: it has not."""
        first, last = _since(samples, self.over_s), samples[-1].totals
        failed, ok = last.failed - first.totals.failed, last.ok - first.totals.ok
        ended = failed + ok
        if ended < LEAST_ENDED or failed <= self.share * ended:
            return None
        if self.share > 0 and at_most(failed - 1, ended, self.share) <= CONFIDENCE:
            return None
        return (
            f"error_rate>{self.share:.4g} over {self.over_s:g}s: of the {ended} requests that ended in the "
            f"last {self.over_s:g} s, {failed} failed ({100 * failed / ended:.1f} %)"
        )


@dataclass(frozen=True, slots=True)
class Oversaturation:
    """Requests come faster than the server can ever answer them, so that their queue has no end.

    The backlog is what is under way or held back. It has a trend in one of :data:`SPANS_S`, see
    :func:`~llm_locust.metrics.stats.trend.grows`.
    """

    @property
    def least_s(self) -> float:
        return SPANS_S[0]

    @property
    def most_s(self) -> float:
        return SPANS_S[-1]

    def broken(self, samples: Sequence[Sample]) -> str | None:
        """As :meth:`ErrorRate.broken`."""
        reach_s = samples[-1].at_s - samples[0].at_s
        found = (self._trend(samples, span_s) for span_s in SPANS_S if reach_s >= span_s)
        return next((reason for reason in found if reason is not None), None)

    def _trend(self, samples: Sequence[Sample], span_s: float) -> str | None:
        points = [_since(samples, span_s * n / PARTS).totals for n in range(PARTS, 0, -1)]
        points.append(samples[-1].totals)
        if not grows([QueueCount(each.arrived, each.ended) for each in points], span_s):
            return None
        first, last = points[0], points[-1]
        arrived = last.arrived - first.arrived
        return (
            f"{OVERSATURATION}: in the last {span_s:g} s {arrived / span_s:.4g} requests/s came and "
            f"{(last.ended - first.ended) / span_s:.4g}/s ended; those under way or held back grew from "
            f"{first.backlog} to {last.backlog}"
        )


StopRule = ErrorRate | Oversaturation


def parse_stop_rules(text: str) -> tuple[StopRule, ...]:
    """The rules of a text, in the module's grammar (raises ValueError with the wrong one)."""
    return tuple(_rule(word.strip()) for word in text.split(",") if word.strip())


def _rule(word: str) -> StopRule:
    if word == OVERSATURATION:
        return Oversaturation()
    match = _ERROR_RATE.fullmatch(word)
    if match is None:
        raise ValueError(f"stop rule {word!r}: allowed are {ALLOWED_RULES}")
    try:
        over_s = parse_time(match["time"] or "30s")
    except ValueError as e:
        raise ValueError(f"stop rule {word!r}: {e}") from e
    share = float(match["share"]) / 100
    if not 0 <= share < 1 or over_s <= 0:
        raise ValueError(f"stop rule {word!r}: give a share below 100% over a time above 0 s")
    return ErrorRate(share, over_s)


class StopWatch:
    """Holds a run's counts against its rules."""

    def __init__(self, rules: Sequence[StopRule]) -> None:
        self._rules = rules
        self._samples: deque[Sample] = deque()
        self._span_s = max((rule.most_s for rule in rules), default=0.0)

    def look(self, now_s: float, totals: Totals) -> str | None:
        """Take the counts of now; gives why the run has to stop, once a rule is broken."""
        if not self._rules:
            return None
        samples = self._samples
        samples.append(Sample(now_s, totals))
        while len(samples) > 1 and samples[1].at_s <= now_s - self._span_s:
            samples.popleft()
        reach_s = now_s - samples[0].at_s
        reasons = (rule.broken(samples) for rule in self._rules if reach_s >= rule.least_s)
        return next((reason for reason in reasons if reason is not None), None)


def _since(samples: Sequence[Sample], span_s: float) -> Sample:
    """The newest sample that is at least so much older than the last."""
    at = bisect_right(samples, samples[-1].at_s - span_s, key=attrgetter("at_s"))
    return samples[max(0, at - 1)]


def share(total: int, index: int, count: int) -> int:
    """What worker ``index`` of ``count`` has of ``total``; they sum up to it, late joiners have none."""
    if index >= count:
        return 0
    return total // count + (index < total % count)


class Quota:
    """A number of requests that may still be begun."""

    __slots__ = ("_left",)

    def __init__(self, requests: int) -> None:
        self._left = requests

    @property
    def left(self) -> int:
        return self._left

    @property
    def spent(self) -> bool:
        return self._left <= 0

    def take(self) -> bool:
        """Begin one; False where none is left."""
        if self.spent:
            return False
        self._left -= 1
        return True
