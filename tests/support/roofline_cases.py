"""Models and GPUs in plain numbers: what the tests of rooflines stand on."""

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from llm_locust.roofline import Gpu, ModelShape, Roof, gpu_named, read_model

MODELS = Path(__file__).parents[2] / "examples" / "models"

#: 1 TB/s, 100 TFLOP/s, 100 GB: bounds by it are read off.
PLAIN_GPU = Gpu(name="plain", memory_bytes=100e9, bandwidth_bytes_per_s=1e12, bf16_flops=100e12)


def llama_8b() -> ModelShape:
    return read_model(MODELS / "llama-3-8b.yaml")


def mixtral() -> ModelShape:
    return read_model(MODELS / "mixtral-8x7b.yaml")


def shape(**fields: Any) -> ModelShape:
    """A billion parameters in 16 bits; 80 kB of keys and values and 40 kFLOP of attention a token."""
    known: dict[str, Any] = {
        "name": "billion",
        "parameters": 1_000_000_000,
        "layers": 10,
        "hidden_size": 1,  # of an embedding and an output head that are next to nothing
        "attention_heads": 10,
        "kv_heads": 20,
        "head_dim": 100,
        "vocabulary": 1,
        "tied_embeddings": True,
    }
    return ModelShape(**{**known, **fields})


def plain_roof(gpus: float = 1, **fields: Any) -> Roof:
    return Roof(shape(**fields), PLAIN_GPU, gpus)


@st.composite
def roofs(draw: st.DrawFn) -> Roof:
    """Dense models and mixtures, on GPUs of any kind."""
    parameters = draw(st.integers(10**8, 10**12))
    mixture: dict[str, int] = {}
    if draw(st.booleans()):
        experts = draw(st.integers(2, 256))
        of_token = draw(st.integers(1, experts))
        # As many parameters in the experts as go with at least some that are shared.
        of_expert = parameters * 9 // 10 // experts
        active = parameters - (experts - of_token) * of_expert
        mixture = {"experts": experts, "experts_per_token": of_token, "active_parameters": active}
    model = shape(
        parameters=parameters,
        layers=draw(st.integers(1, 100)),
        kv_heads=draw(st.integers(1, 32)),
        weights=draw(st.sampled_from(["bf16", "fp8", "int4"])),
        **mixture,
    )
    gpu = gpu_named(draw(st.sampled_from(["a10g", "l4", "h100", "b200", "mi300x"])))
    return Roof(model, gpu, draw(st.integers(1, 64)))
