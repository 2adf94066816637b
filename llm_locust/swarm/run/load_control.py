"""The load of a run where its directory is: its rate, its end, and the stages of a sweep."""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import gevent

from llm_locust.core.manifest import PrefixShare, ReplicaCache, StageFacts
from llm_locust.core.stages import resumed
from llm_locust.deployment.replicas import reset_prefix_caches
from llm_locust.figures.objective import Probe
from llm_locust.figures.search import KINDS, search_answer
from llm_locust.live.state import LiveStages
from llm_locust.metrics.stage_course import EARLY_LOOKS
from llm_locust.options.load import LoadSettings, prefixes_of
from llm_locust.options.run import StopWatch
from llm_locust.store import read_manifest
from llm_locust.store.facts import parts_of
from llm_locust.swarm.channel.messages import RateMessage, StagedMessage, StageMessage
from llm_locust.swarm.process.event_loop import wait_until
from llm_locust.swarm.run.checks import kinds_sent
from llm_locust.swarm.run.finishing import look_at_stage, read_stage
from llm_locust.swarm.run.prefix_caches import PrefixCaches
from llm_locust.swarm.run.roster import Participant, totals
from llm_locust.swarm.run.run import ActiveRun, State, raised_in_tasks
from llm_locust.swarm.run.servers import post_to
from llm_locust.swarm.run.stages import ListedLoads, Plan, SearchPlan, StageTimes, SweepDriver, looks_for

logger = logging.getLogger(__name__)

WATCH_INTERVAL_S = 0.25

#: Notice with which a change of the rate is sent before it takes effect.
RATE_NOTICE_S = 1.0


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
        while run.state is State.LOADING:
            self._sleep(min(WATCH_INTERVAL_S, max(0.0, self._left_s)))
            if self._left_s <= 0 and run.state is State.LOADING:
                logger.info("run time limit reached: the load ends")
                self._end()
                return
            self._look(run)
            self._follow_users()
            reason = self._reason()
            if reason is not None and run.state is State.LOADING:
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
            fault = f"num-requests: worker {', '.join(left)} has no user to send its share of {count} with"
            self._run.cut(f"{fault}: start as many users as there are workers")
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
    return "the end of the trace" if count is None else f"num-requests: {count} of {count} sent"


# --- A sweep: its driver, and what the driver does with the swarm


#: Longest wait for users beyond their ramp. What a stage then lacks its offered load shows.
SPAWN_PATIENCE_S = 30.0

#: Longest wait for the records of a stage that has ended, before a search chooses the next load.
RECORDS_PATIENCE_S = 60.0


