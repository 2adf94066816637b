"""All workers' live counts in one place: totals, the recent past by key, the course of the run."""

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, TypeVar

import numpy as np

from llm_locust.live.counts import (
    MOST_OF_REPORT,
    MOST_SUM,
    NOTHING,
    ByKey,
    Counts,
    KeyLimit,
    magnitudes,
    merged,
)
from llm_locust.live.state import (
    Gauges,
    LiveRun,
    LiveStages,
    LoadMark,
    MarkKind,
    Observation,
    ServerGauges,
    marks_between,
)
from llm_locust.live.worker_report import LiveReport, ReportError, decode_report
from llm_locust.metrics.columns import Floats
from llm_locust.metrics.server_roles import label_of_server
from llm_locust.metrics.server_series import ServerNow

# --- Values by time: the recent past in cells of equal width, or the whole run in a bounded number of cells


T = TypeVar("T")


class TimeCells(Generic[T]):
    """Values by time, in cells of ``width_s`` aligned to multiples of it; at most ``most`` cells.

    Args:
        merge: combines two values of one cell.
        whole: keep all of the past, by doubling the width whenever there would be too many cells; else forget
            the oldest cells.
    """

    def __init__(self, width_s: float, most: int, merge: Callable[[T, T], T], *, whole: bool = False) -> None:
        self.width_s = width_s
        self._most = most
        self._merge = merge
        self._whole = whole
        self._cells: dict[int, T] = {}
        self._newest: int | None = None

    def __len__(self) -> int:
        return len(self._cells)

    def copy(self) -> "TimeCells[T]":
        """The same cells, for a reader while others are added here. The values are shared."""
        copied = copy.copy(self)
        copied._cells = dict(self._cells)
        return copied

    def add(self, at_s: float, value: T) -> None:
        """Add to the cell of a time; ignore a time that is too old for them."""
        place = int(at_s // self.width_s)
        if self._newest is None or place > self._newest:
            self._newest = place
            self._forget()
        if not self._whole and place <= self._newest - self._most:
            return
        self._put(place, value)
        while self._whole and len(self._cells) > self._most:
            self._widen()

    def between(self, begin_s: float, end_s: float) -> Iterator[tuple[float, T]]:
        """Start and value of each cell between two times, the oldest first."""
        for place in sorted(self._cells):
            if begin_s <= place * self.width_s and (place + 1) * self.width_s <= end_s:
                yield place * self.width_s, self._cells[place]

    @property
    def since_s(self) -> float:
        """Time from which on all that was added is in its cells."""
        if self._whole or self._newest is None:
            return float("-inf")
        return (self._newest - self._most + 1) * self.width_s

    def _put(self, place: int, value: T) -> None:
        self._cells[place] = self._merge(self._cells[place], value) if place in self._cells else value

    def _forget(self) -> None:
        assert self._newest is not None
        if not self._whole:
            oldest = self._newest - self._most
            self._cells = {place: value for place, value in self._cells.items() if place > oldest}

    def _widen(self) -> None:
        assert self._newest is not None
        before, self._cells = self._cells, {}
        self.width_s *= 2
        self._newest //= 2
        for place, value in before.items():
            self._put(place // 2, value)


# --- The store


Taken = Literal["counted", "repeated", "stale"]

#: Width of the cells of the recent past, and their numbers: those of the last 2 min have counts by key.
RECENT_WIDTH_S = 2.0
RECENT_CELLS = 150
KEYED_CELLS = 60
HOUR_WIDTH_S = 20.0
HOUR_CELLS = 180
#: Most cells of the whole run: 2 s wide at first, 4 min after a day.
RUN_CELLS = 360

MOST_MARKS = 500

#: Most records of an epoch, and most latencies: anything added to it still fits into 64 bits.
MOST_TOTAL = 2**62

#: Most servers, in order of appearance.
MOST_SERVERS = 32


@dataclass(frozen=True, slots=True)
class Cell:
    """Requests that ended in a span, and observations in it; ``servers`` by name."""

    counts: Counts
    gauges: Gauges
    servers: Mapping[str, ServerGauges] = field(default_factory=dict)

    @classmethod
    def merge(cls, a: "Cell", b: "Cell") -> "Cell":
        counts = Counts.merge(c.counts for c in (a, b) if c.counts is not NOTHING)
        return cls(counts, a.gauges + b.gauges, _added(a.servers, b.servers))


def _course(width_s: float, most: int, *, whole: bool = False) -> TimeCells[Cell]:
    return TimeCells(width_s, most, Cell.merge, whole=whole)


@dataclass(slots=True)
class _Sender:
    """A worker's reports of this epoch."""

    next_seq: int = 0
    finished: int = 0
    counted: int = 0


@dataclass(slots=True)
class _Content:
    """Content that a reset discards."""

    started_s: float
    stopped_s: float | None = None
    totals: ByKey = field(default_factory=dict)
    magnitudes: Floats = field(default_factory=lambda: magnitudes([]))
    keyed: TimeCells[ByKey] = field(default_factory=lambda: TimeCells(RECENT_WIDTH_S, KEYED_CELLS, merged))
    recent: TimeCells[Cell] = field(
        default_factory=lambda: TimeCells(RECENT_WIDTH_S, RECENT_CELLS, Cell.merge)
    )
    hour: TimeCells[Cell] = field(default_factory=lambda: TimeCells(HOUR_WIDTH_S, HOUR_CELLS, Cell.merge))
    run: TimeCells[Cell] = field(
        default_factory=lambda: TimeCells(RECENT_WIDTH_S, RUN_CELLS, Cell.merge, whole=True)
    )
    limit: KeyLimit = field(default_factory=KeyLimit)
    senders: dict[str, _Sender] = field(default_factory=dict)
    full: set[str] = field(default_factory=set)  # sums of reports that were at their bound
    servers: dict[str, bool] = field(default_factory=dict)  # whether the last scrape found a page


class LiveStore:
    """Merges the reports of a run's workers; bounded, however long the run is.

    A report counts once: each worker numbers its own, and its number of finished requests reveals those in
    reports that were lost (:attr:`missed`).

    Args:
        clock_s: the run's time in seconds since the Unix epoch, never set while the process lives.
        settle_s: longest time after a request's end until its report arrives; spans end that long before now.

    Attributes:
        run: the current run, or the last one.
        epoch: number of its resets.
        began_s: when it began.
        marks: changes, the oldest first; the last :data:`MOST_MARKS`.
        observation: the latest one.
        stages: those of a run, which need not be the current one.
        is_watched: a web UI shows the numbers.
        is_draining: whether the load has ended, and its last requests may not have.
    """

    def __init__(self, clock_s: Callable[[], float], settle_s: float = 4.0) -> None:
        self.clock_s = clock_s
        self._settle_s = settle_s
        self.stages: LiveStages | None = None
        self.is_watched = False
        self.is_draining: Callable[[], bool] = lambda: False
        self.begin(LiveRun(id=""))

    def begin(self, run: LiveRun) -> None:
        """Start a new run: forget the previous one."""
        self.run = run
        self.epoch = 0
        self.marks: deque[LoadMark] = deque(maxlen=MOST_MARKS)
        self.observation: Observation | None = None
        self.content = _Content(self.clock_s())
        self.began_s = self.content.started_s

    def reset(self) -> None:
        """Reset all counts within the run. The new :attr:`epoch` must be sent to the workers."""
        self.epoch += 1
        self.content = _Content(self.clock_s())
        self._mark("reset", "counted anew from here")

    def stop(self, ago_s: float = 0.0) -> None:
        """Note that the load ended ``ago_s`` ago: rates cover the time until then."""
        if self.content.stopped_s is None:
            self.content.stopped_s = max(self.content.started_s, self.clock_s() - ago_s)

    def at_rest(self) -> "LiveStore":
        """Snapshot for a thread to read while the event loop goes on filling this store.

        Counts, cells and keys are shared: they are immutable values.
        """
        still, content, now_s = copy.copy(self), self.content, self.clock_s()
        still.clock_s = lambda: now_s
        still.marks = deque(self.marks)
        still.content = replace(
            content,
            keyed=content.keyed.copy(),
            recent=content.recent.copy(),
            hour=content.hour.copy(),
            run=content.run.copy(),
            senders={name: copy.copy(sender) for name, sender in content.senders.items()},
            servers=dict(content.servers),
        )
        return still

    def take(self, worker: str, data: bytes) -> Taken:
        """Merge a worker's report.

        Returns:
            ``stale`` for one of another run or epoch, which is not counted: the current epoch must be sent to
                the worker.

        Raises:
            ReportError: the bytes are not a report, or they are more than :data:`MOST_TOTAL`; nothing of it
                is counted.
        """
        report = decode_report(data)
        if (report.run, report.epoch) != (self.run.id, self.epoch):
            return "stale"
        sender = self.content.senders.setdefault(worker, _Sender())
        if report.seq < sender.next_seq:
            return "repeated"
        slices = _unpacked(report)
        added = magnitudes(counts for _, by_key in slices for counts in by_key.values())
        self._check_totals(added)
        self.content.magnitudes += added
        if report.seq > sender.next_seq:
            lost = report.seq - sender.next_seq
            self._mark("missed", f"{lost} live report(s) of worker {worker} were lost")
        sender.next_seq = report.seq + 1
        sender.finished = report.finished
        for age_s, by_key in slices:
            sender.counted += sum(counts.records for counts in by_key.values())
            self.content.full.update(*(counts.full(MOST_OF_REPORT) for counts in by_key.values()))
            self._add(self.clock_s() - age_s, by_key)
        return "counted"

    def observe(self, seen: Observation) -> None:
        """Note the current load, and mark what has changed."""
        now_s = self.clock_s()
        if self.observation is not None:
            self.marks.extend(marks_between(now_s, self.observation, seen))
        self.observation = seen
        self._put(now_s, Cell(NOTHING, Gauges.of(seen)))

    def observe_servers(self, servers: Iterable[ServerNow]) -> None:
        """Note what the servers report now, and mark those that have fallen silent or come back; ignore
        servers beyond :data:`MOST_SERVERS`. A server with a role has it before its name."""
        up, gauges = self.content.servers, {}
        for each in servers:
            now = replace(each, name=label_of_server(each.name, each.role))
            if each.role is not None:
                up.pop(each.name, None)  # until its first page its role may not have been known
            if now.name in up or len(up) < MOST_SERVERS:
                self._mark_turn(now, up.get(now.name))
                up[now.name] = now.up
                gauges[now.name] = ServerGauges.of(now)
        if gauges and self.content.stopped_s is None:
            self._put(self.clock_s(), Cell(NOTHING, Gauges(), gauges))

    @property
    def missed(self) -> int:
        """Requests of this epoch that workers finished and whose reports were lost."""
        return sum(max(0, s.finished - s.counted) for s in self.content.senders.values())

    @property
    def full(self) -> tuple[str, ...]:
        """Sums of this epoch that are at their bound, and may be larger."""
        return tuple(sorted(self.content.full.union(self.total.full(MOST_SUM))))

    @property
    def total(self) -> Counts:
        """All requests of this epoch."""
        return Counts.merge(self.content.totals.values())

    @property
    def settled_s(self) -> float:
        """Time up to which the reports are in; once the load has stopped, the time of the stop."""
        stopped_s = self.content.stopped_s
        return self.clock_s() - self._settle_s if stopped_s is None else stopped_s

    @property
    def elapsed_s(self) -> float:
        """Seconds counted so far, until the stop."""
        end_s = self.clock_s() if self.content.stopped_s is None else self.content.stopped_s
        return max(0.0, end_s - self.content.started_s)

    def _check_totals(self, added: Floats) -> None:
        """Check that no number exceeds :data:`MOST_TOTAL` with a report added (raises ReportError)."""
        place = int(np.argmax(total := self.content.magnitudes + added))
        if total[place] > MOST_TOTAL:
            name = ("records", "latencies")[place]
            raise ReportError(f"{name} would be {total[place]:.3g}, more than {MOST_TOTAL:.3g}")

    def _add(self, at_s: float, by_key: ByKey) -> None:
        folded = _folded(by_key, self.content.limit)
        self.content.totals = merged(self.content.totals, folded)
        at_s = max(at_s, self.content.started_s)
        self.content.keyed.add(at_s, folded)
        self._put(at_s, Cell(Counts.merge(folded.values()), Gauges()))

    def _put(self, at_s: float, cell: Cell) -> None:
        for cells in (self.content.recent, self.content.hour, self.content.run):
            cells.add(at_s, cell)

    def note(self, text: str) -> None:
        """Mark a request to the servers besides the load."""
        self._mark("asked", text)

    def _mark_turn(self, now: ServerNow, was_up: bool | None) -> None:
        if was_up and not now.up:
            self._mark("silent", f"server {now.name} gives no metrics")
        elif was_up is False and now.up:
            self._mark("answers", f"server {now.name} is back")

    def _mark(self, kind: MarkKind, text: str) -> None:
        self.marks.append(LoadMark(self.clock_s(), kind, text))


def _added(a: Mapping[str, ServerGauges], b: Mapping[str, ServerGauges]) -> Mapping[str, ServerGauges]:
    if not (a and b):
        return a or b
    return {**a, **{name: a[name] + gauges if name in a else gauges for name, gauges in b.items()}}


def _folded(by_key: ByKey, limit: KeyLimit) -> ByKey:
    """Map to the store's own keys: each worker's are bounded, but all workers' could be many."""
    folded: ByKey = {}
    for key, counts in by_key.items():
        folded = merged(folded, {limit.fold(key): counts})
    return folded


def _unpacked(report: LiveReport) -> list[tuple[float, ByKey]]:
    try:
        return [(s.age_s, {packed.key: packed.unpacked() for packed in s.counts}) for s in report.slices]
    except (ValueError, OverflowError) as e:
        raise ReportError(f"report {report.seq} holds no live counts: {e}") from e
