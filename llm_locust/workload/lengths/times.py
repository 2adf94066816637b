"""Times as distributions: ``2s``, ``uniform:1s,5s``, ``exponential:3s``, ``lognormal:4s,0.8``.

========================== =================================================================
``T``                      always T
``uniform:LOW,HIGH``       uniform from LOW to HIGH
``exponential:MEAN``       exponential with that mean
``normal:MEAN,SD``         normal with that mean and standard deviation
``lognormal:M,SIGMA``      median M, standard deviation SIGMA of the natural logarithm; the
                           mean is M·exp(SIGMA²/2)
``lognormal:mean=M,sd=SD`` the same law by the mean and standard deviation of the times
========================== =================================================================

An exponential, normal or lognormal law may end with limits, as ``lognormal:4s,0.8,min=1s,max=1m``: a draw
beyond a limit is set to the limit. A time has a unit, as in ``500ms``. No draw is below 0 or longer than
:data:`LONGEST_S`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from llm_locust.core.durations import parse_duration
from llm_locust.core.terms import listed, named_values
from llm_locust.workload.lengths.file import plain_number

#: Forms for error texts.
ALLOWED = (
    "2s, uniform:LOW,HIGH, exponential:MEAN, normal:MEAN,SD, lognormal:MEDIAN,SIGMA or "
    "lognormal:mean=M,sd=SD (these four also with ,min=T,max=T)"
)

#: A day. An extreme draw must not keep a user away forever.
LONGEST_S = 86_400.0

_MOST_SIGMA = 10.0

Law = Callable[[np.random.Generator], float]


class TimesError(ValueError):
    """A text that is not a distribution of times; has the value and what is allowed."""


@dataclass(frozen=True, slots=True)
class TimeDistribution:
    """A distribution of times in ``least_s`` .. ``most_s`` seconds. Equal when their texts are equal."""

    text: str
    law: Law = field(compare=False, repr=False)
    least_s: float = 0.0
    most_s: float = LONGEST_S

    def draw_s(self, rng: np.random.Generator) -> float:
        """Draw one time, in seconds."""
        return max(self.least_s, min(self.law(rng), self.most_s))


def parse_times(text: str) -> TimeDistribution:
    """Parse the distribution in ``text``, in the module's grammar.

    Raises:
        TimesError: unknown name, or a parameter that is missing, not a time, or out of range.
    """
    name, colon, rest = text.strip().partition(":")
    words = [word.strip() for word in rest.split(",")] if colon else []
    match name:
        case _ if not colon:
            return TimeDistribution(text, partial(_always, _time_s(text, "the time", name)))
        case "uniform":
            low, high = _parameters(text, words, "LOW", "HIGH")
            low_s, high_s = _time_s(text, "LOW", low), _time_s(text, "HIGH", high)
            if high_s < low_s:
                raise TimesError(f"times {text!r}: HIGH {high} is below LOW {low}")
            return TimeDistribution(text, partial(_uniform, low_s, high_s))
        case "exponential" | "normal" | "lognormal":
            return _unbounded(text, name, words)
    raise TimesError(f"times {text!r}: no distribution {name!r}; allowed are {ALLOWED}")


def _unbounded(text: str, name: str, words: list[str]) -> TimeDistribution:
    """A law that has no limits of its own, between those that are given."""
    try:
        named, words = named_values(words)
    except ValueError as e:
        raise TimesError(f"times {text!r}: {e}") from e
    least_s = _time_s(text, "min", named.pop("min", "0s"))
    most_s = _time_s(text, "max", named.pop("max", f"{LONGEST_S:g}s"))
    if most_s < least_s:
        raise TimesError(f"times {text!r}: max is below min")
    law: Law
    if name == "lognormal" and named:
        mean_s, deviation_s = (_time_s(text, key, named.pop(key, "")) for key in ("mean", "sd"))
        if not mean_s:
            raise TimesError(f"times {text!r}: mean must be above 0")
        variance = math.log1p((deviation_s / mean_s) ** 2)
        _parameters(text, words)
        law = partial(_lognormal, mean_s * math.exp(-variance / 2), math.sqrt(variance))
    elif name == "lognormal":
        median, sigma = _parameters(text, words, "MEDIAN", "SIGMA")
        law = partial(_lognormal, _time_s(text, "MEDIAN", median), _sigma(text, sigma))
    elif name == "normal":
        mean, deviation = _parameters(text, words, "MEAN", "SD")
        law = partial(_normal, _time_s(text, "MEAN", mean), _time_s(text, "SD", deviation))
    else:
        (mean,) = _parameters(text, words, "MEAN")
        law = partial(_exponential, _time_s(text, "MEAN", mean))
    if named:
        raise TimesError(f"times {text!r}: {name} has no {listed(named)}; allowed are {ALLOWED}")
    return TimeDistribution(text, law, least_s, most_s)


def _always(time_s: float, rng: np.random.Generator) -> float:
    return time_s


def _uniform(low_s: float, high_s: float, rng: np.random.Generator) -> float:
    return float(rng.uniform(low_s, high_s))


def _exponential(mean_s: float, rng: np.random.Generator) -> float:
    return float(rng.exponential(mean_s))


def _normal(mean_s: float, deviation_s: float, rng: np.random.Generator) -> float:
    return float(rng.normal(mean_s, deviation_s))


def _lognormal(median_s: float, sigma: float, rng: np.random.Generator) -> float:
    return median_s * math.exp(float(rng.normal(0.0, sigma)))


def _parameters(text: str, words: list[str], *names: str) -> list[str]:
    if len(words) != len(names):
        given, wanted = ",".join(words), ",".join(names) or "left out"
        raise TimesError(f"times {text!r}: {given!r} should be {wanted}; allowed are {ALLOWED}")
    return words


def _time_s(text: str, name: str, word: str) -> float:
    try:
        time_s = parse_duration(word)
    except ValueError as e:
        raise TimesError(f"times {text!r}: {name} {word!r}: {e}; allowed are {ALLOWED}") from e
    if time_s > LONGEST_S:
        raise TimesError(f"times {text!r}: {name} {word!r} is longer than a day")
    return time_s


def _sigma(text: str, word: str) -> float:
    sigma = plain_number(word)
    if sigma is None or not 0 <= sigma <= _MOST_SIGMA:
        raise TimesError(f"times {text!r}: SIGMA {word!r} is not a number in 0 .. {_MOST_SIGMA:g}")
    return sigma
