"""Prompts of exactly the asked length, as a server with the same tokenizer counts them."""

from pathlib import Path

import pytest

from e2e.servers import Server
from e2e.swarm import CHAT, QUESTIONS, ROOT, load

pytestmark = pytest.mark.e2e

#: Asked and counted tokens of requests.
Counts = dict[str, list[tuple[int | None, int]]]

LOAD = ["-u", "4", "-r", "4", "-t", "90s", "--output-tokens", "2"]
SCENARIO = f"""
num_requests: 72
tokenizer: {{tokenizer}}
classes:
  fixed: {{{{input_tokens: 512}}}}
  drawn: {{{{input_tokens: "uniform:100,900", shared_prefix: {{{{groups: 3, tokens: 150}}}}}}}}
  dataset: {{{{dataset: {{{{file: {QUESTIONS}, order: shuffled}}}}, unique_head: false}}}}
"""


@pytest.fixture(scope="module")
def counts(transformers_serve: Server, tmp_path_factory: pytest.TempPathFactory) -> Counts:
    """Of each class's requests."""
    folder = tmp_path_factory.mktemp("exact")
    scenario = folder / "s.yaml"
    scenario.write_text(SCENARIO.format(tokenizer=transformers_serve.model))
    words = [*LOAD, "--scenario", str(scenario)]
    run = load(transformers_serve.url, folder / "run", ROOT / "locustfiles/scenario.py", words)
    # Noise of two tokens may be no character at all: such an answer is empty, its prompt is counted.
    assert {row["outcome"] for row in run.rows} <= {"ok", "empty"}, run.output
    assert {row["token_source"] for row in run.rows} == {"usage"}
    assert len(run.rows) == 72
    found: Counts = {}
    for row in run.rows:
        found.setdefault(row["class"], []).append((row["asked_input_tokens"], row["input_tokens"]))
    assert min(map(len, found.values())) > 8
    return found


def test_512_tokens_asked_are_512_in_the_servers_usage_for_every_request(
    counts: Counts,
) -> None:
    assert set(counts["fixed"]) == {(512, 512)}


def test_drawn_lengths_with_a_shared_prefix_are_exact_too(counts: Counts) -> None:
    found = counts["drawn"]
    assert all(asked == counted for asked, counted in found)
    assert all(250 <= counted <= 1050 for _, counted in found)
    assert len({asked for asked, _ in found}) > 6


def test_a_dataset_keeps_its_own_lengths(counts: Counts) -> None:
    found = counts["dataset"]
    assert {asked for asked, _ in found} == {None}
    assert len({counted for _, counted in found}) > 6


def test_without_a_tokenizer_the_first_counts_correct_the_lengths_and_the_report_states_the_error(
    transformers_serve: Server, tmp_path: Path
) -> None:
    many = [*LOAD, "--num-requests", "80", "--input-tokens", "uniform:200,500"]
    run = load(transformers_serve.url, tmp_path / "run", CHAT, many)
    rows = sorted(run.rows, key=lambda row: row["sent_ns"])
    assert len(rows) == 80
    errors = [row["input_tokens"] / row["asked_input_tokens"] - 1 for row in rows]
    # This tokenizer knows few words: most are several tokens.
    assert sum(errors[:10]) / 10 > 0.5
    assert abs(sum(errors[-40:]) / 40) < 0.05
    assert run.summary["tokens"]["input"]["error"]["n"] == len(run.ok)
