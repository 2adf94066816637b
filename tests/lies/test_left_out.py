"""Tables that were of those who got an answer, and did not say so.

- A replica hung from the warm-up on: its TTFT p99, and that of a breakdown, was that of its few answers. Now
  the requests that hung are in them, as in the run's own, and leave them open.
- Latencies by turn, the drift, and the charts over the run, were of ok requests, however many were cut. They
  say how many are left out.
- Users who left were said to be in no latency. They are in TTFT and E2EL, as lower bounds.
"""

from metrics_cases import batch, manifest, request

from llm_locust.core.record import Outcome
from llm_locust.figures.parts import breakdown
from llm_locust.figures.sessions import by_turn
from llm_locust.figures.summarise import summarise
from llm_locust.figures.summary import typed
from llm_locust.metrics.measured import measure
from llm_locust.metrics.question import Question

ANSWER = (0.1, 0.2, 0.3)


def test_a_replica_that_hung_from_the_warm_up_on_has_no_percentile_of_its_few_answers() -> None:
    hung = [
        request(0.1, (), ended=13.9, outcome=Outcome.CANCELLED, replica="a", name=f"chat{i % 2}")
        for i in range(10)
    ]
    made = [request(k * 0.1, ANSWER, replica="ab"[k % 2]) for k in range(100)] + hung
    run = manifest(stopped=14.0, slo="ttft=500ms", warmup_s=2.0)
    a, b = summarise(batch(*made), run)["replicas"]
    assert (a["ttft_p99_ms"], b["ttft_p99_ms"]) == (None, 100.0)  # printed 100 for both
    assert a["at_least"]["ttft_p99_ms"] > 10_000
    measured = measure(batch(*made), run, Question(warmup_s=2.0))
    groups = breakdown(measured, batch(*made), "replica").groups
    assert groups["a"]["latency_ms"]["ttft"]["p99"] is None
    assert groups["a"]["latency_ms"]["ttft"]["censored"] == 10


def test_the_table_by_turn_says_how_many_of_its_turns_are_in_no_latency() -> None:
    turns = [request(k * 0.1, ANSWER, session=f"s{k % 9}", turn=k % 2) for k in range(40)]
    cut = [request(5.0, (), ended=13.9, outcome=Outcome.CANCELLED, session="x", turn=1) for _ in range(5)]
    late = [request(5.0, (), ended=9.0, outcome=Outcome.TIMEOUT, session="y", turn=1) for _ in range(2)]
    found = summarise(batch(*turns, *cut, *late), manifest(stopped=14.0))
    assert [each["left_out"] for each in found["sessions"]["by_turn"]] == [0, 7]
    section = by_turn(typed(found))
    assert section is not None
    said = "latencies cover 40 ok turns and are too low: 7 unfinished ones excluded"
    assert section.notes[0].text == said
    whole = by_turn(typed(summarise(batch(*turns), manifest(stopped=14.0))))
    assert whole is not None
    assert not any("left out" in note.text for note in whole.notes)
