"""Fault plan: the share of requests that fail, and how.

Written as words, ``http_500=1% reset=0.5% refused=2s@10s``, or as a JSON or YAML file that maps the same
names to the same values. Each request draws at most one fault.
"""

import difflib
import math
import re
from dataclasses import dataclass
from pathlib import Path

from llm_locust.core.durations import parse_time_ns
from llm_locust.core.small_yaml import SmallYamlError, read_small_yaml

#: Every fault except ``http_<status>``, with its effect on a client.
FAULTS = {
    "close_before": "the connection is closed before any byte of an answer",
    "reset": "after some tokens the connection is reset (RST)",
    "cut": "after some tokens the connection is closed, inside the chunked body",
    "truncated": "after some tokens the answer ends regularly, without finish reason or [DONE]",
    "stall": "after some tokens nothing is sent for the stall's duration",
    "garbage": "after some tokens an event is not JSON",
    "error_object": "after some tokens an error object is sent inside the 200 stream",
    "empty": "the answer is complete and has no token",
    "slow": "the answer is right, but its tokens arrive many times slower",
    "kv_transfer": "the KV transfer to the decode replica fails, which computes the prompt again",
}

#: The fault of a deployment with separate prefill and decode.
TRANSFER_FAULT = "kv_transfer"

_HTTP_STATUS = re.compile(r"http_([45][0-9][0-9])")
_RATE = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(%?)")


class FaultPlanError(ValueError):
    """A plan that cannot be parsed; the text points to the word."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A span in which the gateway does not listen: connections are refused."""

    after_ns: int  # since the start
    duration_ns: int


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Share of requests, 0 to 1, for each fault; the sum of the shares is at most 1."""

    rates: tuple[tuple[str, float], ...] = ()
    refusal: Refusal | None = None

    def pick(self, draw: float) -> str | None:
        """Fault of a request whose uniform draw from [0, 1) is ``draw``."""
        edge = 0.0
        for name, rate in self.rates:
            edge += rate
            if draw < edge:
                return name
        return None


def http_status(fault: str) -> int | None:
    """Status in ``http_<status>``; None for another fault."""
    match = _HTTP_STATUS.fullmatch(fault)
    return int(match[1]) if match else None


def parse_fault_plan(text: str) -> FaultPlan:
    """Parse a plan from words, or from a file if the text is the path of a .json, .yaml or .yml one.

    Raises:
        FaultPlanError: an unknown fault, a value that is not a share, a sum over 100 %, a file that cannot be
            read.
    """
    if re.fullmatch(r"\S+\.(json|ya?ml)", text.strip()):
        return _plan(_words_of_file(Path(text.strip())))
    words = []
    for number, word in enumerate(re.split(r"[\s,]+", text.strip(" \t\n,")), start=1):
        if not word:
            continue
        where = f"word {number} of the fault plan, {word!r}"
        name, equals, value = word.partition("=")
        if not equals:
            raise FaultPlanError(f"{where}: has no '='; write a fault and its share, such as reset=1%")
        words.append((where, name, value))
    return _plan(words)


def _words_of_file(path: Path) -> list[tuple[str, str, str]]:
    try:
        content = read_small_yaml(path)
    except SmallYamlError as e:
        raise FaultPlanError(f"fault plan {path}: {e}") from e
    if not isinstance(content, dict):
        raise FaultPlanError(f"fault plan {path}: must map faults to shares, such as reset: 1%")
    return [(f"fault plan {path}, key {str(name)!r}", str(name), str(v)) for name, v in content.items()]


def _plan(words: list[tuple[str, str, str]]) -> FaultPlan:
    rates: dict[str, float] = {}
    refusal = None
    for where, name, value in words:
        if name in rates or (name == "refused" and refusal):
            raise FaultPlanError(f"{where}: {name!r} appears twice in the plan")
        if name == "refused":
            refusal = _refusal(where, value)
            continue
        if name not in FAULTS and http_status(name) is None:
            raise FaultPlanError(f"{where}: {_unknown(name)}")
        rates[name] = _rate(where, value)
        total = math.fsum(rates.values())
        if total > 1 + 1e-9:
            raise FaultPlanError(f"{where}: the shares up to here are {total:.4g}, which is over 100%")
    return FaultPlan(tuple(rates.items()), refusal)


def _unknown(name: str) -> str:
    known = [*FAULTS, "refused", "http_400", "http_429", "http_500", "http_503"]
    near = difflib.get_close_matches(name, known, n=1)
    hint = (
        f"did you mean {near[0]!r}?" if near else f"known: {', '.join(FAULTS)}, refused, http_400..http_599"
    )
    return f"there is no fault {name!r}; {hint}"


def _rate(where: str, value: str) -> float:
    match = _RATE.fullmatch(value)
    if match is None:
        raise FaultPlanError(f"{where}: {value!r} is not a share; write 1% or 0.01")
    rate = float(match[1]) / (100 if match[2] else 1)
    if rate > 1:
        raise FaultPlanError(f"{where}: {value!r} is over 100%; write 1% or 0.01 for one in a hundred")
    return rate


def _refusal(where: str, value: str) -> Refusal:
    duration, at, after = value.partition("@")
    try:
        if not at:
            raise ValueError(f"{value!r} must be a duration and a start, such as 2s@10s")
        return Refusal(parse_time_ns(after), parse_time_ns(duration))
    except ValueError as e:
        raise FaultPlanError(
            f"{where}: {e} (refused closes the listening port for an interval; "
            "for a share of requests use close_before)"
        ) from e
