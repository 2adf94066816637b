"""How long prompts and answers were, and how the tokens came."""

from dataclasses import replace
from typing import Any

import numpy as np

from llm_locust.core.record import Outcome, TokenSource
from llm_locust.metrics.columns import OUTCOMES, SOURCES, Columns, Floats, Mask, Rows, groups
from llm_locust.metrics.requests.latency import chars_per_s, user_tps
from llm_locust.metrics.requests.throughput import Credits, inputs_per_s, rate_of_having, rate_per_s
from llm_locust.metrics.stats.bootstrap import Order, order_cells
from llm_locust.metrics.stats.censoring import ordered, summarise_ascending
from llm_locust.metrics.stats.intervals import Observed
from llm_locust.metrics.summary_types.tokens import COMMON
from llm_locust.wire.usage import CountFault

# --------------------
# Error of prompt lengths against the lengths that were asked for.
# --------------------


def length_error(asked: Floats, counted: Floats) -> dict[str, Any]:
    """Relative error of prompt lengths: (counted − asked) / asked.

    Args:
        asked: tokens that the workload asked for, NaN where it asked for none.
        counted: tokens that the server counted, NaN where it did not say; of the same shape.

    Returns:
        ``n`` requests of which both are known; ``mean_relative`` with its sign, > 0 where prompts were
        longer than asked; ``p50`` and ``p99`` of the error without its sign; and
        ``share_within_1_percent``. All but ``n`` are None where n is 0.
    """
    known = (asked > 0) & ~np.isnan(counted)
    error = (counted[known] - asked[known]) / asked[known]
    sizes = summarise_ascending(ordered(np.abs(error)), places={"p50": 50.0, "p99": 99.0})
    n = len(error)
    return {
        "n": n,
        "mean_relative": float(error.mean()) if n else None,
        "p50": sizes["p50"],
        "p99": sizes["p99"],
        "share_within_1_percent": float(np.mean(np.abs(error) <= 0.01)) if n else None,
    }


_BY_EVENTS = SOURCES.index(TokenSource.EVENTS)
_REJECTED = OUTCOMES.index(Outcome.REJECTED)

#: Key of ``source`` for the tokens of cut requests, see :func:`with_estimates`.
ESTIMATE = "estimate"

#: Gaps below this are two events of one write, not the pace of a model.
NO_GAP_MS = 0.1

#: Time for each event of an answer that came at once, from which something held its events back.
HELD_MS = 0.5

#: Answers of fewer events may come at once from the server itself.
LEAST_EVENTS = 4

_MERGED = 1.05


def tokens(c: Columns, ok: Rows, credited: Floats) -> dict[str, Any]:
    """Token counts of the requests ``ok``.

    ``input.error`` is that of the prompts' asked lengths, see
    :func:`~llm_locust.metrics.requests.tokens.length_error`. ``source`` says who counted the tokens of the
    output throughput: shares of ``credited``, those of each request of ``c`` that the window got. ``hidden``
    is the reasoning that usage counts and that did not come. ``faults`` are the answers by what does not fit
    about their server's count. ``user_tps`` is 1/tpot; its slow end is the low
    one, so it has p1 and p10.
    ``chars_per_s`` is the same pace in characters, which does not depend on who counts tokens;
    ``chars_per_token`` is Σ characters / Σ tokens.
    """
    output, order = c.output_tokens[ok], order_cells(c, ok)
    return {
        "input": _lengths(c.input_tokens[ok])
        | {"error": length_error(c.asked_input_tokens[ok], c.input_tokens[ok])},
        "output": _lengths(output),
        "tokens_per_event": tokens_per_event(c, ok),
        "opening": _opening(c, ok),
        "source": source_shares(c, credited),
        "hidden": _hidden(c, ok),
        "faults": faults(c, ok),
        "unread": _unread(c, ok),
        "user_tps": _speeds(user_tps(c)[ok], order),
        "chars_per_s": _speeds(chars_per_s(c)[ok], order),
        "chars_per_token": chars_per_token(c, ok),
        "chars_per_event": _chars_per_event(c, ok),
    }


