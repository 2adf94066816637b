"""Who takes part in a run: the workers as the side with the run directory knows them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from llm_locust.core.manifest import NodeHealth, WorkerFacts
from llm_locust.swarm.channel.messages import CountsMessage
from llm_locust.swarm.delivery.collector import Inbox

#: A worker that was heard within this time may still come back: the run's end waits for it.
SILENT_S = 15.0

#: Faults of one worker that the manifest names.
MOST_FAULTS = 5


def place_key(worker: str) -> str:
    """A worker's name in twelve characters: every spawn message carries those of all workers."""
    return blake2b(worker.encode(), digest_size=6).hexdigest()


@dataclass(slots=True)
class Participant:
    """One worker. Times are of the run's clock."""

    joined_ns: int
    late: bool
    heard_ns: int
    counts: CountsMessage | None = None
    done: bool = False  # said that nothing more will come of it
    left: bool = False  # said so before the run was stopped
    most_finished: int = 0  # of all counts that came
    faults: list[str] = field(default_factory=list)

    def fault(self, text: str) -> None:
        """Note what makes its count of records doubtful; the first few, each once."""
        if text not in self.faults and len(self.faults) < MOST_FAULTS:
            self.faults.append(text)

    def take(self, counts: CountsMessage) -> None:
        """Keep counts unless newer ones came before them. The number of finished requests never falls."""
        if self.counts is not None and counts.number < self.counts.number:
            return
        if counts.finished < self.most_finished:
            self.fault(f"it said that {counts.finished} requests had finished, after {self.most_finished}")
        elif self.done and counts.finished > self.most_finished:
            self.fault(
                f"{counts.finished} requests had finished after its last word said {self.most_finished}"
            )
            self.done = False
        self.most_finished = max(self.most_finished, counts.finished)
        self.counts = counts


class Roster:
    """The workers of one run.

    A worker's index is its place among the names in order, so that a run with the same names has the
    same random streams, in whatever order they connected; those that join late come behind.

    Attributes:
        places: :func:`place_key` of each worker, by index; it grows with late joiners.

    Args:
        run: the run's id; counts of another one are not taken.
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
        """A worker gave a sign of life, and perhaps said how far it is; one not known yet joins late."""
        participant = self._participants.get(worker) or self._join(worker, late=True)
        participant.heard_ns = self._now_ns()
        if counts is not None and counts.run == self._run:
            participant.take(counts)
        return participant

    def fault(self, worker: str, text: str) -> None:
        """Note what makes a worker's count of records doubtful; of one that has no part nothing is noted."""
        if worker in self._participants:
            self._participants[worker].fault(text)

    def done(self, worker: str, counts: CountsMessage, *, stopped: bool) -> None:
        """A worker's last word on the run, which was told to stop or not."""
        participant = self.heard(worker, counts)
        if counts.finished < participant.most_finished:
            participant.fault(
                f"its last word said that {counts.finished} requests had finished, "
                f"after {participant.most_finished}"
            )
        participant.left = participant.left or not (stopped or participant.done)
        participant.done = True

    def awaited(self, present: Callable[[str], bool]) -> list[str]:
        """Workers whose last word may still come: they are there, or were a moment ago."""
        recently_ns = self._now_ns() - round(SILENT_S * 1e9)
        return [
            worker
            for worker, participant in self._participants.items()
            if not participant.done and (present(worker) or participant.heard_ns > recently_ns)
        ]

    @property
    def drained_ns(self) -> int | None:
        """The longest time from a worker's load's end to the end of its drain; None before the first."""
        told = (p.counts.load.drained_ns for p in self._participants.values() if p.counts is not None)
        return max((ns for ns in told if ns is not None), default=None)

    def facts(self, inboxes: Mapping[str, Inbox]) -> list[WorkerFacts]:
        """What the manifest says of each worker, by index; without a last word it counts as lost."""
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
        faults.append(f"{inbox.rows} records came of {finished or 0} requests that it had finished")
    return WorkerFacts(
        id=worker,
        index=index,
        announced=finished,
        received=inbox.rows,
        batches=len(inbox.seqs),
        resent=inbox.resent,
        dropped=0 if counts is None else counts.dropped,
        in_flight=in_flight,
        in_flight_ns=None if counts is None else counts.in_flight_ns,
        held_back=0 if counts is None else counts.load.held_back,
        longest_held_ns=0 if counts is None else counts.load.longest_held_ns,
        unsent=0 if counts is None else counts.load.unsent,
        unsent_warmup=0 if counts is None else counts.load.unsent_warmup,
        unsent_by_class={} if counts is None else counts.load.unsent_by_class,
        cut=0 if counts is None else counts.load.cut,
        late=p.late,
        lost=not p.done,
        left=p.left,
        joined_ns=p.joined_ns,
        heard_ns=p.heard_ns,
        received_seqs=str(inbox.seqs),
        faults=faults,
        clock=None if counts is None else counts.clock,
        health=NodeHealth() if counts is None else counts.health,
    )
