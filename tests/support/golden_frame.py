"""The golden run as a DataFrame, by pandas: metrics of each request, their course; where time went."""

from itertools import combinations, pairwise
from typing import Any

import golden_run as run
import numpy as np
import pandas as pd
from golden_intervals import once, percentile, serial_correlation, student_t
from metrics_cases import ORIGIN_NS

from llm_locust.core.record import RequestRecord

Frame = pd.DataFrame


def frame(made: list[RequestRecord]) -> Frame:
    """One row a request, in the order of the workers; times in seconds after the run's start."""
    df = pd.DataFrame([_row(r) for r in [*made[::2], *made[1::2]]])
    # Rows with texts of Arrow take most of the time.
    df = df.astype(dict.fromkeys(df.columns[df.dtypes == "str"], object))
    for column in ("input_tokens", "cached_tokens", "n", "chars", "ttft", "ttfo", "e2el", "tpot", "sent"):
        df[column] = df[column].astype(float)
    start, end = df.scheduled.min() + run.WARMUP_S, run.STOP_S
    df["window_start"] = start
    df["inside"] = (df.scheduled >= start) & (df.scheduled < end)
    df["ended_inside"] = (df.ended >= start) & (df.ended < end)
    df["share"] = [_share(*each, start, end) for each in zip(df.sent, df.arrivals, strict=True)]
    df.loc[df.events == 0, "share"] = df.ended_inside[df.events == 0].astype(float)
    begun = (df.sent + df.first_event).where(df.events > 0, df.ended)
    df["reads_prompt"] = (begun >= start) & (begun < end) & ((df.events > 0) | df.ok)
    df["ttft_started"] = df.ttft + df.sent - df.started
    df["prefill_ms_per_1k_input"] = df.ttft * 1e3 / df.input_tokens.where(df.input_tokens > 0)
    df["ttft_scheduled"], df["e2el_scheduled"] = df.ttft + df.schedule_delay, df.e2el + df.schedule_delay
    _give_up(df)
    _judge(df)
    _estimate(df)
    _concurrency_when_sent(df)
    return df.copy()  # in a few blocks instead of one for each column


def _row(r: RequestRecord) -> dict[str, Any]:
    def after(at_ns: int | None) -> float:
        return np.nan if at_ns is None else (at_ns - ORIGIN_NS) / 1e9

    arrivals = r.arrivals_ns / 1e9
    events, ok = len(arrivals), r.outcome == "ok"
    counted_here = r.output_tokens is None and r.streamed and events > 0
    n = events if counted_here else r.output_tokens
    first, last = (arrivals[0], arrivals[-1]) if events else (np.nan, np.nan)
    delay = np.nan if r.sent_ns is None else (r.sent_ns - r.scheduled_ns) / 1e9
    streamed = r.streamed
    finish, hidden = _seconds(r.finish_ns), r.hidden_tokens or 0
    visible = np.nan if n is None else n - hidden
    came = np.nan if r.came_tokens is None else r.came_tokens
    told = r.came_tokens is not None
    one_more = visible == events + 1 and r.finish_reason in ("stop", "end_turn", "completed")
    eos = n is not None and n > came if told else one_more
    eos = bool(streamed and r.token_source == "usage" and eos and not np.isnan(finish))
    opening = r.opening_tokens or 1
    followed = (came - hidden if told and not eos else visible) - opening
    begun = _seconds(r.first_answer_ns) if hidden else first
    spent = (finish if eos else last) - begun if streamed else np.nan
    whole = not streamed and ok and not events
    return {
        **{key: getattr(r, key) for key in ("name", "slo_class", "replica", "status", "error", "retries")},
        **{
            key: getattr(r, key)
            for key in ("streamed", "abandoned", "session", "turn", "prompt_id", "doubt", "left_open")
        },
        **{key: getattr(r, key) for key in ("answer_hash", "rejected_by", "finish_reason")},
        "correct": r.correct,
        "asked_input_tokens": r.asked_input_tokens,
        "asked_output_tokens": r.asked_output_tokens,
        "outcome": str(r.outcome),
        "ok": ok,
        "cancelled": r.outcome == "cancelled",
        "arrivals": arrivals,
        "events": events,
        "first_event": first,
        "scheduled": after(r.scheduled_ns),
        "started": after(r.started_ns),
        "sent": after(r.sent_ns),
        "ended": after(r.ended_ns),
        "input_tokens": r.input_tokens,
        "cached_tokens": r.cached_tokens,
        "n": n,
        "chars": r.output_chars,
        "source": "events" if counted_here else str(r.token_source),
        "ttft": first if streamed else np.nan,
        "ttfo": r.first_answer_ns / 1e9 if streamed and r.first_answer_ns is not None else np.nan,
        "e2el": (r.ended_ns - r.sent_ns) / 1e9 if whole and r.sent_ns else last,
        "tpot": spent / followed if spent > 0 and followed >= 1 else np.nan,
        "last_event": last,
        "last_token": finish if eos else last,
        "reused": r.reused,
        "visible": visible,
        "hidden": hidden,
        "event_tokens": came - hidden if told else visible - eos,
        "told": told,
        "opening": opening,
        "followed": followed,
        "fault": r.count_fault,
        "unread": r.unread,
        "begun": begun if streamed else np.nan,
        "first_chunk": _seconds(r.first_chunk_ns),
        "last_chunk": _seconds(r.last_chunk_ns),
        **_gaps(r),
        "first_wide": _first_wide(r, arrivals) if streamed and events else np.nan,
        "schedule_delay": delay,
        "connect": np.nan if r.reused or r.connected_ns is None else (r.connected_ns - r.started_ns) / 1e9,
        "rtt": np.nan if r.rtt_ns is None else r.rtt_ns / 1e9,
        "client_lag": r.client_lag_ns / 1e9 if r.client_lag_ns is not None else np.nan,
        "end_lag": _seconds(r.end_lag_ns),
        "took": (r.ended_ns - r.started_ns) / 1e9,
        "stepped": r.clock_step_ns is not None,
    }