def with_estimates(c: Columns, credited: Floats) -> tuple[Columns, Floats]:
    """The same with better counts of requests that were cut or failed before the server counted.

    Their token events are known. An event is taken to have as many tokens as those of the run's counted
    answers, which makes no difference where each has one.

    Args:
        credited: the tokens of each request that a window got, counted as in ``c``.
    """
    each, rows = _counted_per_event(c), np.flatnonzero(_uncounted(c))
    if each is None or not len(rows):
        return c, credited
    output, credited = c.output_tokens.copy(), credited.copy()
    output[rows] *= each
    credited[rows] *= each
    return replace(c, output_tokens=output), credited


def _counted_per_event(c: Columns) -> float | None:
    return tokens_per_event(c, np.flatnonzero(c.ok & (c.source != _BY_EVENTS)))


def _uncounted(c: Columns) -> Mask:
    """Answers that did not get to the server's count; a rejected one is complete."""
    broken_off: Mask = ~c.ok & (c.outcome != _REJECTED) & c.streamed & (c.events > 0)
    return broken_off & np.equal(c.source, _BY_EVENTS)


def source_shares(c: Columns, credited: Floats) -> dict[str, float | None]:
    """Who counted: the share of each source, and of :data:`ESTIMATE`, in the sum of ``credited``.

    All are None where nothing was credited.
    """
    uncounted = _BY_EVENTS if _counted_per_event(c) is None else len(SOURCES)
    source = np.where(_uncounted(c), uncounted, c.source)
    known = ~np.isnan(credited)
    # Sorted: the order of workers is no input.
    sums = [float(np.sort(credited[known & (source == code)]).sum()) for code in range(len(SOURCES) + 1)]
    total = sum(sums)
    keys = (*(source.value for source in SOURCES), ESTIMATE)
    return {key: part / total if total else None for key, part in zip(keys, sums, strict=True)}


def _hidden(c: Columns, ok: Rows) -> dict[str, Any]:
    """Of how many requests reasoning was hidden, its tokens, and their share in all output tokens."""
    hidden, total = c.hidden_tokens[ok], float(np.nansum(c.output_tokens[ok]))
    return {
        "requests": int((hidden > 0).sum()),
        "tokens": int(hidden.sum()),
        "share": float(hidden.sum()) / total if total else None,
    }


def _opening(c: Columns, ok: Rows) -> float | None:
    """Tokens of the first event, of answers whose server counts in each event: mean."""
    told = ok[~np.isnan(c.came_tokens[ok])]
    return float(c.opening_tokens[told].sum()) / len(told) if len(told) else None


def faults(c: Columns, ok: Rows) -> dict[str, Any]:
    """Answers by what does not fit about their count, and the share of those whose count is not used."""
    codes = c.count_fault.codes[ok]
    names = {name: code for code, name in enumerate(c.count_fault.names)}
    n = {fault.value: int((codes == names.get(fault, -2)).sum()) for fault in CountFault}
    mended = [names.get(fault, -2) for fault in (CountFault.REASONING, CountFault.TOTAL)]
    not_used = (codes >= 0) & ~(np.isin(codes, mended) & (c.source[ok] == SOURCES.index(TokenSource.USAGE)))
    return n | {"not_used": int(not_used.sum()) / len(ok) if len(ok) else None}


def _unread(c: Columns, ok: Rows) -> dict[str, Any]:
    """The most frequent field whose text is not read, and the share of answers that have one."""
    codes = c.unread.codes[ok]
    if not (n := int((codes >= 0).sum())):
        return {"field": None, "share": 0.0 if len(ok) else None}
    each = np.bincount(codes[codes >= 0], minlength=len(c.unread.names))
    most = min(range(len(each)), key=lambda code: (-each[code], c.unread.names[code]))
    return {"field": c.unread.names[most], "share": n / len(ok)}


