"""Figures of requests with several inputs."""

from typing import Any

import numpy as np
import pytest
from metrics_cases import columns, failed, ns, plain, request

from llm_locust.core.record import RequestRecord
from llm_locust.figures.inputs import inputs as inputs_of
from llm_locust.metrics.requests.throughput import Credits
from llm_locust.metrics.window import Window


def inputs(*given: Any, **more: Any) -> Any:
    found: Any = plain(inputs_of(*given, **more))
    return found


def of(*records: RequestRecord) -> Any:
    c = columns(*records)
    return inputs(c, np.flatnonzero(c.ok), Credits.of(c, Window(ns(2.0), ns(6.0), "test")))


def asked(count: int, name: str, tokens: int | None) -> RequestRecord:
    return request(1.0, (), ended=5.0, streamed=False, inputs=count, name=name, input_tokens=tokens)


def test_a_run_whose_requests_ask_for_one_answer_has_no_inputs() -> None:
    assert of(request(2.0), failed(3.0)) is None


def test_inputs_are_those_of_requests_that_have_some_in_all_and_by_name() -> None:
    records = [asked(32, "embed", 320), asked(8, "rerank", None), request(2.0, name="chat")]
    found = of(*records, failed(3.0, inputs=8, name="embed"))
    assert found is not None
    assert found["inputs_per_s"] == pytest.approx(40 / 4)
    assert found["per_request"] == {
        "n": 2,
        "mean": 20.0,
        "p50": 20.0,
        "p99": pytest.approx(31.76),
        "max": 32.0,
    }
    assert found["tokens_per_input"] == pytest.approx(10)  # of those whose tokens are known
    assert found["by_name"].keys() == {"embed", "rerank"}
    assert found["by_name"]["embed"]["inputs_per_s"] == pytest.approx(32 / 4)
    assert found["by_name"]["rerank"]["tokens_per_input"] is None
    assert of(records[0], records[2]) == found["by_name"]["embed"] | {"by_name": {}}
