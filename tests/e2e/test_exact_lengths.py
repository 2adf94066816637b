"""Prompts of exactly the asked length, as a server with the same tokenizer counts them."""

from pathlib import Path

import pytest

from e2e.servers import Server
from e2e.swarm import CHAT, QUESTIONS, Run, load

pytestmark = pytest.mark.e2e

LOAD = ["-u", "4", "-r", "4"]
FEW = [*LOAD, "--num-requests", "30", "-t", "60s", "--output-tokens", "2"]


@pytest.fixture(scope="module")
def tokenizer(transformers_serve: Server) -> list[str]:
    assert transformers_serve.model is not None
    return ["--tokenizer", str(transformers_serve.model)]


def asked_and_counted(run: Run) -> list[tuple[int, int]]:
    # Noise of two tokens may be no character at all: such an answer is empty, its prompt is counted.
    assert {row["outcome"] for row in run.rows} <= {"ok", "empty"}, run.output
    return [(row["asked_input_tokens"], row["input_tokens"]) for row in run.rows]


def test_512_tokens_asked_are_512_in_the_servers_usage_for_every_request(
    transformers_serve: Server, tokenizer: list[str], tmp_path: Path
) -> None:
    run = load(transformers_serve.url, tmp_path / "run", CHAT, [*tokenizer, *FEW, "--input-tokens", "512"])
    found = asked_and_counted(run)
    assert found == [(512, 512)] * 30
    assert {row["token_source"] for row in run.rows} == {"usage"}


def test_drawn_lengths_with_a_shared_prefix_are_exact_too(
    transformers_serve: Server, tokenizer: list[str], tmp_path: Path
) -> None:
    lengths = ["--input-tokens", "uniform:100,900", "--shared-prefix", "groups=3 tokens=150"]
    run = load(transformers_serve.url, tmp_path / "run", CHAT, [*tokenizer, *FEW, *lengths])
    found = asked_and_counted(run)
    assert len(found) == 30
    assert all(asked == counted for asked, counted in found)
    assert all(250 <= asked <= 1050 for asked, _ in found)
    assert len({asked for asked, _ in found}) > 20


def test_without_a_tokenizer_the_first_counts_correct_the_lengths_and_the_report_states_the_error(
    transformers_serve: Server, tmp_path: Path
) -> None:
    many = [*LOAD, "--num-requests", "80", "-t", "90s", "--output-tokens", "2"]
    run = load(transformers_serve.url, tmp_path / "run", CHAT, [*many, "--input-tokens", "uniform:200,500"])
    rows = sorted(run.rows, key=lambda row: row["sent_ns"])
    assert len(rows) == 80
    errors = [row["input_tokens"] / row["asked_input_tokens"] - 1 for row in rows]
    # This tokenizer knows few words: most are several tokens.
    assert sum(errors[:10]) / 10 > 0.5
    assert abs(sum(errors[-40:]) / 40) < 0.05
    assert run.summary["tokens"]["input"]["error"]["n"] == len(run.ok)


def test_a_dataset_keeps_its_own_lengths(
    transformers_serve: Server, tokenizer: list[str], tmp_path: Path
) -> None:
    dataset = ["--dataset", str(QUESTIONS), "--dataset-order", "shuffled", "--unique-head", "off"]
    run = load(transformers_serve.url, tmp_path / "run", CHAT, [*tokenizer, *FEW, *dataset])
    assert len(asked_and_counted(run)) == 30
