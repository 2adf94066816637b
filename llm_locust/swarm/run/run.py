"""One run in the process that owns its directory: its states, facts and result."""

import logging
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gevent
import msgspec
from gevent.event import Event

from llm_locust.core.manifest import (
    CalibrationFacts,
    Manifest,
    StageFacts,
    TaskException,
    pipeline_of,
    task_exceptions,
)
from llm_locust.deployment.replicas import Replicas
from llm_locust.figures.text import clean, short
from llm_locust.host import exhausted, reason_of
from llm_locust.live.state import LiveStages
from llm_locust.live.store import LiveStore
from llm_locust.metrics.server_series import ServerNow
from llm_locust.options.settings import Settings
from llm_locust.options.table import OPTIONS
from llm_locust.report.analysis import Report
from llm_locust.report.output import one_line
from llm_locust.store import MANIFEST_FILE, write_manifest
from llm_locust.store.facts import parts_of
from llm_locust.store.frame_log import remove_frames
from llm_locust.swarm.channel.collector import SETTLE_WITHIN_S, Collector
from llm_locust.swarm.channel.messages import DroppedMessages, RateMessage, RunInfo, StageMessage
from llm_locust.swarm.clocks import RunClock
from llm_locust.swarm.process.event_loop import off_the_hub, spawn_loop
from llm_locust.swarm.process.exits import innermost
from llm_locust.swarm.process.health import Health
from llm_locust.swarm.run.finishing import finish_elsewhere, join_elsewhere, keep_live, upload_elsewhere
from llm_locust.swarm.run.roster import Participant, Roster
from llm_locust.swarm.run.servers import CALL_TIMEOUT_S, Scraping, ServerCalls
from llm_locust.swarm.run.stages import closed, stages_of, steps_of
from llm_locust.swarm.users.open_loop import Scheduled, Span, scheduled
from llm_locust.wire.foreign_text import blanked
from llm_locust.workload.plan import models_text

logger = logging.getLogger(__name__)


class State(IntEnum):
    """States of a run, in their order. ``docs/run-states.md`` has what leads from one to the next."""

    LOADING = 1  # requests start
    DRAINING = 2  # those in flight end, and the last records arrive
    FINISHING = 3  # all records are in, or given up: the report is being made
    REPORTED = 4  # there is a report, or the reason why there is none


# --- The run: what it received, its facts, its result


#: Greatest age of the manifest in the run directory, which is all that a master that dies leaves behind.
MANIFEST_INTERVAL_S = 5.0

#: A worker whose load ended so shortly before the run's left with it: a Ctrl-C reaches both.
TOGETHER_S = 2.0

#: Workers that a reason names.
_MOST_NAMED = 3


