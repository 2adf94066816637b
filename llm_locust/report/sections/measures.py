"""What was measured over all requests: counts, latencies, rates and tokens."""

from collections.abc import Iterator, Mapping
from typing import Any

from llm_locust.metrics.catalogue import LATENCY, shown_in
from llm_locust.metrics.latency_metric import View
from llm_locust.report.section import Column, Line, Row, Section, Table, Tone
from llm_locust.report.sections.live_check import live_check
from llm_locust.report.text import UNDEFINED, count, number, percent, plural, sentence
from llm_locust.report.uncertainty import bounds, estimate, is_cut, mark, meaning, meaning_in

Part = Mapping[str, Any]

_Statistic = tuple[str, str, bool]

#: Keys of summary.json, their heads, and whether they need a wide table.
_STATISTICS: tuple[_Statistic, ...] = (
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


def is_open_loop(summary: Part) -> bool:
    """Whether requests had a schedule of their own: only then is a delay against it judged."""
    return (summary.get("client") or {}).get("schedule_delay_ms_p99") is not None


def requests(summary: Part) -> Section:
    """How many requests there were, and how they ended."""
    part = summary.get("requests") or {}
    failed, cancelled, lost = (part.get(key) for key in ("failed", "cancelled", "lost"))
    unsent, stuck, resent = part.get("unsent"), part.get("stuck"), part.get("resent")
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
            f"{count(unsent)} never sent" if unsent else "",
            f"{count(stuck)} stuck from before the window" if stuck else "",
            f"{count(resent)} first tries, not counted here, were sent again" if resent else "",
        ]
    )
    lines = [Line(text, Tone.WARN if failed or lost or unsent or stuck else Tone.PLAIN), *_given_up(part)]
    return Section("Requests", tuple(lines))


def _given_up(part: Part) -> Iterator[Line]:
    """Who was cancelled, and by whom."""
    cut, broken, left = (part.get(key) for key in ("cut", "cut_broken", "abandoned"))
    judged = f", of them {count(broken)} had broken a limit" if broken is not None else ""
    share = f" ({percent(part.get('cut_share'))})" if cut else ""
    text = sentence(
        [f"cut: {count(cut)}{share}{judged}" if cut else "", f"left: {plural(left, 'user')}" if left else ""]
    )
    if text:
        yield Line(text, Tone.WARN if is_cut(part) else Tone.PLAIN)


def latency(summary: Part) -> Section:
    """The latency table in milliseconds, of ``ok`` requests; a percentile of too few is marked."""
    part = summary.get("latency_ms") or {}
    statistics = _statistics(summary)
    shown = [(label, part[key]) for key, label in _latency_keys(summary) if key in part]
    columns = (
        Column("Latency, ms", left=True),
        *(Column(head, wide=wide) for _, head, wide in statistics),
        Column("n"),
    )
    cut = is_cut(summary.get("requests") or {})
    rows = tuple(_statistics_row(label, stats, statistics, cut=cut) for label, stats in shown)
    table = Table(columns, rows)
    notes = [
        *_buffered(summary),
        *_adjusted(summary),
        *_network(part),
        *_approximate(part.get("itl") or {}),
        *live_check(summary),
        *meaning_in(table),
    ]
    return Section("Latency", table=table, notes=tuple(notes))


def intervals(summary: Part) -> Section | None:
    """The 95 % interval of each percentile of the latency table; None where there is none."""
    part = summary.get("latency_ms") or {}
    places = [s for s in _statistics(summary) if s[0].startswith("p")]
    rows = tuple(
        Row((label, *(bounds(part[key], place) for place, *_ in places)))
        for key, label in _latency_keys(summary)
        if any(((part.get(key) or {}).get("ci95") or {}).values())
    )
    if not rows:
        return None
    columns = (Column("95 %, ms", left=True), *(Column(head, wide=wide) for _, head, wide in places))
    return Section("Intervals", table=Table(columns, rows))


def _statistics(summary: Part) -> tuple[_Statistic, ...]:
    """The usual columns, or those of the percentiles that were asked for."""
    asked = (summary.get("analysis") or {}).get("percentiles")
    if not asked:
        return _STATISTICS
    plain = [statistic for statistic in _STATISTICS if not statistic[0].startswith("p")]
    places = [(key, key.replace("_", "."), False) for key in asked]
    return (*plain[:-1], *places, plain[-1])


def _latency_keys(summary: Part) -> Iterator[tuple[str, str]]:
    part, open_loop = summary.get("latency_ms") or {}, is_open_loop(summary)
    for metric in shown_in(View.REPORT):
        if metric.is_from_scheduled and not open_loop:
            continue
        if metric.key != "ttfo" or part.get("ttfo") != part.get("ttft"):
            yield metric.key, metric.label


def _statistics_row(label: str, stats: Part, statistics: tuple[_Statistic, ...], *, cut: bool) -> Row:
    cells = (estimate(stats, key, cut=cut) for key, *_ in statistics)
    return Row((label, *cells, count(stats.get("n"))))


def _approximate(itl: Part) -> Iterator[Line]:
    """The stated error of ITL percentiles, where the gaps were too many to be kept."""
    if itl.get("relative_error"):
        yield Line(
            f"ITL percentiles within {percent(itl['relative_error'])} (counted in buckets)", Tone.FAINT
        )


def is_buffered(summary: Part) -> bool:
    """Whether something between server and client held the stream back."""
    return (summary.get("tokens") or {}).get("delivery") == "buffered"