def tokens_per_event(c: Columns, ok: Rows) -> float | None:
    """Output tokens that events brought / token events, over the streamed answers whose count is known.

    A first event that is known to bring several counts as one with one: they say nothing of the others.
    """
    rows = ok[c.streamed[ok] & (c.events[ok] > 0) & ~np.isnan(c.output_tokens[ok])]
    events = int(c.events[rows].sum())
    return float((c.event_tokens - c.opening_tokens + 1)[rows].sum()) / events if events else None


def _chars_per_event(c: Columns, ok: Rows) -> float | None:
    """Characters of a token event, of streamed answers whose tokens are their events."""
    rows = ok[(c.source[ok] == _BY_EVENTS) & c.streamed[ok] & ~np.isnan(c.output_chars[ok])]
    events = int(c.events[rows].sum())
    return float(c.output_chars[rows].sum()) / events if events else None


def chars_per_token(c: Columns, ok: Rows) -> float | None:
    """Σ characters / Σ output tokens, over the answers of which both are known."""
    rows = ok[~np.isnan(c.output_chars[ok]) & ~np.isnan(c.output_tokens[ok])]
    total = float(c.output_tokens[rows].sum())
    return float(c.output_chars[rows].sum()) / total if total else None


def held_ms(c: Columns, ok: Rows) -> float | None:
    """Time from sending to the last event for each event of an answer: the median.

    Answers of :data:`LEAST_EVENTS` or more count; None without any.
    """
    rows = ok[c.streamed[ok] & (c.events[ok] >= LEAST_EVENTS)]
    return float(np.median(c.last_event_s[rows] / c.events[rows])) * 1e3 if len(rows) else None


def delivery(
    per_event: float | None,
    itl_p50_ms: float | None,
    tpot_p50_ms: float | None,
    held_p50_ms: float | None,
    unread: float | None = None,
) -> str | None:
    """How the stream came: ``tokens`` one by one, ``merged``, ``buffered`` or ``unread``; None where unknown.

    ``merged``: an ITL is a gap between events, not tokens. ``buffered``: events came in bursts after a
    silence, because something on the way held them back, and ITL and TTFT are not the server's. Most gaps
    are then under 0.1 ms while the pace is slower than that, or the answer came at once and took 0.5 ms or
    more for each of its events. Even gaps are no sign of it, however many tokens an event has.
    ``unread``: it looks so, but tokens came in a field that is not read.

    Args:
        held_p50_ms: see :func:`held_ms`.
        unread: share of the answers with text in such a field.
    """
    if per_event is None:
        return None
    slow = (tpot_p50_ms or 0.0) >= NO_GAP_MS or (held_p50_ms or 0.0) >= HELD_MS
    if slow and itl_p50_ms is not None and itl_p50_ms < NO_GAP_MS:
        return "unread" if unread and unread > COMMON else "buffered"
    return "merged" if per_event > _MERGED else "tokens"


def _lengths(values: Floats) -> dict[str, Any]:
    figures = summarise_ascending(ordered(values))
    return {key: figures[key] for key in ("n", "mean", "p50", "p99", "max")}


def _speeds(values: Floats, order: Order) -> dict[str, Any]:
    places = {"p1": 1.0, "p10": 10.0, "p50": 50.0}
    figures = summarise_ascending(ordered(values), places=places, course=Observed(order, values))
    return {key: figures[key] for key in ("n", "mean", *places, "ci95", "n_effective")}


# --------------------
# Images of requests: how many are read per second, and how long a first token takes behind them.
# --------------------


#: Numbers of images that are one row of ``by_number``: up to these, and more.
_EDGES = (0, 1, 2, 4, 8, 16, 32, 64)
_LABELS = ("0", "1", "2", "3-4", "5-8", "9-16", "17-32", "33-64", "65+")