def _seconds(ns: int | None) -> float:
    return np.nan if ns is None else ns / 1e9


def _first_wide(r: RequestRecord, arrivals: Any) -> bool:
    """Whether the first event shares its time with the second, and the client may have been a millisecond
    late."""
    in_time = r.client_lag_ns is not None and r.client_lag_ns < 1_000_000
    return len(arrivals) > 1 and arrivals[0] == arrivals[1] and not in_time


def _gaps(r: RequestRecord) -> dict[str, Any]:
    return {"gaps": np.diff(r.arrivals_ns) / 1e9 if r.streamed else np.empty(0)}


def _share(sent: float, arrivals: Any, start: float, end: float) -> float:
    """The share of the token events that arrived in the window."""
    return float(((sent + arrivals >= start) & (sent + arrivals < end)).mean()) if len(arrivals) else 0.0


def _estimate(df: Frame) -> None:
    """Requests that were cut before they were counted have as many tokens per event as counted answers."""
    counted = df[df.ok & df.streamed & (df.events > 0) & (df.source != "events") & df.n.notna()]
    counted = counted[~(counted.begun > counted.first_event)]  # the events of a summary bring no token
    brought = counted.event_tokens - counted.opening + 1
    cut = ~df.ok & (df.outcome != "rejected") & df.streamed & (df.events > 0) & (df.source == "events")
    df["counted_by"] = df.source.where(~cut, "estimate")
    df.loc[cut, "n"] *= brought.sum() / counted.events.sum()


def _give_up(df: Frame) -> None:
    """What is known of requests that did not get to their end: latencies that had come, and lower bounds."""
    df["cut"] = df.cancelled & ~df.abandoned
    inputs = df.input_tokens.where(df.input_tokens > 0)
    given_up = df["given_up"] = df.cancelled | (df.outcome == "timeout")
    for metric in ("ttft", "ttfo", "e2el"):
        came = df[metric].notna() if metric != "e2el" else pd.Series(False, df.index)
        still_open = given_up & ~came & (df.streamed if metric != "e2el" else True)
        df[f"{metric}_longer_than"] = (df.ended - df.sent.fillna(df.started)).where(still_open)
        df[f"{metric}_scheduled_longer_than"] = (df.ended - df.scheduled).where(still_open)
        if metric == "ttft":
            df["ttft_started_longer_than"] = (df.ended - df.started).where(still_open)
            df["prefill_ms_per_1k_input_longer_than"] = df.ttft_longer_than * 1e3 / inputs
    # Gaps before tokens, one more to come.
    more = np.maximum(df.asked_output_tokens - df.opening, df.followed + 1)
    df["tpot_longer_than"] = ((df.ended - df.sent - df.begun) / more).where(given_up)


