"""Watch of a load where the run directory is: its rate in the web UI, and its end."""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import gevent

from llm_locust.core.files import FileReading
from llm_locust.metrics.gates import EDGE, parse_gates
from llm_locust.options.arrivals import LoadSettings
from llm_locust.options.run import StopWatch
from llm_locust.options.settings import Settings, UsageError
from llm_locust.options.stages import LENGTHS, PREFIX, against_lengths, against_prefix
from llm_locust.swarm.channel.messages import RateMessage, StageMessage
from llm_locust.swarm.open_loop.load import open_loop_class
from llm_locust.swarm.run.roster import Participant, totals
from llm_locust.swarm.run.run import ActiveRun, raised_in_tasks
from llm_locust.swarm.stages.plan import looks_for
from llm_locust.wire.dialects.table import dialect_of
from llm_locust.workload.traces import Trace, TraceError
from llm_locust.workload.traces.trace import how_read
from llm_locust.workload.trajectories.pool import how_read as how_pool_read

logger = logging.getLogger(__name__)

WATCH_INTERVAL_S = 0.25

#: Notice with which a change of the rate is sent before it takes effect.
RATE_NOTICE_S = 1.0


def check_load(settings: Settings, user_classes: Iterable[type]) -> None:
    """Check that the options fit the user classes (raises UsageError)."""
    _check_gates(settings)
    classes = list(user_classes)
    _check_arms(settings, classes)
    _check_session_header(settings, classes)
    found = [cls.__name__ for cls in classes if open_loop_class([cls], settings) is not None]
    flag = settings.load.open_loop_option
    names = ", ".join(cls.__name__ for cls in classes) or "none"
    if flag is not None and not found:
        raise UsageError(f"{flag} requires an OpenLoopUser or a ScenarioUser (the locustfile has: {names})")
    replaying = next((cls.__name__ for cls in classes if getattr(cls, "needs_trace", False)), None)
    if replaying is not None and settings.load.trace is None:
        raise UsageError(f"{replaying} replays a trace, and none is given: add --arrival trace:FILE")
    walking = next((cls.__name__ for cls in classes if getattr(cls, "needs_trajectories", False)), None)
    if walking is not None and settings.pool is None:
        raise UsageError(f"{walking} walks through trajectories, and none are given: add --trajectories FILE")
    if settings.workload.images is not None:
        _check_images(classes)
    if found and settings.load.sweep is not None and settings.load.sweep.kind == "users":
        rate = "rate=" if settings.load.search is None else "max rate"
        flag = settings.load.sweep_flag
        raise UsageError(f"{flag}: {found[0]} is an open loop, whose load is a rate; write {rate}")
    _check_prompts(settings, classes)
    if found and len(classes) > 1:
        raise UsageError(f"an open loop has one user class, and the locustfile has {len(classes)}: {names}")


def _check_images(classes: Iterable[type]) -> None:
    """Check that every user class has prompts that images can be put into."""
    for cls in classes:
        if getattr(cls, "needs_trajectories", False):
            why = f"the turns of {cls.__name__} are as recorded; leave out --images"
        elif getattr(cls, "dialogues", ()):
            why = f"the dialogues of {cls.__name__} are asked as they are; leave out one of the two"
        elif getattr(cls, "sends_scenario", False) or getattr(cls, "endpoint", None) is not None:
            continue
        else:
            why = f"{cls.__name__} builds its requests itself: put images into them, or use a user of prompts"
        raise UsageError(f"--images: {why}")


def _check_session_header(settings: Settings, classes: Iterable[type]) -> None:
    """Check that there may be sessions, whose next requests give the header back."""
    has_sessions = settings.pool or settings.load.trace or any(kind.plan for kind in settings.kinds)
    # What users of other classes ask is known to their own code only.
    fixed = all(getattr(cls, "sends_scenario", False) for cls in classes)
    if settings.requests.session_header is not None and fixed and not has_sessions:
        raise UsageError(
            "--session-header: no request is of a session; give a class of the scenario a conversation, or "
            "use --trajectories or a trace with sessions"
        )


