"""Who sends what: reproducible from the seed, different for every user, dataset lines used once."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from parsed_settings import run_settings, settings_of
from small_tokenizers import write_folder

from llm_locust.core.record import LengthPair
from llm_locust.options.settings import UsageError
from llm_locust.wire.dialects.chat import COMPLETIONS
from llm_locust.wire.dialects.responses import RESPONSES
from llm_locust.workload.datasets import Dataset, DatasetError
from llm_locust.workload.draws import parse_lengths
from llm_locust.workload.plan import (
    MOST_MODELS,
    ModelChooser,
    ModelSplitError,
    Workload,
    WorkloadError,
    WorkloadSpec,
    models_text,
    parse_models,
)
from llm_locust.workload.prompts import HEAD_WORDS, Prompt
from llm_locust.workload.synthetic import SharedPrefix
from llm_locust.workload.tokenizer import PromptTokenizer, load_tokenizer

# --- Who sends what: reproducible from the seed, different for every user, dataset lines used once


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
    (prompt,) = prompts(WorkloadSpec(endpoint=COMPLETIONS, input_tokens=parse_lengths("300")), 1)
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
    with pytest.raises(WorkloadError, match="input lengths '512' with dataset 'questions'"):
        WorkloadSpec(dataset=QUESTIONS, input_tokens=parse_lengths("512"))


def test_a_picture_for_completions_is_found_before_the_run_with_its_line() -> None:
    picture = Prompt(messages=({"role": "user", "content": [{"type": "image_url"}]},))
    dataset = Dataset("d.jsonl", (TEXTS[0], picture), (1, 4))
    assert WorkloadSpec(dataset=dataset).dataset is dataset
    with pytest.raises(
        DatasetError, match=r"d\.jsonl:4: .*'image_url' is not text; the completions endpoint"
    ):
        WorkloadSpec(dataset=dataset, endpoint=COMPLETIONS)


@pytest.mark.parametrize(("seed", "worker", "workers"), [(-1, 0, 1), (0, 1, 1), (0, -1, 1), (0, 0, 0)])
def test_a_wrong_seed_or_place_in_the_swarm_is_an_error(seed: int, worker: int, workers: int) -> None:
    with pytest.raises(WorkloadError):
        Workload(SYNTHETIC, seed, worker, workers, "a")


def test_a_specs_template_has_what_the_spec_says() -> None:
    spec = WorkloadSpec(endpoint=RESPONSES, stream=False, extra_body={"temperature": 0}, ignore_eos=True)
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


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PromptTokenizer:
    return load_tokenizer(write_folder(tmp_path_factory.mktemp("model")))


def chat_count(tokenizer: PromptTokenizer, text: str) -> int:
    whole = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    return len(tokenizer.tokenizer.encode(whole, add_special_tokens=False).ids)


def test_with_a_tokenizer_every_prompt_has_exactly_the_asked_length(tokenizer: PromptTokenizer) -> None:
    drawn = prompts(replace(SYNTHETIC, tokenizer=tokenizer), 50)
    assert [chat_count(tokenizer, p.text or "") for p in drawn] == [p.asked_input_tokens for p in drawn]
    assert all(p.counted_input_tokens == p.asked_input_tokens for p in drawn)
    assert lengths(drawn) == lengths(prompts(SYNTHETIC, 50))


def test_a_prompt_that_cannot_be_as_short_as_asked_says_what_it_counts(tokenizer: PromptTokenizer) -> None:
    spec = WorkloadSpec(input_tokens=parse_lengths("uniform:1,20"), tokenizer=tokenizer)
    drawn = prompts(spec, 100)
    least = chat_count(tokenizer, "a")
    assert {p.asked_input_tokens for p in drawn} >= {1, 20}
    assert all(p.counted_input_tokens == max(least, p.asked_input_tokens or 0) for p in drawn)
    assert all(chat_count(tokenizer, p.text or "") == p.counted_input_tokens for p in drawn)


def test_lengths_that_no_prompt_can_have_are_an_error_before_the_run(tokenizer: PromptTokenizer) -> None:
    with pytest.raises(WorkloadError, match=r"input lengths '3': the shortest prompt has 1\d tokens by '"):
        WorkloadSpec(input_tokens=parse_lengths("3"), tokenizer=tokenizer)


def test_a_template_that_takes_no_users_message_is_an_error_before_the_run(tmp_path: Path) -> None:
    strict = load_tokenizer(write_folder(tmp_path, template="{{ raise_exception('only tools') }}"))
    with pytest.raises(WorkloadError, match="does not take these messages: only tools"):
        WorkloadSpec(tokenizer=strict)


@pytest.mark.parametrize("threads", [1, 3])
def test_prompts_made_ahead_are_those_made_when_they_are_asked_for(
    tokenizer: PromptTokenizer, threads: int
) -> None:
    for spec in (
        replace(SYNTHETIC, tokenizer=tokenizer),
        WorkloadSpec(dataset=QUESTIONS, tokenizer=tokenizer),
    ):
        with ThreadPoolExecutor(threads) as executor:
            workload = Workload(spec, 1, 0, 2, "a", executor)
            one, other = workload.prompts(0), workload.prompts(1)
            taken = [next(stream) for stream in (one, other, other, one, one, other, one, one)]
        there = Workload(spec, 1, 0, 2, "a")
        one, other = there.prompts(0), there.prompts(1)
        assert taken == [next(stream) for stream in (one, other, other, one, one, other, one, one)]


SHARED = SharedPrefix(groups=3, tokens=40)


def test_prompts_begin_with_one_of_the_groups_texts_on_every_worker_and_differ_after_it() -> None:
    spec = replace(SYNTHETIC, shared_prefix=SHARED)
    drawn = [p for w in range(4) for u in range(4) for p in prompts(spec, 8, worker=w, workers=4, user=u)]
    words = [(p.text or "").split(" ") for p in drawn]
    assert len({tuple(w[:40]) for w in words}) == 3
    assert len({tuple(w[40:46]) for w in words}) == len(words)
    assert [len(w) + 8 for w in words] == [p.asked_input_tokens for p in drawn]


def test_another_run_has_other_prefixes_unless_they_are_to_be_the_same() -> None:
    def beginnings(shared: SharedPrefix, salt: str) -> set[tuple[str, ...]]:
        drawn = prompts(replace(SYNTHETIC, shared_prefix=shared), 60, salt=salt)
        return {tuple((p.text or "").split(" ")[:40]) for p in drawn}

    assert beginnings(SHARED, "a").isdisjoint(beginnings(SHARED, "b"))
    kept = replace(SHARED, run_unique=False)
    assert beginnings(kept, "a") == beginnings(kept, "b")


def test_the_prefix_is_asked_for_beside_the_input_length() -> None:
    spec = WorkloadSpec(input_tokens=parse_lengths("28"), shared_prefix=SharedPrefix(groups=1, tokens=60))
    drawn = prompts(spec, 3)
    assert [p.asked_input_tokens for p in drawn] == [88, 88, 88]
    assert {len((p.text or "").split(" ")) for p in drawn} == {80}
    assert len({tuple((p.text or "").split(" ")[:60]) for p in drawn}) == 1


def test_with_a_tokenizer_the_prefix_counts_and_the_whole_is_exact(tokenizer: PromptTokenizer) -> None:
    spec = replace(SYNTHETIC, tokenizer=tokenizer, shared_prefix=SHARED)
    drawn = prompts(spec, 30)
    assert [chat_count(tokenizer, p.text or "") for p in drawn] == [p.asked_input_tokens for p in drawn]
    beginnings = {(p.text or "")[:60] for p in drawn}
    assert len(beginnings) == 3


def test_a_datasets_lines_get_the_prefix_before_everything_and_it_counts_as_asked() -> None:
    dataset = Dataset("d", (Prompt(text="Why?", asked_input_tokens=5), Prompt(text="How?")), (1, 2))
    drawn = prompts(WorkloadSpec(dataset=dataset, shared_prefix=SHARED), 2, workers=1)
    assert [p.asked_input_tokens for p in drawn] == [45, None]
    assert all((p.text or "").split(" ")[40].startswith("[") for p in drawn)
    assert (drawn[0].text or "").endswith("] Why?")


def test_an_answer_that_came_with_a_question_is_its_asked_length_where_nothing_else_is(
    tokenizer: PromptTokenizer,
) -> None:
    answer = "the board is above the door"
    dataset = Dataset("d", (Prompt(text="a", answer=answer),), (1,))
    asked = [
        prompts(WorkloadSpec(dataset=dataset, tokenizer=t, output_tokens=o), 1)[0].asked_output_tokens
        for t, o in [(tokenizer, None), (None, None), (tokenizer, parse_lengths("64"))]
    ]
    assert asked == [tokenizer.count(answer), None, 64]


def test_a_shuffled_dataset_is_shared_out_without_overlap_in_an_order_of_the_seeds() -> None:
    spec = WorkloadSpec(dataset=QUESTIONS, unique_head=False, order="shuffled")
    used = [p.text or "" for w in range(2) for p in prompts(spec, 5, worker=w)]
    assert sorted(used) == sorted(p.text or "" for p in TEXTS)
    assert used != [p.text or "" for p in prompts(spec, 5, seed=2)] + used[5:]


def test_an_order_that_cannot_be_is_an_error_before_the_run() -> None:
    with pytest.raises(DatasetError, match="order 'weighted', and no line has a weight"):
        WorkloadSpec(dataset=QUESTIONS, order="weighted")
    with pytest.raises(WorkloadError, match="no order 'random' of a dataset; there are sequential, shuffled"):
        WorkloadSpec(dataset=QUESTIONS, order="random")  # type: ignore[arg-type]
    with pytest.raises(WorkloadError, match="order 'shuffled' without a dataset"):
        WorkloadSpec(order="shuffled")


def learned(spec: WorkloadSpec, per_word: float) -> Workload:
    """A workload that the server has answered 40 times, counting ``per_word`` tokens a word."""
    workload = Workload(spec, 1, 0, 2, "a")
    for prompt in islice(workload.prompts(9), 40):
        workload.learn(prompt, round(per_word * len((prompt.text or "").split(" "))) + 8)
    return workload


def test_what_the_server_counted_changes_the_texts_and_never_the_asked_lengths() -> None:
    drawn = list(islice(learned(SYNTHETIC, 1.25).prompts(0), 20))
    assert lengths(drawn) == lengths(prompts(SYNTHETIC, 20))
    for prompt in drawn:
        assert prompt.asked_input_tokens is not None
        counted = 1.25 * len((prompt.text or "").split(" ")) + 8
        assert abs(counted - prompt.asked_input_tokens) < 0.03 * prompt.asked_input_tokens
    assert list(islice(learned(replace(SYNTHETIC, calibrate=False), 1.25).prompts(0), 5)) == prompts(
        SYNTHETIC
    )


def test_what_one_workload_learns_another_one_with_its_calibration_knows() -> None:
    spec = WorkloadSpec(input_tokens=parse_lengths("400"))
    known = learned(spec, 1.25)
    other = Workload(spec, 2, 0, 2, "a", calibration=known.calibration)
    words = len((next(other.prompts(0)).text or "").split(" "))
    assert 1.25 * words + 8 == pytest.approx(400, abs=3)
    assert len((next(Workload(spec, 2, 0, 2, "a").prompts(0)).text or "").split(" ")) == 392


def test_each_pair_of_lengths_has_prompts_of_its_own_and_learns_with_the_others() -> None:
    workload = Workload(SYNTHETIC, 1, 0, 2, "a")
    pairs = [LengthPair(128, 32), LengthPair(4096, 64), LengthPair(8192, 64)]
    starts: set[str] = set()
    for pair in pairs:
        own = workload.of_lengths(pair)
        assert own is workload.of_lengths(pair)
        assert own.calibration is workload.calibration
        for prompt in islice(own.prompts(0), 5):
            assert (prompt.asked_input_tokens, prompt.asked_output_tokens) == (
                pair.input_tokens,
                pair.output_tokens,
            )
            words = (prompt.text or "").split(" ")
            assert len(words) == pair.input_tokens - 8
            starts |= {" ".join(words[:6]), " ".join(words[6:26])}
    assert len(starts) == 2 * 5 * len(pairs), "no cache has the beginning of another one"


def test_a_traces_rows_are_the_same_on_every_worker_and_share_what_their_ids_say() -> None:
    def row(k: int, ids: tuple[int, ...], worker: int = 0, tokens: int = 1200) -> list[str]:
        prompt = Workload(WorkloadSpec(), 1, worker, 2, "a").replayed(k, tokens, 7, ids)
        assert (prompt.asked_input_tokens, prompt.asked_output_tokens) == (tokens, 7)
        return (prompt.text or "").split(" ")

    assert row(3, (1, 2, 3)) == row(3, (1, 2, 3), worker=1)
    first, second = row(3, (1, 2, 3)), row(4, (1, 2, 4))
    assert len(first) == 1192
    assert first[:1024] == second[:1024]
    assert first[1024:1030] != second[1024:1030]
    assert row(5, (1, 2), tokens=300) == first[:292]
    assert row(6, ())[:6] != row(7, ())[:6]


def test_a_traces_row_is_exact_with_a_tokenizer_its_shared_blocks_included(
    tokenizer: PromptTokenizer,
) -> None:
    workload = Workload(WorkloadSpec(tokenizer=tokenizer), 1, 0, 1, "a")
    for tokens in (300, 1024, 1100, 1700):
        prompt = workload.replayed(tokens, tokens, 7, (5, 6))
        assert chat_count(tokenizer, prompt.text or "") == tokens
    assert workload.replayed(1, 900, 7, (5, 6)).text != workload.replayed(1, 900, 7, (6, 5)).text


def test_the_users_bound_in_the_body_is_what_a_traces_row_asks_for() -> None:
    workload = Workload(WorkloadSpec(extra_body={"max_tokens": 3}), 1, 0, 1, "a")
    assert workload.replayed(0, 100, 50).asked_output_tokens == 3


def test_a_traces_rows_begin_otherwise_in_another_run_unless_no_unique_head_is_asked_for() -> None:
    def begins(salt: str, unique_head: bool, ids: tuple[int, ...]) -> str:
        workload = Workload(WorkloadSpec(unique_head=unique_head), 1, 0, 1, salt)
        return " ".join((workload.replayed(0, 700, 7, ids).text or "").split(" ")[:6])

    for ids in ((), (4, 5)):
        assert begins("a", True, ids) != begins("b", True, ids)
        assert begins("a", False, ids) == begins("b", False, ids)


# --- Splits of a load over models: what their texts mean, and which model is next


NAMES = st.lists(
    st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=8), min_size=1, max_size=9, unique=True
)


def test_weights_and_laws_become_shares() -> None:
    assert parse_models("base=1, org/lora:a=2,b").shares == (0.25, 0.5, 0.25)
    assert parse_models("zipf:1 a,b,c").shares == pytest.approx((6 / 11, 3 / 11, 2 / 11))
    turns = parse_models("round_robin a,b")
    assert (turns.choice, turns.names) == ("round_robin", ("a", "b"))
    assert parse_models("lora").names == ("lora",)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is no model"),
        ("a,,b", "is no model"),
        ("a=1,a=2", "is there twice"),
        ("a=-1", "write a number from 0"),
        ("a=nan", "write a number from 0"),
        ("a=0,b=0", "give one a weight above 0"),
        ("zipf:0 a,b", "write an exponent"),
        ("zipf:1 a=2,b", "has no weights"),
        ("round_robin a=2,b", "has no weights"),
        ("zipf:1", "is no model"),
        ("a\x1b[31m", "is no model"),
        (",".join(map(str, range(MOST_MODELS + 1))), "at most 500"),
    ],
)
def test_a_text_that_is_no_split_is_refused(text: str, why: str) -> None:
    with pytest.raises(ModelSplitError, match=why):
        parse_models(text)


@given(NAMES, st.integers(0, 99), st.integers(0, 5))
def test_users_draw_by_the_shares_alike_for_one_seed_and_only_named_models(
    names: list[str], seed: int, user: int
) -> None:
    split = parse_models(",".join(f"{name}={k + 1}" for k, name in enumerate(names)))
    drawn = list(islice(split.drawn(seed, 1, user), 50))
    assert drawn == list(islice(split.drawn(seed, 1, user), 50))
    assert set(drawn) <= set(names)
    assert sum(split.shares) == pytest.approx(1)


def test_shares_are_those_of_many_requests() -> None:
    split = parse_models("a=1,b=3,c=0")
    counts = Counter(islice(split.drawn(5, 0, 0), 4000))
    assert counts.keys() == {"a", "b"}
    assert abs(counts["b"] - 3000) < 4 * (4000 * 0.25 * 0.75) ** 0.5


def test_a_session_keeps_its_model_and_a_sub_agent_has_that_of_its_agent() -> None:
    chooser = ModelChooser(parse_models("round_robin a,b,c"), 1, 0)
    first = {session: chooser.choose(0, session) for session in ("s", "t", "u")}
    assert first == {"s": "a", "t": "b", "u": "c"}
    chooser.keep("sub", chooser.choose(0, "t"))
    assert [chooser.choose(1, s) for s in ("u", "t", "sub", "s")] == ["c", "b", "b", "a"]
    assert [chooser.choose(0, None) for _ in range(4)] == ["a", "b", "c", "a"]


def test_workers_do_not_all_begin_with_the_first_model() -> None:
    split = parse_models("round_robin a,b")
    assert [ModelChooser(split, 1, worker).choose(0, None) for worker in range(3)] == ["a", "b", "a"]


def test_many_models_have_a_short_name() -> None:
    assert models_text(("base", "a")) == "base, a"
    assert models_text(tuple(map(str, range(10)))).endswith("7 and 2 more")


def test_a_class_may_have_models_of_its_own_and_the_others_ask_for_the_runs() -> None:
    found = settings_of("{model: m, classes: {a: {models: {base: 1, lora: 3}}, b: {models: [x]}, c: {}}}")
    assert [kind.spec.models and kind.spec.models.names for kind in found.kinds] == [
        ("base", "lora"),
        ("x",),
        None,
    ]
    assert found.models_beside("m") == ("m", "base", "lora", "x")
    assert found.asks_for_one
    alone = run_settings(models="a,b")
    assert (alone.models_beside("a"), alone.asks_for_one) == (("a", "b"), False)


@pytest.mark.parametrize(
    ("text", "given", "why"),
    [
        ("users: 1", {"models": "a,b", "model": "a"}, "--model beside --models"),
        ("{models: a, model: b}", {}, "--model beside --models"),
        ("users: 1", {"models": "a", "body": '{"model": "b"}'}, "the body's field 'model' beside models"),
        ("{models: a, host: 'http://h:1', arms: {x: , y: {model: b}}}", {}, "arm 'y' has a model of its own"),
    ],
)
def test_models_that_are_said_in_two_places_are_refused(text: str, given: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        settings_of(text, **given)
