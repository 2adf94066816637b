"""The parts of ``summary.json`` of the golden run by pandas, by the formulas of docs/definitions.md."""

from typing import Any

import golden_run as run
import numpy as np
import pandas as pd
from golden_frame import Frame, at, in_ms, population, slo_of
from golden_intervals import (
    Course,
    figures,
    in_order,
    once,
    over_time,
    rate_ends,
    ratio,
    some,
    spread,
    sums,
    survival,
    uncertainty,
)

from llm_locust.core.record import Outcome
from llm_locust.metrics.catalogue import LATENCIES as CATALOGUE
from llm_locust.wire.usage import CountFault

OUTCOMES = [outcome.value for outcome in Outcome if outcome is not Outcome.RESENT]
LATENCIES = (
    *("ttft", "ttfo", "tpot", "itl", "e2el", "ttft_started", "ttft_scheduled", "e2el_scheduled"),
    *("prefill_ms_per_1k_input", "schedule_delay"),
    *("connect", "rtt", "client_lag", "end_lag"),
)
DOUBTS = ["content_filter", "no_answer", "no_finish_reason", "unknown_finish_reason"]
LOST = 5  # 3 records that did not come, 2 requests that were under way
UNSENT = 3  # four, of which one was due in the warm-up


def part(df: Frame, seconds: float, lost: int | None, unsent: int | None) -> dict[str, Any]:
    """What a summary has of all requests, of a name and of a class alike."""
    ok, failed, judged = population(df)
    inside = in_window(df)
    return {
        "requests": {
            "scheduled": len(inside),
            "sent": int(inside.sent.notna().sum()),
            "ok": len(ok),
            "failed": len(failed),
            "failed_outside": int((~df.ok & ~df.cancelled & ~df.inside).sum()),
            "cancelled": int(inside.cancelled.sum()),
            "cut": int(inside.cut.sum()),
            "cut_broken": int((inside.cut & inside.judged).sum()),
            "cut_share": inside.cut.sum() / (len(judged) + inside.cut.sum()),
            "abandoned": int((inside.cancelled & inside.abandoned).sum()),
            "left_open": int(judged.left_open.sum()),
            "lost": lost,
            "unsent": unsent,
            "stuck": len(stuck(df)),
            "resent": int(inside.retries.sum()),
            "population": len(judged),
            "error_rate": len(failed) / len(judged),
            "doubtful": {doubt: int((ok.doubt == doubt).sum()) for doubt in DOUBTS},
            "doubtful_rate": ok.doubt.notna().sum() / len(judged),
            "by_outcome": inside.outcome.value_counts().reindex(OUTCOMES, fill_value=0).to_dict(),
        },
        "latency_ms": _latencies(df, inside.iloc[:0], seconds, unsent or 0),
        "latency_ms_adjusted": _latencies(df, failed, seconds, unsent or 0),
        "throughput": _throughput(df, seconds),
        "goodput": _goodput(df, seconds, lost, unsent),
    }


@once
def in_window(df: Frame) -> Frame:
    return df[df.inside]


@once
def _answered(inside: Frame) -> Frame:
    return inside[inside.ok]


@once
def _without_failures(inside: Frame) -> Frame:
    return inside[inside.ok | inside.cancelled]


def _latencies(df: Frame, failed: Frame, seconds: float, unsent: int) -> dict[str, Any]:
    inside = in_window(df)
    ok = _answered(inside)
    gaps = np.concatenate([*ok.gaps, np.empty(0)])
    # A failed request has as many gaps as an ok one has on average.
    gaps_of_failed = round(len(failed) * len(gaps) / len(ok)) if len(gaps) else len(failed)
    start = run.STOP_S - seconds
    beside = sums(over_time(failed.scheduled, start, run.STOP_S), np.ones(len(failed)))
    gap_cell = over_time(np.repeat(ok.scheduled, ok.gaps.map(len)), start, run.STOP_S).cell
    of_gap = Course(gap_cell, 256, beside * gaps_of_failed / max(1, len(failed)), binned=True)
    late = [each.key for each in CATALOGUE if each.is_from_scheduled]
    found = stuck(df)
    bounds = {m: stuck_ms(found, m) + [0.0] * (unsent if m in late else 0) for m in LATENCIES if m != "itl"}
    tables = {m: latency(inside, m, failed, known) for m, known in bounds.items()}
    tables["itl"] = figures(gaps * 1e3, gaps_of_failed) | {"censored": 0, "at_least": {}}
    tables["itl"] |= uncertainty(gaps * 1e3, of_gap if len(gaps) else None) | {"relative_error": 0.0}
    return tables


