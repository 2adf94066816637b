"""A model on its GPUs: upper bounds of a deployment."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm_locust.roofline.error import RooflineError
from llm_locust.roofline.gpus import Gpu, gpu_named
from llm_locust.roofline.model import ModelShape
from llm_locust.roofline.model_file import model_of

_OPTIONS = ("gpu_type", "model_shape", "gpus")


@dataclass(frozen=True, slots=True)
class Roof:
    """One model on ``gpus`` GPUs that divide its work without loss and without communication.

    Raises:
        RooflineError: no GPU.
    """

    model: ModelShape
    gpu: Gpu
    gpus: float = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.gpus) and self.gpus > 0):
            raise RooflineError(f"gpus is {self.gpus:g}: write how many GPUs serve")

    @property
    def bandwidth_bytes_per_s(self) -> float:
        return self.gpu.bandwidth_bytes_per_s * self.gpus

    @property
    def peak_flops(self) -> float:
        """Operations per second, in the arithmetic of the model."""
        return self.gpu.peak_flops(self.model.computed_in) * self.gpus

    @property
    def memory_bytes(self) -> float:
        return self.gpu.memory_bytes * self.gpus

    def __str__(self) -> str:
        return f"{self.model.name} ({self.model.weights}) on {self.gpus:g} × {self.gpu.name}"


def roof_of_options(options: Mapping[str, Any]) -> Roof | None:
    """Roofline from a run's options ``gpu_type``, ``model_shape`` and ``gpus``; None without the first two.

    ``model_shape`` is the document of a shape (see :func:`~llm_locust.roofline.model_file.model_of`). It is
    never a path: the options may come from the manifest of a stranger's run, which names no file to open.

    Raises:
        RooflineError: one of the three is missing or invalid.
    """
    gpu_type, shape, gpus = (options.get(name) or None for name in _OPTIONS)
    if gpu_type is None and shape is None:
        return None
    missing = [name for name in _OPTIONS if not options.get(name)]
    if missing:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise RooflineError(f"a roofline needs --gpu-type, --model-shape and --gpus: give {flags} too")
    if not isinstance(shape, Mapping):
        raise RooflineError("model_shape is no model's shape: give the file of one by --model-shape")
    model = model_of(shape, "model_shape")
    try:
        number = float(str(gpus))
    except ValueError:
        raise RooflineError(f'gpus is "{gpus}": write how many GPUs serve, as 4') from None
    return Roof(model, gpu_named(str(gpu_type)), number)