def _judge(df: Frame) -> None:
    """The limits of each class, measured from scheduled: an open loop."""
    limit = {m: df.slo_class.map(lambda label, m=m: slo_of(label).get(m, np.inf)) for m in run.SLO}
    known = {"ttft": df.ttft_scheduled, "tpot": df.tpot, "e2el": df.e2el_scheduled}
    bounds = {
        "ttft": df.ttft_scheduled.fillna(df.ttft_scheduled_longer_than),
        "tpot": df.tpot_longer_than,
        "e2el": df.e2el_scheduled_longer_than,
    }
    broken = {m: df.cancelled & (bounds[m] > limit[m] + 0.5e-9) for m in run.SLO}
    for metric, value in known.items():
        held = (value <= limit[metric] + 0.5e-9) | np.isinf(limit[metric])
        df[f"unjudged_{metric}"] = False
        if metric == "tpot":
            held |= df.followed < 1
            df["unjudged_tpot"] = df.ok & ~held & df.tpot.isna()
            held |= df.unjudged_tpot  # each class has other limits
        df[f"held_{metric}"] = df.ok & held
        df[f"limited_{metric}"] = np.isfinite(limit[metric]) & (~df.cancelled | broken[metric])
    left = df.abandoned & (df.events == 0)
    df["judged"] = ~df.cancelled | left | broken["ttft"] | broken["tpot"] | broken["e2el"]
    within = df.held_ttft & df.held_tpot & df.held_e2el
    doubtful = within & df.doubt.isin(["content_filter", "no_answer", "no_finish_reason"])
    df["good"] = within & ~doubtful
    sent = [df[f"held_{m}"] | (df.ok & (df[m] <= limit[m] + 0.5e-9)) for m in run.SLO]
    df["by_delay"] = np.logical_and.reduce(sent) & ~within
    # When each limit breaks, after sent; one that breaks at an unknown moment comes last.
    moments = pd.DataFrame(
        {
            "ttft": limit["ttft"] - df.schedule_delay,
            "tpot": df.begun
            + limit["tpot"]
            * df.followed.where(
                ~df.cancelled, np.maximum(df.asked_output_tokens - df.opening, df.followed + 1)
            ),
            "e2el": limit["e2el"] - df.schedule_delay,
        }
    ).fillna(1e300)
    for metric in run.SLO:
        moments.loc[df[f"held_{metric}"] | (df.cancelled & ~broken[metric]), metric] = np.inf
    first = moments.idxmin(axis="columns")
    cause = first.where(df.ok | df.cut, "outcome").where(~df.abandoned, "abandoned")
    cause = cause.where(~doubtful, df.doubt)
    df["first_failed"] = cause.where(~df.good & df.judged, "")
    df["on_time"] = [_on_time(r) if r.ok and r.inside else np.nan for r in df.itertuples()]


def slo_of(label: str) -> dict[str, float]:
    return run.SLOW if label == "slow" else run.SLO


def in_ms(slo: dict[str, float]) -> dict[str, float]:
    return {metric: limit_s * 1e3 for metric, limit_s in slo.items()}


def _on_time(r: Any) -> float:
    """The share of tokens in time for one who reads along, counted event by event."""
    n = r.event_tokens
    if not r.streamed or not r.events or not n > 0 or "tpot" not in slo_of(r.slo_class):
        return np.nan
    step = n / r.events * run.SLO["tpot"]
    due, missed = run.SLO["ttft"], 0
    for arrival in r.arrivals:
        if arrival > due + 0.5e-9:
            missed, due = missed + 1, arrival
        due += step
    return float(1 - missed * min(1.0, n / r.events) / n)


def _concurrency_when_sent(df: Frame) -> None:
    lasts = df.ended > df.sent
    starts, ends = np.sort(df.sent[lasts]), np.sort(df.ended[lasts])
    begun = np.searchsorted(starts, df.sent, side="right") - np.searchsorted(ends, df.sent, side="right")
    df["load"] = np.where(lasts, begun, 0)


@once
def population(df: Frame) -> tuple[Frame, Frame, Frame]:
    """ok, failed, and both, of the requests scheduled in the window."""
    judged = df[df.inside & ~df.cancelled]
    return judged[judged.ok], judged[~judged.ok], judged


