"""``llm-locust upload``: a run directory to an object store; continues an interrupted upload."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from llm_locust.core.texts import positive
from llm_locust.report.output import one_line
from llm_locust.store.files import StoreError
from llm_locust.store.upload import RetryPolicy, SlowStoreError, UploadError, upload_run

DESCRIPTION = (
    "Copy a run directory to TO/<run id>, the manifest last. Files that are there are not sent again. "
    "Credentials come from the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
    "GOOGLE_APPLICATION_CREDENTIALS."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llm-locust upload``."""
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory, such as runs/demo")
    parser.add_argument(
        "to", metavar="TO", help="s3://bucket/prefix, gs://bucket/prefix, file:///path, or a path"
    )
    parser.add_argument(
        "--attempts",
        type=positive,
        default=RetryPolicy().attempts,
        metavar="N",
        help="attempts of each step (%(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Upload, and print the result in one line. Return the exit code: 0, or 2 if the upload is incomplete."""
    try:
        with _libraries_unheard():
            done = upload_run(args.run, args.to, RetryPolicy(attempts=args.attempts))
    except (UploadError, StoreError) as e:
        print(f"llm-locust upload: {one_line(e)}", file=sys.stderr, flush=True)
        if isinstance(e, SlowStoreError):
            os._exit(2)  # Python, and Arrow, would wait for the thread that waits for the store
        return 2
    print(done)
    return 0


@contextmanager
def _libraries_unheard() -> Iterator[None]:
    """Arrow writes warnings to standard error itself, with a server's words as they came."""
    try:
        kept = os.dup(2)
    except OSError:  # there is none
        yield
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def main(argv: Sequence[str] | None = None) -> int:
    """The command alone, for a caller whose event loop must stay free and that starts it as a process."""
    parser = argparse.ArgumentParser(prog="python -m llm_locust.cli.upload", description=DESCRIPTION)
    add_arguments(parser)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
