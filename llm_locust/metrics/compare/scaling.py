"""What more GPUs gave: several runs of the same load on deployments of other sizes."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median


class ScalingError(ValueError):
    """Runs that cannot be set side by side; one line that says why."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """One run against the one with the fewest GPUs, of ``g`` and ``base`` GPUs.

    ``per_gpu`` = rate / g. ``speedup`` = rate / rate of the base. ``efficiency`` = speedup · base / g: 1
    where each GPU gives as much as before. ``serial`` is Karp and Flatt's (1/speedup − 1/p) / (1 − 1/p) with
    p = g / base: the share of the work that does not scale. One that grows with g points to communication,
    one that stays to a part that is done once (a gateway, the client). None for the base itself.
    """

    gpus: float
    rate: float
    per_gpu: float
    speedup: float
    efficiency: float
    serial: float | None


def scaling(runs: Iterable[tuple[float, float]]) -> list[Scaled]:
    """Each run's ``(GPUs, rate)`` by rising number of GPUs; of several with as many the median rate counts.

    Rates are what is compared, such as output tokens/s or good requests/s, at a load that saturates each
    deployment: at a fixed request rate a larger one is only idler.

    Raises:
        ScalingError: fewer than two numbers of GPUs, a number or rate that is not above 0.
    """
    rates: dict[float, list[float]] = {}
    for gpus, rate in runs:
        if not (math.isfinite(gpus) and gpus > 0 and math.isfinite(rate) and rate > 0):
            raise ScalingError(f"a run with {gpus:g} GPUs and a rate of {rate:g}: both must be above 0")
        rates.setdefault(gpus, []).append(rate)
    if len(rates) < 2:
        raise ScalingError(f"runs with {len(rates)} number of GPUs: name at least two, by --gpus of each run")
    base = min(rates)
    base_rate = median(rates[base])
    return [_scaled(gpus, median(rates[gpus]), base, base_rate) for gpus in sorted(rates)]


def _scaled(gpus: float, rate: float, base: float, base_rate: float) -> Scaled:
    speedup, times = rate / base_rate, gpus / base
    serial = None if times == 1 else (1 / speedup - 1 / times) / (1 - 1 / times)
    return Scaled(gpus, rate, rate / gpus, speedup, speedup / times, serial)