def latency(inside: Frame, metric: str, failed: Frame, beside: list[float]) -> dict[str, Any]:
    """The figures of one latency, with +∞ for each failed request, and lower bounds of some in ms beside."""
    failures = in_order(failed, inside)
    failed_in = sums(failures, np.ones(len(failed)))
    if metric == "tpot" or f"{metric}_longer_than" not in inside:
        ok = _answered(inside)
        values, cells = ok[metric] * 1e3, in_order(ok, inside)
        course = Course(cells.cell, cells.cells, failed_in)
        if not beside:
            return (
                figures(values, len(failed)) | {"censored": 0, "at_least": {}} | uncertainty(values, course)
            )
        seen = values.notna()
        table = survival(values[seen], seen[seen], ok.scheduled[seen], len(failed), beside)
        sure = uncertainty(values, course, table=table)
        del table["quantile"]
        return table | sure
    # Failed requests stand for themselves: the bounds of those that timed out are not used beside them.
    known = inside if failed.empty else _without_failures(inside)
    lasted, ended, scheduled = censored(known, metric)
    table = survival(lasted, ended, scheduled, len(failed), beside)
    cells = in_order(inside[["ok"]].loc[lasted.index], inside)
    sure = uncertainty(lasted, Course(cells.cell, cells.cells, failed_in), ended=ended, table=table)
    del table["quantile"]
    return table | sure


def with_cut(df: Frame, metric: str) -> dict[str, Any]:
    """What a gate on tpot or itl is judged by: answers, what came of those that were cut, and failures."""
    inside = df[df.inside]
    ok, failed, _ = population(df)
    cut = inside[inside.cancelled & inside.streamed & (inside.events > 0)]
    silent = cut.ended - cut.sent - cut.last_event
    if metric == "itl":
        own = np.concatenate([*ok.gaps, np.empty(0)])
        infinite = round(len(failed) * len(own) / len(ok))
        return figures(np.concatenate([own, *cut.gaps, silent]) * 1e3, infinite)
    k, spent = cut.n - cut.hidden, cut.last_token - cut.begun
    known = (cut.events >= 2) & (k >= 2) & (spent > 0)
    of_tokens, of_next = spent / (k - 1).where(known), (cut.ended - cut.sent - cut.begun) / k
    pace = of_tokens.where(of_tokens > of_next, of_next).where(known)
    return figures(np.concatenate([ok.tpot, pace]) * 1e3, len(failed))


def censored(inside: Frame, metric: str) -> tuple[Any, Any, Any]:
    """Durations in milliseconds, whether each was seen to end, and when its request was scheduled."""
    bound = inside[f"{metric}_longer_than"]
    ended = inside.ok & inside[metric].notna()
    if not metric.startswith("e2el"):
        ended |= inside.given_up & inside[metric].notna()
    lasted = inside[metric].where(ended, bound)
    known = lasted.notna()
    return lasted[known] * 1e3, ended[known], inside.scheduled[known]


def _throughput(df: Frame, seconds: float) -> dict[str, Any]:
    start = run.STOP_S - seconds
    inputs = (df.input_tokens * df.reads_prompt).sum() / seconds
    outputs = (df.n * df.share).sum() / seconds
    spans = df[df.ended > df.sent]
    overlap = np.minimum(spans.ended, run.STOP_S) - np.maximum(spans.sent, start)
    inside = spans[(spans.sent < run.STOP_S) & (spans.ended > start)]
    steps = pd.concat([pd.Series(1, np.maximum(inside.sent, start)), pd.Series(-1, inside.ended)])
    # At one instant, ends come first: one that ends does not meet one that is sent then.
    ordered = steps.rename_axis("at").reset_index(name="step").sort_values(["at", "step"])
    found = {
        "requests_per_s": (df.ok & df.ended_inside).sum() / seconds,
        "input_tokens_per_s": inputs,
        "output_tokens_per_s": outputs,
        "total_tokens_per_s": inputs + outputs,
        "output_chars_per_s": (df.chars * df.share).sum() / seconds,
        "inputs_per_s": None,
        "concurrency_mean": np.maximum(overlap, 0).sum() / seconds,
        "concurrency_peak": int(ordered.step.cumsum().max()),
    }
    return found | {"ci95": _rate_intervals(df, found, seconds)}