def at(seconds: float) -> str:
    """A time of the run as ISO 8601, cut to the microsecond."""
    moment = pd.Timestamp(ORIGIN_NS + round(seconds * 1e9), unit="ns", tz="UTC").floor("us")
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f") + "Z"


def reliability(df: Frame, seconds: float) -> dict[str, Any]:
    start, judged = run.STOP_S - seconds, population(df)[2]
    return {
        "seconds": int(seconds),
        "ok_share": _served(df.ended[df.ok] - start, int(seconds)),
        "good_share": _served(df.ended[df.good] - start, int(seconds)),
        "longest_without_ok": _longest_wait(df.ended[df.ok] - start, seconds),
        "longest_without_good": _longest_wait(df.ended[df.good] - start, seconds),
        "standstill": _standstill(df, seconds),
        "hung": _hung(df),
        "retries": {
            "requests": int((judged.retries > 0).sum()),
            "total": int(judged.retries.sum()),
            "max": int(judged.retries.max()),
        },
    }


def _standstill(df: Frame, seconds: float) -> dict[str, Any]:
    """Moment by moment: the golden run is never silent for more than a second with requests under way."""
    start = run.STOP_S - seconds
    tokens = np.concatenate([sent + arrivals for sent, arrivals in zip(df.sent, df.arrivals, strict=True)])
    ends = df.ended[~df.outcome.isin(["timeout", "connect_error", "cancelled"])]
    events = np.sort(np.concatenate([[start], tokens, ends, [run.STOP_S]]))
    events = events[(events >= start) & (events <= run.STOP_S)]
    begun = df.sent.fillna(df.started)
    for since, until in pairwise(events):
        if until - since > 1:
            inside = df[(begun < until) & (df.ended > since)]
            from_, to = begun[inside.index].clip(since), df.ended[inside.index].clip(upper=until)
            edges = pairwise(sorted({since, until, *from_, *to}))
            busy = sum(b - a for a, b in edges if ((begun <= a) & (df.ended >= b) & (df.ended > begun)).any())
            assert busy <= 1
    return {
        "n": 0,
        "seconds": 0.0,
        "spans": [],
        "slow_n": 0,
        "slow_seconds": 0.0,
        "slow_longest_s": None,
    }


def _hung(df: Frame) -> int:
    """The golden run's requests that were given up had all got something shortly before."""
    given_up = df[df.inside & df.cancelled]
    signs = given_up.sent.fillna(given_up.started) + [max([0, *arrivals]) for arrivals in given_up.arrivals]
    assert (given_up.ended - signs).max() < 3 * df.ttft.max()
    return 0


def _served(after: pd.Series, whole: int) -> float:
    return after[(after >= 0) & (after < whole)].floordiv(1).nunique() / whole


def _longest_wait(after: pd.Series, seconds: float) -> dict[str, float]:
    edges = np.array([0.0, *sorted(after[(after >= 0) & (after < seconds)]), seconds])
    waits = np.diff(edges)
    return {"seconds": float(waits.max()), "start_s": float(edges[waits.argmax()])}


def steadiness(df: Frame, seconds: float) -> dict[str, Any]:
    """The plateau of the rate; in 40 parts: whether each is like the last third."""
    start, ok = run.STOP_S - seconds, population(df)[0]
    # What was asked for in an open loop: requests that were due, in parts of 400 and more of all requests.
    parts = len(df) // 400
    due = np.histogram(df.scheduled, np.linspace(start, run.STOP_S, parts + 1))[0] / (seconds / parts)
    allowed = max(0.1, 4 / np.sqrt(np.median(due) * seconds / parts))
    near = [due[np.abs(due - level) <= allowed * level] for level in np.sort(due)]
    plateau = float(np.median(max(near, key=len)))
    assert (np.abs(due - plateau) <= allowed * plateau).all(), "the golden run has one rate"
    edges = np.linspace(start, run.STOP_S, 41)
    place = np.searchsorted(edges, ok.scheduled, side="right") - 1
    ttfts = ok.groupby(place).ttft.median().to_numpy() * 1e3
    for series in (_mean_concurrency(df, edges), ttfts):
        last = series[-13:]
        residuals = last - last.mean()
        correlation = serial_correlation(residuals, 1)
        worth = max(4.0, 13 * (1 - correlation) / (1 + correlation))
        variance = (residuals**2).mean() / (1 - 1 / worth)
        reach = student_t(worth - 1, 0.99) * np.sqrt(variance * (1 + 1 / worth))
        # The golden run is one that begins as it goes on.
        assert abs(series[0] - last.mean()) <= max(reach, 0.1 * last.mean())
    return {
        "settled": True,
        "warmup_like": False,
        "warmup_s_suggested": None,
        "unit": "requests/s",
        "plateau": plateau,
        "steady_share": 1.0,
        "reason": f"concurrency and median TTFT of the first {seconds / 40:.3g} s "
        "are like those of the last third",
        "slower": None,
        "overload": None,
    }


