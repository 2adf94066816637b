"""What was measured over all requests: counts, latencies, rates and tokens."""

from collections.abc import Iterator, Mapping
from typing import Any

from llm_locust.report.section import Column, Line, Row, Section, Table, Tone
from llm_locust.report.text import UNDEFINED, count, number, percent, sentence

Part = Mapping[str, Any]

#: Keys of summary.json, their heads, and whether they need a wide table.
_STATISTICS = (
    ("mean", "mean", False),
    ("std", "std", True),
    ("min", "min", True),
    ("p50", "p50", False),
    ("p75", "p75", True),
    ("p90", "p90", False),
    ("p95", "p95", False),
    ("p99", "p99", False),
    ("p99_9", "p99.9", True),
    ("max", "max", True),
)
_FROM_SENT = (("ttft", "TTFT"), ("ttfo", "TTFO"), ("tpot", "TPOT"), ("itl", "ITL"), ("e2el", "E2EL"))
_FROM_SCHEDULED = (
    ("ttft_scheduled", "TTFT from scheduled"),
    ("e2el_scheduled", "E2EL from scheduled"),
    ("schedule_delay", "Schedule delay"),
)


def is_open_loop(summary: Part) -> bool:
    """Whether requests had a schedule of their own: only then is a delay against it judged."""
    return (summary.get("client") or {}).get("schedule_delay_ms_p99") is not None


def requests(summary: Part) -> Section:
    """How many requests there were, and how they ended."""
    part = summary.get("requests") or {}
    failed, cancelled, lost = (part.get(key) for key in ("failed", "cancelled", "lost"))
    rate = f" ({percent(part['error_rate'])})" if part.get("error_rate") else ""
    scheduled, sent = part.get("scheduled"), part.get("sent")
    text = sentence(
        [
            f"{count(scheduled)} scheduled",
            f"{count(sent)} sent" if sent != scheduled else "",
            f"{count(part.get('ok'))} ok",
            f"{count(failed)} failed{rate}",
            f"{count(cancelled)} cancelled" if cancelled else "",
            f"{count(lost)} lost" if lost else "",
        ]
    )
    return Section("Requests", (Line(text, Tone.WARN if failed or lost else Tone.PLAIN),))


def latency(summary: Part) -> Section:
    """The latency table in milliseconds, of ``ok`` requests; a percentile of too few is marked."""
    part = summary.get("latency_ms") or {}
    shown = [(label, part[key]) for key, label in _latency_keys(summary) if key in part]
    columns = (
        Column("Latency, ms", left=True),
        *(Column(head, wide=wide) for _, head, wide in _STATISTICS),
        Column("n"),
    )
    rows = tuple(_statistics_row(label, stats) for label, stats in shown)
    notes = [
        *_adjusted(summary),
        *_network(part),
        *_approximate(part.get("itl") or {}),
        *_too_few([stats for _, stats in shown]),
    ]
    return Section("Latency", table=Table(columns, rows), notes=tuple(notes))


def _latency_keys(summary: Part) -> Iterator[tuple[str, str]]:
    part = summary.get("latency_ms") or {}
    for key, label in _FROM_SENT:
        if key != "ttfo" or part.get("ttfo") != part.get("ttft"):
            yield key, label
    if is_open_loop(summary):
        yield from _FROM_SCHEDULED


def _statistics_row(label: str, stats: Part) -> Row:
    cells = (("~" if _has_too_few(stats, key) else "") + number(stats.get(key)) for key, *_ in _STATISTICS)
    return Row((label, *cells, count(stats.get("n"))))


def _has_too_few(stats: Part, key: str) -> bool:
    """Whether a percentile stands without its interval: its n cannot bound it."""
    intervals = stats.get("ci95") or {}
    return stats.get(key) is not None and key in intervals and intervals[key] is None


