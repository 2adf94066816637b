"""The language that chooses requests."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st
from metrics_cases import ORIGIN_NS, batch, failed, request, requests

from llm_locust.core.record import RequestRecord
from llm_locust.metrics.limits import parse_slo
from llm_locust.metrics.requests.judgement import Limits
from llm_locust.metrics.select import (
    DEEPEST,
    FIELDS,
    FieldKind,
    Pooled,
    Terms,
    WhereError,
    parse_where,
    selected,
)

TERMS = Terms(ORIGIN_NS, Limits(parse_slo("ttft=100ms tpot=50ms")), "sent")


def chosen(text: str, *records: RequestRecord) -> list[int]:
    """The places of the records that meet the condition."""
    return np.flatnonzero(selected(batch(*records), parse_where(text), TERMS).mask).tolist()


CASES = [
    request(0.0, (0.05, 0.07), name="chat", input_tokens=10, replica="a", output_tokens=2),
    request(1.0, (0.5, 0.9), name="search", input_tokens=2000, replica="b", reused=True, status=200),
    failed(2.0, name="chat", replica=None),
    request(3.0, (), streamed=False, ended=3.4, name="a b", output_tokens=None),
]


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("input_tokens>1000", [1]),
        ("input_tokens > 1000 and name == search", [1]),
        ("name=chat", [0, 2]),
        ("name != chat", [1, 3]),
        ('name == "a b" or name == search', [1, 3]),
        ("name in (chat, 'a b')", [0, 2, 3]),
        ("name not in [chat]", [1, 3]),
        ("ttft<=50ms", [0]),
        ("ttft<50ms", []),
        ("ttft>50ms", [1]),
        ("not ttft<=50ms", [1, 2, 3]),
        ("tpot>20000us and tpot<1s", [1]),
        ("e2el>=400ms", [1, 3]),
        ("at>=2s", [2, 3]),
        ("reused", [1]),
        ("not reused and streamed==yes", [0, 2]),
        ("replica == none", [2, 3]),
        ("replica != none and not (name == chat)", [1]),
        ("replica != a", [1, 2, 3]),
        ("good", [0]),
        ("NOT good AND outcome == ok", [1, 3]),
        ("status in (200, 503)", [1, 2]),
        ("status > 499.5", [2]),
        ("input_tokens < 99999999999999999999999999", [0, 1, 3]),
        ("scheduled_ns == 1795000000000000000", [0]),
        ("rtt == none and client_lag_ns >= 20000 and client_lag_ns <= 20us", [0, 1, 2, 3]),
        ("events == 0", [2, 3]),
        ("n_output_tokens == 2", [0, 1]),
        ("name == chat and ttft<1s or at>2.5s", [0, 3]),
        ("name == chat and (ttft<1s or at>1.5s)", [0, 2]),
    ],
)
def test_a_condition_chooses_requests(text: str, places: list[int]) -> None:
    assert chosen(text, *CASES) == places


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "at character 1: empty condition"),
        ("tffd>5ms", 'at character 1, "tffd": unknown field; did you mean "ttft"?'),
        ("xyzzy>5", "fields are request_id"),
        ("ttft", "at character 5: after ttft write"),
        ("ttft>5", 'at character 6, "5": ttft is a duration: a number without a unit'),
        ("ttft =! 5ms", 'at character 6, "=!"'),
        ("input_tokens>5ms", 'at character 14, "5ms": input_tokens is a number'),
        ("name>chat", "name is a text, which has no order"),
        ("reused>yes", "which has no order"),
        ("ttft<none", "none has no order"),
        ("streamed==maybe", "write one of true, yes, false, no"),
        ("name==", "at character 7: no value to compare name with"),
        ("(ttft>5ms", 'close the parenthesis with ")"'),
        ("ttft>5ms)", 'at character 9, ")"'),
        ("ttft>5ms reused", 'write "and" or "or" between two conditions'),
        ("ttft>5ms && reused", 'write "and"'),
        ("name in chat", "after name in write the values"),
        ("name in (chat", 'close the list with ")"'),
        ("name not chat", 'after "name not" write "in"'),
        ("and reused", "write a field first"),
        ("not", "at character 4: write a field first"),
        ("name == 'chat", 'at character 9, "\'chat": the quote is not closed'),
        ("(" * (DEEPEST + 1) + "reused", f"more than {DEEPEST} conditions inside each other"),
        ("arrivals_ns==1", "unknown field"),
    ],
)
def test_a_wrong_condition_is_one_line_that_points_at_it(text: str, why: str) -> None:
    with pytest.raises(WhereError) as refused:
        parse_where(text)
    assert str(refused.value).startswith("where: at character ")
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


_WORDS = ["and", "or", "not", "in", "none", "(", ")", "[", ",", "==", "=", "!=", "<", ">=", "!", "'", '"']
_TEXTS = [*FIELDS, *_WORDS, "500ms", "-1s", "7", "1e9", "99999999999999999999", "chat", "yes", "é", "&&"]


@given(st.lists(st.sampled_from(_TEXTS) | st.text(max_size=3), max_size=14).map(" ".join))
def test_any_text_is_a_condition_that_works_or_an_error_of_one_place(text: str) -> None:
    try:
        where = parse_where(text)
    except WhereError as e:
        said = str(e)
    else:
        said = "where: at character "
        assert len(selected(batch(*CASES), where, TERMS).mask) == len(CASES)
    assert said.startswith("where: at character ")


def test_a_long_chain_needs_no_depth() -> None:
    assert chosen(" or ".join(["ttft>5ms"] * 3000), *CASES) == [0, 1]


_FIELDS = {
    "input_tokens": st.integers(0, 20).map(str),
    "output_tokens": st.integers(0, 20).map(str),
    "name": st.sampled_from(["chat", "long", "none of them"]).map(lambda name: f"'{name}'"),
    "replica": st.sampled_from(["a", "b"]).map(lambda name: f"'{name}'"),
    "ttft": st.integers(0, 900).map(lambda ms: f"{ms}ms"),
    "at": st.integers(0, 5000).map(lambda ms: f"{ms}ms"),
}


@st.composite
def conditions(draw: st.DrawFn, depth: int = 3) -> str:
    """A condition that pandas' query understands as well, but for its durations."""
    kind = draw(st.sampled_from(["test", "test", "and", "or", "not"])) if depth else "test"
    if kind == "not":
        return f"not ({draw(conditions(depth - 1))})"
    if kind != "test":
        return f"({draw(conditions(depth - 1))}) {kind} {draw(conditions(depth - 1))}"
    field = draw(st.sampled_from(sorted(_FIELDS)))
    ordered = FIELDS[field] is not FieldKind.TEXT
    op = draw(st.sampled_from(["==", "!=", "<", "<=", ">", ">="] if ordered else ["==", "!=", "in"]))
    if op == "in":
        values = draw(st.lists(_FIELDS[field], min_size=1, max_size=3))
        return f"{field} in [{', '.join(values)}]"
    return f"{field} {op} {draw(_FIELDS[field])}"


