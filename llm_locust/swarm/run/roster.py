"""Workers of a run, as the process with its directory sees them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from llm_locust.core.manifest import WorkerFacts
from llm_locust.options.run import Totals
from llm_locust.swarm.channel.collector import Inbox
from llm_locust.swarm.channel.messages import CountsMessage, place_key, worker_facts
from llm_locust.swarm.users.open_loop import Scheduled

#: A worker heard from within this time may still come back: the run's end waits for it.
SILENT_S = 15.0

#: Most faults of one worker listed in the manifest.
MOST_FAULTS = 5


@dataclass(slots=True)
class Participant:
    """One worker. Times are on the run's clock."""

    joined_ns: int
    late: bool
    heard_ns: int
    counts: CountsMessage | None = None
    done: bool = False  # it announced that nothing more will follow
    left: bool = False  # it announced so before the run was stopped
    most_finished: int = 0  # largest of all counts received
    faults: list[str] = field(default_factory=list)
    never_sent: Scheduled = field(default_factory=Scheduled)  # of its part of a schedule, after it was gone

    def fault(self, text: str) -> None:
        """Record a reason to doubt its count of records; the first few, each once."""
        if text not in self.faults and len(self.faults) < MOST_FAULTS:
            self.faults.append(text)

    def take(self, counts: CountsMessage) -> None:
        """Keep the newest counts. The number of finished requests must not fall."""
        if self.counts is not None and counts.number < self.counts.number:
            return
        if counts.finished < self.most_finished:
            self.fault(f"it reported {counts.finished} finished requests, after {self.most_finished}")
        elif self.done and counts.finished > self.most_finished:
            self.fault(
                f"it reported {counts.finished} finished requests after a final count of {self.most_finished}"
            )
            self.done = False
        self.most_finished = max(self.most_finished, counts.finished)
        self.counts = counts


def totals(participants: Iterable[Participant]) -> Totals:
    """Sum of the workers' newest counts."""
    counts = [p.counts for p in participants if p.counts is not None]
    return Totals(
        ok=sum(c.load.ok for c in counts),
        failed=sum(c.load.failed for c in counts),
        ended=sum(c.finished for c in counts),
        backlog=sum(c.in_flight + c.load.waiting for c in counts),
    )


class Roster:
    """Workers of one run.

    A worker's index is the position of its name in sorted order, so that a run with the same names has the
    same random streams, in whatever order they connected. Workers that join late are appended.

    Attributes:
        places: :func:`place_key` of each worker, by index; it grows with late joiners.

    Args:
        run: the run's id; counts of another one are ignored.
        now_ns: the run's clock.
    """

    def __init__(self, run: str, workers: Iterable[str], now_ns: Callable[[], int]) -> None:
        self._run = run
        self._now_ns = now_ns
        self._participants: dict[str, Participant] = {}
        self.places: list[str] = []
        for worker in sorted(workers):
            self._join(worker, late=False)

    def __contains__(self, worker: str) -> bool:
        return worker in self._participants

    def __iter__(self) -> Iterator[str]:
        return iter(self._participants)

    def __getitem__(self, worker: str) -> Participant:
        return self._participants[worker]

    def heard(self, worker: str, counts: CountsMessage | None = None) -> Participant:
        """Note a sign of life of a worker, and its counts if given; an unknown worker joins late."""
        participant = self._participants.get(worker) or self._join(worker, late=True)
        participant.heard_ns = self._now_ns()
        if counts is not None and counts.run == self._run:
            participant.take(counts)
        return participant

    def fault(self, worker: str, text: str) -> None:
        """Record a reason to doubt a worker's count of records; ignored for a worker that takes no part."""
        if worker in self._participants:
            self._participants[worker].fault(text)

    def done(self, worker: str, counts: CountsMessage, *, stopped: bool) -> None:
        """Note a worker's final counts of the run, which was stopped or not."""
        participant = self.heard(worker, counts)
        if counts.finished < participant.most_finished:
            participant.fault(
                f"its final counts have {counts.finished} finished requests, "
                f"after {participant.most_finished}"
            )
        participant.left = participant.left or not (stopped or participant.done)
        participant.done = True

    def awaited(self, present: Callable[[str], bool]) -> list[str]:
        """Workers whose final counts may still arrive: they are connected, or were a moment ago."""
        recently_ns = self._now_ns() - round(SILENT_S * 1e9)
        return [
            worker
            for worker, participant in self._participants.items()
            if not participant.done and (present(worker) or participant.heard_ns > recently_ns)
        ]

    @property
    def drained_ns(self) -> int | None:
        """Longest time from the end of a worker's load to the end of its drain; None before the first."""
        drains = (p.counts.load.drained_ns for p in self._participants.values() if p.counts is not None)
        return max((ns for ns in drains if ns is not None), default=None)

    def facts(self, inboxes: Mapping[str, Inbox]) -> list[WorkerFacts]:
        """Facts of each worker for the manifest, by index; without final counts it counts as lost."""
        order = {key: index for index, key in enumerate(self.places)}
        facts = [
            _facts(worker, order[place_key(worker)], participant, inboxes.get(worker) or Inbox())
            for worker, participant in self._participants.items()
        ]
        return sorted(facts, key=lambda f: f.index)

    def _join(self, worker: str, *, late: bool) -> Participant:
        now_ns = self._now_ns()
        participant = self._participants[worker] = Participant(now_ns, late, now_ns)
        self.places.append(place_key(worker))
        return participant


def _facts(worker: str, index: int, p: Participant, inbox: Inbox) -> WorkerFacts:
    counts = p.counts
    finished = None if counts is None else p.most_finished
    in_flight = 0 if counts is None else counts.in_flight
    if inbox.finished is not None and inbox.finished > (finished or 0):
        finished, in_flight = inbox.finished, inbox.in_flight or 0
    faults = list(p.faults)
    if p.done and inbox.rows > (finished or 0):
        faults.append(f"{inbox.rows} records were received for {finished or 0} finished requests")
    own = (
        WorkerFacts(id=worker, index=index, announced=None, received=0)
        if counts is None
        else worker_facts(worker, index, counts)
    )
    return replace(
        own,
        announced=finished,
        received=inbox.rows,
        batches=len(inbox.seqs),
        resent=inbox.resent,
        in_flight=in_flight,
        unsent=own.unsent + p.never_sent.requests,
        unsent_warmup=own.unsent_warmup + p.never_sent.warmup,
        late=p.late,
        lost=not p.done,
        left=p.left,
        joined_ns=p.joined_ns,
        heard_ns=p.heard_ns,
        received_seqs=str(inbox.seqs),
        faults=faults,
    )