def _rate_intervals(df: Frame, rates: dict[str, Any], seconds: float) -> dict[str, Any]:
    window = run.STOP_S - seconds, run.STOP_S
    begun = (df.sent + df.first_event).where(df.events > 0, df.ended)
    over = (df.sent + df.last_event).where(df.events > 0, df.ended)
    inputs = sums(over_time(begun, *window), df.input_tokens * df.reads_prompt)
    outputs, chars = (spread(begun, over, amount, *window) for amount in (df.n, df.chars))
    amounts = {
        "requests_per_s": sums(over_time(df.ended, *window), df.ok & df.ended_inside),
        "input_tokens_per_s": inputs,
        "output_tokens_per_s": outputs,
        "total_tokens_per_s": inputs + outputs,
        "output_chars_per_s": chars,
    }
    found = {key: rate_ends(rates[key], amount, seconds) for key, amount in amounts.items() if key in rates}
    return found | {key: None for key in ("inputs_per_s",) if key in rates}


def _goodput(df: Frame, seconds: float, lost: int | None, unsent: int | None) -> dict[str, Any]:
    ok, judged = df[df.inside & df.ok], df[df.inside & df.judged]
    missing = (lost or 0) + (unsent or 0) + len(stuck(df))
    asked = len(judged) + missing
    first = judged.first_failed.value_counts()
    causes = [*run.SLO, "outcome", "abandoned", *DOUBTS[:3]]
    absent = {
        key: n for key, n in (("lost", lost), ("unsent", unsent), ("stuck", len(stuck(df)))) if n is not None
    }
    low = {"p1": 1.0, "p5": 5.0, "p50": 50.0}
    labels = sorted(judged.slo_class.unique())
    alike = len(labels) == 1
    limited = {m: int((judged[f"limited_{m}"] & ~judged[f"unjudged_{m}"]).sum()) + missing for m in run.SLO}
    return {
        "slo": in_ms(slo_of(labels[0]) if alike else run.SLO),
        "slo_by_class": {} if alike else {label: in_ms(slo_of(label)) for label in labels},
        "ratio": judged.good.sum() / asked,
        "judged": asked,
        "requests_per_s": (df.good & df.ended_inside).sum() / seconds,
        "output_tokens_per_s": (df.n * df.share)[df.good].sum() / seconds,
        "attainment": {
            m: (judged[f"held_{m}"] & judged[f"limited_{m}"] & ~judged[f"unjudged_{m}"]).sum() / n
            if n
            else None
            for m, n in limited.items()
        },
        "not_judged": {m: int(judged[f"unjudged_{m}"].sum()) for m in run.SLO},
        "first_failed": {c: int(n) for c in causes if (n := first.get(c, 0)) or c not in DOUBTS} | absent,
        "on_time_ratio": ok.on_time.mean() if ok.on_time.notna().any() else None,
        "on_time": some(ok.on_time, "n", "mean", *low, percents=low)
        | uncertainty(ok.on_time, in_order(ok), low),
        **_goodput_intervals(df, judged, seconds, missing),
    }


@once
def stuck(df: Frame) -> Frame:
    """From before the window, given up when they had been in it for longer than a limit of their class."""
    start = df.window_start.iloc[0]
    before = df[(df.scheduled < start) & df.given_up & (df.ended > start)]
    before = before.assign(lasted=before.ended - before.sent.fillna(before.started).clip(lower=start))
    last = before.sent + before.arrivals.map(lambda a: a[-1] if len(a) else np.nan)
    before = before.assign(silent=before.streamed & ~(last > start))
    limits = [slo_of(label) for label in before.slo_class]
    first = before.silent & (before.lasted > [slo.get("ttft", np.inf) for slo in limits])
    late: Frame = before[first | (before.lasted > [slo.get("e2el", np.inf) for slo in limits])]
    return late


