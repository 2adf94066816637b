"""Splits of a load over models: what their texts mean, and which model is next."""

from collections import Counter
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, strategies as st
from parsed_settings import settings, settings_of

from llm_locust.options.settings import UsageError
from llm_locust.workload.parts import MOST_MODELS, ModelChooser, ModelSplitError, models_text, parse_models

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
    alone = settings(models="a,b")
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
