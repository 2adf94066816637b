"""Exit of a process that cannot do its job."""

import sys
from typing import NoReturn

import psutil

from llm_locust.options.settings import UsageError

EXIT_USAGE = 2


def leave(error: UsageError) -> NoReturn:
    """End this process for a usage error, and the workers that ``--processes`` forked from it.

    Without a master those would wait forever.
    """
    from llm_locust.report.output import (
        one_line,
    )  # deferred: a process that goes on does not need the report package

    print(f"llm-locust: error: {one_line(error)}", file=sys.stderr, flush=True)
    for child in psutil.Process().children():
        child.terminate()
    raise SystemExit(EXIT_USAGE)
