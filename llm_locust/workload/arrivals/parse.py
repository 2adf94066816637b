"""Arrivals as text: the grammars of ``--arrival`` and ``--request-rate``.

============================== ==============================================================
``constant``                   equal gaps
``poisson``                    independent arrivals: exponential gaps
``gamma:CV``                   gamma gaps with that coefficient of variation
``trace:FILE``                 the recorded times of a trace
============================== ==============================================================

============================== ==============================================================
``R``                          always R requests/s
``ramp:A..B,D``                from A to B in the time D, then B; more legs may follow:
                               ``ramp:0..100,1m,100..100,5m,100..0,1m``
``steps:R@D,R@D,...``          each rate for its time; the last one stays, its time is optional
``sine:MEAN,AMPLITUDE,PERIOD`` MEAN + AMPLITUDE·sin(2π·t/PERIOD), as ``sine:50,40,24h``
``spike:BASE,PEAK,AT,FOR``     BASE, but PEAK from AT on for the time FOR
============================== ==============================================================

Rates are requests per second of all workers together; times are durations such as 90s or 1h30m.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from re import IGNORECASE, fullmatch

from llm_locust.core.durations import parse_duration
from llm_locust.workload.arrivals.process import Process
from llm_locust.workload.arrivals.profile import Leg, Profile, constant, piecewise, sine

#: Highest rate: a typing error must not ask for a schedule that fills the memory.
MAX_RATE = 1_000_000.0

ALLOWED_ARRIVALS = "constant, poisson, gamma:CV or trace:FILE"
ALLOWED_RATES = (
    "10, ramp:10..100,60s, steps:10@60s,50@30s, sine:MEAN,AMPLITUDE,PERIOD or spike:BASE,PEAK,AT,FOR"
)


class ArrivalError(ValueError):
    """A text that is not an arrival process or a rate; has the value and what is allowed."""


@dataclass(frozen=True, slots=True)
class TraceFile:
    """Arrivals at the times of a trace, which is not opened yet."""

    path: Path


def parse_arrival(text: str) -> Process | TraceFile:
    """Parse the process in ``text``, in the module's grammar.

    Raises:
        ArrivalError: unknown name, or a parameter that is missing, superfluous or out of range.
    """
    name, colon, rest = text.strip().partition(":")
    try:
        match name, bool(colon):
            case "constant", False:
                return Process(0.0)
            case "poisson", False:
                return Process(1.0)
            case "gamma", True:
                return Process(_gamma_cv(rest))
            case "trace", True if rest.strip():
                return TraceFile(Path(rest))
    except ValueError as e:
        raise ArrivalError(f"arrival {text!r}: {e}; allowed are {ALLOWED_ARRIVALS}") from None
    raise ArrivalError(f"arrival {text!r}: allowed are {ALLOWED_ARRIVALS}")


def parse_rate(text: str) -> Profile:
    """Parse the rate over time in ``text``, in the module's grammar.

    Raises:
        ArrivalError: unknown name, a parameter that is missing, superfluous or out of range, or a profile
            without any request.
    """
    name, colon, rest = text.strip().partition(":")
    try:
        if meant := _meant(name) if not colon else "":
            raise ValueError(meant)
        profile = _profile(name, rest) if colon else constant(_rate("the rate", name))
        if not any(s.rate or s.slope for s in profile.segments):
            raise ValueError("the rate is always 0, so that no request would be sent")
    except ValueError as e:
        raise ArrivalError(f"request rate {text!r}: {e}; allowed are {ALLOWED_RATES}") from None
    return profile


def _meant(word: str) -> str:
    """What a word that other tools take for a rate is called here; empty if it is none of those."""
    if word.lower() in ("inf", "infinity", "max", "unlimited"):
        return (
            "a load without a rate is a closed loop: leave the rate out, and give the requests at once by "
            "--users 100; all at once is --users N --num-requests N"
        )
    per_second = fullmatch(r"(\d+(?:\.\d*)?) *(?:/ *s(?:ec(?:ond)?)?|rps|r/s|req/s|qps|hz)", word, IGNORECASE)
    per_minute = fullmatch(r"(\d+(?:\.\d*)?) *(?:/ *m(?:in(?:ute)?)?|rpm)", word, IGNORECASE)
    if per_second:
        return f"rates are per second: write {per_second[1]}"
    if per_minute:
        return f"rates are per second: write {float(per_minute[1]) / 60:.4g}"
    return ""


def _profile(name: str, rest: str) -> Profile:
    words = rest.split(",")
    match name:
        case "ramp":
            return piecewise(_ramp_legs(words))
        case "steps":
            return piecewise([_step(word, last=i == len(words)) for i, word in enumerate(words, 1)])
        case "sine":
            mean, amplitude, period = _named(words, "MEAN", "AMPLITUDE", "PERIOD")
            return sine(_rate("MEAN", mean), _rate("AMPLITUDE", amplitude), _seconds("PERIOD", period))
        case "spike":
            base, peak, at, span = _named(words, "BASE", "PEAK", "AT", "FOR")
            low, high = _rate("BASE", base), _rate("PEAK", peak)
            calm = Leg(low, low, _seconds("AT", at, positive=False))
            return piecewise([calm, Leg(high, high, _seconds("FOR", span)), Leg(low, low, 0.0)])
    raise ValueError(f"no profile {name!r}")


def _ramp_legs(words: list[str]) -> list[Leg]:
    if len(words) % 2:
        raise ValueError(f"{words[-1].strip()!r} has no partner: each leg is FROM..TO,DURATION")
    legs = []
    for span, duration in zip(words[::2], words[1::2], strict=True):
        first, dots, last = span.partition("..")
        if not dots:
            raise ValueError(f"{span.strip()!r} is not FROM..TO")
        legs.append(Leg(_rate("FROM", first), _rate("TO", last), _seconds("DURATION", duration)))
    return legs


def _step(word: str, *, last: bool) -> Leg:
    rate_text, at, duration = word.partition("@")
    if not at and not last:
        raise ValueError(f"{word.strip()!r} is not RATE@DURATION")
    rate = _rate("RATE", rate_text)
    return Leg(rate, rate, _seconds("DURATION", duration) if at else 0.0)


def _gamma_cv(word: str) -> float:
    cv = _number("CV", word)
    if cv <= 0:  # the process would interpret 0 as constant gaps
        raise ValueError(f"CV {word.strip()!r} is not above 0 (for gaps that are all alike: constant)")
    return cv


def _named(words: list[str], *names: str) -> list[str]:
    if len(words) != len(names):
        raise ValueError(f"{','.join(words)!r} should be {','.join(names)}")
    return words


def _rate(name: str, word: str) -> float:
    value = _number(name, word)
    if not 0 <= value <= MAX_RATE:
        raise ValueError(f"{name} {word.strip()!r} is not in 0 .. {MAX_RATE:,.0f} requests/s")
    return value


def _seconds(name: str, word: str, *, positive: bool = True) -> float:
    text = word.strip()
    try:
        seconds = parse_duration(text)
    except ValueError as e:
        raise ValueError(f"{name} {text!r}: {e}") from None
    if positive and seconds <= 0:
        raise ValueError(f"{name} {text!r} is not above 0 s")
    return seconds


def _number(name: str, word: str) -> float:
    """Parse a plain decimal number: ``float`` would accept ``nan`` and ``1_0`` too."""
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or "_" in word:
        raise ValueError(f"{name} {word.strip()!r} is not a number")
    return value