def _buffered(summary: Part) -> Iterator[Line]:
    if is_buffered(summary):
        gap = number(((summary.get("latency_ms") or {}).get("itl") or {}).get("p50"))
        yield Line(
            f"the stream was buffered on the way: TTFT, TPOT and ITL are not the server's (median gap {gap} "
            f"ms, {number(summary['tokens'].get('tokens_per_event'))} tokens an event)",
            Tone.WARN,
        )


def _adjusted(summary: Part) -> Iterator[Line]:
    """The percentiles in which each failed request stands as +∞, where there are such requests."""
    part = summary.get("latency_ms_adjusted") or {}
    if not (summary.get("requests") or {}).get("failed"):
        return
    figures = [
        f"{LATENCY[key].label} p50 {_or_beyond(part[key], 'p50')}, p99 {_or_beyond(part[key], 'p99')}"
        for key in ("ttft", "e2el")
        if key in part
    ]
    yield Line(f"failures as ∞: {sentence(figures)}", Tone.FAINT)


def _or_beyond(stats: Part, key: str) -> str:
    return "> max" if key in (stats.get("beyond") or ()) else estimate(stats, key)


def _network(part: Part) -> Iterator[Line]:
    connect, rtt = part.get("connect") or {}, part.get("rtt") or {}
    facts = [
        f"connect p50 {estimate(connect, 'p50')} ms ({count(connect['n'])} new connections)"
        if connect.get("n")
        else "",
        f"network RTT p50 {estimate(rtt, 'p50')} ms" if rtt.get("n") else "",
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
    counted = summary.get("tokens") or {}
    user_tps, chars_per_s = (counted.get(key) or {} for key in ("user_tps", "chars_per_s"))
    lines = [
        Line(sentence(rates[:2])),
        Line(sentence(rates[2:])),
        *_characters(part, counted),
        Line(_seen(user_tps, "tokens")),
        *([Line(_seen(chars_per_s, "chars"))] if chars_per_s.get("n") else []),
        Line(f"concurrency {mean} mean · {peak} peak"),
    ]
    few = meaning(*(mark(pace, key) for pace in (user_tps, chars_per_s) for key in ("p50", "p1")))
    return Section("Throughput", tuple(lines), notes=tuple(few))


def _seen(pace: Part, unit: str) -> str:
    """What the users got, and the slowest of them."""
    return f"a user sees {estimate(pace, 'p50')} {unit}/s (median), {estimate(pace, 'p1')} (p1)"


def _characters(part: Part, counted: Part) -> Iterator[Line]:
    """The rate that does not depend on a tokenizer, where the answers' lengths are known."""
    if part.get("output_chars_per_s") is not None and counted.get("chars_per_token") is not None:
        rate, each = number(part["output_chars_per_s"]), number(counted["chars_per_token"])
        yield Line(f"{rate} output chars/s · {each} chars a token")


def tokens(summary: Part) -> Section:
    """Lengths of prompts and answers, who counted them, and what an event of the stream is."""
    part = summary.get("tokens") or {}
    keys = ("mean", "p50", "p99", "max")
    rows = tuple(
        Row((label, *(number(stats.get(key)) for key in keys), count(stats.get("n"))))
        for label, stats in (("input", part.get("input") or {}), ("output", part.get("output") or {}))
    )
    columns = (Column("Tokens a request", left=True), *map(Column, keys), Column("n"))
    counted = [
        f"{percent(share)} {_COUNTED_BY.get(source, source)}"
        for source, share in (part.get("source") or {}).items()
        if share
    ]
    notes = [
        Line(f"output tokens counted by: {sentence(counted) or UNDEFINED}", Tone.FAINT),
        *_hidden_remark(part.get("hidden") or {}),
        *_length_remark((part.get("input") or {}).get("error") or {}),
        *_delivery_remark(part),
    ]
    return Section("Tokens", table=Table(columns, rows), notes=tuple(notes))


_COUNTED_BY = {"estimate": "estimate (cut before they were counted: events × tokens an event)"}


def _hidden_remark(hidden: Part) -> Iterator[Line]:
    """How much of the output never came, where the server counts reasoning that it does not stream."""
    if hidden.get("requests"):
        yield Line(
            f"{percent(hidden.get('share'))} of the output tokens are reasoning that was counted and not "
            f"streamed ({count(hidden['requests'])} answers): it is in tokens/s, and not in TPOT",
            Tone.WARN,
        )


def _length_remark(error: Part) -> Iterator[Line]:
    """How near the prompts came to the lengths that were asked for."""
    if not error.get("n"):
        return
    if error.get("p99") == 0:
        yield Line("prompts have exactly the asked lengths, as the server counts them", Tone.FAINT)
        return
    mean = float(error["mean_relative"])
    yield Line(
        f"prompts are {percent(abs(mean))} {'longer' if mean >= 0 else 'shorter'} than asked on average, "
        f"{percent(error.get('p50'))} off (median), {percent(error.get('p99'))} (p99)",
        Tone.FAINT,
    )


def _delivery_remark(part: Part) -> Iterator[Line]:
    """What tokens per event means for ITL and TTFT, where it means something."""
    each = f"{number(part.get('tokens_per_event'))} tokens an event"
    if part.get("delivery") == "merged":
        yield Line(f"{each}: an ITL is a gap between events, not between tokens", Tone.WARN)
    elif part.get("delivery") == "buffered":
        yield Line(f"{each}, and the stream was buffered on the way: see the latencies", Tone.WARN)