def stuck_ms(found: Frame, metric: str) -> list[float]:
    if metric == "prefill_ms_per_1k_input":
        silent = found[found.silent & (found.input_tokens > 0)]
        return list(silent.lasted / silent.input_tokens * 1e6)
    if not metric.startswith(("ttft", "ttfo", "e2el")):
        return []
    return list(found.lasted[found.silent | metric.startswith("e2el")] * 1e3)


def _goodput_intervals(df: Frame, judged: Frame, seconds: float, missing: int) -> dict[str, Any]:
    good = df[df.good]
    rates = {
        "requests_per_s": good.ended_inside.sum() / seconds,
        "output_tokens_per_s": (good.n * good.share).sum() / seconds,
    }
    found = ratio(judged, judged.good, missing, judged.e2el)
    ends = {"ratio": found["ci95"], **_rate_intervals(good, rates, seconds)}
    return {"ci95": ends, "n_effective": {"ratio": found["n_effective"]}}


def tokens(df: Frame) -> dict[str, Any]:
    ok = population(df)[0]
    known = ok[ok.n.notna()]
    sums = (df.n * df.share).groupby(df.counted_by).sum()
    sums = sums.reindex(["usage", "tokenizer", "events", "estimate"], fill_value=0.0)
    streamed = known[known.streamed & (known.events > 0)]
    paced = streamed[~(streamed.begun > streamed.first_event)]
    spelled = known[known.chars.notna()]
    mended = ok.fault.isin(["reasoning_left_out", "other_total"])
    by_events = ok[(ok.source == "events") & ok.streamed & ok.chars.notna()]
    spent = ok.arrivals.map(lambda a: a[-1] - a[0] if len(a) else np.nan)
    pace = (ok.chars * (1 - 1 / ok.events.where(ok.events > 1)) / spent.where(spent > 0)).where(ok.streamed)
    lengths = ("n", "mean", "p50", "p99", "max")
    return {
        "input": some(ok.input_tokens, *lengths) | {"error": _length_error(ok)},
        "output": some(ok.n, *lengths),
        "tokens_per_event": (paced.event_tokens - paced.opening + 1).sum() / paced.events.sum(),
        "opening": ok[ok.told].opening.mean(),
        "source": {s: part / sums.sum() for s, part in sums.items()},
        "hidden": {
            "requests": int((ok.hidden > 0).sum()),
            "tokens": int(ok.hidden.sum()),
            "share": ok.hidden.sum() / ok.n.sum(),
        },
        "faults": {
            **{fault.value: int((ok.fault == fault).sum()) for fault in CountFault},
            "not_used": (ok.fault.notna() & ~(mended & (ok.source == "usage"))).mean(),
        },
        "unread": {"field": next(iter(ok.unread.dropna()), None), "share": ok.unread.notna().mean()},
        "user_tps": _speeds(ok, 1 / ok.tpot.where(ok.tpot > 0)),
        "chars_per_s": _speeds(ok, pace),
        "chars_per_token": spelled.chars.sum() / spelled.n.sum(),
        "chars_per_event": by_events.chars.sum() / by_events.events.sum(),
        "delivery": "merged",  # between 1.05 and 2 tokens per event
    }


def _speeds(ok: Frame, values: Any) -> dict[str, Any]:
    low = {"p1": 1.0, "p10": 10.0, "p50": 50.0}
    return some(values, "n", "mean", *low, percents=low) | uncertainty(values, in_order(ok), low)


def _length_error(ok: Frame) -> dict[str, Any]:
    error = ((ok.input_tokens - ok.asked_input_tokens) / ok.asked_input_tokens).dropna()
    return {
        "n": len(error),
        "mean_relative": error.mean(),
        "p50": error.abs().quantile(0.5),
        "p99": error.abs().quantile(0.99),
        "share_within_1_percent": (error.abs() <= 0.01).mean(),
    }


