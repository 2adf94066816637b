"""Distributions of token lengths and times: what is drawn, and how a wrong text is answered."""

import math
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, strategies as st

from llm_locust.core.record import MAX_TOKENS
from llm_locust.workload.draws import LONGEST_S, LengthError, TimesError, parse_lengths, parse_times

# --- Distributions of token lengths: what is drawn, and how a wrong text is answered


N = 20_000


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def write(folder: Path, text: str) -> str:
    path = folder / "lengths.csv"
    path.write_text(text)
    return f"file:{path}"


def test_a_bare_number_is_always_that_length() -> None:
    lengths = parse_lengths(" 512 ")
    assert set(lengths.draw(rng(), 100)) == {512}
    assert lengths.sample(rng()) == 512
    assert not lengths.joint


def test_uniform_draws_both_bounds_and_everything_between_equally() -> None:
    drawn = parse_lengths("uniform:100,103").draw(rng(), N)
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == [100, 101, 102, 103]
    assert np.all(np.abs(counts - N / 4) < 5 * np.sqrt(N * 3 / 16))


def test_normal_has_the_asked_mean_and_standard_deviation() -> None:
    drawn = parse_lengths("normal:512,64").draw(rng(), N)
    assert drawn.mean() == pytest.approx(512, abs=5 * 64 / np.sqrt(N))
    assert drawn.std() == pytest.approx(64, rel=0.03)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("normal:2.4,0", 2),
        ("normal:2.9,0", 3),
        ("lognormal:7.9,0", 8),
        ("normal:1,0", 1),
        ("lognormal:1.2,0", 1),
        ("lognormal:mean=1,sd=0", 1),
    ],
)
def test_draws_are_rounded_to_the_nearest_token(text: str, tokens: int) -> None:
    assert parse_lengths(text).draw(rng(), 3).tolist() == [tokens] * 3


def test_lognormal_takes_the_median_and_the_sigma_of_the_logarithm() -> None:
    drawn = parse_lengths("lognormal:512,1.2").draw(rng(), N)
    assert np.median(drawn) == pytest.approx(512, rel=5 * 1.2533 * 1.2 / np.sqrt(N))
    assert np.log(drawn).std() == pytest.approx(1.2, rel=0.03)
    assert drawn.mean() == pytest.approx(512 * np.exp(1.2**2 / 2), rel=0.1)


def test_lognormal_takes_the_mean_and_the_standard_deviation_of_the_lengths_too() -> None:
    drawn = parse_lengths("lognormal:mean=1000,sd=300").draw(rng(), N)
    assert drawn.mean() == pytest.approx(1000, abs=5 * 300 / np.sqrt(N))
    assert drawn.std() == pytest.approx(300, rel=0.05)
    # Of a lognormal law, median · exp(σ²/2) is the mean and σ² = ln(1 + (sd / mean)²).
    assert np.median(drawn) == pytest.approx(1000 / np.sqrt(1.09), rel=0.02)


def test_exponential_has_the_asked_mean_and_no_memory() -> None:
    drawn = parse_lengths("exponential:300").draw(rng(), N)
    assert drawn.mean() == pytest.approx(300, abs=5 * 300 / np.sqrt(N))
    assert np.mean(drawn > 600) == pytest.approx(np.exp(-2), abs=0.02)


@pytest.mark.parametrize(
    "law", ["normal:500,300", "lognormal:500,1", "lognormal:mean=500,sd=400", "exponential:500"]
)
def test_limits_move_what_is_beyond_them_to_the_limit_and_nothing_else(law: str) -> None:
    free, limited = parse_lengths(law), parse_lengths(f"{law},min=200,max=900")
    assert limited.most == 900
    drawn = limited.draw(rng(), N)
    assert np.array_equal(drawn, np.clip(free.draw(rng(), N), 200, 900))
    assert {200, 900} <= set(drawn.tolist())


def test_a_mixture_draws_from_each_law_as_often_as_its_share_says() -> None:
    lengths = parse_lengths("70%*512 + 0.2*uniform:1,9 + 0.1*normal:5000,1,min=4000")
    assert (lengths.most, lengths.joint) == (MAX_TOKENS, False)
    drawn = lengths.draw(rng(), N)
    assert np.mean(drawn == 512) == pytest.approx(0.7, abs=0.02)
    assert np.mean(drawn < 10) == pytest.approx(0.2, abs=0.02)
    assert np.mean(drawn >= 4000) == pytest.approx(0.1, abs=0.02)
    assert set(drawn[drawn < 10].tolist()) == set(range(1, 10))
    assert np.array_equal(drawn, lengths.draw(rng(), N))