@dataclass(slots=True)
class ActiveRun:
    """A run from the first user to the report. Times are nanoseconds on the run's clock."""

    info: RunInfo
    name: str
    path: Path
    settings: Settings
    workers_expected: int
    collector: Collector
    roster: Roster
    clock: RunClock
    health: Health
    started_ns: int
    dropped: DroppedMessages = field(default_factory=DroppedMessages)
    replicas: Replicas = field(default_factory=Replicas)
    calls: ServerCalls | None = None
    live: LiveStore | None = None
    open_loop: bool = False
    calibration: CalibrationFacts | None = None
    files: Mapping[str, str] = field(default_factory=dict)  # that a sweep's load is made of -> SHA-256
    skipped_lines: Mapping[str, int] = field(default_factory=dict)  # of files of the load
    load_began_ns: int = 0  # the schedule's start in an open loop, else when users may start
    load_ends_ns: int | None = None  # by the run time, if there is one
    stopped_ns: int | None = None
    drained_ns: int | None = None
    exceptions: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)  # of tasks, Locust's table
    stop_reason: str = ""  # the rule or fault that ended the load
    cut_short: bool = False  # it was a fault
    ended_in_order: bool = False  # and yet no further part follows
    rates: dict[int, float] = field(default_factory=dict)  # of an open loop, from these times on
    ended_ns: int | None = None
    state: State = State.LOADING
    report: Report | None = None
    failure: str | None = None  # why there is no report
    stages: list[StageFacts] = field(default_factory=list)  # of a sweep, that have begun
    stages_planned: int = 0
    uploaded: bool | None = None  # whether it is at the destination of --upload; None without one
    _scraping: Scraping | None = None
    _keeper: "gevent.Greenlet[[], None] | None" = None
    _caller: "gevent.Greenlet[..., None] | None" = None
    _resting: Event = field(default_factory=Event)
    _changed: Event = field(default_factory=Event)  # the manifest has to be written at once

    def begin(self) -> None:
        """Write the first manifest, to this directory and for the workers' spools, and keep it up to date.

        Raises:
            OSError: it cannot be written.
        """
        begun_ns = self.clock.now_ns()
        if self.settings.deployment.metrics_urls:
            self._scraping = Scraping(self.settings.deployment, self.path, self.clock, self._tell_live)
        manifest = self.manifest()
        self.info["manifest"] = msgspec.json.encode(manifest).decode()
        self.info["places"] = self.roster.places
        write_manifest(self.path, manifest)
        self._keeper = spawn_loop(self._keep_manifest, "the keeping of the manifest")
        if self._scraping is not None:
            self._scraping.begin()
        if self.calls is not None:
            self.calls.before_load()
            self._caller = gevent.spawn(
                self.calls.watch, self.clock.now_ns(), lambda: self.state > State.LOADING
            )
        now_ns = self.clock.now_ns()
        self.info["origin_ns"] += now_ns - begun_ns  # a schedule starts when all this is done
        self.load_began_ns = self.info["origin_ns"] if self.open_loop else now_ns
        if self.live is not None:
            self.live.stages = LiveStages(self.info["id"], self.path, self.stages_now)

    def end_after(self, run_time_s: float) -> None:
        """End the load ``run_time_s`` after it began: what comes before it, such as checks, is not load."""
        self.load_ends_ns = self.load_began_ns + round(run_time_s * 1e9)

    def stopped(self) -> None:
        """Note the end of the load: no request starts any more. The measured window ends here."""
        if self.state is State.LOADING:
            self.state = State.DRAINING
            self.stopped_ns = self.clock.now_ns()
            self._changed.set()  # a master that dies from here on leaves a run that was not cut short

    def cut(self, reason: str, *, in_order: bool = False) -> None:
        """Note that the load is not what its settings ask for; the first reason counts.

        ``in_order``: it is over nevertheless. Then the reason replaces one that is no fault.
        """
        if not self.stop_reason or (in_order and not self.cut_short):
            self.stop_reason, self.cut_short, self.ended_in_order = reason, True, in_order

    def drained(self) -> None:
        """Note the end of the drain: no request is in flight any more, or none is waited for."""
        if self.stopped_ns is not None and self.drained_ns is None:
            took_ns = self.roster.drained_ns
            self.drained_ns = self.clock.now_ns() if took_ns is None else self.stopped_ns + took_ns

    @property
    def is_part(self) -> bool:
        """Whether it is a part of a restartable run."""
        return self.settings.restartable and self.path.parent == self.settings.run.out

    @property
    def reported(self) -> Path:
        """Directory of the report: that of all parts, or the run's own."""
        return self.path.parent if self.is_part else self.path

    @property
    def stopped_ago_s(self) -> float | None:
        """Time since the end of the load; None before."""
        return None if self.stopped_ns is None else (self.clock.now_ns() - self.stopped_ns) * 1e-9

    def manifest(self) -> Manifest:
        """The facts so far."""
        scenario = self.settings.scenario
        return Manifest(
            id=self.info["id"],
            name=self.name,
            started_ns=self.started_ns,
            stopped_ns=self.stopped_ns,
            load_ends_ns=self.load_ends_ns,
            drain_s=self.settings.run.drain_s,
            drained_ns=self.drained_ns,
            ended_ns=self.ended_ns,
            host=self.info["host"],
            targets=self.info["targets"],
            arms=list(self.replicas.arms),
            replicas_ready=list(self.replicas.names),
            ready_s=self.replicas.waited_s if self.replicas.names else None,
            canaries=list(self.replicas.canaries),
            server_calls=[] if self.calls is None else list(self.calls.made),
            model=models_text(self.settings.models_beside(self.info["model"])),
            scenario=None if scenario is None else scenario.path,
            scenario_document={} if scenario is None else scenario.public_document,
            seed=self.info["seed"],
            command=command_line(self.settings),
            pipeline=pipeline_of(os.environ),
            versions=versions(),
            files=dict(self.files),
            skipped_lines=dict(self.skipped_lines),
            slo=self.settings.run.slo,
            class_slos=self.settings.class_slos,
            gates=self.settings.run.gates,
            warmup_s=self.settings.run.warmup_s,
            warmup_gives_way=self.settings.warmup_gives_way,
            open_loop=self.open_loop,
            stop_reason=self.stop_reason,
            cut_short=self.cut_short,
            ended_in_order=self.ended_in_order,
            task_exceptions=raised_in_tasks(self.exceptions),
            require_valid=self.settings.report.require_valid,
            options={k: v for k, v in self.settings.text.items() if v not in (None, [], "")},
            workers_expected=self.workers_expected,
            workers=self.roster.facts(self.collector.inboxes),
            master=self.health.snapshot(),
            clock_steps=self.clock.steps,
            calibration=self.calibration,
            messages_dropped={name: dict(kinds) for name, kinds in self.dropped.by_sender.items()},
            server_metrics=None if self._scraping is None else self._scraping.facts,
            stages=self.stages_now(),
            trajectories=None if self.settings.pool is None else self.settings.pool.facts,
            stages_planned=self.stages_planned or len(steps_of(self.settings.load.profile)),
        )

    def stages_now(self) -> list[StageFacts]:
        """What is known of the stages of a sweep or of a profile of steps."""
        settings = self.settings
        # The first manifest is written before the start of the schedule is final.
        origin_ns = None if self._keeper is None else self.info["origin_ns"]
        of_profile = stages_of(settings.load.profile, origin_ns, settings.run.warmup_s, self.stopped_ns)
        return closed(self.stages, self.stopped_ns) or of_profile

    @property
    def patience_s(self) -> float:
        """Longest wait for the last records once the users have stopped."""
        return self.settings.run.flush_timeout_s + 5.0

    def finish(self) -> None:
        """Close the file, then compact it, make the report in a process of its own, and upload both."""
        self._rest()
        if self._scraping is not None:
            self._scraping.end()
        try:
            self.collector.close()
            self.ended_ns = self.clock.now_ns()
            if self.live is not None and self.live.run.id == self.info["id"]:
                keep_live(self.path, self.live)
            off_the_hub(write_manifest, self.path, self.manifest())
            allow_incomplete = self.settings.report.allow_incomplete
            report = finish_elsewhere(self.path, allow_incomplete=allow_incomplete)
            if self.is_part:  # without the report of all parts there is none
                report = join_elsewhere(self.reported, allow_incomplete=allow_incomplete)
            self.report = report
            self.state = State.REPORTED
            self._upload()
        except (OSError, ValueError) as e:  # a full disk or a damaged file: a traceback would add nothing
            self._failed(e)
        except Exception as e:
            self._failed(e)
            logger.exception("this is a defect of llm-locust")

    def _upload(self) -> None:
        """Copy the run to the destination of ``--upload`` in a process of its own; log a failure."""
        if self.settings.report.upload is None:
            return
        self.uploaded = True
        for path in parts_of(self.reported) if self.is_part else (self.path,):
            done, text = upload_elsewhere(path, self.settings.report.upload)
            self.uploaded = self.uploaded and done
            if not done:
                text = f"the run stays in {str(path)!r}: {text}"
            logger.log(logging.INFO if done else logging.ERROR, "%s", text)

    def discard(self) -> None:
        """Remove every file of a run that never started."""
        self._rest()
        if self._scraping is not None:
            self._scraping.discard()
        with suppress(OSError):
            self.collector.close()
            remove_frames(self.path)
            (self.path / MANIFEST_FILE).unlink(missing_ok=True)
            self.path.rmdir()

    def _tell_live(self, servers: list[ServerNow]) -> None:
        if self.live is not None:
            self.live.observe_servers(servers)

    def _failed(self, error: Exception) -> None:
        self.state = State.REPORTED
        self.failure = (
            f"the report of {str(self.path)!r} could not be written: {one_line(exhausted(error) or error)}"
        )
        logger.error("%s; the records received are kept there", self.failure)

    def keep_stages(self, stages: list[StageFacts]) -> None:
        """Take what is known of a sweep's stages, and write it at once: a master that dies leaves it."""
        self.stages = stages
        self._changed.set()

    def _keep_manifest(self) -> None:
        failing = False
        while not self._resting.is_set():
            self._changed.wait(MANIFEST_INTERVAL_S)
            self._changed.clear()
            if self._resting.is_set():
                return
            try:
                off_the_hub(write_manifest, self.path, self.manifest())
                failing = False
            except OSError as e:
                if not failing:
                    logger.error(
                        "manifest of %r not written, will be tried again: %s", str(self.path), reason_of(e)
                    )
                failing = True

    def _rest(self) -> None:
        """Stop writing manifests: one in progress would collide with the final one."""
        self._resting.set()
        self._changed.set()
        if self._keeper is not None:
            self._keeper.join(SETTLE_WITHIN_S)
        if self._caller is not None:
            self._caller.join(CALL_TIMEOUT_S)

    # -- what workers that are gone had still to send ------------------------------------------

    def note_rate(self, message: RateMessage | StageMessage) -> None:
        """Note a change of an open loop's rate, which the workers are told."""
        if message.run == self.info["id"] and message.rate is not None:
            drained = isinstance(message, StageMessage) and message.step == "drain"
            self.rates[message.at_ns] = 0.0 if drained else message.rate

    def note_undelivered(self) -> None:
        """Count what workers that left, or were lost, had still to send; with some, the run is cut short.

        Nobody takes it over: an open loop's schedule, and the requests of ``--num-requests``, are divided
        once, among the workers of the run's start. Call it when all final counts are in. In an open loop
        these requests are unsent: those due before the end of the load, or all if the others have sent their
        shares to the end.
        """
        if self.state is not State.DRAINING:
            return
        starters = {worker: self.roster[worker] for worker in self.roster if not self.roster[worker].late}
        gone = {worker: p for worker, p in starters.items() if (p.left or not p.done) and not _is_sent([p])}
        to_its_end = _is_sent(p for worker, p in starters.items() if worker not in gone)
        if self.open_loop:
            for index, worker in enumerate(starters):
                if worker in gone:
                    gone[worker].never_sent = self._unsent(index, gone[worker], to_its_end)
            rests = {worker: p.never_sent.requests for worker, p in gone.items()}
        elif to_its_end:
            rests = {worker: p.counts.load.share_left for worker, p in gone.items() if p.counts is not None}
        else:
            rests = {}
        if any(rests.values()):
            self.cut(_undelivered(rests), in_order=True)

    def _unsent(self, index: int, gone: Participant, to_its_end: bool) -> Scheduled:
        """What the schedule had for a worker after it was gone."""
        assert self.stopped_ns is not None
        until_ns = None if gone.counts is None else gone.counts.load.until_ns
        from_s = self._schedule_s(gone.heard_ns) if until_ns is None else until_ns * 1e-9
        stopped_s = self._schedule_s(self.stopped_ns)
        if not to_its_end and stopped_s - from_s <= TOGETHER_S:
            return Scheduled()
        span = Span(from_s, math.inf if to_its_end else stopped_s)
        measured_s = self._schedule_s(self.started_ns) + self.settings.run.warmup_s
        return off_the_hub(scheduled, self.settings.load, self.info, index, self.rates, span, measured_s)

    def _schedule_s(self, at_ns: int) -> float:
        return (at_ns - self.info["origin_ns"]) * 1e-9


