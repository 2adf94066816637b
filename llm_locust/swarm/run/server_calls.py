"""Requests of a run to its replicas besides the load: reset of the prefix cache, control of profilers."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import gevent
from gevent.pool import Pool as Greenlets

from llm_locust.core.manifest import ServerCall
from llm_locust.deployment.profiler import (
    START_PROFILE,
    STOP_PROFILE,
    Answered,
    Post,
    call_all,
    failures_line,
    profile_calls,
    reset_prefix_caches,
)
from llm_locust.options.deployment import DeploymentSettings

logger = logging.getLogger(__name__)

#: Interval of the watch: bounds the lateness of a call, and how soon the end of the run is noticed.
_LOOK_S = 0.05

#: A profiler writes its trace before it answers.
CALL_TIMEOUT_S = 60.0

_AT_ONCE = 64

_RESET = "reset of prefix caches"


@dataclass(frozen=True, slots=True)
class _Moment:
    """An action due ``at_s`` after the run's start; with ``last`` also done if the run ends earlier."""

    at_s: float
    what: str
    act: Callable[[str], Sequence[Answered]]
    last: bool = False


class ServerCalls:
    """Calls of one run to its replicas.

    Args:
        replicas: their URLs.
        post: of :mod:`llm_locust.deployment.profiler`.
        now_ns: the run's clock.
        run_s: planned length of the run; None if unbounded.
        told: called with a description of each call.

    Attributes:
        made: calls so far, with their answers.

    Raises:
        ProfileError: the run is over before the profile starts.
    """

    def __init__(
        self,
        settings: DeploymentSettings,
        replicas: Sequence[str],
        post: Post,
        now_ns: Callable[[], int],
        *,
        warmup_s: float,
        run_s: float | None,
        told: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._told = told
        self.made: list[ServerCall] = []
        self._replicas = replicas
        self._post = post
        self._now_ns = now_ns
        self._resets_at_start = settings.resets_at_start
        self._moments = sorted(self._planned(settings, warmup_s, run_s), key=lambda m: m.at_s)

    def _planned(
        self, settings: DeploymentSettings, warmup_s: float, run_s: float | None
    ) -> Iterator[_Moment]:
        if settings.resets_when_measured:
            yield _Moment(warmup_s, _RESET, self._reset_one)
        for call in () if settings.profile is None else profile_calls(settings.profile, run_s):
            act = partial(self._call_one, call.path)
            yield _Moment(call.at_s, call.path, act, call.path == STOP_PROFILE)

    def before_load(self) -> None:
        """Make the calls due before the first user."""
        if self._resets_at_start:
            self._do(_Moment(0.0, _RESET, self._reset_one))

    def watch(self, started_ns: int, ended: Callable[[], bool]) -> None:
        """Make each call at its time. Profilers that were started are stopped with the run."""
        started = False
        for moment in self._moments:
            while not ended() and self._now_ns() - started_ns < moment.at_s * 1e9:
                gevent.sleep(_LOOK_S)
            if ended() and not (moment.last and started):
                return
            self._do(moment)
            started |= moment.what == START_PROFILE

    def _do(self, moment: _Moment) -> None:
        at_ns = self._now_ns()
        answers = [a for one in Greenlets(_AT_ONCE).map(moment.act, self._replicas) for a in one]
        self.made += [
            ServerCall(at_ns=at_ns, path=a.path, target=a.target, status=a.status, error=a.error)
            for a in answers
        ]
        failed = failures_line(moment.what, answers)
        if failed is not None:
            logger.warning("%s", failed)
        else:
            logger.info("%s: done by %d replicas", moment.what, len(answers))
        self._told(failed or f"{moment.what}: {len(answers)} replicas")

    def _reset_one(self, url: str) -> Sequence[Answered]:
        return reset_prefix_caches([url], self._post)

    def _call_one(self, path: str, url: str) -> Sequence[Answered]:
        return call_all([url], path, self._post)
