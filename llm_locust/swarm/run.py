"""One run at the side that has its directory: who takes part, what came, what it amounts to."""

import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import gevent

from llm_locust.manifest import Manifest, NodeHealth, WorkerFacts
from llm_locust.report.build import Report, build_report
from llm_locust.store import FRAMES_FILE, compact, write_manifest
from llm_locust.swarm.collector import Collector
from llm_locust.swarm.messages import CountsMessage, RunInfo
from llm_locust.swarm.offload import off_the_hub
from llm_locust.swarm.settings import Settings

logger = logging.getLogger(__name__)

_VERSIONED = ("llm-locust", "locust", "gevent", "numpy", "pyarrow", "openai")


@dataclass(slots=True)
class Participant:
    """A worker as the run's side knows it."""

    index: int
    counts: CountsMessage | None = None
    done: bool = False


@dataclass(slots=True)
class Run:
    """A run from the first user to the report. Times are wall-clock ns of this process."""

    info: RunInfo
    name: str
    path: Path
    settings: Settings
    workers_expected: int
    collector: Collector
    started_ns: int = field(default_factory=time.time_ns)
    stopped_ns: int | None = None
    ended_ns: int | None = None
    finishing: bool = False  # all records are in, or given up: the report is being made, or is there
    participants: dict[str, Participant] = field(default_factory=dict)
    report: Report | None = None
    failure: str | None = None  # why there is no report

    def heard(self, worker: str, index: int, counts: CountsMessage | None = None) -> Participant:
        """A worker took part, and said how far it is."""
        participant = self.participants.setdefault(worker, Participant(index))
        if counts is not None and counts["run"] == self.info["id"]:
            participant.counts = counts
        return participant

    def stopped(self) -> None:
        """The load was told to stop; the measured window ends here."""
        if self.stopped_ns is None:
            self.stopped_ns = time.time_ns()

    def manifest(self) -> Manifest:
        """The facts so far."""
        return Manifest(
            id=self.info["id"],
            name=self.name,
            started_ns=self.started_ns,
            stopped_ns=self.stopped_ns,
            ended_ns=self.ended_ns,
            host=self.info["host"],
            model=self.info["model"],
            seed=self.info["seed"],
            command=_command(self.settings),
            versions={name: version(name) for name in _VERSIONED} | {"python": sys.version.split()[0]},
            slo=self.settings.slo,
            gates=self.settings.gates,
            warmup_s=self.settings.warmup_s,
            require_valid=self.settings.require_valid,
            options={k: v for k, v in self.settings.text.items() if v not in (None, [], "")},
            workers_expected=self.workers_expected,
            workers=[self._facts(worker) for worker in sorted(self.participants, key=self._index)],
        )

    @property
    def patience_s(self) -> float:
        """How long the last records are waited for once the users have stopped."""
        return self.settings.flush_timeout_s + 5.0

    def finish(self) -> None:
        """Close the file, compact it, compute and write the report. Heavy work is off the hub."""
        try:
            self.collector.close()
            self.ended_ns = time.time_ns()
            self.report = off_the_hub(_write_run, self.path, self.manifest(), self.settings.allow_incomplete)
        except (OSError, ValueError) as e:  # a full disk, a damaged file: a traceback would say no more
            self._failed(e)
        except Exception as e:
            self._failed(e)
            logger.exception("this is a defect of llm-locust")

    def discard(self) -> None:
        """Of a run that did not come about nothing stays."""
        with suppress(OSError):
            self.collector.close()
            (self.path / FRAMES_FILE).unlink()
            self.path.rmdir()

    def _failed(self, error: Exception) -> None:
        reason = " ".join(str(error).split()) or type(error).__name__
        self.failure = f"the report of {str(self.path)!r} could not be written: {reason}"
        logger.error("%s; the records that came are kept there", self.failure)

    def _index(self, worker: str) -> int:
        return self.participants[worker].index

    def _facts(self, worker: str) -> WorkerFacts:
        participant = self.participants[worker]
        inbox = self.collector.inboxes[worker]
        counts = participant.counts
        return WorkerFacts(
            id=worker,
            index=participant.index,
            announced=None if counts is None else counts["finished"],
            received=inbox.rows,
            batches=len(inbox.seqs),
            resent=inbox.resent,
            in_flight=0 if counts is None else counts["in_flight"],
            lost=not participant.done,
            health=NodeHealth() if counts is None else NodeHealth(**counts["health"]),
        )


def _write_run(path: Path, manifest: Manifest, allow_incomplete: bool) -> Report:
    write_manifest(path, manifest)
    compact(path)
    return build_report(path, allow_incomplete=allow_incomplete)


def _command(settings: Settings) -> list[str]:
    """The command line, the values of ``--header`` and other secrets blanked out."""
    words: list[str] = []
    hide = False
    for word in sys.argv:
        if hide:
            word = word.partition("=")[0] + "=***"
        elif word.startswith("--header="):
            word = "=".join(word.split("=")[:2]) + "=***"
        hide = word == "--header"
        for secret in settings.secrets:
            word = word.replace(secret, "***")
        words.append(word)
    return words


def wait_until(condition: Callable[[], bool], timeout_s: float, poll_s: float = 0.05) -> bool:
    """Give other greenlets their turn until the condition holds; gives whether it came to."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        gevent.sleep(poll_s)
    return True
