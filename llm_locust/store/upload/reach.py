"""``python -m llm_locust.store.upload.reach DESTINATION``: whether a destination of uploads answers."""

import argparse
import sys
from collections.abc import Sequence

import pyarrow as pa

from llm_locust.store.upload.destination import UploadError, open_destination

#: The name of a file that is not there, whose size is asked for: a bucket that is there says so.
_NO_FILE = ".llm-locust"


def main(argv: Sequence[str] | None = None) -> int:
    """Ask once, and write nothing there; gives 0 where it answers, else 1 and one line that says why not."""
    parser = argparse.ArgumentParser(
        prog="python -m llm_locust.store.upload.reach", description="Ask whether a destination answers."
    )
    parser.add_argument("to", metavar="DESTINATION", help="as of --upload")
    args = parser.parse_args(argv)
    try:
        destination = open_destination(args.to)
    except UploadError as e:
        print(e)
        return 1
    try:
        destination.sizes([_NO_FILE])
    except (pa.ArrowException, OSError) as e:
        print(destination.reason(e))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
