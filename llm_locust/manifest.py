"""What is known of a run beside its requests: the content of ``manifest.json``.

Plain values. ``store.py`` reads and writes them, ``metrics/`` computes with them.
"""

from dataclasses import dataclass, field
from typing import Any

MANIFEST_SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """One worker of a run.

    ``announced`` is the number of requests that the worker last said it had finished,
    ``None`` where it never said; ``received`` is the number of records in the run. A worker
    is ``lost`` when it ended without the final word that all it had was sent.
    """

    id: str
    index: int
    announced: int | None
    received: int
    batches: int = 0
    resent: int = 0  # batches that came more than once
    in_flight: int = 0  # requests under way when the worker was last heard
    lost: bool = False
    cpu_percent_max: float | None = None

    @property
    def missing(self) -> int:
        return max(0, (self.announced or 0) - self.received)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The facts of one run.

    Times are wall-clock nanoseconds of the master's clock: ``started_ns`` when the load was
    asked for, ``stopped_ns`` when it was told to stop, ``ended_ns`` when the last record was in
    (``None`` while that has not come). ``options`` are the run's settings as text, without
    secrets.
    """

    schema: int = MANIFEST_SCHEMA
    id: str
    name: str
    started_ns: int
    stopped_ns: int | None = None
    ended_ns: int | None = None
    host: str | None = None
    model: str | None = None
    scenario: str | None = None
    seed: int = 0
    command: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    slo: str = ""
    gates: str = ""
    warmup_s: float = 0.0
    open_loop: bool = False
    require_valid: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    workers_expected: int = 1
    workers: list[WorkerFacts] = field(default_factory=list)

    @property
    def workers_lost(self) -> int:
        return sum(w.lost for w in self.workers)

    @property
    def records_announced(self) -> int:
        return sum(w.received if w.announced is None else w.announced for w in self.workers)

    @property
    def records_received(self) -> int:
        return sum(w.received for w in self.workers)

    @property
    def complete(self) -> bool:
        """Every worker was there to its end, and everything it announced is here."""
        return (
            len(self.workers) >= self.workers_expected
            and self.workers_lost == 0
            and all(w.missing == 0 for w in self.workers)
        )
