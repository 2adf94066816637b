"""Requests to every replica at given times of a run: to its profiler, and to reset its prefix cache.

Nothing here waits or connects: ``post`` does, and the caller decides when.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llm_locust.core.texts import parse_time

START_PROFILE, STOP_PROFILE = "/start_profile", "/stop_profile"
RESET_PREFIX_CACHE = "/reset_prefix_cache"
#: SGLang's path for the same.
FLUSH_CACHE = "/flush_cache"

#: Returns the status of ``POST url``; raises OSError or ValueError without an answer.
Post = Callable[[str], int]


class ProfileError(ValueError):
    """An invalid span; one line that says what to write."""


@dataclass(frozen=True, slots=True)
class ProfileSpan:
    """Span of the profiler: ``duration_s``, from ``start_s`` after the load started."""

    duration_s: float
    start_s: float

    @classmethod
    def parse(cls, text: str) -> "ProfileSpan":
        """Parse ``30s@120s``: for 30 s, 120 s after the start.

        Raises:
            ProfileError: another form, or no duration.
        """
        duration, _, start = text.partition("@")
        try:
            span = cls(parse_time(duration), parse_time(start))
        except ValueError as e:
            raise ProfileError(f'profile "{text}": {e}; write a duration and its start, as 30s@120s') from e
        if not span.duration_s:
            raise ProfileError(f'profile "{text}": the duration must be above 0, as 30s@120s')
        return span

    @property
    def end_s(self) -> float:
        return self.start_s + self.duration_s


@dataclass(frozen=True, slots=True)
class ProfilerCall:
    """A path that is posted to every replica at a time after the start of the load."""

    at_s: float
    path: str


@dataclass(frozen=True, slots=True)
class Answered:
    """Answer of one replica to a call: its status, or why there is none."""

    target: str
    path: str
    status: int | None
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


def profile_calls(span: ProfileSpan, run_s: float | None = None) -> list[ProfilerCall]:
    """Start and stop calls, in order. If a run of known length ends before the stop, it is moved to the end.

    Raises:
        ProfileError: the run is over before the start.
    """
    if run_s is not None and span.start_s >= run_s:
        raise ProfileError(
            f"the profile would start at {span.start_s:g} s, but the run is over after {run_s:g} s"
        )
    end_s = span.end_s if run_s is None else min(span.end_s, run_s)
    return [ProfilerCall(span.start_s, START_PROFILE), ProfilerCall(end_s, STOP_PROFILE)]


def call_all(targets: Sequence[str], path: str, post: Post) -> list[Answered]:
    """Post ``path`` to every target in turn; a failure does not affect the others.

    Args:
        targets: base URLs, with or without ``/v1`` at their end: these paths are next to it.
    """
    return [_call(target, path, post) for target in targets]


def reset_prefix_caches(targets: Sequence[str], post: Post) -> list[Answered]:
    """Reset each replica's prefix cache: by vLLM's path, or by SGLang's if that is unknown."""
    answers = []
    for target in targets:
        answer = _call(target, RESET_PREFIX_CACHE, post)
        answers.append(_call(target, FLUSH_CACHE, post) if answer.status in (404, 405) else answer)
    return answers


def failures_line(what: str, answers: Sequence[Answered]) -> str | None:
    """One line on the replicas that failed; None if all succeeded."""
    failed = [a for a in answers if not a.ok]
    if not failed:
        return None
    said = ", ".join(f"{a.target} ({a.error or a.status})" for a in failed)
    is_unknown = all(a.status in (404, 405) for a in failed)
    hint = "; vLLM offers it with VLLM_SERVER_DEV_MODE=1 or a profiler configured" if is_unknown else ""
    return f"{what}: {len(failed)} of {len(answers)} replicas did not: {said}{hint}"


def _call(target: str, path: str, post: Post) -> Answered:
    root = re.sub(r"/v\d+\w*/?$", "", target.rstrip("/"))
    try:
        return Answered(target, path, post(root + path))
    except (OSError, ValueError) as e:
        return Answered(target, path, None, getattr(e, "strerror", None) or str(e))
