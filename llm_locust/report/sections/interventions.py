"""What was asked of the servers beside the load, as a section."""

from collections.abc import Iterator, Mapping
from typing import Any

from llm_locust.report.section import Line, Section, Tone
from llm_locust.report.text import clean, count, plural, seconds

Part = Mapping[str, Any]

TITLE = "Server calls"

#: Replicas that one line names.
MOST_NAMED = 5

_WHAT = {
    "/start_profile": "profiler started",
    "/stop_profile": "profiler stopped",
    "/reset_prefix_cache": "prefix cache emptied",
    "/flush_cache": "prefix cache emptied",
}


def interventions(summary: Part) -> Section | None:
    """None where the run asked nothing of its servers but answers."""
    part = summary.get("interventions") or {}
    lines = tuple(_lines(part))
    return Section(TITLE, lines) if lines else None


def _lines(part: Part) -> Iterator[Line]:
    if targets := part.get("targets"):
        yield Line(f"straight to {plural(len(targets), 'target')}, through no balancer")
    if (waited_s := part.get("ready_s")) is not None:
        ready = part.get("replicas_ready") or ()
        yield Line(
            f"{plural(len(ready), 'replica')} waited for, ready within {seconds(waited_s)}", Tone.FAINT
        )
    for call in part.get("calls") or ():
        yield from _call(call)
    if profiled_s := part.get("profiled_s"):
        yield Line(
            f"a profiler ran in {seconds(profiled_s)} of the window: its cost is in the latencies",
            Tone.WARN,
        )


def _call(call: Part) -> Iterator[Line]:
    path = clean(call.get("path"))
    what, at = _WHAT.get(path, path), seconds(call.get("at_s"))
    asked, failed = call.get("asked"), call.get("failed") or ()
    yield Line(f"{what} at {at} on {count(call.get('done'))} of {plural(asked, 'replica')}")
    if failed:
        named = ", ".join(map(_named, failed[:MOST_NAMED]))
        others = f" and {len(failed) - MOST_NAMED} more" if len(failed) > MOST_NAMED else ""
        yield Line(f"{path} not done by {named}{others}", Tone.WARN, verbatim=True)


def _named(failed: Part) -> str:
    return f"{clean(failed.get('target'))} ({clean(failed.get('error') or failed.get('status'))})"
