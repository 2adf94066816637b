"""Steps from options to a run that may start: settings, checks before any load, the run and its directory."""

import logging
import os
import secrets
from collections.abc import Callable, Collection
from datetime import datetime
from functools import partial
from pathlib import Path

from locust.env import Environment

from llm_locust.core.manifest import CalibrationFacts
from llm_locust.deployment.replicas import ProfileError, Replicas
from llm_locust.options.deployment import patience_s
from llm_locust.options.requests import DEFAULT_KEY_ENV, take_default_key
from llm_locust.options.settings import Settings, UsageError, parse_settings, with_roofline
from llm_locust.store import FRAMES_FILE, FrameLog, SegmentLog
from llm_locust.store.facts import parts_of
from llm_locust.swarm.channel.collector import Collector
from llm_locust.swarm.channel.messages import PACKAGE, PROTOCOL, DroppedMessages, RunInfo
from llm_locust.swarm.clocks import RunClock
from llm_locust.swarm.live import store_of
from llm_locust.swarm.process.event_loop import off_the_hub
from llm_locust.swarm.process.exits import leave
from llm_locust.swarm.process.health import Health
from llm_locust.swarm.process.log import redact
from llm_locust.swarm.run.canary import canaries_of
from llm_locust.swarm.run.checks import (
    calibrate_run,
    check_amount,
    check_hosts,
    check_load,
    check_metrics,
    check_run_dir,
    check_shares,
    check_tasks,
    check_upload,
    check_workload,
    checked_trace,
    choose_run_dir,
    foreseen,
    kinds_sent,
    own_endpoints,
    probed_endpoint,
    tell_files,
)
from llm_locust.swarm.run.disk import check_other_disk, check_room
from llm_locust.swarm.run.finishing import reach_upload
from llm_locust.swarm.run.parts import check_server, digests, input_files
from llm_locust.swarm.run.readiness import wait_for_replicas
from llm_locust.swarm.run.roster import Roster
from llm_locust.swarm.run.run import ActiveRun
from llm_locust.swarm.run.servers import ServerCalls, post_to
from llm_locust.swarm.run.target_check import (
    CHECK_TIMEOUT_S,
    CheckedServer,
    check_target,
    host_of,
    settings_of_arm,
    telling_header,
)
from llm_locust.swarm.users.open_loop import ORIGIN_DELAY_S, open_loop_class

logger = logging.getLogger(__name__)


