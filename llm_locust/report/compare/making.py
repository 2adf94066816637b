"""``python -m llm_locust.report.compare.making BASE NEW FILE``: the page of a comparison, for the web UI."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from llm_locust.report.compare.outcome import compare_runs
from llm_locust.report.compare.page import page
from llm_locust.report.output import done_beside
from llm_locust.store import write_text


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page; gives 0, or 1 with a line that says why there is none."""
    parser = argparse.ArgumentParser(
        prog="python -m llm_locust.report.compare.making", description="Write the page of a comparison."
    )
    parser.add_argument("base", type=Path, metavar="BASE", help="run directory to compare with")
    parser.add_argument("new", type=Path, metavar="NEW", help="run directory")
    parser.add_argument("file", type=Path, metavar="FILE", help="the page to write")
    args = parser.parse_args(argv)
    return done_beside(lambda: write_text(args.file, page(compare_runs([args.base, args.new]))))


if __name__ == "__main__":
    sys.exit(main())
