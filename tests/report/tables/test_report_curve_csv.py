"""The curve of a sweep as a file: each load's figures, the knee, and the law beside what was measured."""

import csv
import io

import pytest
from metrics_cases import batch, manifest, request, stage

from llm_locust.core.record import RequestRecord
from llm_locust.figures.summarise import summarise
from llm_locust.figures.summary import Summary, typed
from llm_locust.report.csv_tables import curve_csv

#: A server that takes 0.1 s for up to eight requests at once. The highest load is measured first.
USERS = (32, 1, 2, 4, 8, 16, 24)
SECONDS = 10.0


def of_stage(number: int, users: int) -> list[RequestRecord]:
    takes = 0.1 * max(1.0, users / 8)
    return [
        request(20 * number + i * takes / users, (takes,), user=i % users)
        for i in range(int(SECONDS / takes * users))
    ]


@pytest.fixture(scope="module")
def sweep() -> Summary:
    records = [record for number, users in enumerate(USERS) for record in of_stage(number, users)]
    stages = [
        stage(n, 20.0 * n, 20 * n + SECONDS, asked=float(users), fault="a worker was lost" if n == 3 else "")
        for n, users in enumerate(USERS)
    ]
    facts = manifest(200.0, options={"sweep": "users=…"}, stages=stages, slo="ttft=1s")
    return typed(summarise(batch(*records), facts))


@pytest.fixture(scope="module")
def rows(sweep: Summary) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(curve_csv(sweep) or "")))


def test_loads_are_in_order_with_what_was_measured_at_each(rows: list[dict[str, str]]) -> None:
    assert [float(row["asked"]) for row in rows] == sorted(USERS)
    for row in rows:
        users = float(row["asked"])
        takes = 0.1 * max(1.0, users / 8)
        assert float(row["e2el_p50_ms"]) == pytest.approx(takes * 1e3)
        assert float(row["requests_per_s"]) == pytest.approx(users / takes, rel=0.05)
        assert float(row["concurrency_mean"]) == pytest.approx(users, rel=0.05)
        assert float(row["goodput_low"]) < float(row["goodput"]) == float(row["goodput_high"]) == 1
        assert float(row["good_requests_per_s"]) == pytest.approx(users / takes, rel=0.05)
    assert [row["asked"] for row in rows if row["is_result"] == "False"] == ["4.0"]


def test_the_knee_and_its_interval_are_the_summarys_in_each_row(
    sweep: Summary, rows: list[dict[str, str]]
) -> None:
    assert sweep.curve is not None
    assert sweep.curve.knee is not None
    expected = (sweep.curve.knee.load, *sweep.curve.knee.ci95)
    assert {tuple(float(row[f"knee{end}"]) for end in ("", "_low", "_high")) for row in rows} == {expected}
    assert expected[0] == 8


def test_the_law_stands_beside_what_was_measured(sweep: Summary, rows: list[dict[str, str]]) -> None:
    assert sweep.curve is not None
    law = sweep.curve.usl
    assert law is not None
    assert law.gamma.value
    alpha, beta = law.alpha.value or 0.0, law.beta.value or 0.0
    for row in rows:
        n = float(row["concurrency_mean"])
        if n < 1:
            assert row["usl_requests_per_s"] == ""
            continue
        expected = law.gamma.value * n / (1 + alpha * (n - 1) + beta * n * (n - 1))
        assert float(row["usl_requests_per_s"]) == pytest.approx(expected)


def test_without_a_law_or_a_knee_their_cells_are_empty_and_without_loads_there_is_no_file() -> None:
    records = of_stage(0, 32) + of_stage(1, 1)
    two = [stage(n, 20.0 * n, 20 * n + SECONDS, asked=float(USERS[n])) for n in (0, 1)]
    facts = manifest(60.0, options={"sweep": "users=…"}, stages=two)
    found = list(csv.DictReader(io.StringIO(curve_csv(typed(summarise(batch(*records), facts))) or "")))
    assert [row["asked"] for row in found] == ["1.0", "32.0"]
    empty = ("knee", "knee_low", "knee_high", "usl_requests_per_s", "goodput", "good_requests_per_s")
    assert {row[name] for row in found for name in empty} == {""}
    once = manifest(60.0, options={"sweep": "users=32"}, stages=two[:1])
    assert curve_csv(typed(summarise(batch(*records), once))) is None