def _is_sent(participants: Iterable[Participant]) -> bool:
    """Whether these workers, at least one, have sent all of their shares."""
    sent = [p.counts is not None and p.counts.load.spent for p in participants]
    return bool(sent) and all(sent)


def _undelivered(rests: Mapping[str, int]) -> str:
    lacking = [worker for worker, n in rests.items() if n]
    more = len(lacking) - _MOST_NAMED
    names = ", ".join(lacking[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    who = f"worker {names} was" if len(lacking) == 1 else f"workers {names} were"
    n = sum(rests.values())
    what = "1 request was" if n == 1 else f"{n} requests were"
    return f"{what} never sent: {who} gone before the end, and nobody takes over a share"


# --- Exceptions of the locustfile's tasks, from Locust's own table of them


_LONGEST_ERROR, _LONGEST_WHERE = 500, 300

#: Exceptions by which the SDK reports a failed request.
_OF_REQUEST = re.compile(r"(?:openai\.(?!OpenAIError\b)|httpx2?\.)\w+")


def raised_in_tasks(table: Mapping[int, Mapping[str, Any]]) -> list[TaskException]:
    """What Locust's ``runner.exceptions`` has.

    Exceptions of the openai SDK for a request that failed are left out: that request has a record. The texts
    come from workers, so they are cleaned and cut.
    """
    kinds: Counter[tuple[str, str]] = Counter()
    for row in table.values():
        if _OF_REQUEST.match(str(row["msg"])):
            continue
        error = short(clean(row["msg"]), _LONGEST_ERROR) or "an exception without a text"
        where = short(clean(innermost(str(row["traceback"]))), _LONGEST_WHERE)
        kinds[error, where] += row["count"]
    return task_exceptions(kinds)


# --- What a run was started with: the command line, and the versions of the packages


_VERSIONED = ("llm-locust", "locust", "gevent", "numpy", "pyarrow", "openai")


@cache
def versions() -> dict[str, str]:
    """Versions of the packages that take part, and of Python."""
    return {name: version(name) for name in _VERSIONED} | {"python": sys.version.split()[0]}


def command_line(settings: Settings) -> list[str]:
    """Command line, with the values of headers and other secrets blanked out."""
    secret = [row.flag for row in OPTIONS if row.secret]
    words: list[str] = []
    hide = False
    program = Path(sys.argv[0]).name  # what Python was given as a module is Locust
    for word in ["locust" if program in ("__main__.py", "main.py") else program, *sys.argv[1:]]:
        if hide:
            word = word.partition("=")[0] + "=***"
        elif word.partition("=")[0] in secret and "=" in word:
            word = "=".join(word.split("=")[:2]) + "=***"
        hide = word in secret
        words.append(blanked(word, settings.secrets))
    return words
