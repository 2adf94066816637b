"""Presets: each is usable as it is, has the limits that its case is known for."""

import numpy as np
import pytest

from llm_locust.metrics.gates import Slo, parse_slo
from llm_locust.scenario.classes import PRESETS, Preset
from llm_locust.workload.lengths import parse_lengths


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS.keys())
def test_lengths_and_limits_parse(preset: Preset) -> None:
    rng = np.random.default_rng(1)
    for text in (preset.input_tokens, preset.output_tokens):
        lengths = parse_lengths(text).draw(rng, 4000)
        median = float(text.removeprefix("lognormal:").split(",")[0])
        assert np.median(lengths) == pytest.approx(median, rel=0.1)
    assert isinstance(parse_slo(preset.slo), Slo)


@pytest.mark.parametrize(
    ("name", "slo"),
    [
        ("chat", Slo(ttft_s=0.5)),
        ("code", Slo(ttft_s=0.1)),
        ("voice", Slo(ttft_s=0.1)),
        ("agent", Slo(ttft_s=1.0, tpot_s=0.025)),
        ("batch", Slo()),
    ],
)
def test_limits_are_the_usual_ones_of_the_case(name: str, slo: Slo) -> None:
    assert parse_slo(PRESETS[name].slo) == slo
