"""Pages of the web UI that a link of another site may open."""

import re
from collections.abc import Callable

from flask import Flask

#: Paths, below Locust's page, that only read.
_OPENED = r"/?|/login|/stats/report|/llm/charts|/llm/reports(/[^/]+(/so-far)?/[^/]+)?"

#: Key of Flask's configuration: further such paths, those of pages that a locustfile adds.
LINKED = "LLM_LOCUST_LINKED"


def pages_for_links(app: Flask) -> Callable[[str], bool]:
    """Whether a path is that of a page that only reads: a link of another site may open it."""
    pattern = re.compile(re.escape(app.blueprints["locust"].url_prefix or "") + f"(?:{_OPENED})")
    return lambda path: pattern.fullmatch(path) is not None or path in app.config.get(LINKED, ())
