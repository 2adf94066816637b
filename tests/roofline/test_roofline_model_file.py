"""Models' shapes from files."""

from dataclasses import asdict
from pathlib import Path

import pytest
from roofline_cases import MODELS

from llm_locust.roofline.gpus import RooflineError
from llm_locust.roofline.model import model_of, read_model

LINES = (
    "parameters: 8.03e9",
    "layers: 32",
    "hidden_size: 4096",
    "attention_heads: 32",
    "vocabulary: 128_256",
)

#: Parameters counted by their published shapes: what their checkpoints have.
PUBLISHED = {
    "llama-3-8b": (8_030_261_248, 131_072),
    "llama-3-70b": (70_553_706_496, 327_680),
    "qwen-2.5-7b": (7_615_616_512, 57_344),
    "qwen-2.5-72b": (72_706_203_648, 327_680),
    "mixtral-8x7b": (46_702_792_704, 131_072),
    "deepseek-v3": (671_026_419_200, 70_272),
}


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "own.yaml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(RooflineError) as e:
        read_model(path)
    said = str(e.value)
    assert said.startswith(f"{path}: ")
    assert "\n" not in said
    return said.removeprefix(f"{path}: ")


@pytest.mark.parametrize("name", PUBLISHED)
def test_an_example_is_the_published_model(name: str) -> None:
    model = read_model(MODELS / f"{name}.yaml")
    assert (model.parameters, model.kv_bytes_per_token) == PUBLISHED[name]


def test_every_example_is_looked_at_and_names_its_source() -> None:
    assert {path.stem for path in MODELS.glob("*.yaml")} == set(PUBLISHED)
    assert all("source: https://huggingface.co/" in path.read_text() for path in MODELS.glob("*.yaml"))


def test_deepseek_computes_in_eight_bits_and_reads_one_token_as_its_active_parameters() -> None:
    model = read_model(MODELS / "deepseek-v3.yaml")
    assert model.computed_in == "fp8"
    assert model.active == pytest.approx(37.5e9, rel=0.01)
    assert model.read_bytes(1.0) == pytest.approx(model.active - 129_280 * 7168)


def test_what_is_not_written_follows_from_the_rest(tmp_path: Path) -> None:
    model = read_model(written(tmp_path, *LINES))
    assert (model.name, model.parameters) == ("own", 8_030_000_000)
    assert (model.head_dim, model.kv_heads, model.weights) == (128, 32, "bf16")


def test_a_shape_is_a_document_of_itself() -> None:
    model = read_model(MODELS / "mixtral-8x7b.yaml")
    assert model_of(asdict(model), "manifest") == model


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("kv_head: 8", "there is no key 'kv_head': did you mean \"kv_heads\"? known are parameters"),
        ("1: 8", "there is no key 1: known are parameters"),
        ("kv_heads: many", "kv_heads is 'many': write a whole number above 0, as 32 or 8.03e9"),
        ("kv_heads: 2.5", "kv_heads is 2.5: write a whole number above 0"),
        ("kv_heads: true", "kv_heads is True: write a whole number above 0"),
        ("kv_heads: .inf", "kv_heads is inf: write a whole number above 0"),
        ("kv_heads: [8]", "kv_heads is a list: write a whole number above 0"),
        ("kv_bytes: -1", "kv_bytes is -1: write a number above 0"),
        ("weights: bf8", "weights is 'bf8': write one of bf16, fp16, fp8, int8, fp4, int4"),
        ("kv_cache: [fp8]", "kv_cache is a list: write one of"),
        ("tied_embeddings: 1", "tied_embeddings is 1: write true or false"),
        ("name: [a]", "name is a list: write a text of one line"),
        ('name: "a\\nb"', "name is 'a\\nb': write a text of one line"),
        ("kv_heads: &a [1, 2]\nexperts: [*a, *a]", "kv_heads is a list"),
        ("experts: 8", "own has some of active_parameters, experts and experts_per_token"),
    ],
)
def test_what_is_wrong_is_told_with_its_key_and_what_is_allowed(tmp_path: Path, line: str, said: str) -> None:
    assert refusal(written(tmp_path, *LINES, line)).startswith(said)


@pytest.mark.parametrize("line", LINES)
def test_a_line_that_is_needed_is_missed_by_its_name(tmp_path: Path, line: str) -> None:
    key = line.partition(":")[0]
    assert refusal(written(tmp_path, *(other for other in LINES if other != line))).startswith(
        f"{key} is missing"
    )


def test_a_head_dim_that_does_not_follow_has_to_be_written(tmp_path: Path) -> None:
    lines = [line.replace("4096", "4100") for line in LINES]
    assert "hidden_size 4100 is no multiple of attention_heads 32: write it" in refusal(
        written(tmp_path, *lines)
    )
    assert read_model(written(tmp_path, *lines, "head_dim: 64")).head_dim == 64


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "not a mapping"),
        (b"- 1", "not a mapping"),
        (b"layers: [", "broken YAML"),
        (b"layers: !!python/object:os.system 1", "broken YAML"),
        (b"\xff\xfe\xff", "cannot be read: it is not UTF-8"),
        (b"[" * 1000, "broken YAML: too deep"),
        (b"#" * 70_000, "longer than 64 KiB"),
        (b'layers: "\\U99999999"', "broken YAML"),
    ],
)
def test_a_file_that_is_none_is_refused_in_one_line(tmp_path: Path, text: bytes, said: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_bytes(text)
    assert refusal(path).startswith(said)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.yaml").startswith("cannot be read: No such file")
    assert refusal(tmp_path).startswith("cannot be read: Is a directory")


def test_a_name_without_a_value_is_the_file_s(tmp_path: Path) -> None:
    assert read_model(written(tmp_path, *LINES, "name:")).name == "own"
    with pytest.raises(RooflineError, match="where: name is missing"):
        model_of({**asdict(read_model(written(tmp_path, *LINES))), "name": None}, "where")
