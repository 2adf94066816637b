"""Timestamps and clocks: of the kernel, of this machine, of the server."""

from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime

from llm_locust.client.probing import StampTrial
from llm_locust.doctor.finding import Finding, ok, skipped, warn
from llm_locust.host.clock_source import ClockSource
from llm_locust.report.text import number

#: Clock sources that are read from a device or counted by interrupts.
SLOW_SOURCES = frozenset({"hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies"})

#: A reading that takes longer is a system call.
SLOW_READING_NS = 500.0

#: Difference between the server's clock and this one from which logs are hard to join with records.
SERVER_CLOCK_OFF_S = 2.0

#: ``Date`` has whole seconds.
_DATE_RESOLUTION_S = 1.0


def judge_stamps(trial: StampTrial | None) -> Finding:
    """Receive timestamps of the kernel, tried on loopback."""
    change = (
        "use Linux without a sandboxed network (gVisor): else a busy client is late in every latency; "
        "keep its CPU below 70 %"
    )
    if trial is None:
        return warn("not tried: loopback cannot be used", change)
    figure = f"{trial.stamped} of {trial.received} reads on loopback have one"
    if trial.stamped < trial.received:
        return warn(figure, change)
    if trial.wrong:
        return warn(f"{figure}, {trial.wrong} of them are wrong by over a second, or in the future", change)
    lag = "" if trial.lag_ns is None else f", {number(trial.lag_ns / 1e3)} µs before the read"
    return ok(figure + lag)


def judge_reader(why_python: str | None) -> Finding:
    """What reads the sockets.

    Args:
        why_python: why it is not the thread in C; None if it is.
    """
    if why_python is None:
        return ok("a thread in C: no time depends on how busy Python is")
    return warn(f"Python: {why_python}", "build it, or keep the CPU of each worker below 50 %")


def judge_clock_source(source: ClockSource) -> Finding:
    """Clock source, and the cost of a reading: each read of a stream reads the clock."""
    figure = f"{source.name or 'unknown'}, {number(source.reading_ns)} ns a reading"
    if source.name in SLOW_SOURCES or source.reading_ns > SLOW_READING_NS:
        return warn(figure, "use tsc or kvm-clock: see `cat /sys/devices/system/clocksource/*/available_*`")
    return ok(figure)


@dataclass(frozen=True, slots=True)
class ServerTime:
    """``Date`` of an answer, as sent, and the realtime seconds just before the request and after it."""

    date: str | None
    before_s: float
    after_s: float


def judge_server_clock(seen: ServerTime | None) -> Finding:
    """How far the server's clock is off, as far as ``Date`` tells. No latency depends on it."""
    if seen is None:
        return skipped("no answer")
    if seen.date is None:
        return skipped("the answer has no Date")
    try:
        date_s = parsedate_to_datetime(seen.date).replace(tzinfo=UTC).timestamp()
    except (ValueError, TypeError, OverflowError, OSError):
        return skipped("the answer's Date is not a date")
    # The server read its clock between before and after, and cut off the part of a second.
    ahead_s, behind_s = date_s - seen.after_s, seen.before_s - (date_s + _DATE_RESOLUTION_S)
    off_s = max(ahead_s, behind_s, 0.0)
    if off_s == 0:
        return ok("within 1 s of this machine's, as far as Date tells")
    figure = f"{number(off_s)} s {'ahead of' if ahead_s > behind_s else 'behind'} this machine's"
    if off_s > SERVER_CLOCK_OFF_S:
        return warn(
            figure, "synchronise both (NTP), to join server logs with records; no latency depends on it"
        )
    return ok(figure)