@pytest.mark.parametrize(("text", "drawn"), [("100%*512", {512}), ("33.3%*1 + 33.3%*2 + 33.3%*3", {1, 2, 3})])
def test_a_mixture_may_have_one_part_and_shares_that_are_rounded(text: str, drawn: set[int]) -> None:
    assert set(parse_lengths(text).draw(rng(), 100).tolist()) == drawn


def test_a_mixture_of_files_keeps_each_input_with_its_output(tmp_path: Path) -> None:
    (tmp_path / "a + b.csv").write_text("10,1\n")
    lengths = parse_lengths(f"0.5*file:{tmp_path}/a + b.csv + 0.5*{write(tmp_path, '200,20')}")
    assert lengths.joint
    assert {tuple(row) for row in lengths.rows(rng(), 100).tolist()} == {(10, 1), (200, 20)}


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("normal:512,64,most=9", "normal has no most"),
        ("lognormal:mean=100", "sd '' is not a number"),
        ("normal:100,5,max=200,max=9000", "max= is given twice, with '200' and '9000'"),
        ("lognormal:mean=100,sd=5,7", "leave out '7'"),
        ("normal:5,2,min=9,max=3", "max 3 is below min 9"),
        ("normal:5,2,min=0", "min '0' is not in 1"),
        ("normal:0,1", "MEAN '0' is not in 1"),
        ("lognormal:mean=0,sd=1", "mean '0' is not in 1"),
        ("lognormal:mean=100,sd=-1", "sd '-1' is not in 0"),
        ("exponential:-4", "MEAN '-4' is not in 1"),
        ("exponential:4,5", "'4,5' should be MEAN"),
        ("0.7*512", "the shares are 0.7 in sum"),
        ("0.7*512 + 0.7*9", "the shares are 1.4 in sum"),
        ("0.5*512 + 0.5*poisson:3", "no distribution 'poisson'"),
        ("1..2*512 + 0.5*3", "'1..2' is not a share"),
    ],
)
def test_a_wrong_law_is_answered_with_what_is_wrong(text: str, fact: str) -> None:
    with pytest.raises(LengthError, match=re.escape(fact)):
        parse_lengths(text)


def test_a_file_of_pairs_is_not_mixed_with_a_law_of_one_length(tmp_path: Path) -> None:
    with pytest.raises(LengthError, match="mixed only with such files"):
        parse_lengths(f"0.5*{write(tmp_path, '10,1')} + 0.5*512")


def test_a_file_of_one_column_gives_its_own_lengths_as_often_as_they_stand_there(tmp_path: Path) -> None:
    lengths = parse_lengths(write(tmp_path, "10\n10\n10\n\n400\n"))
    assert not lengths.joint
    drawn = lengths.draw(rng(), N)
    assert set(drawn) == {10, 400}
    assert np.mean(drawn == 10) == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize("header", ["", "input,output\n", "﻿ContextTokens, GeneratedTokens\r\n"])
def test_a_file_of_two_columns_keeps_each_input_with_its_output(tmp_path: Path, header: str) -> None:
    lengths = parse_lengths(write(tmp_path, header + "10,1\n200, 20\n3000,300\n"))
    assert lengths.joint
    assert {tuple(row) for row in lengths.rows(rng(), 200).tolist()} == {(10, 1), (200, 20), (3000, 300)}
    assert set(lengths.draw(rng(), 200)) == {10, 200, 3000}


laws = st.one_of(
    st.integers(1, MAX_TOKENS).map(str),
    st.tuples(st.integers(1, 5000), st.integers(0, 5000)).map(lambda t: f"uniform:{t[0]},{t[0] + t[1]}"),
    st.tuples(st.floats(1, 1e6), st.floats(0, 1e6)).map(lambda t: f"normal:{t[0]},{t[1]}"),
    st.tuples(st.floats(1, 1e6), st.floats(0, 1e6)).map(lambda t: f"lognormal:{t[0]},{t[1]}"),
    st.floats(1, 1e6).map(lambda mean: f"exponential:{mean}"),
)


@given(laws, st.integers(0, 2**32))
def test_every_draw_of_every_law_is_a_whole_number_within_bounds(text: str, seed: int) -> None:
    lengths = parse_lengths(text)
    drawn = lengths.draw(rng(seed), 50)
    assert drawn.dtype == np.int64
    assert drawn.shape == (50,)
    assert np.array_equal(lengths.rows(rng(seed), 50), drawn[:, None])
    assert drawn.min() >= 1
    assert drawn.max() <= MAX_TOKENS


