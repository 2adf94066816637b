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
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from re import IGNORECASE, fullmatch
from typing import Literal

from llm_locust.core.manifest import MOST_PREFIXES, MOST_STAGES
from llm_locust.core.record import MAX_TOKENS, LengthPair
from llm_locust.core.texts import parse_duration, plain_number
from llm_locust.workload.arrivals import Leg, Process, Profile, constant, piecewise, sine

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
    value = plain_number(word)
    if math.isnan(value):
        raise ValueError(f"{name} {word.strip()!r} is not a number")
    return value


# --- Loads of a sweep as text: the grammar of ``--sweep``
#
# ============================== ==============================================================
# ``users=1,2,4,8``              closed loop with so many users, one load after the other
# ``rate=2,4,8``                 open loop at so many requests/s
# ``rate=linear:1..10,10``       10 loads from 1 to 10 with equal differences
# ``agents=1,2,4``               the same as ``users=``, of users that walk through trajectories
# ``users=geometric:1..256,9``   9 loads from 1 to 256 with equal ratios
# ``lengths=128:32,4096:64``     the run's own load, first with prompts of 128 tokens and answers
#                                of 32, then with 4,096 and 64
# ``users=1,4 lengths=128:32``   every load at every pair of lengths
# ``users=4 prefix-share=0%,50%`` one load, first with prompts that share nothing, then with
#                                prompts half of which is one of 10 shared texts
# ``... prefixes=1``             of so many shared texts
# ============================== ==============================================================


Kind = Literal["users", "rate"]

#: Most users of a load: Locust keeps each as an object.
MAX_USERS = 1_000_000

ALLOWED = (
    "users=1,2,4,8, rate=2,4,8, rate=linear:1..10,10 or users=geometric:1..256,9, and lengths=128:32,4096:64 "
    "(input:output tokens) alone or beside one of them, or prefix-share=0%,50%,90% at one load"
)

_LOADS = ("users", "agents", "rate")
_NAMES = (*_LOADS, "lengths", "prefix-share", "prefixes")

#: Shared texts of a stage where the sweep does not say how many.
_PREFIXES = 10
_NAMED = re.compile(r"(?:^|\s+)([^\s=,:]*)=")


@dataclass(frozen=True, slots=True)
class Sweep:
    """Loads in the order in which they are applied: numbers of users, or rates in requests/s.

    Attributes:
        values: empty: the run's own number of users is the load.
        lengths: pairs, at each of which all loads are applied; empty: as the run says.
        shares: of each prompt, that is one of ``prefixes`` shared texts; empty: as the run says.
    """

    kind: Kind
    values: tuple[float, ...]
    lengths: tuple[LengthPair, ...] = ()
    shares: tuple[float, ...] = ()
    prefixes: int = _PREFIXES

    @property
    def name(self) -> str:
        """What it is over, as it is written: its loads, else lengths or shares."""
        return str(self.kind) if self.values else "prefix-share" if self.shares else "lengths"

    @property
    def stages(self) -> int:
        """Number of stages, without repeats."""
        return max(1, len(self.values)) * max(1, len(self.lengths)) * max(1, len(self.shares))

    def of_users(self, users: int) -> "Sweep":
        """The same with the run's number of users where it has no loads of its own."""
        return self if self.values else replace(self, values=(float(users),))


def parse_sweep(text: str) -> Sweep:
    """Parse the loads in ``text``, in the module's grammar (raises ValueError)."""
    try:
        found = _sweep(_parts(text.strip()))
        if found.stages > MOST_STAGES:
            pairs = f" at {len(found.lengths)} pairs of lengths" if found.lengths else ""
            raise ValueError(f"it has {len(found.values)} loads{pairs}, at most {MOST_STAGES} are allowed")
        if any(a == b for a, b in pairwise(found.values)):
            raise ValueError("it has the same load twice in a row: leave one out, or give fewer loads")
    except ValueError as e:
        raise ValueError(f"sweep {text!r}: {e}; allowed are {ALLOWED}") from None
    return found


def _parts(text: str) -> dict[str, str]:
    """What is said of each name."""
    names = list(_NAMED.finditer(text))
    if not names or names[0].start() or not names[0][1]:
        raise ValueError("it must begin with users=, agents=, rate=, lengths= or prefix-share=")
    ends = [*(name.start() for name in names[1:]), len(text)]
    found: dict[str, str] = {}
    for name, end in zip(names, ends, strict=True):
        if name[1] not in _NAMES:
            raise ValueError(f"{name[1]!r} is not {', '.join(_NAMES[:-1])} or {_NAMES[-1]}")
        if name[1] in found:
            raise ValueError(f"it has {name[1]}= twice")
        found[name[1]] = text[name.end() : end]
    return found


