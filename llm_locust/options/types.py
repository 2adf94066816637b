"""Options' texts as values, one by one."""

import math
import re
from pathlib import Path
from typing import Literal

from llm_locust.client.http.timeouts import Timeouts
from llm_locust.core.durations import parse_time
from llm_locust.roofline.model import ModelShape
from llm_locust.roofline.model_file import read_model
from llm_locust.wire.headers import header_template, shown_name

#: ``auto`` is ``rich`` on a terminal, ``plain`` elsewhere; ``locust`` leaves Locust's own table.
ProgressMode = Literal["auto", "rich", "plain", "locust"]
PROGRESS_MODES: tuple[ProgressMode, ...] = ("auto", "rich", "plain", "locust")

_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?) ?(KiB|MiB|GiB)", re.IGNORECASE | re.ASCII)
_UNITS = {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_LEAST_SIZE, _MOST_SIZE = 64 << 10, 4 << 30


#: Before a warm-up that gives way if every request begins in it.
UP_TO = "up to "


def parse_warmup(text: str) -> float:
    """The warm-up in seconds, of a time such as 30s or ``up to 30s`` (raises ValueError)."""
    return parse_time(text.removeprefix(UP_TO))


def parse_timeouts(text: str) -> Timeouts:
    """``first=60s gap=30s total=600s``, any of the three; raises ValueError with the wrong word."""
    bounds: dict[str, float] = {}
    for word in text.replace(",", " ").split():
        name, equals, value = word.partition("=")
        if name not in ("first", "gap", "total") or not equals:
            raise ValueError(f"{word!r} in {text!r}: use first=TIME, gap=TIME or total=TIME, such as gap=30s")
        bounds[f"{name}_s"] = parse_time(value)
        if bounds[f"{name}_s"] <= 0:
            raise ValueError(f"{word!r} in {text!r}: a bound must be longer than 0")
    return Timeouts(**bounds)


def parse_size(text: str) -> int:
    """A size such as ``64MiB`` in bytes, at least 64 KiB; raises ValueError, which names the text."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a size: write a number with KiB, MiB or GiB, such as 64MiB")
    size = int(float(found[1]) * _UNITS[found[2].lower()])
    if not _LEAST_SIZE <= size <= _MOST_SIZE:
        raise ValueError(f"{text!r} must be between 64KiB and 4GiB")
    return size


def parse_header(text: str) -> tuple[str, str]:
    """``Name=value`` as a pair, the value a template; raises ValueError, which never shows the value."""
    name, equals, value = text.partition("=")
    colon = name.find(":")
    if colon > 0:  # as curl writes it, with an '=' in the value; what is behind the colon is not shown
        raise ValueError(f"{shown_name(name)} has a colon: write NAME=VALUE")
    if not equals:  # the whole text may be a value
        raise ValueError("a header has no '=': write NAME=VALUE")
    header_template(name, value)
    return name, value


def read_shape(path: str) -> ModelShape:
    """The model of a file; raises ValueError, which names the file."""
    return read_model(Path(path))


def parse_count(text: str) -> int:
    """A whole number from 1 (raises ValueError)."""
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise ValueError(f"{text!r} is no whole number from 1")
    return count


def parse_price(text: str) -> float:
    """A number from 0 (raises ValueError)."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError(f"{text!r} is no number from 0")
    return value