class RunPreparation:
    """Checks the requirements of a run, and creates it.

    Args:
        clock, health, dropped: of this process, for the runs created.
        acknowledge: called with (run, worker, seq) when a batch is in the run's file.
    """

    def __init__(
        self,
        environment: Environment,
        clock: RunClock,
        health: Health,
        dropped: DroppedMessages,
        acknowledge: Callable[[str, str, int], None],
    ) -> None:
        assert environment.parsed_options is not None
        self._environment = environment
        self._options = environment.parsed_options
        self._clock = clock
        self._health = health
        self._dropped = dropped
        self._acknowledge = acknowledge
        self._ready: Replicas | None = None  # of the first run, whose run time does not count while it waits
        self._calibration: CalibrationFacts | None = None
        self._runs = 0

    def check(self, *, at_once: bool, await_workers: Callable[[], None] = lambda: None) -> None:
        """Check settings and servers before any load; a failure ends the process with a one-line error.

        Args:
            at_once: whether the load starts without a user's action. If not, a server that does not answer is
                only logged, because the host can still be changed in the web UI.
            await_workers: called before replicas are waited for, so that nothing comes between their
                readiness and the load.
        """
        try:
            settings = self._check_settings(at_once)
            self._calibration = calibrate_run(self._environment, settings, at_once=at_once)
            try:
                self._check_servers(settings, at_once, await_workers)
            except UsageError as e:
                if at_once:
                    raise
                logger.warning("%s", e)
        except UsageError as e:
            leave(e)
        except KeyboardInterrupt:
            leave(UsageError("interrupted before the load began"))

    def _check_settings(self, at_once: bool) -> Settings:
        """Check all that needs no server (raises UsageError)."""
        check_hosts(self._environment)
        if at_once:
            check_tasks(self._environment)
        if take_default_key(self._options, os.environ):
            logger.info("the API key is in %s; it goes to the host of the load only", DEFAULT_KEY_ENV)
        settings = self._settings()
        if at_once:
            self._check_amount(settings, self._options.num_users)
        checked_trace(settings.load)
        check_run_dir(settings)
        if at_once:
            workers = getattr(self._options, "expect_workers", 1)
            self._check_room(settings, self._options.num_users, workers)
        check_upload(settings)
        check_other_disk(settings)
        check_metrics(settings)
        if at_once:
            self._foresee(settings)
        return settings

    def _check_servers(self, settings: Settings, at_once: bool, await_workers: Callable[[], None]) -> None:
        """Wait for the replicas of a load that starts at once; reach the server (raises UsageError)."""
        if at_once:
            if patience_s(settings.deployment) is not None:
                await_workers()
            self._ready = self._wait_for_replicas(settings)
        if (at_once or self._environment.host) and not settings.deployment.arms:  # those were asked
            self._check_target(settings)

    def _wait_for_replicas(self, settings: Settings, within_s: float | None = None) -> Replicas:
        """Wait until all replicas of the deployment are ready, send the canaries (raises UsageError)."""
        host = host_of(self._environment, settings)
        endpoint = probed_endpoint(settings, self._environment.user_classes)
        canaries = canaries_of(settings, self._environment.user_classes)
        return wait_for_replicas(host, settings, endpoint, canaries, within_s=within_s)

    def _check_target(self, settings: Settings) -> CheckedServer:
        """The server, as it answers this run's users (raises UsageError)."""
        own = own_endpoints(self._environment.user_classes)
        return check_target(host_of(self._environment, settings), settings, own)

    def _settings(self) -> Settings:
        settings = with_roofline(parse_settings(self._options))
        redact(self._environment, settings.secrets)
        check_workload(settings, self._environment.user_classes)
        check_load(settings, self._environment.user_classes)
        return settings

    def _check_amount(self, settings: Settings, users: int | None) -> None:
        options, shape = self._options, self._environment.shape_class
        check_amount(
            settings,
            self._environment.user_classes,
            users=users if shape is None else None,
            run_time_s=options.run_time,
        )

    def _foresee(self, settings: Settings) -> None:
        """Log what is known of the run before its first request."""
        options, classes = self._options, list(self._environment.user_classes)
        shape = self._environment.shape_class
        shaped = shape is not None or open_loop_class(classes, settings) is not None
        hosts = [*settings.deployment.targets, *(arm.url for arm in settings.deployment.arms)]
        for line in foreseen(
            settings,
            hosts or [host_of(self._environment, settings)],
            users=None if shaped else options.num_users,
            spawn_rate=options.spawn_rate,
            run_time_s=options.run_time,
        ):
            logger.warning("%s", line)
        if settings.report.upload is not None and (why := reach_upload(settings.report.upload)) is not None:
            logger.warning(
                "--upload: %r does not answer now: %s; if it does not at the end, the run ends with 4, "
                "and `llm-locust upload` copies its files later",
                settings.report.upload,
                why,
            )

    def _check_room(self, settings: Settings, users: object, workers: int) -> None:
        check_room(settings, self._environment.user_classes, users, self._options.run_time, max(1, workers))

    def new_run(self, workers: Collection[str], expected: int) -> ActiveRun:
        """Create a run and its directory (raises UsageError, OSError); remove everything if that fails.

        Args:
            workers: names of the workers that are ready.
            expected: least number of workers.
        """
        settings, runner = self._settings(), self._environment.runner
        assert runner is not None
        self._check_amount(settings, runner.target_user_count)
        if self._ready is None:  # of the web UI: it was not checked before
            self._check_room(settings, runner.target_user_count, expected)
        check_shares(settings.load, len(workers))
        trace, skipped_lines = off_the_hub(tell_files, settings)
        # In the web UI a run's time is running already, so that missing replicas are reported soon.
        replicas, self._ready = self._ready or self._wait_for_replicas(settings, CHECK_TIMEOUT_S), None
        started = datetime.now()
        name = Path((self._environment.parsed_locustfiles or ["locust"])[0]).stem
        info = self._info(settings, replicas, len(workers), started)
        if settings.load.sweep is not None and settings.restartable and settings.run.out is not None:
            check_server(parts_of(settings.run.out), info)
        files: dict[str, str] = {}
        if settings.load.sweep is not None:
            files = off_the_hub(
                lambda: digests(input_files(settings, self._environment.parsed_locustfiles or ()))
            )
        info["trace_scale"] = None if trace is None else trace.scale
        path = choose_run_dir(settings, name, started, again=self._runs > 0)
        info["path"] = str(path)
        keep = settings.keep
        log = FrameLog(path / FRAMES_FILE) if keep is None else SegmentLog(path, keep.segment_s)
        collector = Collector(log, partial(self._acknowledge, info["id"]))
        self._runs += 1
        self._health.begin()
        self._clock.begin()
        self._dropped.begin()
        run = ActiveRun(
            info=info,
            name=settings.run.out.name if settings.run.out is not None else name,
            path=path,
            settings=settings,
            workers_expected=max(expected, len(workers)),
            collector=collector,
            roster=Roster(info["id"], workers, self._clock.now_ns),
            clock=self._clock,
            health=self._health,
            dropped=self._dropped,
            started_ns=self._clock.now_ns(),
            replicas=replicas,
            calls=self._calls(settings, replicas),
            files=files,
            skipped_lines=skipped_lines,
            live=store_of(self._environment),
            open_loop=open_loop_class(self._environment.user_classes, settings) is not None,
            calibration=self._calibration,
            exceptions=runner.exceptions,  # replaced, not emptied, when the next run starts
        )
        run.begin()
        return run

    def _info(self, settings: Settings, replicas: Replicas, starters: int, started: datetime) -> RunInfo:
        """Facts for every process; path, manifest and places are added later."""
        host = host_of(self._environment, settings)
        arms = settings.deployment.arms
        found = self._check_target(settings_of_arm(settings, arms[0]) if arms else settings)
        runner = self._environment.runner
        assert runner is not None
        own = own_endpoints(self._environment.user_classes)
        is_one = not (replicas.targets or replicas.arms)
        return RunInfo(
            id=f"{started:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}",
            protocol=PROTOCOL,
            version=PACKAGE,
            seed=secrets.randbelow(2**31) if settings.run.seed is None else settings.run.seed,
            host=host,
            base=found.base,
            targets=list(replicas.targets),
            arms=[arm.url for arm in replicas.arms],
            arm_models=[arm.model for arm in replicas.arms],
            model=found.model,
            replica_header=telling_header(host, found, settings, own) if is_one else "",
            salt=secrets.token_hex(4),
            path="",
            manifest="",
            places=[],
            starters=starters,
            origin_ns=self._clock.now_ns() + round(ORIGIN_DELAY_S * 1e9),
            rate=0.0 if settings.load.sweep is not None else float(runner.target_user_count),
            trace_scale=None,
        )

    def _calls(self, settings: Settings, replicas: Replicas) -> ServerCalls:
        run_s = getattr(self._options, "run_time", None)
        try:
            return ServerCalls(
                settings.deployment,
                replicas.known,
                post_to(settings, kinds_sent(settings, self._environment.user_classes)),
                self._clock.now_ns,
                warmup_s=settings.run.warmup_s,
                run_s=run_s if isinstance(run_s, int | float) else None,
                on_call=self._note,
            )
        except ProfileError as e:
            raise UsageError(f"--profile-server: {e}") from e

    def _note(self, text: str) -> None:
        """Mark it in the live view, if there is one."""
        store = store_of(self._environment)
        if store is not None:
            store.note(text)