@given(laws, st.integers(0, 2**32))
def test_one_seed_gives_one_sequence(text: str, seed: int) -> None:
    lengths = parse_lengths(text)
    assert lengths.draw(rng(seed), 20).tolist() == parse_lengths(text).draw(rng(seed), 20).tolist()
    assert lengths == parse_lengths(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the length '' is not a number"),
        ("many", "'many' is not a number"),
        ("0", "'0' is not in 1 .. 10,000,000"),
        ("-5", "'-5' is not in 1"),
        ("512.5", "512.5 is not a whole number of tokens"),
        ("nan", "'nan' is not a number"),
        ("1_000", "'1_000' is not a number"),
        ("1e99", "'1e99' is not in 1"),
        ("unifrom:1,2", "no distribution 'unifrom'"),
        ("uniform:100", "'100' should be LOW,HIGH"),
        ("uniform:1,2,3", "'1,2,3' should be LOW,HIGH"),
        ("uniform:0,3", "LOW '0' is not in 1"),
        ("uniform:1,0", "HIGH '0' is not in 1"),
        ("uniform:200,100", "HIGH 100 is below LOW 200"),
        ("uniform:1.5,3", "1.5 is not a whole number"),
        ("normal:512,wide", "SD 'wide' is not a number"),
        ("normal:512,-1", "SD '-1' is not in 0"),
        ("lognormal:0,1", "MEDIAN '0' is not in 1"),
        ("file:", "cannot be read"),
        ("file:/nowhere/lengths.csv", "'/nowhere/lengths.csv': cannot be read: No such file or directory"),
    ],
)
def test_a_wrong_text_is_answered_in_one_line_with_the_value(text: str, said: str) -> None:
    with pytest.raises(LengthError) as caught:
        parse_lengths(text)
    assert repr(text) in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "has no row"),
        ("input,output\n", "has no row"),
        ("input\n10\nten\n", ":3: 'ten' is not a length"),
        ("10\n0\n", ":2: '0' is not a length"),
        ("10\n2.5\n", ":2: '2.5' is not a length"),
        ("10,2\n\n10\n", ":3: 1 column, 2 in the rows before"),
        ("10,2,3\n", ":1: 3 columns; expected an input length"),
        ("10,\n", ":1: '' is not a length"),
    ],
)
def test_a_wrong_file_is_answered_with_its_line(tmp_path: Path, content: str, said: str) -> None:
    with pytest.raises(LengthError) as caught:
        parse_lengths(write(tmp_path, content))
    assert said in str(caught.value)
    assert "lengths.csv" in str(caught.value)


def test_a_file_that_is_not_text_is_answered_and_not_raised(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LengthError, match=r"lengths\.csv:1: not UTF-8, byte 1 is 0xff"):
        parse_lengths(f"file:{path}")


def parquet(folder: Path, columns: dict[str, list[Any]], name: str = "lengths.parquet") -> str:
    pq.write_table(pa.table(columns), folder / name)
    return f"file:{folder / name}"


@pytest.mark.parametrize("name", ["lengths.parquet", "lengths"])
def test_a_parquet_file_has_pairs_or_one_column_of_whole_numbers(tmp_path: Path, name: str) -> None:
    pairs = parse_lengths(parquet(tmp_path, {"input": [10, 200, 3000], "output": [1, 20, 300]}, name))
    assert pairs.joint
    assert {tuple(row) for row in pairs.rows(rng(), 200).tolist()} == {(10, 1), (200, 20), (3000, 300)}
    single = parse_lengths(parquet(tmp_path, {"tokens": [7.0, 9.0]}, name))
    assert not single.joint
    assert set(single.draw(rng(), 100)) == {7, 9}


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"a": [1], "b": [2], "c": [3]}, "3 columns (a, b, c); expected one column of lengths, or two"),
        ({"a": ["ten"]}, "column 'a' is of type string; expected one column"),
        ({"a": [1, None]}, "row 2 of column 'a': 'None' is not a length; expected a whole number"),
        ({"a": [5], "b": [0]}, "row 1 of column 'b': '0' is not a length"),
        ({"a": [1.0, 2.5]}, "row 2 of column 'a': '2.5' is not a length"),
        ({"a": [10_000_001]}, "'10000001' is not a length"),
        ({"a": pa.array([], pa.int32())}, "has no row; expected one or two lengths a row"),
    ],
)
def test_a_wrong_parquet_file_is_answered_with_its_column(
    tmp_path: Path, columns: dict[str, list[Any]], said: str
) -> None:
    text = parquet(tmp_path, columns)
    with pytest.raises(LengthError) as caught:
        parse_lengths(text)
    assert said in str(caught.value)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_parquet_file_that_is_torn_is_answered(tmp_path: Path) -> None:
    text = parquet(tmp_path, {"tokens": [7, 9]})
    path = tmp_path / "lengths.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(LengthError, match="not a Parquet file that can be read: "):
        parse_lengths(text)


def test_a_distribution_knows_its_largest_length(tmp_path: Path) -> None:
    texts = ["512", "uniform:3,9", "normal:512,64", write(tmp_path, "10,99\n200,1\n")]
    assert [parse_lengths(text).most for text in texts] == [512, 9, MAX_TOKENS, 200]