def _check_arms(settings: Settings, classes: Iterable[type]) -> None:
    """Check that arms are compared at one load, and that what they say of requests has an effect."""
    arms = settings.deployment.arms
    if settings.load.sweep is not None and arms:
        other = "--sweep" if settings.load.search is None else "--find"
        raise UsageError(f"--arm beside {other}: arms are compared at one load; give one load, such as -u 8")
    own = next((arm.name for arm in arms if any(arm.differs_in)), None)
    for cls in () if own is None else classes:
        if not getattr(cls, "sends_scenario", False) and getattr(cls, "endpoint", None) is None:
            raise UsageError(
                f"--scenario: the arm {own!r} says what requests are like, and {cls.__name__} builds its "
                "requests itself: use a user class with prompts, or arms that have only a url"
            )


def _check_prompts(settings: Settings, classes: Sequence[Any]) -> None:
    """Check that the prompts that a sweep sets are those of all that the user classes send."""
    sweep = settings.load.sweep
    if sweep is None or not (sweep.lengths or sweep.shares):
        return
    flag, against = (PREFIX, against_prefix) if sweep.shares else (LENGTHS, against_lengths)
    if sweep.shares and len(classes) > 1:
        raise UsageError(f"{flag}: there are {len(classes)} user classes, and an experiment is of one")
    for cls in classes:
        if getattr(cls, "sends_scenario", False):
            continue
        if getattr(cls, "endpoint", None) is None:
            why = "builds its requests itself: use a user class with prompts"
        elif hasattr(cls, "converse"):
            why = "holds conversations, whose prompts grow with each turn: use single requests"
        elif not getattr(getattr(cls, "prompt_of", None), "__module__", "llm_locust.").startswith(
            "llm_locust."
        ):
            why = "makes its prompts itself (prompt_of): leave that to the workload"
        else:
            spec = replace(settings.workload, endpoint=dialect_of(cls.endpoint))
            why = next(against(spec), "")
        if why:
            raise UsageError(f"{flag}: {cls.__name__}: {why}")


def _check_gates(settings: Settings) -> None:
    """Check that gates are on what the run will have: figures of one load, or the edge of a search."""
    load, gates = settings.load, parse_gates(settings.run.gates)
    of_edge = [gate.metric == EDGE for gate in gates]
    if any(of_edge) and load.search is None:
        raise UsageError(f"--gate: {EDGE} is the answer of a search; add --find, or limit another figure")
    if load.sweep is not None and settings.text.get("window") not in (None, "", "run"):
        raise UsageError("--window: a sweep has several loads, and each stage has its own measured part")
    if load.sweep is not None and not all(of_edge):
        flag = "--sweep" if load.search is None else "--find"
        only = "" if load.search is None else f" only {EDGE} is of all loads, as in {EDGE}>=30;"
        raise UsageError(
            f"--gate beside {flag}: a gate holds for one load;{only} judge a stage afterwards, by "
            "`llm-locust report RUN --where stage==3 --gate ...`"
        )
    of_goodput = next((gate for gate in gates if gate.metric in ("goodput", "goodput_rps")), None)
    if of_goodput is not None and not settings.run.slo and not settings.class_slos:
        raise UsageError(
            f"--gate: {of_goodput.text} needs limits of a request, without which none is good: add "
            '--slo "ttft=500ms tpot=50ms", or limit error_rate'
        )


