"""What the section on goodput says of requests that a limit cannot hold for."""

from dataclasses import replace
from typing import Any

import numpy as np
from report_cases import records, summary

from llm_locust.core.record import RequestRecord
from llm_locust.figures.goodput import show as goodput
from llm_locust.figures.summary import typed

WHAT = "without TTFT, which breaks its limit: "
WHY = " (not streamed, no completions, or without such a token)"


def whole(record: RequestRecord, **fields: Any) -> RequestRecord:
    """The same request, its answer not streamed."""
    return replace(record, streamed=False, arrivals_ns=np.zeros(0, np.int64), first_answer_ns=None, **fields)


def said(made: list[RequestRecord], **facts: Any) -> list[str]:
    section = goodput(typed(summary(made, **facts)))
    return [line.text for line in section.lines if WHAT in line.text]


def test_answers_that_have_no_first_token_are_named_where_it_has_a_limit() -> None:
    made = [whole(r, name="embed") if i % 4 == 0 else r for i, r in enumerate(records(ok=80, bad=0))]
    (line,) = said(made)
    assert line.startswith(f"{WHAT}20 of 20 answers of embed{WHY}")


def test_some_answers_of_one_name_are_counted() -> None:
    made = [whole(r) if i < 10 else r for i, r in enumerate(records(ok=80, bad=0))]
    (line,) = said([replace(r, name="chat") for r in made])
    assert line.startswith(f"{WHAT}10 of 80 answers")
    assert WHY in line


def test_beside_requests_that_failed_their_number_is_a_lower_bound() -> None:
    made = [whole(r) if i < 10 else r for i, r in enumerate(records(ok=80, bad=5))]
    (line,) = said([replace(r, name="chat") for r in made])
    assert line.startswith(f"{WHAT}at least 10 of 80 answers")


def test_nothing_is_said_where_every_answer_has_one_or_no_limit_is_on_it() -> None:
    made = records(ok=80, bad=5)
    assert said(made) == []
    assert said([whole(r) for r in made if r.status == 200], slo="e2el=2s") == []


def test_a_class_without_such_a_limit_is_not_meant() -> None:
    made = [
        whole(r, name="embed", slo_class="whole") if i % 4 == 0 else r
        for i, r in enumerate(records(ok=80, bad=0))
    ]
    assert len(said(made)) == 1
    assert said(made, class_slos={"whole": {"e2el": 2.0}}) == []
