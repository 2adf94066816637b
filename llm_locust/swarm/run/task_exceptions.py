"""Exceptions of the locustfile's tasks, from Locust's own table of them, for the manifest."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from llm_locust.core.manifest import TaskException, task_exceptions
from llm_locust.figures.text import clean, short
from llm_locust.swarm.process.leaving import innermost

_LONGEST_ERROR, _LONGEST_WHERE = 500, 300

#: Exceptions by which the SDK reports a failed request.
_OF_REQUEST = re.compile(r"(?:openai\.(?!OpenAIError\b)|httpx2?\.)\w+")


def raised_in_tasks(table: Mapping[int, Mapping[str, Any]]) -> list[TaskException]:
    """What Locust's ``runner.exceptions`` has.

    Exceptions of the openai SDK for a request that failed are left out: that request has a record. The texts
    come from workers, so they are cleaned and cut.
    """
    kinds: Counter[tuple[str, str]] = Counter()
    for row in table.values():
        if _OF_REQUEST.match(str(row["msg"])):
            continue
        error = short(clean(row["msg"]), _LONGEST_ERROR) or "an exception without a text"
        where = short(clean(innermost(str(row["traceback"]))), _LONGEST_WHERE)
        kinds[error, where] += row["count"]
    return task_exceptions(kinds)
