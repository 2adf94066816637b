"""Client's validity: whether the numbers can be trusted, as far as the client is concerned.

``suspect``: the client may have affected the load or part of the numbers. ``invalid``: the numbers depend
largely on the client. The thresholds are those of :mod:`llm_locust.metrics.sections.thresholds`. Delays under
1 ms never count against a client.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from llm_locust.core.figures import quantity
from llm_locust.core.manifest import Manifest, WorkerFacts, worker_names
from llm_locust.metrics.catalogue import schedule_delay
from llm_locust.metrics.columns import Columns, Floats, Rows
from llm_locust.metrics.requests.gaps import first_token_wide
from llm_locust.metrics.sections import thresholds
from llm_locust.metrics.sections.littles_law import law_text
from llm_locust.metrics.sections.node_health import nodes, stamps
from llm_locust.metrics.sections.thresholds import Severity
from llm_locust.metrics.stats.percentiles import ordered, percentile
from llm_locust.metrics.stats.proportions import Proportion
from llm_locust.metrics.window import Window

Finding = tuple[Severity, str]

#: A clock that is known better than this is not held against a short window.
CLOCK_ERROR_S = 1.0

#: Workers that one reason names; the others it counts.
_MOST_NAMED = 3

#: Fewer are no share.
_LEAST_WIDE = 3


#: A request may begin so much before the load, and end so much after it.
MISPLACED_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Scale for a client's delays: the window and the medians of the ok requests."""

    window_s: float
    window: Window | None = None
    itl_ms: float | None
    ttft_ms: float | None
    e2el_ms: float | None

    @classmethod
    def of(cls, window: Window, medians_ms: dict[str, float | None]) -> "Scale":
        """Make it from the medians of ``itl``, ``ttft`` and ``e2el``."""
        of_metric = {f"{metric}_ms": medians_ms[metric] for metric in ("itl", "ttft", "e2el")}
        return cls(window=window, window_s=window.seconds, **of_metric)


