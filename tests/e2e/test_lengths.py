"""Prompts of exactly the asked length, and answers that the model ends itself, as a server of others counts.

The server ends answers as vLLM does: the end-of-sequence token is counted, has no text, and comes one step
after the last token as an event with the finish reason. The tiny model ends an answer where a request lets
it, and says letters alone then, so that each token is an event.
"""

import json
from statistics import mean
from typing import Any

import pytest

from e2e.servers import Server
from e2e.swarm import QUESTIONS, ROOT, Run, load
from llm_locust.metrics.question import Question
from llm_locust.report.analysis import analyse
from llm_locust.report.inputs import open_source

pytestmark = pytest.mark.e2e

END = 1  # the tokenizer's second special token
BOUND = 24

SCENARIO = f"""
num_requests: 84
tokenizer: {{tokenizer}}
output_tokens: 2
classes:
  fixed: {{{{input_tokens: 512}}}}
  drawn: {{{{input_tokens: "uniform:100,900", shared_prefix: {{{{groups: 3, tokens: 150}}}}}}}}
  dataset: {{{{dataset: {{{{file: {QUESTIONS}, order: shuffled}}}}, unique_head: false}}}}
  ends: {{{{input_tokens: 20, output_tokens: {BOUND}, body: {{body}}}}}}
"""


def letters_and_an_end(server: Server) -> dict[str, object]:
    """Body fields: one token in twenty or so is the end, none of the first three."""
    assert server.model is not None
    vocabulary = json.loads((server.model / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    others = (i for token, i in vocabulary.items() if not (token.isascii() and token.isalpha()) and i != END)
    sampling = {"do_sample": True, "top_k": 0, "min_new_tokens": 3, "eos_token_id": END, "pad_token_id": END}
    return {
        "generation_config": json.dumps(sampling),
        "logit_bias": {**{str(i): -100.0 for i in others}, str(END): 1.0},
    }


@pytest.fixture(scope="module")
def run(transformers_serve: Server, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("lengths")
    scenario = folder / "s.yaml"
    body = json.dumps(letters_and_an_end(transformers_serve))
    scenario.write_text(SCENARIO.format(tokenizer=transformers_serve.model, body=body))
    words = ["-u", "4", "-r", "4", "-t", "180s", "--scenario", str(scenario)]
    run = load(transformers_serve.url, folder / "run", ROOT / "locustfiles/scenario.py", words)
    # Noise of two tokens may be no character at all: such an answer is empty, its prompt is counted.
    assert {row["outcome"] for row in run.rows} <= {"ok", "empty"}, run.output
    assert {row["token_source"] for row in run.rows} == {"usage"}
    assert len(run.rows) == 84
    return run


def of(run: Run, name: str) -> list[dict[str, Any]]:
    """The records of a class."""
    found = [row for row in run.rows if row["class"] == name]
    assert len(found) > 8
    return found


def test_512_tokens_asked_are_512_in_the_servers_usage_for_every_request(run: Run) -> None:
    assert {(row["asked_input_tokens"], row["input_tokens"]) for row in of(run, "fixed")} == {(512, 512)}


def test_drawn_lengths_with_a_shared_prefix_are_exact_too(run: Run) -> None:
    found = of(run, "drawn")
    assert all(row["asked_input_tokens"] == row["input_tokens"] for row in found)
    assert all(250 <= row["input_tokens"] <= 1050 for row in found)
    assert len({row["input_tokens"] for row in found}) > 6


def test_a_dataset_keeps_its_own_lengths(run: Run) -> None:
    found = of(run, "dataset")
    assert {row["asked_input_tokens"] for row in found} == {None}
    assert len({row["input_tokens"] for row in found}) > 6


def test_an_end_is_counted_and_comes_with_the_finish_reason(run: Run) -> None:
    ended = [row for row in of(run, "ends") if row["finish_reason"] == "stop"]
    assert len(ended) > 5
    for row in ended:
        assert row["output_tokens"] == len(row["arrivals_ns"]) + 1
        assert row["finish_ns"] >= row["arrivals_ns"][-1]


def test_an_answer_that_stopped_at_its_bound_has_no_such_end(run: Run) -> None:
    bounded = [row for row in of(run, "ends") if row["finish_reason"] == "length"]
    assert bounded
    assert all(row["output_tokens"] == BOUND for row in bounded)
    # This server gives `length` for an end that comes as the last token too.
    assert {BOUND - len(row["arrivals_ns"]) for row in bounded} <= {0, 1}


def test_the_pace_holds_the_end_and_the_stream_is_token_by_token(run: Run) -> None:
    rows = of(run, "ends")
    ends = [row["finish_ns"] if row["finish_reason"] == "stop" else row["arrivals_ns"][-1] for row in rows]
    paces = [
        (end - row["arrivals_ns"][0]) / (row["output_tokens"] - 1) * 1e-6
        for row, end in zip(rows, ends, strict=True)
        if end > row["arrivals_ns"][0]  # all of it in one read has no pace
    ]
    tpot = run.summary["by_class"]["ends"]["latency_ms"]["tpot"]
    assert tpot["n"] == len(paces)
    assert tpot["mean"] == pytest.approx(mean(paces))
    with open_source([run.folder]) as source:
        told = analyse(source, Question(where="class == ends")).summary
    assert 1.0 <= (told.tokens.tokens_per_event or 0.0) < 1.01  # 1.06 where ends are taken for text
