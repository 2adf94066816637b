"""Uploads of a run directory, each in a process of its own: at the run's end, and repeatedly before it."""

import logging
from pathlib import Path

from llm_locust.options.report import Keep
from llm_locust.store.growth import size_of
from llm_locust.swarm.process.children import STDERR, STDOUT, LateError, run_elsewhere
from llm_locust.swarm.process.offload import off_the_hub

logger = logging.getLogger(__name__)

#: Environment variables that an object store's client reads.
CREDENTIALS = (
    *("AWS_", "GOOGLE_", "CLOUDSDK_", "GCE_", "SSL_CERT_"),
    *("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"),
)

#: Time limits of an upload: a constant, and the pace of its files. A longer one hangs.
UPLOAD_PATIENCE_S = 3600.0
_SLOWEST_BYTES_PER_S = 100_000

#: Attempts of an intermediate upload: few, because the next one makes up for it.
_ATTEMPTS_IN_BETWEEN = 2


def upload_elsewhere(run: Path, to: str, attempts: int | None = None) -> tuple[bool, str]:
    """Copy a run directory to ``to`` while other greenlets run.

    Call it in the main thread, see :func:`~llm_locust.swarm.process.children.run_elsewhere`. If another
    upload of the directory is in progress, it waits for that one.

    Args:
        attempts: attempts of each step; None for the default of
        :class:`~llm_locust.store.upload.transfer.RetryPolicy`.

    Returns:
        Whether the copy is complete, and a line that describes the result or the failure.
    """
    words = [] if attempts is None else ["--attempts", str(attempts)]
    size = off_the_hub(size_of, run)
    try:
        code, said = run_elsewhere(
            "llm_locust.cli.upload",
            [*words, "--", str(run), to],
            heard=(STDOUT, STDERR),
            prefixes=CREDENTIALS,
            within_s=UPLOAD_PATIENCE_S + size / _SLOWEST_BYTES_PER_S,
        )
    except LateError as e:
        return False, f"the process that uploads {e}"
    except OSError as e:
        return False, f"the process that uploads cannot be started: {e.strerror or e}"
    told = " ".join(said.decode(errors="replace").split())[-500:]
    return code == 0, told or f"the process that uploads ended with {code}"


def drop_elsewhere(run: Path, keep: Keep, to: str, *, ended: bool = False) -> None:
    """Drop what a run directory has had for long enough, after its upload; log the result."""
    words = ["--older-than", str(keep.least_s), *["--ended"] * ended, "--", str(run), to]
    size = off_the_hub(size_of, run)
    try:
        code, said = run_elsewhere(
            "llm_locust.report.run.dropping",
            words,
            heard=(STDOUT, STDERR),
            prefixes=CREDENTIALS,
            within_s=UPLOAD_PATIENCE_S + size / _SLOWEST_BYTES_PER_S,
        )
    except (LateError, OSError) as e:
        logger.warning("--keep: nothing was dropped this time: its process %s", e)
        return
    told = " ".join(said.decode(errors="replace").split())[-500:]
    if code:
        logger.warning("--keep: not all could be dropped: %s", told or f"its process ended with {code}")
    elif told:
        logger.info("--keep: %s", told)


def upload_so_far(run: Path, to: str) -> bool:
    """Copy what a running run has so far; log the result. A failure is a warning: the next upload goes on
    where this one ended, and the one at the run's end decides."""
    done, told = upload_elsewhere(run, to, _ATTEMPTS_IN_BETWEEN)
    if done:
        logger.info("%s", told)
    else:
        logger.warning("no upload this time: %s", told)
    return done
