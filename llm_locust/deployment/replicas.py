"""Requests to every replica beside the load: whether it is ready, its profiler, and its prefix cache."""

import re
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from llm_locust.core.manifest import ArmFacts, CanaryFacts
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.core.texts import parse_time

# --- Readiness of every replica before the load starts
#
# A run that starts with 5 of 8 replicas measures another deployment. Nothing here connects: ``check`` and
# ``ask`` do, in whatever kind of thread the caller has.


#: Interval between two checks of the missing ones.
EVERY_S = 1.0

#: Requests through a balancer without a new replica, per expected replica, after which the others count as
#: missing. A balancer that chooses at random misses one of k in 10 k requests once in 22,000 times.
ASKED_A_REPLICA = 10

_NAMES_IN_A_LINE = 20

#: Checks one target: None if it is ready, else why it is not. It has a timeout of its own.
Check = Callable[[str], str | None]

#: Calls ``function`` for each, concurrently if the caller can (a gevent pool's ``map``), in order.
Together = Callable[[Check, Sequence[str]], Iterable[str | None]]


class NotReadyError(Exception):
    """Replicas are missing after the time limit; the text is the message."""


@dataclass(frozen=True, slots=True)
class Ready:
    """``seconds`` until all of ``names`` were ready; ``asked`` is the number of checks or requests."""

    names: tuple[str, ...]
    seconds: float
    asked: int


