"""Answers that the model ends itself, by a server that nobody of this project wrote.

It ends them as vLLM does: the end-of-sequence token is counted, has no text, and comes one step after the
last token as an event with the finish reason. The tiny model ends an answer where a request lets it, and
says letters alone, so that each token is an event.
"""

import json
from statistics import mean

import pytest

from e2e.servers import Server
from e2e.swarm import CHAT, QUESTIONS, Run, load

pytestmark = pytest.mark.e2e

END = 1  # the tokenizer's second special token
BOUND = 24


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
    body = json.dumps(letters_and_an_end(transformers_serve))
    arguments = ["-u", "2", "-r", "2", "-t", "3m", "--num-requests", "20", "--dataset", str(QUESTIONS)]
    arguments += ["--output-tokens", str(BOUND), "--body", body]
    return load(transformers_serve.url, tmp_path_factory.mktemp("ends") / "run", CHAT, arguments)


def test_an_end_is_counted_and_comes_with_the_finish_reason(run: Run) -> None:
    ended = [row for row in run.ok if row["finish_reason"] == "stop"]
    assert len(ended) > 5
    for row in ended:
        assert row["output_tokens"] == len(row["arrivals_ns"]) + 1
        assert row["finish_ns"] >= row["arrivals_ns"][-1]


def test_an_answer_that_stopped_at_its_bound_has_no_such_end(run: Run) -> None:
    bounded = [row for row in run.ok if row["finish_reason"] == "length"]
    assert bounded
    assert all(row["output_tokens"] == BOUND for row in bounded)
    # This server gives `length` for an end that comes as the last token too.
    assert {BOUND - len(row["arrivals_ns"]) for row in bounded} <= {0, 1}


def test_the_pace_holds_the_end_and_the_stream_is_token_by_token(run: Run) -> None:
    ends = [row["finish_ns"] if row["finish_reason"] == "stop" else row["arrivals_ns"][-1] for row in run.ok]
    paces = [
        (end - row["arrivals_ns"][0]) / (row["output_tokens"] - 1) * 1e-6
        for row, end in zip(run.ok, ends, strict=True)
        if end > row["arrivals_ns"][0]  # all of it in one read has no pace
    ]
    assert run.summary["latency_ms"]["tpot"]["n"] == len(paces)
    assert run.summary["latency_ms"]["tpot"]["mean"] == pytest.approx(mean(paces))
    assert 1.0 <= run.summary["tokens"]["tokens_per_event"] < 1.01  # 1.06 where ends are taken for text
