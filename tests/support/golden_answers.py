"""Sessions and quality of the golden run, by pandas."""

from typing import Any

import golden_run as run
import pandas as pd
from golden_frame import Frame, population
from golden_intervals import in_order, uncertainty
from golden_stats import newcombe, share, some


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