@dataclass(frozen=True, slots=True)
class Replicas:
    """Replicas of a deployment.

    Attributes:
        targets: base URLs (``http://10.0.0.7:8000/v1``) that the load goes to instead of the host.
        known: URLs of replicas that can be queried one by one; only the host if none are known.
        names: replicas that were seen to serve: URLs, or the names in their answers; empty if none was waited
            for.
        waited_s: how long they were waited for.
        canaries: requests before the load.
        arms: those of an interleaved comparison.
    """

    targets: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    waited_s: float = 0.0
    canaries: tuple[CanaryFacts, ...] = ()
    arms: tuple[ArmFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class Clock:
    """Source of time; tests use another one."""

    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def look(get: Callable[[str], int], complete: Callable[[str], str | None]) -> Check:
    """Make a check of one target: ``GET /health`` answers 200, then one real request gives a token.

    A server without ``/health`` (404, 405) is judged by the request alone.

    Args:
        get: returns the status of a target's ``/health``; raises OSError or ValueError without an answer.
        complete: sends the request; returns None if a token arrived, else why not; raises as ``get``.
    """

    def check(target: str) -> str | None:
        try:
            status = get(target)
            if status not in (200, 204, 404, 405):
                return f"/health answered {status}"
            return complete(target)
        except (OSError, ValueError) as e:
            return getattr(e, "strerror", None) or str(e) or type(e).__name__

    return check


def wait_until_ready(
    targets: Sequence[str],
    check: Check,
    *,
    within_s: float,
    together: Together = map,
    clock: Clock | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Ready:
    """Check all targets until each was ready once.

    Args:
        tell: called with a line on the missing ones, whenever they change.

    Raises:
        NotReadyError: some are not ready within the time limit.
    """
    clock, began_s, asked = clock or Clock(), (clock or Clock()).now_s(), 0
    missing = dict.fromkeys(targets, "not asked yet")
    while True:
        waiting = list(missing)
        asked += len(waiting)
        found = dict(zip(waiting, together(check, waiting), strict=True))
        before, missing = missing, {t: reason for t, reason in found.items() if reason is not None}
        spent_s = clock.now_s() - began_s
        if not missing:
            return Ready(tuple(targets), spent_s, asked)
        if spent_s + EVERY_S > within_s:
            raise NotReadyError(_missing_line(targets, missing, spent_s))
        if missing.keys() != before.keys() or asked == len(targets):
            tell(_missing_line(targets, missing, spent_s))
        clock.sleep(EVERY_S)


@dataclass(slots=True)
class _Seen:
    counts: dict[str, int] = field(default_factory=dict)
    unnamed: int = 0
    failure: str | None = None
    asked: int = 0
    since_new: int = 0


def count_replicas(
    expected: int,
    ask: Callable[[], str | None],
    *,
    within_s: float,
    clock: Clock | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Ready:
    """Send requests through a balancer until ``expected`` different replicas have answered.

    Args:
        ask: sends one real request on a new connection; returns the replica that the answer names, None if it
            names none; raises OSError or ValueError if it fails. It has a timeout of its own.

    Raises:
        NotReadyError: fewer replicas within the time limit or after many answers of the same ones; or answers
            name none.
    """
    clock = clock or Clock()
    began_s, seen = clock.now_s(), _Seen()
    while True:
        _ask_once(seen, ask, tell, expected)
        spent_s = clock.now_s() - began_s
        if len(seen.counts) >= expected:
            return Ready(tuple(sorted(seen.counts)), spent_s, seen.asked)
        if spent_s >= within_s or (not seen.counts and seen.unnamed >= ASKED_A_REPLICA):
            raise NotReadyError(_counted_line(expected, seen, spent_s))
        # All that answer have had enough requests: now others need time, not requests.
        if seen.failure is not None or seen.since_new >= ASKED_A_REPLICA * expected:
            clock.sleep(min(EVERY_S, max(0.0, within_s - spent_s)))


def _ask_once(seen: _Seen, ask: Callable[[], str | None], tell: Callable[[str], None], expected: int) -> None:
    seen.asked += 1
    seen.since_new += 1
    try:
        name = ask()
    except (OSError, ValueError) as e:
        seen.failure = getattr(e, "strerror", None) or str(e) or type(e).__name__
        return
    seen.failure = None
    if name is None:
        seen.unnamed += 1
        return
    if name not in seen.counts:
        seen.since_new = 0
        tell(f"{len(seen.counts) + 1} of {expected} replicas have answered: {name} is new")
    seen.counts[name] = seen.counts.get(name, 0) + 1


def _missing_line(targets: Sequence[str], missing: dict[str, str], spent_s: float) -> str:
    ready = len(targets) - len(missing)
    said = _few(f"{target} ({reason})" for target, reason in missing.items())
    return f"{ready} of {len(targets)} replicas are ready after {spent_s:.0f} s; missing: {said}"


def _counted_line(expected: int, seen: _Seen, spent_s: float) -> str:
    if not seen.counts and seen.unnamed:
        return (
            f"{seen.unnamed} answers named no replica, so {expected} cannot be counted: name the header that "
            "does by --replica-header, or the replicas by --targets"
        )
    who = f": {_few(sorted(seen.counts))}" if seen.counts else ""
    failed = f"; the last request failed: {seen.failure}" if seen.failure else ""
    return (
        f"{len(seen.counts)} of {expected} replicas answered {seen.asked} requests in {spent_s:.0f} s{who}; "
        f"{expected - len(seen.counts)} are missing{failed}"
    )


def _few(words: Iterable[str]) -> str:
    first = list(islice(words, _NAMES_IN_A_LINE + 1))
    return ", ".join((*first[:_NAMES_IN_A_LINE], "…") if len(first) > _NAMES_IN_A_LINE else first)


# --- What to change after a request that did not bring a token: one clause for a person


#: Statuses that waiting does not change: the request itself is refused.
PERMANENT = frozenset({400, 401, 403, 405, 413, 422})

#: Statuses of a server that may take requests later.
NOT_READY = frozenset({408, 425, 429, 502, 503, 504})

_TOO_LONG = re.compile(
    r"context.{0,12}(length|window|size)|(too|so) (long|many|large)|max\w*.{0,20}(token|length|len\b)"
    r"|token.{0,20}(exceed|limit|max)|(exceed|longer).{0,40}(token|length|context)",
    re.IGNORECASE,
)
_MODEL = re.compile(r"\bmodels?\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A request as its advice needs it.

    Attributes:
        base, path: of the API at the server, and of the endpoint below it.
        fields: names of the body's fields that the user can change.
        limit_field: the field that bounds the length of the answer.
        input_tokens, output_tokens: lengths asked for; None if not asked for.
        has_key: a key was sent.
    """

    base: str
    path: str
    fields: Collection[str]
    limit_field: str
    model: str
    input_tokens: int | None = None
    output_tokens: int | None = None
    has_key: bool = False


def is_permanent(record: RequestRecord) -> bool:
    """Whether the same request would be refused again, however long one waits."""
    return record.outcome is Outcome.HTTP_ERROR and record.status in PERMANENT


def advice(record: RequestRecord, sent: SentRequest) -> str:
    """What to change after a request that failed."""
    status, error = record.status or 0, record.error or ""
    match record.outcome:
        case Outcome.TIMEOUT | Outcome.CANCELLED:
            return "look at the server's log, or wait longer: --timeouts, or --ready-timeout while it starts"
        case Outcome.CONNECT_ERROR:
            return "look at the server's log, and at that of a proxy before it"
        case Outcome.EMPTY:
            return "allow longer answers by --output-tokens: reasoning may use up all of them"
        case Outcome.INVALID | Outcome.TRUNCATED if not 300 <= status < 400:
            return f"check that {sent.base}{sent.path} is the API that the user class expects"
    if 300 <= status < 400:
        return "give -H the address that it redirects to"
    if status in (401, 403):
        return "check the key given" if sent.has_key else "give a key by --api-key-env NAME or --header"
    if status in (404, 405, 410):
        if _MODEL.search(error):
            return f"check --model: {sent.model!r} was asked for"
        return f"check the path: {sent.base} is from -H, {sent.path} is that of the user class's endpoint"
    if status in NOT_READY:
        return "wait until the server takes requests, or let --ready-timeout 5m wait for it"
    return "look at the server's log" if status >= 500 else _of_content(error, sent)


def _of_content(error: str, sent: SentRequest) -> str:
    named = next((name for name in sent.fields if re.search(rf"\b{re.escape(name)}\b", error)), None)
    if named == sent.limit_field and re.search(r"unsupported|not supported|unknown|unexpected", error, re.I):
        other = "max_completion_tokens" if named == "max_tokens" else "max_tokens"
        return (
            f"""leave the field out: --body '{{"{named}": null, "{other}": {sent.output_tokens or 128}}}'"""
        )
    if _TOO_LONG.search(error):
        return (
            f"ask for fewer tokens by --input-tokens ({_known(sent.input_tokens)} here), --output-tokens "
            f"({_known(sent.output_tokens)} here) or a dataset of shorter prompts"
        )
    if named is not None:
        return f"""change that field by --body; null leaves it out: --body '{{"{named}": null}}'"""
    if _MODEL.search(error):
        return f"check --model: {sent.model!r} was asked for"
    return "check what is sent: --body, --model and the user class's endpoint"


def _known(tokens: int | None) -> str:
    return "unknown" if tokens is None else f"{tokens}"


# --- Requests to every replica at given times of a run: to its profiler, and to reset its prefix cache
#
# Nothing here waits or connects: ``post`` does, and the caller decides when.


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