def client(df: Frame) -> dict[str, Any]:
    _, _, judged = population(df)
    stepped = int(judged.stepped.sum())
    wide = judged.first_wide.dropna().mean()
    whole = judged[judged.end_lag.notna() & (judged.outcome == "ok")]
    return {
        "verdict": "suspect",
        "reasons": [
            f"the wall clock was set during {stepped} of {len(judged)} requests: their durations are from "
            "the monotonic clock, read by the program, and their times in the run may be off by the step",
            "the clock of worker-2 was never measured against the master's: it is uncertain "
            "which of its requests are in the window",
        ],
        "cause": None,
        "timestamps": "kernel",
        "kernel_share": 1.0,
        "reader": None,
        "first_tokens_wide": wide,
        "lag_ms_p50": judged.client_lag.quantile(0.5) * 1e3,
        "lag_ms_p99": judged.client_lag.quantile(0.99) * 1e3,
        "end_lag_ms_p50": whole.end_lag.quantile(0.5) * 1e3,
        "end_lag_ms_p99": whole.end_lag.quantile(0.99) * 1e3,
        "end_lag_share": whole.end_lag.sum() / (whole.end_lag + whole.took).sum(),
        "schedule_delay_ms_p99": judged.schedule_delay.quantile(0.99) * 1e3,
        "bad_by_delay": int(judged.by_delay.sum()),
        "cpu_percent_max": 40.5,  # of the cells in the window
        "steal_percent_max": (0.405 + 0.305) / 2,
        "throttled_percent_max": (0.06 + 0.02) / 2,
        "run_queue_percent_max": (6.0 + 2.0) / 2,
        "clock_steps": stepped,
        "misplaced": 0,
        "hub_lag_ms_p99": 0.6,
        "hub_lag_ms_max": 6.0,
        "hub_lag_master_ms_max": 4.5,
        "worker_clock_steps": 0,
        "master_clock_steps": 0,
        "clock_error_ms_max": 0.15,
        "calibration": None,
    }


def errors(df: Frame) -> list[dict[str, Any]]:
    failed = population(df)[1].copy()
    folded = {outcome.value: texts[1] for outcome, texts in run.ERRORS.items()}
    failed["message"] = failed.outcome.map(folded)
    entries = []
    for (outcome, _), rows in failed.groupby(["outcome", failed.status.fillna(-1)]):
        message = folded[str(outcome)]
        first = rows[rows.ended == rows.ended.min()]
        entries.append(
            {
                "outcome": outcome,
                "status": None if rows.status.isna().all() else int(rows.status.iloc[0]),
                "message": message,
                "example": first.error.min() if message else None,
                "count": len(rows),
                "first": at(rows.ended.min()),
                "last": at(rows.ended.max()),
            }
        )
    key = pd.DataFrame(entries).fillna({"status": 0, "message": ""})
    order = key.assign(count=-key["count"]).sort_values(["count", "outcome", "status", "message"]).index
    return [entries[i] for i in order]


def cost(seconds: float, whole: dict[str, Any], of_sessions: dict[str, Any]) -> dict[str, Any]:
    p, throughput, goodput = run.PRICES, whole["throughput"], whole["goodput"]
    inputs, outputs = (throughput[f"{kind}_tokens_per_s"] * seconds for kind in ("input", "output"))
    bases = {
        "per_request": throughput["requests_per_s"] * seconds,
        "per_good_request": goodput["requests_per_s"] * seconds,
        "per_million_input_tokens": inputs / 1e6,
        "per_million_output_tokens": outputs / 1e6,
        "per_million_good_output_tokens": goodput["output_tokens_per_s"] * seconds / 1e6,
        "per_session": of_sessions["completed"] + of_sessions["cut"],
    }
    gpu = p["gpus"] * p["gpu_hour_cost"] * seconds / 3600
    api = (inputs * p["input_token_price"] + outputs * p["output_token_price"]) / 1e6
    return {
        "prices": p,
        "hours": seconds / 3600,
        "gpu": {"total": gpu, **{key: gpu / base for key, base in bases.items()}},
        "api": {"total": api, **{key: api / base for key, base in bases.items()}},
        "per_gpu": {
            "output_tokens_per_s": throughput["output_tokens_per_s"] / p["gpus"],
            "goodput_requests_per_s": goodput["requests_per_s"] / p["gpus"],
            "goodput_output_tokens_per_s": goodput["output_tokens_per_s"] / p["gpus"],
        },
        "missing": {},
    }