@given(st.text(max_size=30) | st.text(max_size=9).map(lambda t: f"file:{t}"))
@example("file:\0")
def test_no_text_raises_anything_but_a_length_error(text: str) -> None:
    with suppress(LengthError):
        assert parse_lengths(text).sample(rng()) >= 1


# --- Times as distributions


def drawn(text: str, n: int = 20_000) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    times, rng = parse_times(text), np.random.default_rng(1)
    return np.array([times.draw_s(rng) for _ in range(n)])


@pytest.mark.parametrize(
    ("text", "mean", "median"),
    [
        ("2s", 2.0, 2.0),
        ("uniform:1s,5s", 3.0, 3.0),
        ("uniform:5s,5s", 5.0, 5.0),
        ("exponential:3s", 3.0, 3 * math.log(2)),
        ("lognormal:400ms,0", 0.4, 0.4),
        ("lognormal:400ms,0.5", 0.4 * math.exp(0.125), 0.4),
        ("normal:25s,4s", 25.0, 25.0),
        ("lognormal:mean=45s,sd=40s", 45.0, 45 / math.sqrt(1 + (40 / 45) ** 2)),
    ],
)
def test_draws_have_the_mean_and_the_median_of_their_law(text: str, mean: float, median: float) -> None:
    times = drawn(text)
    assert times.mean() == pytest.approx(mean, rel=0.03)
    assert np.median(times) == pytest.approx(median, rel=0.03)


def test_uniform_times_stay_in_their_bounds() -> None:
    times = drawn("uniform: 250ms, 1m")
    assert 0.25 <= times.min() < 0.5
    assert 59 < times.max() <= 60


@pytest.mark.parametrize("law", ["normal:25s,12s", "lognormal:mean=15s,sd=55s", "exponential:20s"])
def test_draws_beyond_a_limit_are_set_to_it(law: str) -> None:
    free, times = drawn(law), drawn(f"{law},min=5s,max=60s")
    assert np.array_equal(times, np.clip(free, 5, 60))


def test_no_draw_is_negative() -> None:
    assert drawn("normal:1s,10s").min() == 0


def test_no_draw_is_longer_than_a_day() -> None:
    assert drawn("lognormal:2m,10", 2_000).max() == drawn("24h", 1)[0] == LONGEST_S


@given(st.floats(0, 1_000), st.floats(0, 1_000), st.integers(0, 2**32))
def test_equal_generators_draw_equal_times(low: float, more: float, seed: int) -> None:
    times = parse_times(f"uniform:{low:.3f}s,{low + more + 0.001:.3f}s")
    assert times.draw_s(np.random.default_rng(seed)) == times.draw_s(np.random.default_rng(seed)) >= 0


def test_distributions_are_equal_when_their_texts_are() -> None:
    assert parse_times("exponential:3s") == parse_times("exponential:3s") != parse_times("exponential:4s")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("3", "'3': a number without a unit"),
        ("", "'': not a duration"),
        ("soon", "'soon': not a duration"),
        ("-1s", "'-1s': not a duration"),
        ("2d", 'unknown unit "d"'),
        ("86401s", "'86401s' is longer than a day"),
        ("uniform:5s", "'5s' should be LOW,HIGH"),
        ("uniform:5s,1s", "HIGH 1s is below LOW 5s"),
        ("exponential:1s,2s", "'1s,2s' should be MEAN"),
        ("lognormal:4s,fast", "SIGMA 'fast' is not a number in 0 .. 10"),
        ("lognormal:4s,-1", "SIGMA '-1' is not a number in 0 .. 10"),
        ("lognormal:4s,nan", "SIGMA 'nan' is not a number"),
        ("lognormal:4,1", "MEDIAN '4': a number without a unit"),
        ("lognormal:mean=4s", "sd ''"),
        ("lognormal:4s,mean=4s,sd=1s", "leave out '4s' before mean= and sd="),
        ("lognormal:mean=0s,sd=1s", "mean must be above 0"),
        ("normal:4s,1s,min=5s,max=2s", "max 2s is below min 5s"),
        ("normal:4s,1s,max=5s,max=9s", "max= is given twice, with '5s' and '9s'"),
        ("normal:4s,1s,least=2s", "normal has no least"),
        ("gamma:1s", "no distribution 'gamma'; allowed are 2s, uniform:LOW,HIGH"),
    ],
)
def test_an_error_says_what_is_wrong_and_what_is_allowed(text: str, why: str) -> None:
    with pytest.raises(TimesError) as error:
        parse_times(text)
    assert why in str(error.value)
    assert repr(text) in str(error.value)
    assert "\n" not in str(error.value)
