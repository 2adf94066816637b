"""Prices: what is paid for GPUs and tokens."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


class PriceError(ValueError):
    """A price or a number of GPUs that is none; one line that says what to write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What is paid, in any one currency. None is what is not known.

    ``gpu_hour_cost`` is of one GPU for an hour, ``gpus`` how many the deployment under test has;
    ``input_token_price`` and ``output_token_price`` are of a million tokens.

    Raises:
        PriceError: a price below 0, no GPU, or a number that is not finite.
    """

    gpu_hour_cost: float | None = None
    gpus: float | None = None
    input_token_price: float | None = None
    output_token_price: float | None = None

    def __post_init__(self) -> None:
        for name in _NAMES:
            value = getattr(self, name)
            if value is None:
                continue
            if not math.isfinite(value) or value < 0:
                raise PriceError(f"{name} is {value:g}: write a number of 0 or more")
            if name == "gpus" and not value:
                raise PriceError("gpus is 0: write how many GPUs the deployment has")

    @classmethod
    def of_options(cls, options: Mapping[str, Any]) -> "Prices":
        """Those of a run's options; each is a number, or a text of one.

        Raises:
            PriceError: see the class.
        """
        return cls(**{name: _number(name, options.get(name)) for name in _NAMES})

    def or_else(self, other: "Prices") -> "Prices":
        """These, and where one is not known the other's."""
        mine = {name: getattr(self, name) for name in _NAMES}
        return Prices(**{name: getattr(other, name) if v is None else v for name, v in mine.items()})

    def __bool__(self) -> bool:
        return any(getattr(self, name) is not None for name in _NAMES)


_NAMES = tuple(field.name for field in fields(Prices))


def _number(name: str, value: Any) -> float | None:
    if value is None or value == "":
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        raise PriceError(f'{name} is "{value}": write a number, as 2.5') from None
