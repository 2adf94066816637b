"""Who sends what: reproducible from the seed, different for every user, dataset lines used once."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_locust.workload.body import BodyError
from llm_locust.workload.dataset import Dataset, DatasetError
from llm_locust.workload.lengths import parse_lengths
from llm_locust.workload.plan import Workload, WorkloadError, WorkloadSpec
from llm_locust.workload.prompts import HEAD_WORDS, Prompt

SYNTHETIC = WorkloadSpec(
    input_tokens=parse_lengths("uniform:100,200"), output_tokens=parse_lengths("uniform:10,500")
)
TEXTS = tuple(Prompt(text=f"question {i}") for i in range(10))
QUESTIONS = Dataset("questions", TEXTS, tuple(range(1, 11)))


def prompts(
    spec: WorkloadSpec,
    n: int = 5,
    *,
    seed: int = 1,
    worker: int = 0,
    workers: int = 2,
    salt: str = "a",
    user: int = 0,
) -> list[Prompt]:
    return list(islice(Workload(spec, seed, worker, workers, salt).prompts(user), n))


def without_head(prompt: Prompt) -> list[str]:
    return (prompt.text or "").split(" ")[HEAD_WORDS:]


def lengths(drawn: list[Prompt]) -> list[tuple[int | None, int | None]]:
    return [(p.asked_input_tokens, p.asked_output_tokens) for p in drawn]


def test_a_prompt_has_the_asked_length_less_what_a_chat_template_adds() -> None:
    for prompt in prompts(SYNTHETIC, 200):
        assert prompt.asked_input_tokens is not None
        assert prompt.text is not None
        assert len(prompt.text.split(" ")) == prompt.asked_input_tokens - 8


def test_completions_have_no_template_to_allow_for() -> None:
    (prompt,) = prompts(WorkloadSpec(endpoint="completions", input_tokens=parse_lengths("300")), 1)
    assert len((prompt.text or "").split(" ")) == 300


def test_the_shortest_asked_length_still_gives_a_prompt() -> None:
    (prompt,) = prompts(WorkloadSpec(input_tokens=parse_lengths("1")), 1)
    assert prompt.text
    assert prompt.asked_input_tokens == 1


def test_without_lengths_and_dataset_prompts_have_the_default_length() -> None:
    assert lengths(prompts(WorkloadSpec(), 2)) == [(512, None), (512, None)]


def test_two_runs_of_one_seed_differ_in_the_head_only() -> None:
    first, second = prompts(SYNTHETIC, 100, salt="a"), prompts(SYNTHETIC, 100, salt="b")
    assert lengths(first) == lengths(second)
    assert [without_head(p) for p in first] == [without_head(p) for p in second]
    heads = {tuple((p.text or "").split(" ")[:HEAD_WORDS]) for p in first + second}
    assert len(heads) == 200


def test_one_seed_and_salt_give_the_same_prompts_and_another_seed_does_not() -> None:
    assert prompts(SYNTHETIC) == prompts(SYNTHETIC)
    assert [without_head(p) for p in prompts(SYNTHETIC, seed=2)] != [
        without_head(p) for p in prompts(SYNTHETIC)
    ]
    assert lengths(prompts(SYNTHETIC, seed=2)) != lengths(prompts(SYNTHETIC))


def test_no_two_users_or_workers_draw_alike() -> None:
    drawn = [prompts(SYNTHETIC, 8, worker=w, workers=4, user=u) for w in range(4) for u in range(8)]
    assert len({tuple(lengths(d)) for d in drawn}) == 32
    assert len({tuple(without_head(p)) for d in drawn for p in d}) == 32 * 8


def test_a_users_prompts_do_not_depend_on_when_others_take_theirs() -> None:
    workload = Workload(SYNTHETIC, 1, 0, 2, "a")
    one, other = workload.prompts(0), workload.prompts(1)
    taken = [next(one) for _ in range(3) if next(other)]
    assert taken == prompts(SYNTHETIC, 3)


def test_without_a_head_two_runs_of_one_seed_are_equal() -> None:
    spec = WorkloadSpec(input_tokens=parse_lengths("100"), unique_head=False)
    assert prompts(spec, salt="a") == prompts(spec, salt="b")
    assert len((prompts(spec)[0].text or "").split(" ")) == 92


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    path = tmp_path / "pairs.csv"
    path.write_text("100,1\n200,2\n300,3\n")
    return f"file:{path}"


@pytest.mark.parametrize("both", [False, True])
def test_a_file_of_pairs_keeps_input_and_output_together(pairs: str, both: bool) -> None:
    spec = WorkloadSpec(
        input_tokens=parse_lengths(pairs), output_tokens=parse_lengths(pairs) if both else None
    )
    assert set(lengths(prompts(spec, 200))) == {(100, 1), (200, 2), (300, 3)}


def test_output_lengths_of_their_own_replace_those_of_the_pairs(pairs: str) -> None:
    spec = WorkloadSpec(input_tokens=parse_lengths(pairs), output_tokens=parse_lengths("9"))
    assert set(lengths(prompts(spec, 200))) == {(100, 9), (200, 9), (300, 9)}


def test_a_file_of_pairs_for_the_output_alone_gives_its_second_column(pairs: str) -> None:
    spec = WorkloadSpec(input_tokens=parse_lengths("50"), output_tokens=parse_lengths(pairs))
    assert set(lengths(prompts(spec, 200))) == {(50, 1), (50, 2), (50, 3)}


@pytest.mark.parametrize(("body", "asked"), [({"max_tokens": 7}, 7), ({"max_tokens": None}, None)])
@pytest.mark.parametrize("dataset", [None, Dataset("d", (Prompt(text="a", asked_output_tokens=3),), (1,))])
def test_the_users_bound_in_the_body_is_what_was_asked(
    pairs: str, body: dict[str, Any], asked: int | None, dataset: Dataset | None
) -> None:
    lengths_in = None if dataset else parse_lengths(pairs)
    spec = WorkloadSpec(
        input_tokens=lengths_in, output_tokens=parse_lengths("500"), extra_body=body, dataset=dataset
    )
    assert {p.asked_output_tokens for p in prompts(spec, 100)} == {asked}


VERBATIM = WorkloadSpec(dataset=QUESTIONS, unique_head=False)


@given(st.integers(1, 12), st.lists(st.integers(0, 5), min_size=10, max_size=10))
def test_the_users_of_a_worker_use_each_line_once_before_any_twice(workers: int, order: list[int]) -> None:
    workload = Workload(VERBATIM, 1, 0, workers, "a")
    streams = [workload.prompts(user) for user in range(6)]
    share = QUESTIONS.share(0, workers)
    taken = [next(streams[user]) for user in order]
    assert taken[: len(share)] == list(share)


@settings(max_examples=20)
@given(st.integers(1, 10))
def test_the_workers_together_use_the_whole_dataset(workers: int) -> None:
    used = [
        p
        for worker in range(workers)
        for p in prompts(VERBATIM, len(QUESTIONS.share(worker, workers)), worker=worker, workers=workers)
    ]
    assert sorted(p.text or "" for p in used) == sorted(p.text or "" for p in TEXTS)


def test_a_dataset_line_gets_a_new_head_each_time() -> None:
    spec = WorkloadSpec(dataset=Dataset("d", (Prompt(text="Why?"),), (1,)))
    texts = [
        p.text or "" for p in prompts(spec, 50) + prompts(spec, 50, worker=1) + prompts(spec, 50, salt="b")
    ]
    assert len(set(texts)) == 150
    assert all(text.startswith("[") and text.endswith("] Why?") for text in texts)


def test_a_datasets_lines_keep_their_own_lengths_where_none_are_asked() -> None:
    line = Prompt(text="a", asked_output_tokens=5, extra={"max_tokens": 5, "top_p": 1})
    spec = WorkloadSpec(dataset=Dataset("d", (line,), (1,)), unique_head=False)
    assert prompts(spec, 1) == [line]


def test_asked_output_lengths_replace_the_lines_own_in_record_and_body() -> None:
    line = Prompt(text="a", asked_output_tokens=5, extra={"max_completion_tokens": 5, "top_p": 1})
    spec = WorkloadSpec(
        dataset=Dataset("d", (line,), (1,)), output_tokens=parse_lengths("64"), unique_head=False
    )
    assert prompts(spec, 1) == [Prompt(text="a", asked_output_tokens=64, extra={"top_p": 1})]


def test_drawn_output_lengths_belong_to_the_line_and_differ_between_workers() -> None:
    spec = WorkloadSpec(dataset=QUESTIONS, output_tokens=parse_lengths("uniform:1,1000"))
    first, second = prompts(spec, 20), prompts(spec, 20, worker=1)
    assert lengths(first) == lengths(prompts(spec, 20, user=3, salt="z"))
    assert lengths(first) != lengths(second)


def test_a_dataset_beside_input_lengths_is_an_error_that_names_both() -> None:
    with pytest.raises(WorkloadError, match="input lengths '512' beside dataset 'questions'"):
        WorkloadSpec(dataset=QUESTIONS, input_tokens=parse_lengths("512"))


def test_a_picture_for_completions_is_found_before_the_run_with_its_line() -> None:
    picture = Prompt(messages=({"role": "user", "content": [{"type": "image_url"}]},))
    dataset = Dataset("d.jsonl", (TEXTS[0], picture), (1, 4))
    assert WorkloadSpec(dataset=dataset).dataset is dataset
    with pytest.raises(
        DatasetError, match=r"d\.jsonl:4: .*'image_url' is not text; the completions endpoint"
    ):
        WorkloadSpec(dataset=dataset, endpoint="completions")


def test_an_unknown_endpoint_is_an_error() -> None:
    with pytest.raises(BodyError, match="no endpoint 'embeddings'"):
        WorkloadSpec(endpoint="embeddings")


@pytest.mark.parametrize(("seed", "worker", "workers"), [(-1, 0, 1), (0, 1, 1), (0, -1, 1), (0, 0, 0)])
def test_a_wrong_seed_or_place_in_the_swarm_is_an_error(seed: int, worker: int, workers: int) -> None:
    with pytest.raises(WorkloadError):
        Workload(SYNTHETIC, seed, worker, workers, "a")


def test_a_specs_template_has_what_the_spec_says() -> None:
    spec = WorkloadSpec(endpoint="responses", stream=False, extra_body={"temperature": 0}, ignore_eos=True)
    encoded = spec.body_template("m").encode(Prompt(text="a", asked_output_tokens=3))
    for part in (
        b'"input":',
        b'"stream":false',
        b'"temperature":0',
        b'"ignore_eos":true',
        b'"max_output_tokens":3',
    ):
        assert part in encoded


def test_lengths_for_prompts_of_ones_own_are_reproducible_and_apart_from_the_workloads() -> None:
    spec = WorkloadSpec(output_tokens=parse_lengths("uniform:1,100000"))

    def own(user: int) -> list[int | None]:
        return list(islice(Workload(spec, 7, 0, 2, "salt").output_lengths(user), 50))

    drawn = [p.asked_output_tokens for p in islice(Workload(spec, 7, 0, 2, "salt").prompts(3), 50)]
    assert own(3) == own(3)
    assert own(3) != own(4)
    assert own(3) != drawn
