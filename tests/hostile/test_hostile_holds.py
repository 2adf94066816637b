"""Records of long answers, and many of middling ones, do not hold a worker's event loop on their way out."""

from collections.abc import Sequence
from functools import partial

import gevent
import numpy as np
import pytest
from holding import BOUND_S, cpu_s

from llm_locust.client.http.turns import TURN
from llm_locust.core.record import MAX_ARRIVALS, Outcome, RequestRecord
from llm_locust.live.reporting import LiveCounts
from llm_locust.live.state import LiveRun
from llm_locust.store import FrameHeader
from llm_locust.swarm.delivery.recorder import Recorder


def answer(tokens: int, seed: int) -> RequestRecord:
    """An answer whose tokens came at random times, none of which is exact."""
    draw = np.random.default_rng(seed)
    return RequestRecord(
        request_id=str(seed),
        name="chat",
        outcome=Outcome.OK,
        scheduled_ns=1,
        started_ns=1,
        sent_ns=1,
        ended_ns=1 << 50,
        arrivals_ns=np.cumsum(draw.integers(1_000, 60_000_000, tokens)),
        early_ns=draw.integers(0, 200_000_000, tokens),
        output_tokens=tokens,
    )


@pytest.mark.parametrize(("answers", "tokens"), [(4, MAX_ARRIVALS), (300, 1_000), (2_000, 100)])
def test_batches_and_live_counts_are_made_in_short_slices(answers: int, tokens: int) -> None:
    records = [answer(tokens, seed) for seed in range(answers)]
    assert min(_longest_s(records) for _ in range(3)) <= BOUND_S


def _longest_s(records: Sequence[RequestRecord]) -> float:
    headers: list[FrameHeader] = []
    recorder = Recorder("run", "w1", lambda header, _: headers.append(header))
    counts = LiveCounts(LiveRun(id="run"), lambda: 0)
    longest_s = 0.0
    for record in records:
        longest_s = max(longest_s, cpu_s(partial(recorder.add, record)), cpu_s(partial(counts.add, record)))
    longest_s = max(longest_s, cpu_s(recorder.close_batch), cpu_s(counts.report))
    assert sum(header.rows for header in headers) == recorder.finished == len(records)
    return longest_s


def test_work_that_cannot_be_cut_has_a_turn_of_the_loop_for_itself() -> None:
    turns: list[float] = []
    loop = gevent.get_hub().loop
    gevent.joinall([gevent.spawn(TURN.take, lambda: turns.append(loop.now())) for _ in range(10)])
    assert len(set(turns)) == 10