def check_amount(
    settings: Settings, user_classes: Iterable[type], *, users: object, run_time_s: object
) -> None:
    """Check that there will be a load, and that some of it is measured (raises UsageError).

    Args:
        users, run_time_s: Locust's; None is its default. An open loop with a rate of its own
            ignores the number of users.
    """
    ignored = open_loop_class(list(user_classes), settings) is not None and not settings.load.users_are_rate
    if isinstance(users, int) and users < 1 and not ignored:
        raise UsageError(f"-u {users}: without users nothing is sent; give -u 1 or more")
    if isinstance(run_time_s, int | float) and 0 < run_time_s <= settings.run.warmup_s:
        raise UsageError(
            f"--warmup: {settings.run.warmup_s:g} s is not shorter than the run, -t {run_time_s:g}s, so that "
            "nothing would be measured; give a shorter --warmup or a longer -t"
        )


@dataclass(frozen=True, slots=True)
class ReadTrace:
    """A trace, what was read of it, and how, in words."""

    trace: Trace
    reading: FileReading
    how: str


def checked_trace(load: LoadSettings) -> ReadTrace | None:
    """Open the trace of the options, if there is one, and check what its numbers mean (raises UsageError)."""
    if load.trace is None:
        return None
    try:
        trace = load.open_trace()
        reading = trace.reading()
        return ReadTrace(trace, reading, how_read(trace, reading, stretched=load.rate is not None))
    except TraceError as e:
        raise UsageError(f"--arrival: {e}") from e


def tell_files(settings: Settings) -> tuple[Trace | None, dict[str, int]]:
    """Log how the files of the load were read; give the trace, and the number of lines that were skipped of
    each file (raises UsageError)."""
    found = {id(kind.spec.dataset): kind.spec.dataset for kind in settings.kinds}
    datasets = [dataset for dataset in found.values() if dataset is not None]
    for dataset in datasets:
        logger.info("%s", dataset.how_read)
    if settings.pool is not None:
        logger.info("%s", how_pool_read(settings.text["trajectories"], settings.pool.trajectories))
    skipped = {dataset.path: dataset.skipped for dataset in datasets if dataset.skipped}
    read = checked_trace(settings.load)
    if read is None:
        return None, skipped
    logger.info("%s", read.how)
    of_trace = {str(read.trace.path): read.reading.skipped} if read.reading.skipped else {}
    return read.trace, skipped | of_trace


def check_shares(load: LoadSettings, workers: int) -> None:
    """Check that every worker may send at least one request at a time (raises UsageError)."""
    if load.max_in_flight is not None and load.max_in_flight < workers:
        raise UsageError(
            f"--max-in-flight: {load.max_in_flight} requests cannot be shared by {workers} workers; "
            f"give {workers} or more"
        )


def describe(load: LoadSettings, users: int) -> str:
    """Log text for the start of an open loop."""
    if load.users_are_rate:
        return f"open loop: users mean requests per second, {users} now; changing their number changes it"
    return "open loop: the schedule sets when requests are sent"


class Tell(Protocol):
    """Sends a message about the load to workers, to all of them unless they are named."""

    def __call__(self, message: RateMessage | StageMessage, workers: Iterable[str] | None = None) -> None: ...