def _approximate(itl: Part) -> Iterator[Line]:
    """The stated error of ITL percentiles, where the gaps were too many to be kept."""
    if itl.get("relative_error"):
        yield Line(
            f"ITL percentiles within {percent(itl['relative_error'])} (counted in buckets)", Tone.FAINT
        )


def _too_few(shown: list[Part]) -> Iterator[Line]:
    marked = [wide for key, _, wide in _STATISTICS for stats in shown if _has_too_few(stats, key)]
    if marked:
        text = "~ too few samples for a 95 % interval (p99 needs 368, p99.9 3,688)"
        yield Line(text, Tone.FAINT, wide=all(marked))


def _adjusted(summary: Part) -> Iterator[Line]:
    """The percentiles in which each failed request stands as +∞, where there are such requests."""
    part = summary.get("latency_ms_adjusted") or {}
    if not (summary.get("requests") or {}).get("failed"):
        return
    figures = [
        f"{label} p50 {_or_beyond(part[key], 'p50')}, p99 {_or_beyond(part[key], 'p99')}"
        for key, label in (("ttft", "TTFT"), ("e2el", "E2EL"))
        if key in part
    ]
    yield Line(f"failures as ∞: {sentence(figures)}", Tone.FAINT)


def _or_beyond(stats: Part, key: str) -> str:
    return "> max" if key in (stats.get("beyond") or ()) else number(stats.get(key))


def _network(part: Part) -> Iterator[Line]:
    connect, rtt = part.get("connect") or {}, part.get("rtt") or {}
    facts = [
        f"connect p50 {number(connect.get('p50'))} ms ({count(connect['n'])} new connections)"
        if connect.get("n")
        else "",
        f"network RTT p50 {number(rtt.get('p50'))} ms" if rtt.get("n") else "",
    ]
    if any(facts):
        yield Line(sentence(facts), Tone.FAINT)


def throughput(summary: Part) -> Section:
    """Rates over the window, and how many requests were under way at a time."""
    part = summary.get("throughput") or {}
    rates = [f"{number(part.get('requests_per_s'))} requests/s"] + [
        f"{number(part.get(f'{kind}_tokens_per_s'))} {kind} tokens/s" for kind in ("output", "input", "total")
    ]
    mean, peak = number(part.get("concurrency_mean")), count(part.get("concurrency_peak"))
    pace = (summary.get("tokens") or {}).get("user_tps") or {}
    return Section(
        "Throughput",
        (
            Line(sentence(rates[:2])),
            Line(sentence(rates[2:])),
            Line(f"a user sees {number(pace.get('p50'))} tokens/s (median), {number(pace.get('p1'))} (p1)"),
            Line(f"concurrency {mean} mean · {peak} peak"),
        ),
    )


def tokens(summary: Part) -> Section:
    """Lengths of prompts and answers, who counted them, and what an event of the stream is."""
    part = summary.get("tokens") or {}
    keys = ("mean", "p50", "p99", "max")
    rows = tuple(
        Row((label, *(number(stats.get(key)) for key in keys), count(stats.get("n"))))
        for label, stats in (("input", part.get("input") or {}), ("output", part.get("output") or {}))
    )
    columns = (Column("Tokens a request", left=True), *map(Column, keys), Column("n"))
    counted = [f"{percent(share)} {source}" for source, share in (part.get("source") or {}).items() if share]
    notes = [
        Line(f"output tokens counted by: {sentence(counted) or UNDEFINED}", Tone.FAINT),
        *_delivery_remark(part),
    ]
    return Section("Tokens", table=Table(columns, rows), notes=tuple(notes))


def _delivery_remark(part: Part) -> Iterator[Line]:
    """What tokens per event means for ITL and TTFT, where it means something."""
    meaning = {
        "merged": "an ITL is a gap between events, not between tokens",
        "buffered": "the stream was buffered on the way, so ITL and TTFT are not the server's",
    }.get(part.get("delivery") or "")
    if meaning:
        yield Line(f"{number(part.get('tokens_per_event'))} tokens an event: {meaning}", Tone.WARN)
