"""The section on images: whole numbers are whole, and percentiles of few requests are marked."""

from metrics_cases import batch, manifest, request

from llm_locust.figures.images import show as images
from llm_locust.figures.summarise import summarise
from llm_locust.figures.summary import Summary, typed
from llm_locust.metrics.question import Question


def summary(requests: int, n: int = 2) -> Summary:
    made = [
        request(1 + i / requests, (0.05, 0.07), images=n, pixels=n * 10_000, request_id=f"{i}")
        for i in range(requests)
    ]
    return typed(summarise(batch(*made), manifest(10.0), Question()))


def test_a_percentile_of_few_requests_is_marked_and_the_mark_explained() -> None:
    found = images(summary(30))
    assert found is not None
    assert found.table is not None
    (row,) = found.table.rows
    assert row.cells[:3] == ("2", "~50.0", "~50.0")
    assert "too few independent samples" in found.notes[0].text
    assert "(at most 2)" in found.lines[0].text


def test_one_of_enough_requests_is_not() -> None:
    found = images(summary(60))
    assert found is not None
    assert found.table is not None
    assert found.table.rows[0].cells[1:3] == ("50.0", "~50.0")


def test_a_run_without_images_has_no_such_section() -> None:
    assert images(typed(summarise(batch(request(1, (0.05,))), manifest(10.0), Question()))) is None
