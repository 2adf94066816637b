"""What was asked of the servers beside the load, as a section."""

from collections.abc import Iterator

from llm_locust.metrics.summary_types.course import CallToServers, FailedCall, Interventions
from llm_locust.metrics.summary_types.summary import Summary
from llm_locust.report.section import Line, Section, Tone
from llm_locust.report.text import clean, count, plural, seconds

TITLE = "Server calls"

#: Replicas that one line names.
MOST_NAMED = 5

_WHAT = {
    "/start_profile": "profiler started",
    "/stop_profile": "profiler stopped",
    "/reset_prefix_cache": "prefix cache emptied",
    "/flush_cache": "prefix cache emptied",
}


def interventions(summary: Summary) -> Section | None:
    """None where the run asked nothing of its servers but answers."""
    part = summary.interventions
    lines = tuple(_lines(part))
    return Section(TITLE, lines) if lines else None


def _lines(part: Interventions) -> Iterator[Line]:
    if targets := part.targets:
        yield Line(f"directly to {plural(len(targets), 'target')}, without a balancer")
    if (waited_s := part.ready_s) is not None:
        ready = part.replicas_ready
        yield Line(
            f"{plural(len(ready), 'replica')} waited for, ready within {seconds(waited_s)}", Tone.FAINT
        )
    for call in part.calls:
        yield from _call(call)
    if profiled_s := part.profiled_s:
        yield Line(
            f"a profiler ran in {seconds(profiled_s)} of the window: its cost is part of the latencies",
            Tone.WARN,
        )


def _call(call: CallToServers) -> Iterator[Line]:
    path = clean(call.path)
    what, at = _WHAT.get(path, path), seconds(call.at_s)
    asked, failed = call.asked, call.failed
    yield Line(f"{what} at {at} on {count(call.done)} of {plural(asked, 'replica')}")
    if failed:
        named = ", ".join(map(_named, failed[:MOST_NAMED]))
        others = f" and {len(failed) - MOST_NAMED} more" if len(failed) > MOST_NAMED else ""
        yield Line(f"{path} not done by {named}{others}", Tone.WARN, verbatim=True)


def _named(failed: FailedCall) -> str:
    return f"{clean(failed.target)} ({clean(failed.error or failed.status)})"