class Sweeping:
    """The sweep of one run.

    Args:
        runner: Locust's, which spawns users.
        present: whether a worker is connected.
        tell: sends a step to workers.
        end: stops the load.
    """

    def __init__(
        self,
        runner: Any,
        run: ActiveRun,
        *,
        present: Callable[[str], bool],
        tell: Tell,
        end: Callable[[], None],
    ) -> None:
        self._runner = runner
        self._run = run
        self._present = present
        self._tell = tell
        self._end = end
        settings = run.settings
        self._finished: dict[str, int] = {}  # by worker, the records that it had made of the last stage's end
        earlier = [path for path in parts_of(run.reported) if path != run.path] if run.is_part else []
        self._parts = [(path, read_manifest(path).stages) for path in earlier]
        self._plan = plan = self._chosen_plan()
        self._caches = self._prefix_caches()
        run.stages_planned = plan.most
        if run.live is not None and (on_page := run.live.stages) is not None:
            on_page.planned, on_page.is_sweep, on_page.has_records = plan.most, True, self._has_all
            on_page.objective = "" if settings.load.search is None else settings.load.search.objective.text
        begun = resumed([*(stages for _, stages in self._parts), []])
        self._driver = SweepDriver(
            run.info["id"], self, plan, self._times(), origin_ns=run.info["origin_ns"], earlier=begun
        )

    def drive(self) -> None:
        """Drive the sweep to its end, then stop the load."""
        self._await_users(self._runner.target_user_count or 1)
        try:
            complete = self._driver.drive()
            self._show_step(None)
        except Exception:  # without an end the run would go on with no load
            logger.exception("the sweep cannot go on: this is a defect of llm-locust")
            self._run.stop_reason, self._run.cut_short = "the sweep could not go on", True
            complete = True
        if complete and not self.is_over():
            self._end()

    def confirmed(self, worker: str, message: StagedMessage) -> None:
        if message.step == "drain" and message.run == self._run.info["id"]:
            self._finished[worker] = message.finished
        self._driver.confirmed(worker, message)

    @property
    def _on_page(self) -> LiveStages | None:
        """The stages on the live page; None where nobody can look."""
        live = self._run.live
        return live.stages if live is not None and live.is_watched else None

    def _show_step(self, number: int | None) -> None:
        """Show why the search chose the load of a stage, or its answer."""
        if (on_page := self._on_page) is None or not isinstance(self._plan, SearchPlan):
            return
        if number is not None:
            on_page.whys.setdefault(number, self._plan.why)
        elif self._plan.result is not None:
            on_page.answer = search_answer(self._plan.result)

    def _chosen_plan(self) -> Plan:
        load = self._run.settings.load
        if load.search is not None:
            bounds = replace(load.search.bounds, seed=self._run.info["seed"])
            return SearchPlan(load.search.objective, bounds, self._read)
        assert load.sweep is not None
        prefixes = prefixes_of(load.sweep, self._run.settings.kinds[0].spec)
        return ListedLoads(load.sweep.of_users(self.users()), load.repeats, prefixes)

    def _longest_ramp_s(self) -> float | None:
        """The longest time in which the users of a stage are spawned; None where a search has no bound."""
        load, options = self._run.settings.load, self._runner.environment.parsed_options
        rate = float(getattr(options, "spawn_rate", None) or 0)
        if load.search is not None:
            is_users, most = KINDS[load.search.objective.axis] == "users", load.search.bounds.most
        else:
            assert load.sweep is not None
            is_users, most = load.sweep.kind == "users", max(load.sweep.values, default=self.users())
        if not is_users:
            return 0.0
        if not rate:
            return 1.0  # all of them in a second
        return most / rate if math.isfinite(most) else None

    def _times(self) -> StageTimes:
        settings, ramp_s = self._run.settings, self._longest_ramp_s()
        takes = {
            "users are spawned": ramp_s is None,
            "each stage is read": settings.load.search is not None,
            "prefix caches are filled": self._caches is not None,
        }
        return StageTimes(
            warmup_s=settings.run.warmup_s,
            measured_s=settings.load.stage_s,
            drain_s=settings.run.drain_s,
            looks=() if settings.load.until is None else EARLY_LOOKS,
            ramp_s=ramp_s or 0.0,
            beside=tuple(what for what, does in takes.items() if does),
        )

    def _prefix_caches(self) -> PrefixCaches | None:
        """The caches of an experiment; None in other sweeps."""
        settings, run = self._run.settings, self._run
        if settings.load.sweep is None or not settings.load.sweep.shares:
            return None
        (kind,) = kinds_sent(settings, self._runner.environment.user_classes)
        post = post_to(settings, [kind])
        return PrefixCaches(
            run.replicas.known, kind, settings, run.info, lambda url: reset_prefix_caches([url], post)[0]
        )

    def _read(self, stages: Sequence[StageFacts]) -> Probe:
        """What the last of the stages shows, once all its records are in the run directory."""
        search = self._run.settings.load.search
        assert search is not None
        for path, theirs in self._parts:
            if stages[-1].number in {stage.number for stage in theirs}:
                return read_stage(path, search.objective, stages)[0]
        wait_until(lambda: self.is_over() or self._has_all(), RECORDS_PATIENCE_S)
        if not self._has_all():
            return Probe(stages[-1].asked, no_result="its records did not arrive in time")
        on_page = self._on_page
        if on_page is not None:
            on_page.reading = stages[-1].number
        probe, figures = read_stage(
            self._run.path, search.objective, stages, with_figures=on_page is not None
        )
        if on_page is not None:
            on_page.reading = None
            on_page.figures |= {stage.number: stage for stage in figures}
        return probe

    def _has_all(self) -> bool:
        inboxes = self._run.collector.inboxes
        return all(inboxes[worker].rows >= n for worker, n in self._finished.items())

    # -- Swarm of the driver -------------------------------------------------------------------

    def now_ns(self) -> int:
        return self._run.clock.now_ns()

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        return wait_until(condition, timeout_s)

    def is_over(self) -> bool:
        return self._run.state > State.LOADING

    def workers(self) -> frozenset[str]:
        roster = self._run.roster
        return frozenset(worker for worker in roster if self._present(worker) and not roster[worker].done)

    def users(self) -> int:
        return int(self._runner.target_user_count)

    def set_users(self, users: int) -> None:
        options = self._runner.environment.parsed_options
        rate = float(getattr(options, "spawn_rate", None) or max(users, 1))
        ramp_s = abs(users - self.users()) / rate
        spawning = gevent.spawn(self._runner.start, users, rate)
        wait_until(lambda: spawning.ready() or self.is_over(), ramp_s + SPAWN_PATIENCE_S)
        self._await_users(users, ramp_s)
        spawning.kill(block=False)

    def _await_users(self, users: int, ramp_s: float = 0.0) -> None:
        there = wait_until(
            lambda: self._runner.user_count == users or self.is_over(), ramp_s + SPAWN_PATIENCE_S
        )
        if not there:
            logger.warning("%d of %d users were spawned in time", self._runner.user_count, users)

    def tell(self, step: StageMessage, workers: Iterable[str]) -> None:
        self._tell(step, workers)

    def prepare(self, prefix: PrefixShare, stage: int) -> list[ReplicaCache]:
        assert self._caches is not None
        return self._caches.prepare(prefix, stage, self.is_over)

    def counted(self, caches: list[ReplicaCache]) -> list[ReplicaCache]:
        assert self._caches is not None
        return self._caches.counted(caches, self.is_over)

    def is_enough(self, stages: list[StageFacts], within_s: float) -> bool:
        until = self._run.settings.load.until
        return until is not None and look_at_stage(self._run.path, until, stages, within_s)

    def keep(self, stages: list[StageFacts]) -> None:
        self._show_step(stages[-1].number)
        self._run.keep_stages(list(stages))
