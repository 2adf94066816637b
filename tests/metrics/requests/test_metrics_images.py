"""Images per second, and TTFT behind so many of them."""

from typing import Any

import numpy as np
import pytest
from metrics_cases import columns, failed, ns, plain, request

from llm_locust.core.record import RequestRecord
from llm_locust.figures.images import images as images_of
from llm_locust.metrics.requests.latency import per_request
from llm_locust.metrics.requests.throughput import Credits
from llm_locust.metrics.window import Window


def images(*given: Any, **more: Any) -> Any:
    found: Any = plain(images_of(*given, **more))
    return found


def of(*records: RequestRecord) -> Any:
    c = columns(*records)
    ok = np.flatnonzero(c.ok)
    return images(c, ok, Credits.of(c, Window(ns(2.0), ns(6.0), "test")), per_request(c)["ttft"])


def test_images_count_when_their_prompt_has_been_read() -> None:
    found = of(
        request(1.0, (0.5, 9.0), images=8, pixels=800),  # read before the window
        request(1.0, (1.5, 9.0), images=3, pixels=300),
        request(5.0, (0.5, 9.0), images=1, pixels=500),
        request(5.0, (1.5,), images=8, pixels=800),  # after it
        failed(3.0, images=16, pixels=1),
        request(3.0, (0.5,)),
    )
    assert found is not None
    assert found["images_per_s"] == pytest.approx(4 / 4)
    assert found["pixels_per_s"] == pytest.approx(800 / 4)
    assert found["per_request"]["n"] == 4
    assert found["pixels_per_image"] == pytest.approx(2400 / 20)


def test_a_run_without_images_has_no_figures_of_them_and_one_that_read_none_has_zero() -> None:
    assert of(request(3.0)) is None
    found = of(failed(3.0, images=8))
    assert found is not None
    assert (found["images_per_s"], found["per_request"]["mean"], found["by_number"]) == (0.0, None, [])


def test_pixels_are_unknown_where_one_image_has_no_known_size() -> None:
    found = of(request(3.0, images=1, pixels=100), request(3.0, images=1))
    assert found is not None
    assert (found["images_per_s"], found["pixels_per_s"], found["pixels_per_image"]) == (0.5, None, None)


def test_ttft_and_tokens_stand_by_the_number_of_images() -> None:
    numbers = (None, 1, 2, 3, 4, 5, 64, 65)
    records = [request(3.0, (0.1 * (i + 1),), images=n, input_tokens=n) for i, n in enumerate(numbers)]
    found = of(*records, request(3.0, (), ended=3.5, streamed=False, inputs=4))
    assert found is not None
    rows = {row["images"]: row for row in found["by_number"]}
    assert list(rows) == ["0", "1", "2", "3-4", "5-8", "33-64", "65+"]
    assert rows["3-4"]["requests"] == 2
    assert rows["3-4"]["ttft_ms"]["p50"] == pytest.approx(450)
    assert rows["3-4"]["input_tokens_mean"] == pytest.approx(3.5)
    assert rows["65+"]["ttft_ms"]["p99"] == pytest.approx(800)
