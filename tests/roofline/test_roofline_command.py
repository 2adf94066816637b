"""``llm-locust roofline``."""

import io
import json
from pathlib import Path

import pytest
from roofline_cases import MODELS, plain_roof

from llm_locust.cli.main import main
from llm_locust.cli.roofline import print_bounds
from llm_locust.roofline import Roof, answer, gpu_named, read_model

LLAMA = ["--gpu", "h100", "--model", str(MODELS / "llama-3-8b.yaml")]


def printed(roof: Roof, width: int = 80, **asked: object) -> str:
    file = io.StringIO()
    print_bounds(answer(roof, **asked), file, width)  # type: ignore[arg-type]
    return file.getvalue()


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    try:
        code: object = main(["roofline", *argv])
    except SystemExit as e:
        code = e.code
    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert said.err.count("\n") == 1
    return said.err


def test_the_table_has_the_terms_of_each_bound(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["roofline", *LLAMA, "--batch", "1,128"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Roofline of Llama 3 8B on 1 × H100 SXM"
    rows = [line.split() for line in lines if line.startswith(("prefill 512", "batch", "full"))]
    # GB of weights and of keys and values, ms to read them; TFLOP, ms to do them; ms at least.
    assert rows[0][2:] == ["15.0", "0", "4.48", "7.22", "7.29", "7.29", "compute"]
    assert rows[1][2:] == ["15.0", "0.0755", "4.50", "0.0153", "0.0155", "4.50", "memory", "222"]
    assert rows[2][2:8] == ["15.0", "9.66", "7.37", "1.96", "1.98", "7.37"]
    assert rows[3][:2] == ["full", "811"]


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("model", sorted(path.stem for path in MODELS.glob("*.yaml")))
def test_it_fits_any_terminal(model: str, width: int) -> None:
    roof = Roof(read_model(MODELS / f"{model}.yaml"), gpu_named("h200"), 16)
    text = printed(roof, width, batches=(1, 1_000_000), input_tokens=100_000, output_tokens=10_000)
    assert max(map(len, text.splitlines())) <= width
    assert ("of each" in text) == (width >= 120)
    assert "…" not in text


def test_notes_say_what_is_special() -> None:
    mixture = printed(Roof(read_model(MODELS / "mixtral-8x7b.yaml"), gpu_named("h100"), 2), 140)
    assert "12.9 of them active (2 of 8 experts)" in mixture
    assert "of the experts those are read that the tokens of a step choose" in mixture
    plain = printed(plain_roof(tied_embeddings=True), 140, batches=(10**6,))
    assert "experts" not in plain
    assert "embedding" not in plain
    assert "batch 1,000,000*" in plain
    assert "* more than the KV cache holds" in plain
    assert "bound by memory at any batch" in plain
    assert "bound by FLOP/s from a batch of 103 on" in printed(
        plain_roof(), 140, input_tokens=1, output_tokens=10
    )


def test_json_has_the_same_unrounded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["roofline", *LLAMA, "--gpus", "2", "--batch", "8", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["decode"][0]["weights_bytes"] == 15_009_849_344
    assert found["decode"][0]["tpot_ms"] == pytest.approx((15_009_849_344 + 8 * 576 * 131_072) / 6.7e9)
    assert found["decode"][0]["bound_by"] == "memory"
    assert found["prefill"]["ttft_ms"] == pytest.approx(7.2937 / 2, rel=1e-3)
    assert found["gpu"]["gpus"] == 2
    assert found["ridge_batch"] is None
    assert found["saturated"]["batch"] > 811


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([*LLAMA[:1], "h10", *LLAMA[2:]], 'there is no GPU "h10": did you mean "h100"?'),
        ([*LLAMA, "--gpus", "0"], "gpus is 0: write how many GPUs serve"),
        ([*LLAMA, "--gpus", "two"], "argument --gpus: invalid int value: 'two'"),
        ([*LLAMA, "--batch", "1,x"], '"1,x" is not a list of batches: write numbers, as 1,8,32'),
        ([*LLAMA, "--batch", "0"], "batch is 0: write numbers from 1"),
        ([*LLAMA, "--input-tokens", "0"], "input_tokens is 0: write 1 or more"),
        ([*LLAMA, "--output-tokens", "-5"], "output_tokens is -5: write 1 or more"),
        ([*LLAMA, "--memory-utilization", "2"], "memory_utilization is 2: write a number above 0"),
        (
            [*LLAMA, "--memory-utilization", "0.1"],
            "do not fit into 10% of 1 × H100 SXM (85.9 GB): give 2 GPUs",
        ),
        (LLAMA[:2], "the following arguments are required: --model"),
        ([*LLAMA[:3], "none.yaml"], "none.yaml: cannot be read: No such file or directory"),
    ],
)
def test_what_has_no_bounds_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], argv: list[str], said: str
) -> None:
    assert said in refused(capsys, *argv)


def test_a_name_cannot_colour_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(
        (MODELS / "llama-3-8b.yaml").read_text().replace("name: Llama 3 8B", "name: '[red]x[/red]'")
    )
    assert printed(Roof(read_model(path), gpu_named("h100"))).startswith("Roofline of [red]x[/red] on")


def test_an_output_without_its_signs_gets_plain_ones() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    print_bounds(answer(plain_roof()), file, 80)
    assert b"on 1 x plain" in raw.getvalue()
