"""The grammar of --sweep."""

from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

from llm_locust.workload.arrivals import parse_sweep


@pytest.mark.parametrize(
    ("text", "kind", "values"),
    [
        ("users=1,2,4", "users", (1, 2, 4)),
        ("rate=0.5, 2", "rate", (0.5, 2)),
        ("users=8", "users", (8,)),
        ("users=16,1", "users", (16, 1)),
        ("rate=linear:1..10,10", "rate", tuple(range(1, 11))),
        ("users=geometric:1..256,9", "users", tuple(2**i for i in range(9))),
        ("rate=geometric:1..8,4", "rate", (1, 2, 4, 8)),
    ],
)
def test_what_is_written_is_what_is_applied(text: str, kind: str, values: tuple[float, ...]) -> None:
    found = parse_sweep(text)
    assert (found.kind, found.values) == (kind, values)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1,2,4", "must begin with users=, agents=, rate=, lengths= or prefix-share="),
        ("threads=1", "'threads' is not users, agents, rate, lengths, prefix-share or prefixes"),
        ("users=1 users=2", "it has users= twice"),
        ("users=1 rate=2", "users= beside rate=: a run has one kind of load"),
        ("agents=1 lengths=1:2", "trajectories have recorded lengths"),
        ("prefixes=3", "prefixes= without prefix-share="),
        ("users=1,2 prefix-share=0%", "an experiment varies one thing"),
        ("lengths=1:2 prefix-share=0%", "an experiment varies one thing"),
        ("agents=2 prefix-share=0%", "an experiment varies one thing"),
        ("prefix-share=50", "'50' is not a share such as 50%"),
        ("prefix-share=", "'' is not a share such as 50%"),
        ("prefix-share=x%", "'x' is not a number"),
        ("prefix-share=-5%", "'-5' is not a number"),
        ("prefix-share=100%", "each prompt needs an end of its own"),
        ("prefix-share=0%,50%,50.0%", "it has the share 50% twice"),
        ("prefix-share=0% prefixes=0", "prefixes=0 is not a whole number in 1 .. 10,000"),
        ("prefix-share=0% prefixes=1e3", "prefixes=1e3 is not a whole number"),
        ("prefix-share=0% prefixes=0000010000000", "prefixes=0000010000000 is not a whole number in 1 .. 10"),
        ("lengths=", "'' is not a pair of lengths"),
        ("lengths=128", "'128' is not a pair of lengths"),
        ("lengths=128:32:1", "is not a pair of lengths"),
        ("lengths=-1:32", "is not a pair of lengths"),
        ("lengths=0:32", "0 tokens are not in 1 .. 10,000,000"),
        ("lengths=128:99999999999999999999999", "are not in 1 .. 10,000,000"),
        ("lengths=128:32,128:32", "it has the lengths 128:32 twice"),
        ("users=linear:1..150,150 lengths=1:1,2:2", "it has 150 loads at 2 pairs of lengths, at most 200"),
        ("users=", "'' is not a number above 0"),
        ("users=0,1", "0 users are not in 1"),
        ("users=-1", "'-1' is not a number above 0"),
        ("users=nan", "'nan' is not a number above 0"),
        ("users=1_0", "'1_0' is not a number above 0"),
        ("rate=0", "without 0"),
        ("rate=1e9", "is not a number above 0"),
        ("users=1000001", "are not in 1 .. 1,000,000"),
        ("users=2,2", "the same load twice in a row"),
        ("users=linear:1..3,9", "the same load twice in a row"),
        ("rate=linear:1..10", "is not linear:FROM..TO,COUNT"),
        ("rate=cubic:1..10,3", "is not linear:FROM..TO,COUNT"),
        ("rate=linear:1..10,1", "COUNT '1' is not in 2 .. 200"),
        ("rate=linear:1..10,201", "COUNT '201' is not in 2 .. 200"),
        ("rate=geometric:0..10,3", "FROM '0' is not above 0"),
        ("rate=" + ",".join(str(i) for i in range(1, 300)), "it has 299 loads, at most 200"),
    ],
)
def test_what_is_not_a_sweep_is_refused_with_what_is_allowed(text: str, why: str) -> None:
    with pytest.raises(ValueError, match="allowed are users=1,2,4,8") as error:
        parse_sweep(text)
    assert why in str(error.value)


@given(st.text(max_size=40))
def test_no_text_raises_anything_else(text: str) -> None:
    with suppress(ValueError):
        assert parse_sweep(text).values


SIZES = st.integers(1, 10_000_000)


@given(
    name=st.sampled_from(["users", "rate", ""]),
    loads=st.lists(st.integers(1, 1000), min_size=1, max_size=10, unique=True),
    pairs=st.lists(st.tuples(SIZES, SIZES), min_size=1, max_size=10, unique=True),
    between=st.sampled_from([" ", "   ", "\n"]),
    lengths_first=st.booleans(),
)
def test_loads_and_lengths_are_what_is_written_in_whichever_order(
    name: str, loads: list[int], pairs: list[tuple[int, int]], between: str, *, lengths_first: bool
) -> None:
    parts = [f"{name}={','.join(map(str, loads))}"] if name else []
    parts.append("lengths=" + ", ".join(f"{a}:{b}" for a, b in pairs))
    found = parse_sweep(between.join(parts[::-1] if lengths_first else parts))
    assert found.values == (tuple(loads) if name else ())
    assert [(pair.input_tokens, pair.output_tokens) for pair in found.lengths] == pairs
    assert found.kind == ("rate" if name == "rate" else "users")
    assert found.stages == len(pairs) * (len(loads) if name else 1)
    assert found.of_users(7).values == (tuple(loads) if name else (7,))


def test_shares_are_stages_at_one_load() -> None:
    found = parse_sweep("users=4 prefix-share=0%,50%,87.5% prefixes=3")
    assert (found.values, found.shares, found.prefixes, found.stages) == ((4.0,), (0.0, 0.5, 0.875), 3, 3)
    alone = parse_sweep("prefix-share=90%")
    assert (alone.values, alone.shares, alone.prefixes, alone.name) == ((), (0.9,), 10, "prefix-share")