def compat(df: Frame) -> dict[str, Any]:
    """The run in the words of five other tools."""
    ok, _, judged = population(df)
    first, last = (ok.arrivals.map(lambda a, i=i: a[i] if len(a) else np.nan) for i in (0, -1))

    def stats(values_s: Any) -> dict[str, Any]:
        return some(values_s * 1e3, "n", "mean", "p50", "p90", "p99")

    of_events = (last - first).where(ok.streamed) / (ok.n - 1).where(ok.n >= 2)
    per_token = stats(of_events)
    begins = ok.first_chunk.fillna(first).where(ok.streamed)
    ends = ok.last_chunk.fillna(ok.e2el)
    by_clock = (ends - begins) / (ok.n - 1).where(ok.n >= 2)
    around = pd.concat([first - ok.first_chunk, ok.last_chunk - last]).dropna()
    whole_per_token = stats(ok.e2el / ok.n.where(ok.n >= 1))
    with_usage = stats((ok.ended - ok.sent - ok.ttft) / (ok.n - 1).where(ok.n >= 2))
    duration = judged.ended[judged.sent.notna()].max() - judged.sent.min()
    limit = {m: ok.slo_class.map(lambda label, m=m: slo_of(label).get(m, np.inf)) for m in run.SLO}
    paced = (by_clock.fillna(0) <= limit["tpot"]) | np.isinf(limit["tpot"])
    good = (begins <= limit["ttft"]) & paced & (ends <= limit["e2el"])
    return {
        "vllm": {
            "ttft_ms": stats(begins),
            "tpot_ms": stats(by_clock),
            "e2el_ms": stats(ends),
            "itl_ms": stats(np.concatenate([*ok.gaps, around])),
            "duration_s": duration,
            "request_throughput": len(ok) / duration,
            "request_goodput": good.sum() / duration,
        },
        "guidellm": {"time_per_output_token_ms": whole_per_token, "inter_token_latency_ms": per_token},
        "aiperf": {
            "inter_token_latency_ms": per_token,
            "inter_chunk_latency_ms": stats(np.concatenate([*ok.gaps])),
        },
        "inference-perf": {
            "time_per_output_token_ms": stats(of_events.where(ok.events > 1)),
            "normalized_time_per_output_token_ms": stats((ok.ended - ok.sent) / ok.n.where(ok.n >= 1)),
            "goodput_ratio": ok.good.mean(),
        },
        "genai-bench": {"tpot_ms": with_usage},
    }


def littles_law(df: Frame, seconds: float) -> dict[str, Any]:
    """By the number of requests in flight between any two of their beginnings and ends."""
    start = run.STOP_S - seconds
    sent = df[df.sent.notna()]
    lasting = sent[sent.ended > sent.sent]
    steps = pd.concat([pd.Series(1, lasting.sent), pd.Series(-1, lasting.ended)]).sort_index()
    level = steps.cumsum()
    times = np.clip(level.index, start, run.STOP_S)
    mean = (level.to_numpy()[:-1] * np.diff(times)).sum() / seconds
    inside = sent[(sent.sent >= start) & (sent.sent < run.STOP_S)]
    came_in = (sent.ended.clip(upper=run.STOP_S) - start)[(sent.sent < start) & (sent.ended > start)].sum()
    went_out = (inside.ended - run.STOP_S).clip(lower=0).sum()
    rate, time_s = len(inside) / seconds, (inside.ended - inside.sent).mean()
    first = df.iloc[: (len(df) + 1) // 2]  # the first worker's
    records_s = (first.ended - first.started).sum()
    counted_s = records_s + run.IN_FLIGHT_UNSEEN_NS / 1e9
    assert first.end_lag.sum() + 0.001 * len(first) > run.IN_FLIGHT_UNSEEN_NS / 1e9
    return {
        "holds": True,
        "in_flight_mean": mean,
        "sent_per_s": rate,
        "time_s": time_s,
        "edges": (came_in - went_out) / seconds,
        "difference": 0.0,
        "workers_in_flight_s": counted_s,
        "records_in_flight_s": records_s,
        "workers_difference": records_s / counted_s - 1,
    }
