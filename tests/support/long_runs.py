"""Runs of many requests as arrays, without a record each: what the statistics of hours are tested on."""

from dataclasses import fields
from typing import Any

import numpy as np
from metrics_cases import columns, ns, request

from llm_locust.core.batch import Labels
from llm_locust.metrics.columns import Columns, Floats
from llm_locust.metrics.window import Population, Window


def run_of(scheduled_s: Floats, ttft_s: Floats | float, last_s: float = 0.5, **changed: Any) -> Columns:
    """Requests sent when scheduled, with a first event ``ttft_s`` later and the last ``last_s`` after it."""
    n = len(scheduled_s)
    one = columns(request(output_tokens=50))
    values = {f.name: _repeated(getattr(one, f.name), n) for f in fields(Columns)}
    first = np.broadcast_to(ttft_s, n).astype(np.float64)
    times = {
        "scheduled_s": scheduled_s,
        "sent_s": scheduled_s,
        "first_event_s": first,
        "last_event_s": first + last_s,
        "ended_s": scheduled_s + first + last_s,
    }
    return Columns(**(values | times | changed))


def span(seconds: float) -> Window:
    return Window(ns(0.0), ns(seconds), "")


def everybody(c: Columns, window: Window) -> Population:
    return Population.of(c, window.scheduled(c), np.arange(len(c)))


def wandering(runs: int, seconds: float, constant_s: float, seed: int, step_s: float = 10.0) -> Floats:
    """Noise of variance 1 on a grid of ``step_s``, shape (runs, steps): each value resembles those that are
    less than ``constant_s`` away."""
    random = np.random.default_rng(seed)
    stay = float(np.exp(-step_s / constant_s))
    steps = int(seconds / step_s) + 1
    noise = np.empty((runs, steps))
    noise[:, 0] = random.standard_normal(runs)
    for i in range(1, steps):
        noise[:, i] = stay * noise[:, i - 1] + np.sqrt(1 - stay**2) * random.standard_normal(runs)
    return noise


def _repeated(value: Any, n: int) -> Any:
    if isinstance(value, Labels):
        return Labels(np.repeat(value.codes, n), value.names)
    return np.repeat(value, n) if isinstance(value, np.ndarray) else value