class LoadWatch:
    """Watches one run until it is stopped.

    Args:
        runner: Locust's, which knows the number of users.
        look: updates the roster's counts, if no messages do.
        present: whether a worker is connected.
        tell: sends a change of the rate to all workers.
        end: stops the load.
        sleep: waits for so many seconds.
    """

    def __init__(
        self,
        runner: Any,
        run: ActiveRun,
        *,
        look: Callable[[ActiveRun], None],
        present: Callable[[str], bool],
        tell: Tell,
        end: Callable[[], None],
        sleep: Callable[[float], object] = gevent.sleep,
    ) -> None:
        self._sleep = sleep
        self._runner = runner
        self._run = run
        self._look = look
        self._present = present
        self._tell = tell
        self._end = end
        self._rate = run.info["rate"]
        self._rules = StopWatch(run.settings.load.stop_rules)

    def watch(self) -> None:
        """Watch the load until its time is over, a rule ends the run, or something else does."""
        run = self._run
        while run.stopped_ns is None:
            self._sleep(min(WATCH_INTERVAL_S, max(0.0, self._left_s)))
            if self._left_s <= 0 and run.stopped_ns is None:
                logger.info("run time limit reached: the load ends")
                self._end()
                return
            self._look(run)
            self._follow_users()
            reason = self._reason()
            if reason is not None and run.stopped_ns is None:
                run.stop_reason = reason
                level = logging.WARNING if run.cut_short else logging.INFO
                logger.log(level, "the load ends: %s", reason)
                self._end()
                return

    @property
    def _left_s(self) -> float:
        """Time until the end that the run time sets."""
        ends_ns = self._run.load_ends_ns
        return math.inf if ends_ns is None else (ends_ns - self._run.clock.now_ns()) * 1e-9

    def _follow_users(self) -> None:
        users = float(self._runner.target_user_count)
        run = self._run
        if not run.open_loop or not run.settings.load.users_are_rate or users == self._rate:
            return
        self._rate = users
        at_ns = run.clock.now_ns() + round(RATE_NOTICE_S * 1e9)
        logger.info("open loop: %g requests per second from %.1f s on", users, RATE_NOTICE_S)
        self._tell(RateMessage(run=run.info["id"], at_ns=at_ns, rate=users))

    def _reason(self) -> str | None:
        participants = {worker: self._run.roster[worker] for worker in self._run.roster}
        left = self._with_a_share(participants)
        count = self._run.settings.load.num_requests
        if left == []:
            return _end_of_shares(count, participants.values())
        if left and count is not None and not self._run.open_loop and self._without_users(left):
            told = f"num-requests: worker {', '.join(left)} has no user to send its share of {count} with"
            self._run.cut(f"{told}: start as many users as there are workers")
            return self._run.stop_reason
        if gone := self._users_gone():
            return gone
        reason = self._rules.look(self._run.clock.now_ns() * 1e-9, totals(participants.values()))
        if reason is not None and not looks_for(self._run.settings.load, reason):
            self._run.cut(reason, in_order=True)
        return reason

    def _users_gone(self) -> str | None:
        """Why no user is left, if all have ended by an exception: nothing would be sent any more."""
        runner, users = self._runner, self._runner.target_user_count
        raised = raised_in_tasks(self._run.exceptions)
        is_over = runner.state == "running" and users and not runner.user_count
        if not is_over or sum(each.count for each in raised) < users or self._run.open_loop:
            return None
        if runner.environment.shape_class is not None:
            return None
        most = raised[0]
        where = f" at {most.where}" if most.where else ""
        return f"no user is left: an exception has ended each of them, most often {most.error}{where}"

    def _with_a_share(self, participants: dict[str, Participant]) -> list[str] | None:
        """Connected workers of the run's start that have requests of their share left; None if all have."""
        starters = {worker: p for worker, p in participants.items() if not p.late}
        spent = {worker for worker, p in starters.items() if p.counts is not None and p.counts.load.spent}
        left = [w for w, p in starters.items() if not (w in spent or p.done or not self._present(w))]
        return left if spent else None

    def _without_users(self, workers: Iterable[str]) -> bool:
        """Whether none of these workers has a user, though all users have been started."""
        runner = self._runner
        is_spread = runner.user_count == runner.target_user_count and runner.environment.shape_class is None
        return is_spread and not any(runner.clients[w].user_count for w in workers if w in runner.clients)


def _end_of_shares(count: int | None, participants: Iterable[Participant]) -> str:
    """Why the load ends, once no connected worker has requests of its share left."""
    what = "the trace was" if count is None else f"{count} requests were"
    if not all(p.late or (p.counts is not None and p.counts.load.spent) for p in participants):
        return f"{'trace' if count is None else 'num-requests'}: {what} not sent to the end: a worker is gone"
    told = f"num-requests: {count} were asked for, and no worker has one left"
    return "the end of the trace" if count is None else told
