"""The end of a process that cannot do what it was started for."""

import sys
from typing import NoReturn

import psutil

from llm_locust.options.settings import UsageError

EXIT_USAGE = 2


def leave(error: UsageError) -> NoReturn:
    """End this process for a usage error, and the workers that ``--processes`` made of it.

    Without a master those would wait on.
    """
    from llm_locust.report.output import one_line  # a process that goes on does without the report

    print(f"llm-locust: error: {one_line(error)}", file=sys.stderr, flush=True)
    for child in psutil.Process().children():
        child.terminate()
    raise SystemExit(EXIT_USAGE)
