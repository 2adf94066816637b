"""Sessions, quality and replicas of the golden run, by pandas and plain loops."""

import math
from itertools import pairwise
from typing import Any

import golden_run as run
import numpy as np
import pandas as pd
from golden_expected import latency, stuck, stuck_ms
from golden_frame import Frame, population
from golden_intervals import in_order, newcombe, share, some, uncertainty

from llm_locust.core.record import RequestRecord


def sessions(df: Frame) -> dict[str, Any]:
    turns = df[df.session.notna()]
    found = turns.groupby("session").agg(
        begun=("scheduled", "min"), ended=("ended", "max"), done=("ok", "sum"), tokens=("n", "sum")
    )
    found["planned"] = found.index.str.extract(r"-of(\d+)$", expand=False).astype(int)
    for key, mark in {
        "failed": ~turns.ok & ~turns.cancelled,
        "abandoned": turns.abandoned,
        "given_up": turns.cancelled & ~turns.abandoned,
        "unknown": turns.ok & turns.n.isna(),
    }.items():
        found[key] = mark.groupby(turns.session).any()
    start = df.scheduled.min() + run.WARMUP_S
    found = found[(found.begun >= start) & (found.begun < run.STOP_S)]
    cut = found.given_up | (found.done < found.planned)
    completed = ~found.failed & ~found.abandoned & ~cut
    ended = found[completed | found.failed | found.abandoned]
    amounts = ("n", "mean", "p50", "max")
    entries = []
    inside = turns[turns.inside]
    for number, rows in inside.groupby(inside.turn.clip(upper=10)):
        ok, failed, _ = population(rows)
        both = ok[ok.cached_tokens.notna() & ok.input_tokens.notna()]
        entries.append(
            {
                "turn": int(number),
                "from_here_on": int(number) == 10,
                "requests": len(rows),
                "ok": len(ok),
                "failed": len(failed),
                "abandoned": int((rows.cancelled & rows.abandoned).sum()),
                "left_out": int(rows.given_up.sum()),
                **{f"{m}_ms": _times(ok[m] * 1e3, ok.scheduled) for m in ("ttft", "tpot", "e2el")},
                "input_tokens": some(ok.input_tokens, *amounts),
                "cached_share": both.cached_tokens.sum() / both.input_tokens.sum(),
            }
        )
    lasted = (found.ended - found.begun)[completed]
    return {
        "n": len(found),
        "completed": int(completed.sum()),
        "abandoned": int((found.abandoned & ~found.failed).sum()),
        "failed": int(found.failed.sum()),
        "cut": len(found) - len(ended),
        "turns": some(ended.done, *amounts),
        "output_tokens": some(ended.tokens.where(~ended.unknown), *amounts),
        "duration_s": _times(lasted, found.begun[completed]),
        "by_turn": entries,
        "header": None,
    }


def _times(values: Any, begun: Any) -> dict[str, Any]:
    places = {"p50": 50.0, "p95": 95.0, "p99": 99.0}
    course = in_order(pd.DataFrame({"scheduled": begun, "sent": values, "ended": values}))
    return some(values, "n", "mean", *places, percents=places) | uncertainty(values, course, places)


def quality_of_part(df: Frame) -> dict[str, Any]:
    answers = _answers(df)
    rejected = answers[answers.outcome == "rejected"]
    return {
        "answers": len(answers),
        "rejected": {
            "n": len(rejected),
            "ratio": len(rejected) / len(answers),
            "by": rejected.rejected_by.value_counts().to_dict(),
        },
        "accuracy": share(answers.correct),
    }


def _answers(df: Frame) -> Frame:
    judged = population(df)[2]
    return judged[judged.outcome.isin(["ok", "rejected"])]