def _mean_concurrency(df: Frame, edges: Any) -> Any:
    spans = df[df.ended > df.sent]
    return np.array(
        [
            (np.minimum(spans.ended, b) - np.maximum(spans.sent, a)).clip(lower=0).sum() / (b - a)
            for a, b in pairwise(edges)
        ]
    )


def drift(df: Frame, seconds: float) -> dict[str, Any]:
    start, (ok, failed, judged) = run.STOP_S - seconds, population(df)
    bins = int(seconds // 60)  # of 60 s or more each, for there are 100 requests or more in every one
    edges = np.linspace(start, run.STOP_S, bins + 1)

    def binned(rows: Frame) -> Any:
        return rows.groupby(np.searchsorted(edges, rows.scheduled, side="right") - 1)

    size = binned(judged).size()
    came = df[df.n.notna() & ((df.events > 0) | df.ok)]
    begun = (came.sent + came.first_event).where(came.events > 0, came.ended)
    last = came.arrivals.map(lambda a: a[-1] if len(a) else np.nan)
    over = (came.sent + last).where(came.events > 0, came.ended)
    arrived = [(came.n * ((e - begun) / (over - begun).clip(lower=1e-3)).clip(0, 1)).sum() for e in edges]
    ascending = [np.sort(ttfts.dropna()) for _, ttfts in binned(ok).ttft]
    series = {
        "ttft_p50_ms": np.array([percentile(values, 50) for values in ascending]) * 1e3,
        "ttft_p99_ms": np.array([percentile(values, 99) for values in ascending]) * 1e3,
        "goodput_ratio": binned(df[df.inside & df.judged]).good.mean().to_numpy(),
        "error_rate": (binned(failed).size().reindex(size.index, fill_value=0) / size).to_numpy(),
        "output_tokens_per_s": np.diff(arrived) / np.diff(edges),
    }
    hours = ((edges[:-1] + edges[1:]) / 2 - edges[0]) / 3600
    found = {key: _trend(hours, values, seconds / 3600) for key, values in series.items()}
    return {
        "reason": None,
        "bins": bins,
        "bin_s": seconds / bins,
        "found": [key for key, trend in found.items() if trend.pop("beyond_noise")],
        "measures": found,
        "client_rss_mib": None,
    }


def _trend(hours: Any, values: Any, whole: float) -> dict[str, Any]:
    slope, level = np.polyfit(hours, values, 1)
    residuals = values - level - slope * hours
    correlation = serial_correlation(residuals, 2)
    degrees = max(4.0, len(values) * (1 - correlation) / (1 + correlation)) - 2
    error = np.sqrt((residuals**2).sum() / degrees / ((hours - hours.mean()) ** 2).sum())
    reach = student_t(degrees, 0.95) * error
    return {
        "at_start": level,
        "at_end": level + slope * whole,
        "per_hour": slope,
        "ci95": [slope - reach, slope + reach],
        "relative_per_hour": slope / level,
        "correlation": correlation,
        "bins": len(values),
        "beyond_noise": abs(slope) > student_t(degrees, 0.998) * error,
    }


_FAULTS = ("out", "slow", "sticky")
_PARTS = ("connection", "fixed", "prefill", "queue", "decode")


def bottleneck(df: Frame, seconds: float, client: str, causes: list[dict[str, Any]]) -> dict[str, Any]:
    """By the definitions; the golden run has a client that is valid, or one that is wrong in several ways."""
    sent = df[df.sent.notna()]
    assert sent.replica.isna().any()  # so that all replicas count as one
    at = sent.sent.to_numpy()
    first = (sent.sent + sent.first_event).fillna(sent.ended).to_numpy()
    df = df.assign(
        waiting=[max(0, int((at < t).sum() - (first <= t).sum())) for t in df.sent],
        rtt0=np.minimum(df.rtt.fillna(0), df.first_event.fillna(0)),
    )
    df = df.sort_values(["scheduled", "ended"], kind="stable")
    known = df[df.ok & df.streamed & (df.events > 0)]
    answers = known[known.inside]
    calm = answers[answers.waiting <= answers.waiting.median()]
    slope = _slope(calm.input_tokens, calm.first_event - calm.rtt0)
    per_token = max(0.0, slope[0]) if slope and not slope[1] <= 0 <= slope[2] else 0.0
    rest = known.first_event - known.rtt0 - per_token * known.input_tokens.fillna(0)
    alone = rest[known.waiting == 0]
    served = answers.first_event - answers.rtt0
    fixed = served.clip(upper=max(0.0, alone.median() if len(alone) >= 20 else rest.min()))
    prefill = np.minimum(per_token * answers.input_tokens.fillna(0), served - fixed)
    parts = {
        "connection": ((answers.sent - answers.started).clip(lower=0) + answers.rtt0).mean() * 1e3,
        "fixed": fixed.mean() * 1e3,
        "prefill": prefill.mean() * 1e3,
        "queue": (served - fixed - prefill).mean() * 1e3,
        "decode": (answers.last_token - answers.first_event).clip(lower=0).mean() * 1e3,
    }
    total = sum(parts.values())
    fault = next((cause["text"] for cause in causes if cause["kind"] in _FAULTS), None)
    busy = per_token * answers.input_tokens.sum() / seconds / answers.replica.nunique() if per_token else None
    largest = max(_PARTS, key=lambda part: parts[part])
    assert busy is None or busy < 0.5
    return {
        "verdict": "client" if client == "invalid" else "balancer" if fault else largest,
        "answers": len(answers),
        "left_out": int(df.inside.sum()) - len(answers),
        "mean_ms": total,
        "parts_ms": parts,
        "shares": {part: value / total for part, value in parts.items()},
        "always_queued": len(alone) < 20,
        "waiting_mean": answers.waiting.mean(),
        "new_connections": (~answers.reused).mean(),
        "prefill_us_per_token": _told(slope),
        "prefill_busy": busy,
        "tpot_us_per_request": _told(_slope(_load(df, answers), answers.tpot)),
        "tpot_us_per_context_token": _told(_slope(answers.input_tokens + answers.visible / 2, answers.tpot)),
        "cause": fault,
    }


def _load(df: Frame, answers: Frame) -> Any:
    """Mean number in flight between the first and the last event of each."""
    spans = df[df.ended > df.sent]
    ended, sent = spans.ended.to_numpy(), spans.sent.to_numpy()
    loads = []
    for begin, end in zip(answers.sent + answers.first_event, answers.sent + answers.last_event, strict=True):
        overlaps = ended.clip(begin, end) - sent.clip(begin, end)
        loads.append(overlaps.sum() / (end - begin) if end > begin else np.nan)
    return answers.tpot * 0 + np.round(loads, 6)


def _slope(x: Any, y: Any) -> tuple[float, float, float] | None:
    """Median of the slopes of all pairs of a sample of 400, and Sen's interval."""
    points = [(a, b) for a, b in zip(x, y, strict=True) if a == a and b == b]
    low, high = np.percentile([a for a, _ in points], [5, 95])
    if high - low <= 0.1 * high:
        return None
    chosen = [points[i] for i in np.random.default_rng(0).permutation(len(points))[:400]]
    slopes = sorted((d - b) / (c - a) for (a, b), (c, d) in combinations(chosen, 2) if a != c)
    n, ties = len(chosen), np.unique([a for a, _ in chosen], return_counts=True)[1]
    variance = (n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties.tolist())) / 18
    reach = 1.959963984540054 * variance**0.5
    first = max(0, int(np.floor((len(slopes) - reach) / 2)))
    last = min(len(slopes) - 1, int(np.ceil((len(slopes) + reach) / 2)))
    return float(np.median(slopes)), slopes[first], slopes[last]


def _told(slope: tuple[float, float, float] | None) -> dict[str, Any] | None:
    if slope is None:
        return None
    return {"slope": slope[0] * 1e6, "ci95": [slope[1] * 1e6, slope[2] * 1e6]}