def images(c: Columns, ok: Rows, credits: Credits, ttft_s: Floats) -> dict[str, Any] | None:
    """Key ``images`` of a summary; None of a run whose requests have none.

    Rates are of all requests, whenever they were scheduled: images count when their prompt has been read, as
    its tokens do. All else is of the requests ``ok``.
    """
    if np.isnan(c.images).all():
        return None
    each = summarise_ascending(ordered(c.images[ok]))
    having = ok[~np.isnan(c.images[ok])]
    amount = float(c.images[having].sum())
    per_s = rate_of_having(credits, credits.images, np.arange(len(c)))
    pixels = float(c.pixels[having].sum())  # NaN where the size of one is not known
    per_image = pixels / amount if amount and not np.isnan(pixels) else None
    return {
        "images_per_s": per_s,
        "pixels_per_s": None if per_s is None else _pixels_per_s(c, credits),
        "per_request": {key: each[key] for key in ("n", "mean", "p50", "p99", "max")},
        "pixels_per_image": per_image,
        "by_number": _by_number(c, ok, ttft_s),
    }


def _pixels_per_s(c: Columns, credits: Credits) -> float | None:
    """None where the size of an image that was read in the window is not known."""
    counted = np.flatnonzero(credits.images > 0)
    if np.isnan(c.pixels[counted]).any():
        return None
    total = float(np.sort(c.pixels[counted]).sum())
    return total / credits.window.seconds if credits.window.seconds > 0 else None


def _by_number(c: Columns, ok: Rows, ttft_s: Floats) -> list[dict[str, Any]]:
    ok = ok[np.isnan(c.inputs[ok])]  # embeddings have neither images nor a first token
    place = np.searchsorted(_EDGES, np.nan_to_num(c.images[ok], nan=0.0))
    found = []
    for number in np.unique(place).tolist():
        rows = ok[place == number]
        ttft = summarise_ascending(ordered(ttft_s[rows] * 1e3))
        tokens = summarise_ascending(ordered(c.input_tokens[rows]))
        found.append(
            {
                "images": _LABELS[number],
                "requests": len(rows),
                "ttft_ms": {key: ttft[key] for key in ("n", "mean", "p50", "p99", "max")},
                "input_tokens_mean": tokens["mean"],
            }
        )
    return found


# --------------------
# Inputs of requests that ask for a result of each: texts to embed, documents to rank.
# --------------------


def inputs(c: Columns, ok: Rows, credits: Credits) -> dict[str, Any] | None:
    """Key ``inputs`` of a summary; None of a run whose requests all ask for one answer.

    Rates are of all requests, whenever they were scheduled; inputs count when their answer has come, as their
    tokens do. All else is of the requests ``ok``.
    """
    if np.isnan(c.inputs).all():
        return None
    by_name = {
        name: figures
        for name, rows in groups(c.name)
        if (figures := _figures(c, rows, np.intersect1d(rows, ok, assume_unique=True), credits))
    }
    total = _figures(c, np.arange(len(c)), ok, credits)
    return {**(total or {}), "by_name": by_name if len(by_name) > 1 else {}}


def _figures(c: Columns, rows: Rows, ok: Rows, credits: Credits) -> dict[str, Any] | None:
    has = rows[~np.isnan(c.inputs[rows])]
    if not len(has):
        return None
    tokens, finished = credits.input_tokens[has], credits.finished[has]
    each = summarise_ascending(ordered(c.inputs[ok]))
    known = ok[~np.isnan(c.inputs[ok]) & ~np.isnan(c.input_tokens[ok])]
    amount = float(c.inputs[known].sum())
    return {
        "inputs_per_s": inputs_per_s(credits, has),
        "input_tokens_per_s": rate_per_s(tokens, finished, credits.window.seconds),
        "per_request": {key: each[key] for key in ("n", "mean", "p50", "p99", "max")},
        "tokens_per_input": float(c.input_tokens[known].sum()) / amount if amount else None,
    }