def quality(df: Frame) -> dict[str, Any]:
    answers = _answers(df)
    compared = answers[answers.correct.notna()]
    start = df.scheduled.min() + run.WARMUP_S
    tenth = (run.STOP_S - start) / 10
    low, high = compared.load.quantile([1 / 3, 2 / 3], interpolation="lower").tolist()
    thirds = {
        "low": compared[compared.load <= low],
        "middle": compared[(compared.load > low) & (compared.load <= high)],
        "high": compared[compared.load > high],
    }
    thirds = {name: rows for name, rows in thirds.items() if len(rows)}
    whole = quality_of_part(df)
    first, *_, last = (share(rows.correct) for rows in thirds.values())
    return {
        **whole,
        "finish_reasons": answers.finish_reason.value_counts().to_dict(),
        "over_time": [
            {
                "start_s": i * tenth,
                "end_s": (i + 1) * tenth,
                **share(answers[((answers.scheduled - start) // tenth) == i].correct),
            }
            for i in range(10)
        ],
        "by_load": [
            {
                "load": name,
                "concurrency": [int(rows.load.min()), int(rows.load.max())],
                **share(rows.correct),
            }
            for name, rows in thirds.items()
        ],
        "load_effect": newcombe(last, first) if len(thirds) > 1 else None,
        "baseline": _baseline(df, answers, start),
        "consistency": _consistency(answers),
        "length": _lengths(answers),
    }


def _baseline(df: Frame, answers: Frame, start: float) -> dict[str, Any] | None:
    """Against the answers from before the window that had the server for themselves."""
    idle = df[(df.scheduled < start) & (df.load == 1) & df.outcome.isin(["ok", "rejected"])]
    idle, now = (each[each.prompt_id.notna() & each.correct.notna()] for each in (idle, answers))
    shared = set(idle.prompt_id) & set(now.prompt_id)
    if not shared:
        return None
    accuracy, before = (share(each[each.prompt_id.isin(shared)].correct) for each in (now, idle))
    difference = newcombe(accuracy, before)
    return {"prompts": len(shared), "accuracy": accuracy, "baseline": before, **difference}


def _consistency(answers: Frame) -> dict[str, Any]:
    known = answers[answers.answer_hash.notna() & answers.prompt_id.notna()]
    groups = known.groupby(["prompt_id", "slo_class"]).answer_hash
    asked, alike = groups.size(), groups.nunique() == 1
    repeated = asked > 1
    equal = known.groupby(["prompt_id", "slo_class", "answer_hash"]).size()
    return {
        "prompts": int(repeated.sum()),
        "answers": int(asked[repeated].sum()),
        "prompts_equal": alike[repeated].mean(),
        "pairs_equal": (equal * (equal - 1)).sum() / (asked * (asked - 1)).sum(),
    }


def _lengths(answers: Frame) -> dict[str, Any]:
    known = answers[answers.n.notna() & (answers.asked_output_tokens > 0)]
    relative = known.n / known.asked_output_tokens - 1
    return {
        "n": len(known),
        "at_limit": (known.n == known.asked_output_tokens).mean(),
        "over": (known.n > known.asked_output_tokens).mean(),
        "mean_relative": relative.mean(),
    }


PARTS = 60


def replicas(df: Frame, seconds: float) -> list[dict[str, Any]]:
    known = len(population(df[df.replica.notna()])[2])
    edges = np.linspace(run.STOP_S - seconds, run.STOP_S, PARTS + 1)
    entries = []
    for name, rows in df.groupby("replica"):
        _, failed, judged = population(rows)
        inside = rows[rows.inside]
        cut = int(inside.cut.sum())
        none = inside.iloc[:0]
        of = {m: latency(inside, m, none, stuck_ms(stuck(rows), m)) for m in ("ttft", "tpot", "e2el")}
        places = [(metric, place) for metric in of for place in ("p50", "p99")]
        in_flight = [_overlap(rows, *part) for part in pairwise(edges)]
        entries.append(
            {
                "name": name,
                "requests": len(judged),
                "share": len(judged) / known,
                "cut_share": cut / (len(judged) + cut),
                **{f"{metric}_{place}_ms": of[metric][place] for metric, place in places},
                "ci95": {f"{metric}_{place}_ms": of[metric]["ci95"][place] for metric, place in places},
                "at_least": {
                    f"{metric}_{place}_ms": of[metric]["at_least"][place]
                    for metric, place in places
                    if place in of[metric]["at_least"]
                },
                "output_tokens_per_s": (rows.n * rows.share).sum() / seconds,
                "concurrency_mean": _overlap(rows, edges[0], edges[-1]),
                "error_rate": len(failed) / len(judged),
                "goodput_ratio": inside.good[inside.judged].sum() / (inside.judged.sum() + len(stuck(rows))),
                "in_flight": in_flight,
                "outages": [],  # each answers several times a second all the time
            }
        )
    return entries


def _overlap(rows: Frame, start: float, end: float) -> float:
    ended, sent = rows.ended.to_numpy(), rows.sent.to_numpy()
    lasted = np.where(ended > sent, ended.clip(start, end) - sent.clip(start, end), 0.0)
    return float(lasted.sum() / (end - start))


def fairness(df: Frame, made: list[RequestRecord], entries: list[dict[str, Any]]) -> dict[str, Any]:
    """By the definitions: pairs of replicas and of requests, and χ² of 2 degrees, whose tail is e^(−x/2)."""
    found = pd.DataFrame(entries)
    amounts = {
        "requests": found.requests,
        "output_tokens": found.output_tokens_per_s,
        "in_flight": found.concurrency_mean,
        "ttft": found.ttft_p50_ms,
    }
    judged = population(df)[2]
    named = judged[judged.replica.notna()]
    equal = len(named) / 3
    pearson = float(((found.requests - equal) ** 2 / equal).sum())
    kruskal = _kruskal(named[named.ok])
    order = named.sort_values("sent", kind="stable").replica.to_numpy()
    blocks = [order[i : i + 24] for i in range(0, len(order) // 24 * 24, 24)]
    counts = [pd.Series(block).value_counts().reindex(found.name, fill_value=0) for block in blocks]
    assert pearson > 9.3  # p < 0.01: not by chance
    return {
        **{name: x.sum() ** 2 / (len(x) * (x**2).sum()) for name, x in amounts.items()},
        "gini": {name: _gini(x) for name, x in amounts.items()},
        "cv": {name: x.std(ddof=0) / x.mean() for name, x in amounts.items()},
        "chance": {
            "requests": {"statistic": pearson, "p": math.exp(-pearson / 2)},
            "ttft": {"statistic": kruskal, "p": math.exp(-kruskal / 2)},
        },
        "named_by": "header",
        "unnamed": len(judged) - len(named),
        "headers": [],
        "better_header": None,
        "dispersion": float(np.mean([((count - 8) ** 2 / 8).sum() / 2 for count in counts])),
        "affinity": {
            "connection": _affinity(_by_connection(named, made), named),
            "session": _affinity(_successive(named, "session"), named),
            "prompt": _affinity(_successive(named, "prompt_id"), named),
        },
        "causes": [{"kind": "unknown", "text": _UNKNOWN.format(_p(math.exp(-pearson / 2))), "replica": None}],
    }


_UNKNOWN = (
    "requests are distributed unevenly, beyond chance ({}) and follow neither connection nor "
    "session nor prompt: the balancer has weights, or leaves a replica out"
)


def _gini(x: Any) -> float:
    pairs = np.abs(np.subtract.outer(x.to_numpy(), x.to_numpy()))
    return float(pairs.sum() / (2 * len(x) * x.sum()))


def _kruskal(ok: Frame) -> float:
    known = ok[ok.ttft.notna()]
    n, ranks = len(known), known.ttft.rank()
    ties = known.ttft.value_counts()
    groups = ranks.groupby(known.replica)
    h = 12 / (n * (n + 1)) * (groups.sum() ** 2 / groups.size()).sum() - 3 * (n + 1)
    return float(h / (1 - (ties**3 - ties).sum() / (n**3 - n)))


def _by_connection(named: Frame, made: list[RequestRecord]) -> list[tuple[str, str]]:
    """Each request on a reused connection with the one before it: of its worker, address and local port."""
    records = [*made[::2], *made[1::2]]
    facts = [(i < len(made[::2]), records[i].local_port, records[i].started_ns) for i in named.index]
    own = named.assign(**dict(zip(("first", "port", "started"), zip(*facts, strict=True), strict=True)))
    return [
        (before, after)
        for _, rows in own[own.port.notna()].sort_values("started").groupby(["first", "port"])
        for before, after, reused in zip(rows.replica, rows.replica[1:], rows.reused[1:], strict=False)
        if reused
    ]


def _successive(named: Frame, key: str) -> list[tuple[str, str]]:
    return [
        pair
        for _, rows in named[named[key].notna()].sort_values("sent").groupby(key)
        for pair in zip(rows.replica, rows.replica[1:], strict=False)
    ]


def _affinity(pairs: list[tuple[str, str]], named: Frame) -> dict[str, float]:
    shares = named.replica.value_counts() / len(named)
    same = sum(before == after for before, after in pairs)
    return {"pairs": len(pairs), "observed": same / len(pairs), "expected": (shares**2).sum()}


def _p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p {value:.2g}"
