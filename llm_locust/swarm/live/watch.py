"""Owner of the live store: resets it with each run, and samples the load."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from locust.env import Environment
from locust.runners import STATE_CLEANUP, STATE_STOPPED, STATE_STOPPING

from llm_locust.core.manifest import Manifest
from llm_locust.live.state import GONE, MISSING, LiveRun, Observation, WorkerState
from llm_locust.live.store import LiveStore
from llm_locust.options.arrivals import LoadSettings, parse_load
from llm_locust.options.scenario import scenario_of
from llm_locust.swarm.channel.messages import RunInfo
from llm_locust.swarm.process.loops import every

#: Interval at which the load is sampled.
LOOK_INTERVAL_S = 1.0

#: Most workers that have left and are still listed.
MOST_GONE = 50

#: Option of a run with the number of its resets: a worker that joins later learns of them by it.
EPOCH_OPTION = "llm_live_epoch"

#: Attribute of an environment that holds its store. Only Locust's environments outlive a call.
_ATTRIBUTE = "llm_locust_live"

_ENDING = (STATE_STOPPING, STATE_CLEANUP, STATE_STOPPED)


class Watch:
    """Keeps a store in step with Locust's runs.

    Args:
        settle_s: longest time after a request's end until its report arrives.
        workers: returns the current workers by name.
        on_reset: called when all counts are reset.
        stopped_ago_s: time since the end of the load; None before. Rates cover the time until then, although
            requests in flight are still waited for.
    """

    def __init__(
        self,
        environment: Environment,
        settle_s: float,
        workers: Callable[[], Mapping[str, WorkerState]],
        on_reset: Callable[[], None],
        stopped_ago_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        self.store = vars(environment)[_ATTRIBUTE] = LiveStore(_wall_clock(), settle_s)
        self._environment = environment
        self._workers = workers
        self._on_reset = on_reset
        self._stopped_ago_s = stopped_ago_s
        self._load = LoadSettings()
        self._listed: dict[str, WorkerState] = {}
        events = environment.events
        events.test_start.add_listener(lambda **_: self._begin())
        events.test_stopping.add_listener(lambda **_: self._stop())
        events.reset_stats.add_listener(lambda **_: self.reset())
        events.spawning_complete.add_listener(self._on_spawning_complete)
        every(LOOK_INTERVAL_S, self._look, "the live numbers' look at the load")

    def reset(self) -> None:
        """Reset all counts within the run."""
        if self.store.run.id:
            self.store.reset()
            self._tell_epoch()
            self._on_reset()

    def _stop(self) -> None:
        self.store.stop(self._stopped_ago_s() or 0.0)

    def _begin(self) -> None:
        run = live_run(self._environment)
        if run is None:
            return
        self._load = _load(self._environment)
        self._listed.clear()
        self.store.begin(run)
        self._tell_epoch()

    def _tell_epoch(self) -> None:
        vars(self._environment.parsed_options)[EPOCH_OPTION] = self.store.epoch

    def _on_spawning_complete(self, **_: object) -> None:
        if self._environment.reset_stats:  # Locust's --reset-stats
            self.reset()

    def _look(self) -> None:
        runner: Any = self._environment.runner
        if not self.store.run.id or self.store.content.stopped_s is not None:
            return
        # The state changes before all listeners of test_stopping have returned: one of them drains.
        if runner.state in _ENDING and self._stopped_ago_s() is None:
            self.store.stop()
        else:
            self.store.observe(self._observation())

    def _observation(self) -> Observation:
        runner: Any = self._environment.runner
        now = self._workers()
        gone = [_left(worker) for id_, worker in self._listed.items() if id_ not in now]
        self._listed = {worker.id: worker for worker in [*gone[-MOST_GONE:], *now.values()]}
        return Observation(
            users=runner.user_count,
            target=runner.target_user_count,
            rate=self._rate(runner.target_user_count),
            workers=tuple(self._listed.values()),
            draining=self._stopped_ago_s() is not None,
        )

    def _rate(self, users: int) -> float | None:
        """Rate that an open loop's schedule asks for now; None for a trace."""
        info = run_info(self._environment)
        if not self.store.run.open_loop or info is None:
            return None
        if self._load.users_are_rate:
            return float(users)
        profiles = [*self._load.class_rates.values(), *([self._load.rate] if self._load.rate else [])]
        since_origin_s = max(0.0, self.store.clock_s() - info["origin_ns"] * 1e-9)
        return sum(float(profile.rate(since_origin_s)) for profile in profiles) if profiles else None


def store_of(environment: Environment) -> LiveStore | None:
    """Live store of a process; None on a worker, and before the process has its role."""
    found: LiveStore | None = vars(environment).get(_ATTRIBUTE)
    return found


def run_info(environment: Environment) -> RunInfo | None:
    """Facts of the current run in this process; None before the first."""
    info: RunInfo | None = getattr(environment.parsed_options, "llm_run", None)
    return info


def live_run(environment: Environment) -> LiveRun | None:
    """The current run as the live numbers need it, in any process; None before the first."""
    info = run_info(environment)
    if info is None:
        return None
    run_time = getattr(environment.parsed_options, "run_time", None)
    # The web UI's form leaves it as text, and ends the run itself.
    run_time_s = float(run_time) if isinstance(run_time, int | float) else None
    return LiveRun.of(msgspec.json.decode(info["manifest"], type=Manifest), run_time_s)


def _load(environment: Environment) -> LoadSettings:
    options = environment.parsed_options
    assert options is not None
    scenario = scenario_of(options)
    classes = () if scenario is None else scenario.classes
    return parse_load(options, {found.name: found.rate for found in classes if found.rate is not None})


def _left(worker: WorkerState) -> WorkerState:
    """State of a worker that Locust no longer lists; a missing one stays missing."""
    state = worker.state if worker.state == MISSING else GONE
    return WorkerState(id=worker.id, state=state)


def _wall_clock() -> Callable[[], float]:
    """Clock of seconds since the Unix epoch, starting at the wall clock and free of steps."""
    offset_s = time.time() - time.monotonic()
    return lambda: time.monotonic() + offset_s
