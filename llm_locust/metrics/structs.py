"""What the structs of a summary have in common, and figures that several sections have.

A key's annotation says what it means (unit, estimator) and of what it is (denominator). The JSON schema, the
table of all keys that ``llm-locust schema --keys`` prints and the types that reports read come from there."""

import math
import re
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

#: A 95 % interval: low, high. An end is None where it falls on +∞, the whole where the data cannot tell.
Interval = tuple[float | None, float | None] | None


class SummaryPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An object of ``summary.json``. A key that a summary may lack is ``UNSET`` there."""

    def figure(self, name: str) -> float | None:
        """The figure of this key; None where it is undetermined."""
        value: float | None = getattr(self, name)
        return value

    def bound(self, name: str) -> float | None:
        """The lower bound of a figure that is undetermined."""
        bounds: dict[str, float] = getattr(self, "at_least", {})
        return bounds.get(name)

    def intervals(self) -> dict[str, Interval]:
        """The 95 % interval of each figure that has one; None where the data cannot tell."""
        found: dict[str, Interval] = getattr(self, "ci95", {})
        return found


def key(meaning: str, of: str = "") -> msgspec.Meta:
    """What a key means (with unit and estimator) and of what it is."""
    description = meaning + (f". Of: {of}" if of else "")
    return msgspec.Meta(description=description, extra={"meaning": meaning, "of": of})


_OBSERVED = "observed and censored"

_Moment = Annotated[
    float | None,
    key(
        "ms; `std` is that of the population (divisor n); by the product limit where values are censored, "
        "null where undetermined",
        _OBSERVED,
    ),
]
_Percentile = Annotated[
    float | None,
    key(
        "ms, numpy's `linear` percentile; by the product limit where values are censored, null where "
        "undetermined. A report that was asked for other percentiles has those too",
        _OBSERVED,
    ),
]


class LatencyKeys(SummaryPart, frozen=True):
    """The figures of one latency that every summary has."""

    n: Annotated[
        int,
        key(
            "number of observed values",
            "ok, or given up or timed out when that token had come; scheduled in the window, metric defined",
        ),
    ]
    mean: _Moment
    std: _Moment
    min: _Moment
    max: _Moment
    p50: _Percentile
    p75: _Percentile
    p90: _Percentile
    p95: _Percentile
    p99: _Percentile
    p99_9: _Percentile
    ci95: Annotated[
        dict[str, Interval],
        key(
            "95 % interval of the mean and of each percentile, ms; null where the data cannot tell: "
            "[intervals](statistics.md#intervals)",
            _OBSERVED,
        ),
    ]
    n_effective: Annotated[
        dict[str, float | None],
        key(
            "as many independent samples would have the standard error of the mean, and of the share at or "
            "below the percentile",
            _OBSERVED,
        ),
    ]
    beyond: Annotated[
        list[str],
        key(
            "percentiles that fall on a failed request: the truth is above the largest value", "adjusted only"
        ),
    ]
    censored: Annotated[
        int,
        key(
            "number of censored values; not in `n`",
            "cut, abandoned or timed out before the metric's end, scheduled in the window; of what is "
            "counted from scheduled, unsent too; stuck",
        ),
    ]
    at_least: Annotated[
        dict[str, float], key("lower bound of each figure that is undetermined, ms", _OBSERVED)
    ]
    relative_error: Annotated[
        float | UnsetType,
        key(
            "of `itl` only: largest relative error of a percentile: 0 where every gap was kept, 0.0005 where "
            "gaps were counted in bins",
            "gaps of ok requests",
        ),
    ] = UNSET


class LatencyTable(dict[str, Any]):
    """The figures of one latency, ms, by their keys; ``known`` has those of every summary with their types.

    No struct, because a report may be asked for any percentile.
    """

    __slots__ = ("known",)

    def __init__(self, found: dict[str, Any]) -> None:
        """Take the JSON object (raises msgspec.ValidationError where a key is missing, unknown or wrong)."""
        asked = {name: found[name] for name in found if PERCENTILE.fullmatch(name)}
        msgspec.convert(asked, dict[str, float | None])
        usual = {name: found[name] for name in found if name not in asked or name in _USUAL}
        self.known = msgspec.convert(usual, LatencyKeys)
        super().__init__(found | {"ci95": self.known.ci95})

    def figure(self, name: str) -> float | None:
        """The figure of this key; None where it is undetermined."""
        value: float | None = self[name]
        return value

    def bound(self, name: str) -> float | None:
        """The lower bound of a figure that is undetermined."""
        return self.known.at_least.get(name)

    def intervals(self) -> dict[str, Interval]:
        """The 95 % interval of the mean and of each percentile; None where the data cannot tell."""
        return self.known.ci95


#: What has estimates by their keys, some with bounds and intervals.
Figures = SummaryPart | LatencyTable

#: Keys of percentiles: p99_9 is that of 99.9 %.
PERCENTILE = re.compile(r"p[0-9]{1,2}(?:_[0-9]{1,6})?")
_USUAL = frozenset(LatencyKeys.__struct_fields__)


Intervals = Annotated[
    dict[str, Interval],
    key("95 % interval of the mean and of each percentile; null where the data cannot tell", "the same"),
]
Effective = Annotated[
    dict[str, float | None], key("as many independent samples would have the same standard error", "the same")
]


class Amounts(SummaryPart, frozen=True):
    """How many of something each of several has."""

    n: Annotated[int, key("number of values")]
    mean: Annotated[float | None, key("mean")]
    p50: Annotated[float | None, key("median")]
    max: Annotated[float | None, key("largest")]


def largest(values: Iterable[float | None]) -> float | None:
    """Largest known value; None without any."""
    return max((v for v in map(finite, values) if v is not None), default=None)


def finite(value: float | None) -> float | None:
    """The value, or None if it is not a finite number."""
    return value if value is not None and math.isfinite(value) else None
