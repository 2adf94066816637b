"""Whether a run's records fit on its disk: by the plan before the load, by measurement while it goes on."""

import logging
import math
import shutil
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import gevent
import numpy as np

from llm_locust.options.settings import Settings, UsageError
from llm_locust.store.files import Growth, growth_of, size_text
from llm_locust.store.frame_log import kept_bytes, size_of
from llm_locust.store.upload import open_destination
from llm_locust.swarm.channel.shipping import BATCH_ROWS
from llm_locust.swarm.process.event_loop import off_the_hub, spawn_loop
from llm_locust.swarm.run.run import ActiveRun, State
from llm_locust.swarm.users.open_loop import open_loop_class

logger = logging.getLogger(__name__)

#: Time between two batches of a worker, as in roles/load_generator.py.
_BATCH_INTERVAL_S = 3.0

#: Time between two measurements: long beside that of batches, short beside that in which a disk fills.
LOOK_INTERVAL_S = 60.0

#: Size of the Parquet file beside that of the frames, at most: both are there while one becomes the other.
_KEPT_SHARE = 0.8

#: Size of frames beside their estimate, at the least: rows that are alike compress to half of it.
_LEAST_SHARE = 0.4

#: A disk that lasts for so many times what is left of the run is not worth a line.
_AMPLE = 100

_DRAWS = 1000
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class DiskNeed:
    """Disk that a plan needs, in bytes.

    Attributes:
        an_hour: growth of the run directory in the first hour of the schedule.
        whole: largest size in the whole run, if answers have the asked lengths; None without a run time.
        least: size of its frames if every answer ended after one token; None without a run time.
    """

    an_hour: float
    whole: float | None
    least: float | None


def check_room(
    settings: Settings, user_classes: Collection[type], users: object, run_time_s: object, workers: int
) -> None:
    """Log what an open loop's plan needs, and warn where the disk has less.

    A closed loop's growth follows from the server's speed, and is only known once it is measured.

    Args:
        users, run_time_s: Locust's; None without one.

    Raises:
        UsageError: not even the shortest answers would fit.
    """
    need = need_of(settings, user_classes, users, run_time_s, workers)
    if need is None:
        return
    place = _existing(settings.run.out or Path("runs"))
    free = _free(place)
    if free is None:
        return
    text = f"disk: records take about {size_text(need.an_hour)} an hour"
    if need.whole is None or need.least is None:
        logger.info("%s; %s are free on the disk of %r", text, size_text(free), str(place))
        return
    span = "in the whole run" if settings.keep is None else "at most with --keep"
    text += f", about {size_text(need.whole)} {span}"
    if need.least > free:
        raise UsageError(
            f"--out: the run's records take {size_text(need.least)} at the least, and the disk of "
            f"{str(place)!r} has {size_text(free)} free: name a directory on a larger disk, or give a "
            "shorter -t or a lower rate"
        )
    if _AMPLE * need.whole < free:
        return
    level = logging.WARNING if need.whole > free else logging.INFO
    logger.log(level, "%s; %s are free on the disk of %r", text, size_text(free), str(place))


def check_other_disk(settings: Settings) -> None:
    """Check that what ``--keep`` drops is kept on another disk (raises UsageError)."""
    if (
        settings.keep is None
        or settings.report.upload is None
        or settings.report.upload.startswith(("s3://", "gs://"))
    ):
        return
    here = _existing(settings.run.out or Path("runs"))
    there = _existing(Path(open_destination(settings.report.upload).path))
    if here.stat().st_dev == there.stat().st_dev:
        raise UsageError(
            f"--keep: {settings.report.upload!r} is on the same disk as {str(here)!r}, where a copy frees "
            "nothing: name an --upload elsewhere"
        )


def need_of(
    settings: Settings, user_classes: Collection[type], users: object, run_time_s: object, workers: int
) -> DiskNeed | None:
    """Disk that a plan needs; None where the plan does not say how many requests there will be."""
    if open_loop_class(user_classes, settings) is None:
        return None
    run_s = float(run_time_s) if isinstance(run_time_s, int | float) and run_time_s else None
    if settings.keep is not None:
        run_s = min(run_s or math.inf, settings.keep.most_s)
    an_hour = _requests(settings, users, _HOUR_S)
    tokens = mean_tokens(settings)
    if an_hour is None or tokens is None:
        return None
    first = _growth(an_hour, tokens, _HOUR_S, workers)
    if run_s is None:
        return DiskNeed(first.frames, None, None)
    requests = _requests(settings, users, run_s) or 0.0
    if settings.load.num_requests is not None:
        requests = min(requests, settings.load.num_requests)
    whole, least = (_growth(requests, each, run_s, workers) for each in (tokens, min(tokens, 1.0)))
    return DiskNeed(first.frames, whole.peak, least.frames * _LEAST_SHARE)


