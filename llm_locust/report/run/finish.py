"""``python -m llm_locust.report.run.finish RUN``: what a run directory gets once its last record is in.

A command, so that a process whose event loop must stay free can have it done by another one.
"""

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote

import msgspec
import numpy as np

from llm_locust.deployment.samples import SERVER_METRICS_FILE, SamplesError, compact_samples
from llm_locust.figures.verdict import RunVerdict
from llm_locust.host import exhausted
from llm_locust.report.inputs import Source
from llm_locust.report.output import one_line
from llm_locust.report.run.analysis import Report, build_report
from llm_locust.store import FRAMES_FILE, REQUESTS_FILE, compact, read_manifest, write_manifest
from llm_locust.store.requests import note_dropped

logger = logging.getLogger(__name__)

#: Below a master that answers heartbeats on the same few cores, above nothing else.
_NICENESS = 5


class FinishAnswer(msgspec.Struct, frozen=True):
    """The command's one line of JSON: the verdict on the run, or why there is no report."""

    verdict: RunVerdict | None
    error: str | None


def finish_run(run: Path, *, allow_incomplete: bool = False) -> Report:
    """Put a run's batches into one Parquet file, and the samples of its servers into another, then write its
    summary and reports; the manifest gets what the check of the live figures has found.

    A run that was finished before, or that was cut off while it was, can be finished again.

    Args:
        run: a run directory with its manifest and, unless they are compacted already, its frames.
        allow_incomplete: missing records do not make the exit code 4.

    Raises:
        ValueError: manifest, batches or limits that cannot be used (StoreError, BatchError, SloError, ...).
        OSError: a file cannot be read or written.
    """
    read_manifest(run)  # what is no run is refused before anything is written into it
    # Without frames ``compact`` makes an empty file: of a run that has its records it would take them.
    # Segments may be on their way out where the file of requests is there: it appears as a whole.
    if (run / FRAMES_FILE).exists() or not (run / REQUESTS_FILE).exists():
        compact(run)
    else:
        note_dropped(run)
    with suppress(SamplesError, OSError):  # it can be read as it is, as far as it can be read at all
        compact_samples(run / SERVER_METRICS_FILE)
    give_way(run)
    report = build_report(run, allow_incomplete=allow_incomplete)
    if checked := report.summary.live_check:
        write_manifest(run, replace(read_manifest(run), live_check=msgspec.to_builtins(checked)))
    return report


def give_way(run: Path) -> None:
    """Set the warm-up of a run to 0 if it gives way and every request began in it."""
    manifest = read_manifest(run)
    if not manifest.warmup_gives_way or not manifest.warmup_s or manifest.is_sweep:
        return
    parts = [part.ints("scheduled_ns") for part in Source.of(run).requests.parts(["scheduled_ns"])]
    scheduled_ns = np.concatenate([np.empty(0, np.int64), *parts])
    if len(scheduled_ns) and scheduled_ns.max() < scheduled_ns.min() + manifest.warmup_s * 1e9:
        logger.warning(
            "%s began in the first %g s: the default warm-up is left out, and they are measured",
            "the only request" if len(scheduled_ns) == 1 else f"all {len(scheduled_ns):,} requests",
            manifest.warmup_s,
        )
        write_manifest(run, replace(manifest, warmup_s=0.0))


def advice(run: Path, *, out_of_memory: bool = False) -> str:
    """What a person can do where the report of a run was not made."""
    where = ", on a machine with more memory" if out_of_memory else ""
    return (
        f"the records are in {str(run)!r}: "
        f"`llm-locust merge {quote(str(run))} --out NEW` makes the report of them{where}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Finish one run and print a :class:`FinishAnswer`; gives 0 where there is a report, 1 where not."""
    parser = argparse.ArgumentParser(
        prog="python -m llm_locust.report.run.finish",
        description="Compact the batches of a run that has ended, and write its summary and reports.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    parser.add_argument(
        "--allow-incomplete", action="store_true", help="missing records do not make the exit code 4"
    )
    args = parser.parse_args(argv)
    os.nice(_NICENESS)
    answer = _attempt(args.run, args.allow_incomplete)
    # Who asked may be gone, the files are there all the same. Unbuffered: nothing is left for the exit.
    with suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), msgspec.json.encode(answer) + b"\n")
    return 0 if answer.error is None else 1


def _attempt(run: Path, allow_incomplete: bool) -> FinishAnswer:
    try:
        return FinishAnswer(finish_run(run, allow_incomplete=allow_incomplete).verdict, None)
    except MemoryError:
        return FinishAnswer(None, f"memory has run out; {advice(run, out_of_memory=True)}")
    except (OSError, ValueError) as e:  # a full disk, a damaged file: a traceback would say no more
        return FinishAnswer(None, one_line(exhausted(e) or e))
    except Exception as e:
        if (reason := exhausted(e)) is not None:
            return FinishAnswer(None, f"{reason}; {advice(run)}")
        traceback.print_exc()
        return FinishAnswer(None, f"a defect of llm-locust, {type(e).__name__}: {one_line(e)}")


if __name__ == "__main__":
    sys.exit(main())
