"""Requests of several inputs: their texts, lengths and bodies."""

import json
from pathlib import Path
from typing import Any

import pytest

from llm_locust.wire.dialects.chat import CHAT
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.dialects.results import EMBEDDINGS, RERANK
from llm_locust.workload.datasets.load import load_dataset
from llm_locust.workload.datasets.row import DatasetError
from llm_locust.workload.lengths import parse_lengths
from llm_locust.workload.parts import WorkloadError
from llm_locust.workload.plan import Workload
from llm_locust.workload.spec import WorkloadSpec
from llm_locust.workload.text.prompts import Prompt, texts_of


def spec(endpoint: Dialect, inputs: str | None = None, **more: Any) -> WorkloadSpec:
    sizes = None if inputs is None else parse_lengths(inputs)
    return WorkloadSpec(endpoint=endpoint, inputs=sizes, **more)


def prompts(of: WorkloadSpec, number: int, user: int = 0, salt: str = "run") -> list[Prompt]:
    made = Workload(of, 7, 0, 1, salt).prompts(user)
    return [next(made) for _ in range(number)]


def bodies(of: WorkloadSpec, number: int) -> list[dict[str, Any]]:
    template = of.body_template("m")
    return [json.loads(template.encode(prompt)) for prompt in prompts(of, number)]


def test_an_embeddings_request_has_so_many_texts_of_the_asked_length() -> None:
    of = spec(EMBEDDINGS, "3", input_tokens=parse_lengths("20"), calibrate=False)
    for body, prompt in zip(bodies(of, 5), prompts(of, 5), strict=True):
        assert body.keys() == {"model", "input"}
        assert [len(text.split()) for text in body["input"]] == [18, 18, 18]  # and a mark on each side
        assert prompt.asked_input_tokens == 60
        assert prompt.asked_output_tokens is None


def test_a_single_text_is_no_list() -> None:
    (body,) = bodies(spec(EMBEDDINGS, input_tokens=parse_lengths("20")), 1)
    assert isinstance(body["input"], str)


def test_numbers_of_inputs_follow_their_distribution_and_the_seed_alone() -> None:
    of = spec(EMBEDDINGS, "uniform:1,8")
    sizes = [len(prompt.messages or (1,)) for prompt in prompts(of, 200)]
    assert set(sizes) == set(range(1, 9))
    assert sizes == [len(prompt.messages or (1,)) for prompt in prompts(of, 200, salt="another")]


def test_every_text_of_a_run_begins_with_words_of_its_own() -> None:
    of = spec(EMBEDDINGS, "8", input_tokens=parse_lengths("20"))
    texts = [text for body in bodies(of, 10) for text in body["input"]]
    assert len({tuple(text.split()[:6]) for text in texts}) == 80


def test_a_rerank_has_one_query_and_counts_it_with_each_document() -> None:
    of = spec(RERANK, "4", input_tokens=parse_lengths("50"), extra_body={"top_n": 2})
    (prompt,), (body,) = prompts(of, 1), bodies(of, 1)
    assert body.keys() == {"model", "query", "documents", "top_n"}
    pairs = [len(body["query"].split()) + len(text.split()) for text in body["documents"]]
    assert pairs == [32 + 50 - RERANK.template_tokens] * 4
    assert prompt.asked_input_tokens == 4 * (32 + 50)


@pytest.mark.parametrize(("endpoint", "around"), [(EMBEDDINGS, 2), (EMBEDDINGS, 9), (RERANK, 0), (RERANK, 4)])
@pytest.mark.parametrize("lengths", ["120", "uniform:40,400"])
def test_lengths_are_learned_from_counts_of_several_texts(
    endpoint: Dialect, around: int, lengths: str
) -> None:
    of = spec(endpoint, "uniform:2,9", input_tokens=parse_lengths(lengths))
    workload = Workload(of, 7, 0, 1, "run")
    made, off = workload.prompts(0), []
    for _ in range(200):
        prompt = next(made)
        query, *documents = [len(text.split()) for text in texts_of(prompt)]
        alone = [query, *documents] if endpoint is EMBEDDINGS else [query + words for words in documents]
        counted = sum(round(1.4 * words) + around for words in alone)
        workload.learn(prompt, counted)
        assert prompt.asked_input_tokens is not None
        off.append(counted / prompt.asked_input_tokens - 1)
    assert abs(sum(off[:8]) / 8) > 0.2
    assert abs(sum(off[128:]) / 72) < 0.01


def test_a_rerank_without_a_number_has_ten_documents() -> None:
    (body,) = bodies(spec(RERANK), 1)
    assert len(body["documents"]) == 10


def lines(folder: Path, *found: Any) -> Path:
    path = folder / "lines.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in found))
    return path


def test_lines_of_a_dataset_are_grouped(tmp_path: Path) -> None:
    dataset = load_dataset(lines(tmp_path, *"abcdef"))
    first, second = bodies(spec(EMBEDDINGS, "3", dataset=dataset, unique_head=False), 2)
    assert (first["input"], second["input"]) == (["a", "b", "c"], ["d", "e", "f"])
    first, second = bodies(spec(RERANK, "2", dataset=dataset, unique_head=False), 2)
    assert (first["query"], first["documents"]) == ("a", ["b", "c"])
    assert (second["query"], second["documents"]) == ("d", ["e", "f"])


def test_each_text_of_a_dataset_has_a_head_of_its_own(tmp_path: Path) -> None:
    dataset = load_dataset(lines(tmp_path, *"aaa"))
    (body,) = bodies(spec(EMBEDDINGS, "3", dataset=dataset), 1)
    assert len(set(body["input"])) == 3
    assert all(text.endswith(" a") for text in body["input"])


def test_a_line_of_messages_is_a_request_of_its_own(tmp_path: Path) -> None:
    texts = [{"role": "user", "content": text} for text in ("q", "one", "two")]
    dataset = load_dataset(lines(tmp_path, {"messages": texts, "top_n": 1}))
    (body,) = bodies(spec(RERANK, dataset=dataset, unique_head=False), 1)
    assert (body["query"], body["documents"], body["top_n"]) == ("q", ["one", "two"], 1)


def test_what_cannot_be_sent_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="inputs '8' for the chat endpoint"):
        spec(CHAT, "8")
    with pytest.raises(WorkloadError, match="at most 2,048"):
        spec(EMBEDDINGS, "uniform:1,4000")
    image = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}
    with pytest.raises(DatasetError, match="image_url"):
        spec(EMBEDDINGS, dataset=load_dataset(lines(tmp_path, image)))
    query = {"messages": [{"role": "user", "content": "a query alone"}]}
    with pytest.raises(DatasetError, match="no document"):
        spec(RERANK, dataset=load_dataset(lines(tmp_path, query)))


@pytest.mark.parametrize("endpoint", [EMBEDDINGS, RERANK])
def test_a_body_asks_for_no_stream_and_bounds_no_answer(endpoint: Dialect) -> None:
    of = spec(endpoint, output_tokens=parse_lengths("64"), ignore_eos=True)
    assert of.body_template("m").streamed is False
    (body,) = bodies(of, 1)
    assert not {"stream", "stream_options", "max_tokens", "ignore_eos"} & body.keys()