def client_validity(
    c: Columns, judged: Rows, manifest: Manifest, scale: Scale, law: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Verdict on the client, with its reasons (worst first) and the evidence.

    Lag, delay and stamps are those of the population ``judged``, including failures. ``timestamps`` is as
    of :func:`~llm_locust.metrics.sections.node_health.stamps`; what is of nodes is that of the worst worker.
    ``clock_steps`` counts requests, the other two steps of a node's clock. None is without evidence.
    """
    kernel = float(c.kernel_stamps[judged].mean()) if len(judged) else None
    lag_p50_ms, lag_ms = (_ms(c.client_lag_s[judged], percent) for percent in (50.0, 99.0))
    end_lag_p50_ms, end_lag_p99_ms = (_ms(c.end_lag_s[judged], percent) for percent in (50.0, 99.0))
    share = _end_lag_share(c, judged)
    delay_ms = _ms(schedule_delay(c)[judged], 99.0) if manifest.open_loop else None
    of_nodes = nodes(manifest, scale.window)
    stepped = int(c.stepped[judged].sum())
    misplaced = misplaced_requests(c, manifest)
    first = judged[c.streamed[judged] & (c.events[judged] > 0)]
    wide = int(first_token_wide(c)[first].sum())
    gap = thresholds.usual(ITL=scale.itl_ms, E2EL=scale.e2el_ms)
    late = [
        *wide_findings(wide, len(first)),
        *_lag(lag_ms, *gap, kernel),
        *(() if manifest.open_loop else late_load_findings(share, end_lag_p50_ms)),
        *_standstill(of_nodes["hub_lag_ms_max"], scale.window_s),
        *_hub_lag(of_nodes["hub_lag_ms_p99"], *gap, kernel),
        *_delay(delay_ms, *thresholds.usual(TTFT=scale.ttft_ms, E2EL=scale.e2el_ms)),
    ]
    cause = _explain(late, of_nodes)
    findings = [
        *late,
        *_cpu(of_nodes["cpu_percent_max"], kernel),
        *_taken(of_nodes["steal_percent_max"], of_nodes["throttled_percent_max"]),
        *_misplaced(misplaced, len(c)),
        *_stepped(stepped, len(judged)),
        *_clocks(manifest, scale.window_s),
        *_littles_law(law),
        *_blind(lag_ms, of_nodes["hub_lag_ms_p99"], of_nodes["cpu_percent_max"], kernel),
    ]
    findings.sort(key=lambda finding: finding[0])  # "invalid" before "suspect"
    return {
        "verdict": findings[0][0] if findings else "ok",
        "reasons": [text for _, text in findings],
        "cause": cause,
        **stamps(manifest, kernel),
        "first_tokens_wide": wide / len(first) if len(first) else None,
        "lag_ms_p50": lag_p50_ms,
        "lag_ms_p99": lag_ms,
        "end_lag_ms_p50": end_lag_p50_ms,
        "end_lag_ms_p99": end_lag_p99_ms,
        "end_lag_share": share,
        "schedule_delay_ms_p99": delay_ms,
        "clock_steps": stepped,
        "misplaced": misplaced,
        **of_nodes,
    }


def _ms(values_s: Floats, percent: float) -> float | None:
    ascending = ordered(values_s)
    return percentile(ascending, percent) * 1e3 if len(ascending) else None


def wide_findings(wide: int, first_tokens: int) -> Iterator[Finding]:
    """The finding from the number of first tokens that a late read brought with later ones."""
    if wide < _LEAST_WIDE:
        return
    interval = Proportion(wide, first_tokens).interval()
    if interval and (found := thresholds.FIRST_TOKENS_WIDE.severity(interval[0])):
        yield (
            found,
            f"{_percent(wide / first_tokens)} of the first tokens were read late, together with later ones, "
            "and may have come earlier than their TTFT says",
        )


def _lag(lag_ms: float | None, of: str, of_ms: float | None, kernel: float | None) -> Iterator[Finding]:
    found = None if kernel == 1 else thresholds.LAG_PROGRAM.severity(lag_ms, of_ms)
    if found:
        yield (
            found,
            f"the client read {quantity(lag_ms)} ms late (p99), the median {of} is {quantity(of_ms)} ms, "
            "and not all timestamps are the kernel's, so lag is part of the latencies",
        )


def end_lag_share(end_lag_s: float, response_s: float) -> float | None:
    """Share of the users' time that the client let pass after the end of a response: Σ end lag /
    (Σ end lag + Σ response time); None without a response."""
    whole_s = end_lag_s + response_s
    return end_lag_s / whole_s if whole_s > 0 else None


def _end_lag_share(c: Columns, judged: Rows) -> float | None:
    known = judged[~np.isnan(c.end_lag_s[judged])]
    response_s = c.ended_s[known] - c.started_s[known]
    return end_lag_share(float(np.sort(c.end_lag_s[known]).sum()), float(np.sort(response_s).sum()))


def late_load_findings(share: float | None, end_lag_p50_ms: float | None) -> Iterator[Finding]:
    """The finding on a closed loop whose users waited for the client."""
    waited = end_lag_p50_ms is not None and share is not None
    if waited and (found := thresholds.LAG_CLOSED.severity(share)):
        yield (
            found,
            f"the load was late: users waited {_percent(share)} of their time for the client to notice the "
            f"end of a response ({quantity(end_lag_p50_ms)} ms in the median), so the load was that much "
            "lighter than the number of users implies",
        )


def _standstill(hub_max_ms: float | None, window_s: float) -> Iterator[Finding]:
    if window_s > 0 and (found := thresholds.STANDSTILL.severity(hub_max_ms, window_s * 1e3)):
        yield (
            found,
            "the load was late: a worker's event loop stood still for "
            f"{quantity((hub_max_ms or 0) * 1e-3)} s of a window of {quantity(window_s)} s and sent nothing; "
            "if its whole machine was paused, what came then is timed late",
        )


def _hub_lag(hub_ms: float | None, of: str, of_ms: float | None, kernel: float | None) -> Iterator[Finding]:
    found = None if kernel in (None, 1) else thresholds.HUB_LAG_PROGRAM.severity(hub_ms, of_ms)
    if found:
        yield (
            found,
            f"a worker's event loop was {quantity(hub_ms)} ms late (p99), "
            f"the median {of} is {quantity(of_ms)} ms, and not all timestamps are the kernel's, so its lag "
            "is part of the latencies",
        )


def _delay(delay_ms: float | None, of: str, of_ms: float | None) -> Iterator[Finding]:
    if found := thresholds.DELAY.severity(delay_ms, of_ms):
        yield (
            found,
            f"the load was late: requests were sent {quantity(delay_ms)} ms after their schedule (p99), "
            f"the median {of} is {quantity(of_ms)} ms",
        )


def _explain(late: list[Finding], of_nodes: Mapping[str, Any]) -> str | None:
    """Why the client was late; the worst of the findings, now the first, is told it with what to do."""
    if not late:
        return None
    late.sort(key=lambda finding: finding[0])
    cause, remedy = _cause(of_nodes)
    late[0] = (late[0][0], f"{late[0][1]}. {remedy}")
    return cause


def _cause(of_nodes: Mapping[str, Any]) -> tuple[str, str]:
    """Why a client was late, and what to do. What others took comes first: more workers do not help there."""
    waited, cpu = of_nodes["run_queue_percent_max"], of_nodes["cpu_percent_max"]
    throttled, steal = of_nodes["throttled_percent_max"], of_nodes["steal_percent_max"]
    if thresholds.THROTTLED.severity(throttled):
        return "starved", (
            f"It was starved by its CPU limit, in {quantity(throttled)} % of the limit's periods: "
            "raise the limit to a core for each worker at least"
        )
    if thresholds.STEAL.severity(steal):
        return "starved", f"It was starved: the hypervisor gave {quantity(steal)} % of its CPU time to others"
    if thresholds.RUN_QUEUE.severity(waited):
        return "starved", (
            f"It was starved: a worker's threads waited for a core during {quantity(waited)} % of the time. "
            "Stop other programs on its machine, or start no more workers than it has cores"
        )
    if thresholds.CPU_PROGRAM.severity(cpu):
        return "busy", f"It was busy: a worker used {quantity(cpu)} % of its core. Use more workers"
    return "late", "It had CPU time enough, as far as is known: look for what holds its event loop"


def _cpu(cpu: float | None, kernel: float | None) -> Iterator[Finding]:
    if found := thresholds.CPU[kernel == 1].severity(cpu):
        text = f"the busiest worker used {quantity(cpu)} % of its core: use more workers"
        if kernel != 1:
            text += "; not all timestamps are the kernel's, so its delays are part of the latencies"
        yield found, text


def _taken(steal: float | None, throttled: float | None) -> Iterator[Finding]:
    if found := thresholds.STEAL.severity(steal):
        yield (
            found,
            f"a worker's machine got {quantity(steal)} % less CPU time than it needed: its hypervisor gave "
            "it to others. Use a machine with dedicated CPUs",
        )
    if found := thresholds.THROTTLED.severity(throttled):
        yield (
            found,
            f"a worker was throttled in {quantity(throttled)} % of the periods of its CPU limit: "
            "raise its container's limit, or use more workers",
        )


def _percent(ratio: float | None) -> str:
    return f"{100 * (ratio or 0):.1f} %"


def _unmeasured(manifest: Manifest) -> Iterator[Finding]:
    names = worker_names(manifest.workers)
    unknown = [names[w.id] for w in manifest.workers if w.clock is None and w.received]
    if unknown and len(manifest.workers) > 1:
        named = ", ".join(unknown[:_MOST_NAMED])
        yield (
            "suspect",
            f"the clock of {named} was never measured against the master's: "
            "it is uncertain which of its requests are in the window",
        )


def _littles_law(law: Mapping[str, Any] | None) -> Iterator[Finding]:
    if law is not None and law["holds"] is False:
        yield (
            "suspect",
            f"Little's law does not hold: {law_text(law)}; records are missing, or their times are wrong",
        )


def _stepped(stepped: int, n: int) -> Iterator[Finding]:
    if stepped:
        yield (
            "suspect",
            f"the wall clock was set during {stepped} of {n} requests: their durations are from the "
            "monotonic clock, read by the program, and their times in the run may be off by the step",
        )


def misplaced_requests(c: Columns, manifest: Manifest) -> int:
    """Requests that begin before the load was requested or end after the last record was in: their clock was
    set, and when they were is not known. Records of workers that were lost may end later."""
    errors_s = [w.clock.error_ns * 1e-9 for w in manifest.workers if w.clock]
    allowed_s = MISPLACED_S + max(errors_s, default=0.0)
    early = c.started_s < c.after_origin_s(manifest.started_ns) - allowed_s
    if manifest.ended_ns is None or manifest.workers_lost:
        return int(early.sum())
    return int((early | (c.ended_s > c.after_origin_s(manifest.ended_ns) + allowed_s)).sum())


def _misplaced(misplaced: int, n: int) -> Iterator[Finding]:
    if misplaced:
        yield (
            "invalid",
            f"{misplaced} of {n} requests begin before the load or end after it: a clock was set, and it is "
            "not known when they were; the window and all rates are wrong",
        )


def _clocks(manifest: Manifest, window_s: float) -> Iterator[Finding]:
    yield from _clocks_set(manifest)
    yield from _clock_error(manifest, window_s)
    yield from _unmeasured(manifest)


def _clocks_set(manifest: Manifest) -> Iterator[Finding]:
    names = worker_names(manifest.workers)
    stepped = [w for w in manifest.workers if w.clock and w.clock.steps]
    steps = sum(w.clock.steps for w in stepped if w.clock)
    if stepped:
        yield (
            "suspect",
            f"{_clocks_of(stepped, names)} set {_times(steps)} during the run: the records are placed by the "
            "corrected clock, and no latency changed",
        )
    if manifest.clock_steps:
        yield (
            "suspect",
            f"the master's clock was set {_times(manifest.clock_steps)} during the run: the run's time did "
            "not follow, so later times differ from the wall clock's; no latency changed",
        )


def _clocks_of(workers: list[WorkerFacts], names: Mapping[str, str]) -> str:
    if len(workers) == 1:
        return f"the clock of {names[workers[0].id]} was"
    named = ", ".join(names[w.id] for w in workers[:_MOST_NAMED])
    more = f" and {len(workers) - _MOST_NAMED} more" if len(workers) > _MOST_NAMED else ""
    return f"the clocks of {len(workers)} workers ({named}{more}) were"


def _times(n: int) -> str:
    return "once" if n == 1 else f"{n} times"


def _clock_error(manifest: Manifest, window_s: float) -> Iterator[Finding]:
    names = worker_names(manifest.workers)
    error_s, worker = max(
        ((w.clock.error_ns * 1e-9, names[w.id]) for w in manifest.workers if w.clock), default=(0.0, "")
    )
    share = thresholds.CLOCK_ERROR.severity(error_s, window_s) if window_s > 0 else None
    if found := share or ("suspect" if error_s > CLOCK_ERROR_S else None):
        yield (
            found,
            f"the clock of {worker} is known only to {quantity(error_s)} s, the window is "
            f"{quantity(window_s)} s long: it is uncertain which of its requests are inside",
        )


def _blind(
    lag_ms: float | None, hub_lag_ms: float | None, cpu: float | None, kernel: float | None
) -> Iterator[Finding]:
    if kernel is not None and kernel < 1 and lag_ms is hub_lag_ms is cpu is None:
        yield (
            "suspect",
            "neither the client's lag nor its CPU is known: nothing shows that it read in time",
        )