def _sweep(parts: dict[str, str]) -> Sweep:
    given = [name for name in _LOADS if name in parts]
    if len(given) > 1:
        raise ValueError(f"{given[0]}= beside {given[1]}=: a run has one kind of load")
    if given == ["agents"] and "lengths" in parts:
        raise ValueError("agents= beside lengths=: trajectories have recorded lengths; leave lengths= out")
    kind: Kind = "rate" if given == ["rate"] else "users"
    values = tuple(_load(kind, value) for name in given for value in _values(parts[name]))
    lengths = tuple(_pair(word) for word in parts["lengths"].split(",")) if "lengths" in parts else ()
    twice = next((pair for at, pair in enumerate(lengths) if pair in lengths[:at]), None)
    if twice is not None:
        raise ValueError(f"it has the lengths {twice} twice; --repeat measures all of them again")
    return Sweep(kind, values, lengths, *_prefix(parts, len(values)))


def _prefix(parts: dict[str, str], loads: int) -> tuple[tuple[float, ...], int]:
    """Shares of shared prefixes, and the number of these."""
    if "prefix-share" not in parts:
        if "prefixes" in parts:
            raise ValueError("prefixes= without prefix-share=: say how much of a prompt they are")
        return (), _PREFIXES
    if loads > 1 or "lengths" in parts or "agents" in parts:
        raise ValueError(
            "prefix-share= beside several loads, lengths= or agents=: an experiment varies one thing; give "
            "one load, users= or rate=, and --input-tokens for the length of all prompts"
        )
    shares = tuple(_share(word.strip()) for word in parts["prefix-share"].split(","))
    twice = next((share for at, share in enumerate(shares) if share in shares[:at]), None)
    if twice is not None:
        raise ValueError(f"it has the share {twice * 100:g}% twice; --repeat measures all of them again")
    number = parts.get("prefixes", f"{_PREFIXES}").strip()
    is_short = number.isascii() and number.isdecimal() and len(number) <= len(f"{MOST_PREFIXES}")
    if not is_short or not 1 <= int(number) <= MOST_PREFIXES:
        raise ValueError(f"prefixes={number} is not a whole number in 1 .. {MOST_PREFIXES:,}")
    return shares, int(number)


def _share(word: str) -> float:
    if not word.endswith("%"):
        raise ValueError(f"{word!r} is not a share such as 50%")
    share = _sweep_number(word.removesuffix("%")) / 100
    if share >= 1:
        raise ValueError(f"{word}: each prompt needs an end of its own; give a share below 100%")
    return share


def _pair(word: str) -> LengthPair:
    numbers = [number.strip() for number in word.split(":")]
    if len(numbers) != 2 or not all(number.isascii() and number.isdecimal() for number in numbers):
        raise ValueError(f"{word.strip()!r} is not a pair of lengths in tokens, input:output, such as 128:32")
    for number in numbers:
        if not 1 <= int(number[:20]) <= MAX_TOKENS:
            raise ValueError(f"{word.strip()!r}: {number} tokens are not in 1 .. {MAX_TOKENS:,}")
    return LengthPair(int(numbers[0]), int(numbers[1]))


def _values(text: str) -> Iterator[float]:
    shape, colon, rest = text.partition(":")
    if not colon:
        yield from (_sweep_number(word) for word in text.split(","))
        return
    span, comma, count = rest.partition(",")
    first, dots, last = span.partition("..")
    if shape not in ("linear", "geometric") or not comma or not dots or not count.strip().isdecimal():
        raise ValueError(f"{text!r} is not linear:FROM..TO,COUNT or geometric:FROM..TO,COUNT")
    low, high, n = _sweep_number(first), _sweep_number(last), int(count)
    if not 2 <= n <= MOST_STAGES:
        raise ValueError(f"COUNT {count.strip()!r} is not in 2 .. {MOST_STAGES}")
    if low <= 0:
        raise ValueError(f"FROM {first.strip()!r} is not above 0")
    for i in range(n):
        part = i / (n - 1)
        yield low + (high - low) * part if shape == "linear" else low * (high / low) ** part


def _load(kind: Kind, value: float) -> float:
    if kind == "users":
        value = float(round(value))
        if not 1 <= value <= MAX_USERS:
            raise ValueError(f"{value:g} users are not in 1 .. {MAX_USERS:,}")
        return value
    if not 0 < value <= MAX_RATE:
        raise ValueError(f"{value:g} is not in 0 .. {MAX_RATE:,.0f} requests/s, without 0")
    return float(f"{value:.6g}")


def _sweep_number(word: str) -> float:
    value, text = plain_number(word), word.strip()
    if math.isnan(value) or not set(text) <= set("0123456789."):
        raise ValueError(f"{text!r} is not a number above 0")
    return value
