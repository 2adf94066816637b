"""A client that was late with answers that are not streamed, embeddings among them.

- Requests sent five seconds after their schedule, to a server that answered in 200 ms: ``ok``. The delay is
  held against the median TTFT, and such answers have none. Now it is held against their E2EL.
- So it was with the lag of reads, and of the event loop, which are held against the median ITL.
"""

from typing import Any

import pytest
from live_cases import counts_of
from metrics_cases import request
from report_cases import summary

from llm_locust.core.record import RequestRecord
from llm_locust.live.state import verdict


def whole(**known: Any) -> list[RequestRecord]:
    late = known.pop("late", 0.0)
    return [
        request(i * 0.05, (), late=late, ended=i * 0.05 + late + 0.2, streamed=False, **known)
        for i in range(100)
    ]


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        (
            {"late": 5.0},
            "the load was late: requests were sent 5,000 ms after their schedule (p99)",
        ),
        (
            {"client_lag_ns": 250_000_000, "kernel_stamps": False},
            "the client read 250 ms late (p99), the median E2EL is 200 ms",
        ),
    ],
)
def test_its_delays_are_held_against_the_whole_answer(known: dict[str, Any], reason: str) -> None:
    client = summary(whole(**known), open_loop=True)["client"]
    assert client["verdict"] == "invalid"
    assert any(each.startswith(reason) for each in client["reasons"])
    (live,) = counts_of(*whole(**known)).values()
    assert verdict(live, [], open_loop=True, seconds=5.0).severity == "invalid"
    assert summary(whole(), open_loop=True)["client"]["verdict"] == "ok"
