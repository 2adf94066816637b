"""Throughput: what came out of the server per second of the window."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from llm_locust.figures.figure import Run
from llm_locust.figures.section import Line, Section, Tone
from llm_locust.figures.text import count, estimate, mark, meaning, number, percent, seconds
from llm_locust.figures.tokens import Pace
from llm_locust.metrics.structs import Interval, SummaryPart, key

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary

_ALL = "all requests, whenever scheduled"


_TOKENS_PER_S = key(
    "tokens / second: input at the first token event, output at the arrival of its event; their sum",
    "all requests, whatever became of them",
)


class Throughput(SummaryPart, frozen=True):
    """Rates over the window."""

    requests_per_s: Annotated[float | None, key("requests that ended `ok` in the window / seconds", _ALL)]
    input_tokens_per_s: Annotated[float | None, _TOKENS_PER_S]
    output_tokens_per_s: Annotated[float | None, _TOKENS_PER_S]
    total_tokens_per_s: Annotated[float | None, _TOKENS_PER_S]
    output_chars_per_s: Annotated[
        float | None, key("characters / second, credited as output tokens are", "all requests")
    ]
    inputs_per_s: Annotated[
        float | None,
        key(
            "inputs of embeddings and rerank requests / second, when their answer has come; null where no "
            "request has inputs",
            "all requests",
        ),
    ]
    concurrency_mean: Annotated[
        float | None, key("requests between sent and ended: time-weighted mean", "all requests")
    ]
    concurrency_peak: Annotated[int | None, key("requests between sent and ended: peak", "all requests")]
    ci95: Annotated[
        dict[str, Interval],
        key("95 % interval of each of these rates; null where the data cannot tell", "as the rate"),
    ]


#: Share of the time in flight that may cross the window's edges on balance. In a steady load as many requests
#: come in as go out; in a window of fewer than ten times a request's time they may differ by chance alone.
_EDGES_OF_A_STEADY_LOAD = 0.1


def compute(run: Run) -> Throughput:
    return run.whole.throughput


def show(summary: "Summary") -> Section:
    """Rates over the window, and how many requests were under way at a time."""
    part, counted = summary.throughput, summary.tokens
    inputs, total = number(part.input_tokens_per_s), number(part.total_tokens_per_s)
    concurrency = f"concurrency {number(part.concurrency_mean)} mean · {count(part.concurrency_peak)} peak"
    if summary.is_without_output:
        text = f"{number(part.requests_per_s)} requests/s · {inputs} input tokens/s"
        return Section("Throughput", (Line(text), Line(concurrency), *_unsteady(summary)))
    lines = [
        Line(
            f"{number(part.requests_per_s)} requests/s · {number(part.output_tokens_per_s)} output tokens/s"
        ),
        Line(f"{inputs} input tokens/s · {total} total tokens/s"),
        *_characters(summary),
        *([Line(_seen(counted.user_tps, "tokens"))] if counted.user_tps.n else []),
        *([Line(_seen(counted.chars_per_s, "chars"))] if counted.chars_per_s.n else []),
        Line(concurrency),
        *_unsteady(summary),
    ]
    paces = (counted.user_tps, counted.chars_per_s)
    few = meaning(*(mark(pace, key) for pace in paces for key in ("p50", "p1")))
    return Section("Throughput", tuple(lines), notes=tuple(few))


def _unsteady(summary: "Summary") -> Iterator[Line]:
    """That the rates are of other requests than those in flight, and why."""
    law, window_s = summary.littles_law, summary.window.seconds
    share, time_s = law.edges_share, law.time_s
    if share is None or time_s is None or share <= _EDGES_OF_A_STEADY_LOAD:
        return
    why = (
        f"a request takes {seconds(time_s)} and the window only {seconds(window_s)}: measure longer"
        if time_s > _EDGES_OF_A_STEADY_LOAD * window_s
        else "the load, or how long requests take, changed in the window"
    )
    crossing = f"{percent(share)} of the time in flight crosses the window's edges"
    yield Line(f"not the rates of a steady load: {crossing}; {why}", Tone.WARN)


def _seen(pace: Pace, unit: str) -> str:
    """What the users got, and the slowest of them."""
    return f"a user sees {estimate(pace, 'p50')} {unit}/s (median), {estimate(pace, 'p1')} (p1)"


def _characters(summary: "Summary") -> Iterator[Line]:
    """The rate that does not depend on a tokenizer, where the answers' lengths are known."""
    rate, each = summary.throughput.output_chars_per_s, summary.tokens.chars_per_token
    if rate is not None and each is not None:
        yield Line(f"{number(rate)} output chars/s · {number(each)} chars per token")