def mean_tokens(settings: Settings) -> float | None:
    """Mean number of token arrivals that answers are asked for; None where only the server or a dataset
    knows, and for conversations, whose requests are more than the schedule's."""
    means = []
    for kind in settings.kinds:
        lengths = kind.spec.output_tokens
        if lengths is None or kind.plan is not None:
            return None
        drawn = lengths.rows(np.random.default_rng(0), _DRAWS)[:, -1]
        means.append(float(drawn.mean()) if kind.spec.stream else 1.0)
    rates = settings.load.class_rates
    shares = [
        rates[kind.slo_class].rate(0.0) if kind.slo_class in rates else kind.weight or 0.0
        for kind in settings.kinds
    ]
    return float(np.average(means, weights=shares)) if sum(shares) > 0 else max(means, default=None)


def _requests(settings: Settings, users: object, seconds: float) -> float | None:
    """Requests that the schedule has in its first seconds; None for a trace and for stages."""
    load = settings.load
    if load.trace is not None or load.sweep is not None:
        return None
    if load.rate is not None:
        return float(load.rate.load(seconds))
    if load.class_rates:
        return sum(float(rate.load(seconds)) for rate in load.class_rates.values())
    return users * seconds if isinstance(users, int) else None


def _growth(requests: float, tokens: float, seconds: float, workers: int) -> Growth:
    batches = max(seconds / _BATCH_INTERVAL_S * workers, requests / BATCH_ROWS)
    return growth_of(requests, tokens, batches)


def _existing(path: Path) -> Path:
    """The directory, or the nearest one above it that exists."""
    return next((each for each in (path, *path.absolute().parents) if each.is_dir()), Path())


def _free(path: Path) -> int | None:
    """Bytes that are free on the disk of a directory; None where it does not say.

    File systems over object stores may report no size at all, and take what comes.
    """
    try:
        usage = shutil.disk_usage(path)
    except OSError as e:
        logger.warning("disk: how much is free at %r is unknown: %s", str(path), e.strerror or e)
        return None
    return usage.free if usage.total else None


class DiskWatch:
    """Measures how fast a run's frames grow, and says when the disk does not suffice.

    Args:
        size: bytes of all frames so far, and of those that are still there.
        free: bytes left on their disk, None where it does not say.
        left_s: time until the load ends; infinite without a run time.
        kept_s: longest time that records stay there.
    """

    def __init__(
        self,
        size: Callable[[], tuple[int, int]],
        free: Callable[[], int | None],
        left_s: Callable[[], float],
        where: str,
        kept_s: float = math.inf,
    ) -> None:
        self._size = size
        self._free = free
        self._left_s = left_s
        self._where = where
        self._kept_s = kept_s
        self._first: tuple[float, int] | None = None
        self._growth_logged = False
        self._warned = False

    def look(self, now_s: float) -> None:
        """Measure once; log the growth the first time that it is known, and a lack of room once it shows."""
        size, kept = self._size()
        if self._first is None:
            self._first = now_s, size
            return
        since_s, before = self._first
        rate = (size - before) / (now_s - since_s)
        if rate <= 0:
            return
        free, left_s = self._free(), self._left_s()
        if free is None:
            return
        grown = rate * left_s
        if not math.isinf(self._kept_s):
            grown = min(grown, max(0.0, rate * self._kept_s - kept))
        lasts_s = free / rate
        is_short = lasts_s < _HOUR_S if math.isinf(grown) else free < grown + _KEPT_SHARE * (kept + grown)
        an_hour = size_text(rate * _HOUR_S)
        text = f"disk: records take {an_hour} an hour as measured, {size_text(free)} are free"
        if is_short and not self._warned:
            self._warned = self._growth_logged = True
            filled = f"full in {lasts_s / 60:.0f} min"
            end = filled if lasts_s < left_s else "too little for the report at its end"
            logger.warning("%s on the disk of %r: %s. Free some, or end the run", text, self._where, end)
        elif not is_short:
            self._warned = False
            if not self._growth_logged and lasts_s < _AMPLE * left_s:
                self._growth_logged = True
                logger.info("%s on the disk of %r, enough for %.0f h", text, self._where, lasts_s / _HOUR_S)


def watch_disk(run: ActiveRun) -> None:
    """Look at the disk of a run while its load goes on."""

    def size() -> tuple[int, int]:
        with suppress(OSError):
            return size_of(run.path), kept_bytes(run.path)
        return 0, 0

    def left_s() -> float:
        ends_ns = run.load_ends_ns
        return math.inf if ends_ns is None else max(0.0, (ends_ns - run.clock.now_ns()) * 1e-9)

    kept_s = math.inf if run.settings.keep is None else run.settings.keep.most_s
    watch = DiskWatch(size, lambda: _free(run.path), left_s, str(run.path), kept_s)

    def look() -> None:
        while run.state is State.LOADING:
            off_the_hub(watch.look, time.monotonic())
            gevent.sleep(LOOK_INTERVAL_S)

    spawn_loop(look, "the watch on the disk")