def frame(records: list[RequestRecord]) -> pd.DataFrame:
    """The same fields, by other means; durations in milliseconds."""

    def row(r: RequestRecord) -> dict[str, Any]:
        seen = r.streamed and len(r.arrivals_ns) > 0
        return {
            "input_tokens": np.nan if r.input_tokens is None else r.input_tokens,
            "output_tokens": np.nan if r.output_tokens is None else r.output_tokens,
            "name": r.name,
            "replica": r.replica,
            "ttft": round(r.arrivals_ns[0] / 1e6) if seen else np.nan,
            "at": round((r.scheduled_ns - ORIGIN_NS) / 1e6),
        }

    return pd.DataFrame([row(r) for r in records])


@given(st.lists(requests(), min_size=1, max_size=12), conditions())
def test_a_condition_chooses_what_pandas_query_does(records: list[RequestRecord], text: str) -> None:
    expected = frame(records).query(text.replace("ms", ""), engine="python").index.tolist()
    assert chosen(text, *records) == expected


def test_chosen_requests_are_read_part_by_part_in_their_order() -> None:
    pooled = Pooled((batch(*CASES[:2]), batch(*CASES[2:])))
    found = selected(pooled, parse_where("name != search"), TERMS)
    assert len(found) == 3
    assert [name for part in found.parts(["name"]) for name in part.texts("name")] == ["chat", "chat", "a b"]
    none = selected(pooled, parse_where("name == nobody"), TERMS)
    assert [len(part) for part in none.parts()] == [0, 0]


@pytest.mark.parametrize(
    ("text", "stage"),
    [
        *(("stage==3", 3), ("( stage = 0 )", 0)),
        *((other, None) for other in ("stage!=3", "stage in (3, 4)", "stage==none", "stage>=3", "turn==3")),
        ("stage==3 and reused", None),
    ],
)
def test_a_condition_on_exactly_one_stage_is_told_from_all_others(text: str, stage: int | None) -> None:
    assert parse_where(text).stage == stage
