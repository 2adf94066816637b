"""GPUs by their makers' data sheets: peaks that no program exceeds, and few reach."""

import math
from dataclasses import dataclass

from llm_locust.core.texts import nearest

# --- Error of this package


class RooflineError(ValueError):
    """A GPU, a model or a question without a roofline; one line that says what to write."""


_GIB = 1 << 30
_TERA = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU: its memory in bytes, its bandwidth per second, and its dense matrix operations per second.

    ``fp8_flops`` and ``int8_flops`` are None if it has no such units: it then computes in 16 bits.

    Raises:
        RooflineError: a figure is not above 0, or not finite.
    """

    name: str
    memory_bytes: float
    bandwidth_bytes_per_s: float
    bf16_flops: float
    fp8_flops: float | None = None
    int8_flops: float | None = None

    def __post_init__(self) -> None:
        for key in ("memory_bytes", "bandwidth_bytes_per_s", "bf16_flops", "fp8_flops", "int8_flops"):
            value = getattr(self, key)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise RooflineError(f"{key} of {self.name} is {value:g}: write a number above 0")

    def peak_flops(self, arithmetic: str) -> float:
        """Dense operations per second in ``fp8``, ``int8``, or else in 16 bits."""
        peaks = {"fp8": self.fp8_flops, "int8": self.int8_flops}
        return peaks.get(arithmetic) or self.bf16_flops


def _gpu(
    name: str, memory_gib: float, bandwidth_tb: float, bf16: float, fp8: float | None, int8: float | None
) -> Gpu:
    """A row of the table. Data sheets write GB of memory and mean GiB, because chips come in powers of two;
    for bandwidth they mean 10⁹."""
    return Gpu(
        name=name,
        memory_bytes=memory_gib * _GIB,
        bandwidth_bytes_per_s=bandwidth_tb * _TERA,
        bf16_flops=bf16 * _TERA,
        fp8_flops=None if fp8 is None else fp8 * _TERA,
        int8_flops=None if int8 is None else int8 * _TERA,
    )


#: GiB, TB/s, dense TFLOP/s in bf16, fp8 and int8: half of a data sheet's figure if that is with sparsity.
GPUS: dict[str, Gpu] = {
    # NVIDIA A100 Tensor Core GPU data sheet (2021)
    "a100-40gb": _gpu("A100 40GB", 40, 1.555, 312, None, 624),
    "a100-80gb-pcie": _gpu("A100 80GB PCIe", 80, 1.935, 312, None, 624),
    "a100-80gb": _gpu("A100 80GB SXM", 80, 2.039, 312, None, 624),
    # NVIDIA A10 data sheet; AWS's A10G has 70 in its own data sheet (140 with sparsity), where A10 has 125
    "a10g": _gpu("A10G", 24, 0.600, 70, None, 140),
    "a10": _gpu("A10", 24, 0.600, 125, None, 250),
    # NVIDIA L4 data sheet (242 bf16, 485 fp8 and int8 with sparsity); NVIDIA L40S data sheet
    "l4": _gpu("L4", 24, 0.300, 121, 242.5, 242.5),
    "l40s": _gpu("L40S", 48, 0.864, 362.05, 733, 733),
    # NVIDIA H100 Tensor Core GPU data sheet (1,979, 1,513 and 1,671 bf16 with sparsity)
    "h100": _gpu("H100 SXM", 80, 3.35, 989.5, 1979, 1979),
    "h100-pcie": _gpu("H100 PCIe", 80, 2.0, 756.5, 1513, 1513),
    "h100-nvl": _gpu("H100 NVL", 94, 3.9, 835.5, 1670.5, 1670.5),
    # NVIDIA H200 Tensor Core GPU data sheet
    "h200": _gpu("H200 SXM", 141, 4.8, 989.5, 1979, 1979),
    "h200-nvl": _gpu("H200 NVL", 141, 4.8, 835.5, 1670.5, 1670.5),
    # NVIDIA DGX B200 data sheet (8 GPUs: 1,440 GB, 64 TB/s, 72 PFLOP/s fp8 with sparsity)
    "b200": _gpu("B200", 180, 8.0, 2250, 4500, 4500),
    # NVIDIA GB200 NVL72 data sheet, for one of its GPUs
    "gb200": _gpu("GB200", 186, 8.0, 2500, 5000, 5000),
    # AMD Instinct MI300X, MI325X and MI355X data sheets
    "mi300x": _gpu("MI300X", 192, 5.3, 1307.4, 2614.9, 2614.9),
    "mi325x": _gpu("MI325X", 256, 6.0, 1307.4, 2614.9, 2614.9),
    "mi355x": _gpu("MI355X", 288, 8.0, 2516.6, 5033.2, 5033.2),
}

_ALIASES = {
    "a100": "a100-80gb",
    "a100-sxm": "a100-80gb",
    "a100-80gb-sxm": "a100-80gb",
    "a100-pcie": "a100-80gb-pcie",
    "h100-sxm": "h100",
    "h200-sxm": "h200",
}


#: Keys of a GPU given by its values.
_VALUES = ("memory", "bandwidth", "bf16", "fp8", "int8")
_BY_VALUES = "memory=80,bandwidth=3.35,bf16=989.5,fp8=1979 (GiB, TB/s, dense TFLOP/s)"


def gpu_named(name: str) -> Gpu:
    """Find a GPU by name, as ``h100``, ``H100 PCIe``, ``A100_40GB``; or make one from values in the units of
    data sheets, as ``memory=80,bandwidth=3.35,bf16=989.5,fp8=1979``.

    Raises:
        RooflineError: there is none; suggests a similar name, or lists all.
    """
    if "=" in name:
        return _by_values(name)
    key = "-".join(name.lower().replace("_", " ").replace("-", " ").split())
    gpu = GPUS.get(_ALIASES.get(key, key))
    if gpu is None:
        hint = nearest(key, [*GPUS, *_ALIASES])
        raise RooflineError(f'there is no GPU "{name}": {hint}known are {", ".join(GPUS)}; or {_BY_VALUES}')
    return gpu


def _by_values(text: str) -> Gpu:
    values: dict[str, float] = {}
    for pair in text.split(","):
        key, _, value = (part.strip() for part in pair.partition("="))
        if key not in _VALUES or key in values:
            what = "is given twice" if key in values else f"is not one of {', '.join(_VALUES)}"
            raise RooflineError(f'GPU "{text}": "{key}" {what}: write {_BY_VALUES}')
        try:
            values[key] = float(value)
        except ValueError:
            raise RooflineError(f'GPU "{text}": {key} is "{value}": write a number') from None
    missing = [key for key in _VALUES[:3] if key not in values]
    if missing:
        raise RooflineError(f'GPU "{text}": {missing[0]} is missing: write {_BY_VALUES}')
    memory, bandwidth, bf16 = (values[key] for key in _VALUES[:3])
    return _gpu("GPU by its values", memory, bandwidth, bf16, values.get("fp8"), values.get("int8"))
