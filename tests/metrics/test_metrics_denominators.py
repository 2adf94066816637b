"""Each cell of the table "who is in which denominator" of docs/definitions.md: what one more changes."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from metrics_cases import batch, manifest, request

from llm_locust.core.manifest import Manifest
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.figures.summarise import summarise

DOCS = Path(__file__).parents[2] / "docs" / "definitions.md"
ANSWER = (0.1, 0.3, 0.5)
RUN = manifest(stopped=10.0, slo="ttft=1s e2el=2s")


def given_up(ended: float, arrivals: tuple[float, ...] = (), **fields: Any) -> RequestRecord:
    return request(1.0, arrivals, ended=ended, outcome=Outcome.CANCELLED, **fields)


def ended(outcome: Outcome) -> RequestRecord:
    return request(1.0, ANSWER, outcome=outcome)


#: Requests of which good ones, bad ones and cut ones are known, so that each share moves in its own way.
OTHERS = [
    *(request(float(at), ANSWER) for at in range(4)),
    request(4.0, (1.5, 2.5, 3.5)),
    replace(given_up(1.2), request_id="cut"),
]

ONE_MORE = {
    "ok and good": request(1.0, ANSWER),
    "ok and not good": request(1.0, (0.1, 0.3, 2.5)),
    "failed": ended(Outcome.TRUNCATED),
    "`timeout`": ended(Outcome.TIMEOUT),
    "`rejected`": ended(Outcome.REJECTED),
    "cut, over a limit": given_up(9.0, (0.1, 0.3)),
    "cut, over none": given_up(2.0, (0.1, 0.3)),
    "abandoned, over a limit": given_up(9.0, abandoned=True),
    "abandoned, over none": given_up(1.5, abandoned=True),
}


def worker(**facts: Any) -> Manifest:
    return replace(RUN, workers=[replace(each, **facts) for each in RUN.workers])


def rows() -> dict[str, list[str]]:
    """The table: the kind of request, and its cells."""
    section = DOCS.read_text().split("### Who is in which denominator\n")[1].split("\n### ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {re.sub(r"\[|\]\(#[a-z-]+\)", "", kind): rest for kind, *rest in cells}


def figures(records: list[RequestRecord], run: Manifest) -> dict[str, Any]:
    return summarise(batch(*records), run)


def cells(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What one request more is in, in the words of the table."""
    e2el = [before["latency_ms"]["e2el"], after["latency_ms"]["e2el"]]
    adjusted = [before["latency_ms_adjusted"]["e2el"], after["latency_ms_adjusted"]["e2el"]]
    tpot = [each["latency_ms"]["tpot"] for each in (before, after)]

    def more(key: str, of: str) -> bool:
        return bool(after[of][key] != before[of][key])

    answers = after["quality"]["answers"] != before["quality"]["answers"]
    return [
        sample(*e2el),
        sample(*tpot),
        "+∞" if adjusted[1]["beyond"] else sample(*adjusted),
        error(before["requests"], after["requests"]),
        good(before["goodput"], after["goodput"]),
        attainment(after["goodput"]["attainment"]),
        yes(more("requests_per_s", "goodput") and more("output_tokens_per_s", "goodput")),
        yes(more("requests_per_s", "throughput")),
        yes(more("output_tokens_per_s", "throughput")),
        yes(more("concurrency_mean", "throughput")),
        cut(after["requests"]["cut_share"]),
        yes(answers),
    ]


def yes(counts: bool) -> str:
    return "yes" if counts else "no"


def sample(before: dict[str, Any], after: dict[str, Any]) -> str:
    if after["n"] > before["n"]:
        return "observed"
    return "censored" if after["censored"] > before["censored"] else "no"


def error(before: dict[str, Any], after: dict[str, Any]) -> str:
    if after["population"] == before["population"]:
        assert after["error_rate"] == before["error_rate"]
        return "no"
    return "failed" if after["error_rate"] > before["error_rate"] else "yes"


def good(before: dict[str, Any], after: dict[str, Any]) -> str:
    assert before["ratio"] == 4 / 5
    return {4 / 5: "no", 5 / 6: "good", 4 / 6: "bad"}[after["ratio"]]


def attainment(after: dict[str, float]) -> str:
    """Of both limits: 4 of the 5 others held each."""
    found = {{4 / 5: "no", 5 / 6: "held", 4 / 6: "not held"}[share] for share in after.values()}
    if found == {"held", "not held"}:
        return "each limit by itself"
    return next(iter(found)) if len(found) == 1 else (found - {"no"}).pop()


def cut(share: float) -> str:
    return {1 / 6: "no", 1 / 7: "yes", 2 / 7: "cut"}[share]


@pytest.mark.parametrize("kind", ONE_MORE)
def test_one_more_recorded_request_is_where_the_table_has_it(kind: str) -> None:
    before, after = figures(OTHERS, RUN), figures([*OTHERS, ONE_MORE[kind]], RUN)
    assert cells(before, after) == rows()[kind]


@pytest.mark.parametrize(("kind", "run"), [("lost", worker(announced=1)), ("unsent", worker(unsent=1))])
def test_one_more_request_without_a_record_is_where_the_table_has_it(kind: str, run: Manifest) -> None:
    assert cells(figures(OTHERS, RUN), figures(OTHERS, run)) == rows()[kind]


def test_one_more_stuck_request_is_where_the_table_has_it() -> None:
    """The window begins after the warm-up: the first request begins the run, and has ended before that."""
    run = replace(RUN, warmup_s=1.0)
    others = [request(-1.0, ANSWER), *OTHERS]
    hung = request(-0.5, (1.0,), ended=9.0, outcome=Outcome.CANCELLED)
    silent = request(-0.5, (), ended=9.0, outcome=Outcome.CANCELLED)
    before = figures(others, run)
    found = cells(before, figures([*others, hung], run))
    assert found == rows()["stuck"]
    after = figures([*others, silent], run)
    assert after["latency_ms"]["ttft"]["censored"] == before["latency_ms"]["ttft"]["censored"] + 1


def test_the_first_try_of_a_request_that_was_sent_again_is_counted_and_in_no_other_figure() -> None:
    kind = "the first try of one that was sent again"
    first = request(1.0, (), ended=1.03, outcome=Outcome.RESENT, error="broke", replica="other")
    once = [replace(OTHERS[0], retries=1), *OTHERS[1:]]
    before = figures(once, worker(announced=len(once), received=len(once)))
    after = figures([first, *once], worker(announced=len(once) + 1, received=len(once) + 1))
    assert cells(before, after) == rows()[kind]
    assert set(rows()[kind]) == {"no"}
    assert after["completeness"].pop("records_stored") == before["completeness"].pop("records_stored") + 1
    for counted in (before, after):
        counted.pop("completeness")
    of_all = [after["requests"], after["by_name"]["chat"]["requests"]]
    assert [each["resent"] for each in of_all] == [1, 1]
    for each in of_all:
        each["resent"] = 0
    assert after == before


def test_the_table_has_no_other_rows() -> None:
    kinds = {*ONE_MORE, "lost", "unsent", "stuck", "the first try of one that was sent again"}
    assert rows().keys() == kinds
