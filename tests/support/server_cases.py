"""Samples of servers, as a scraper keeps them."""

import json
from collections.abc import Iterable

import pyarrow as pa
from metrics_cases import ns

from llm_locust.metrics.server_series import ServerSeries, read_server_series
from llm_locust.metrics.window import Window

WINDOW = Window(ns(0.0), ns(10.0), "")
Row = tuple[float, str, str, str, float]


def rows(
    target: str, name: str, values: Iterable[float], every_s: float = 1.0, first_s: float = 0.0, **labels: str
) -> list[Row]:
    text = json.dumps(labels, sort_keys=True)
    return [(first_s + i * every_s, target, name, text, float(value)) for i, value in enumerate(values)]


def tables(samples: Iterable[Row], size: int = 1_000_000) -> list[pa.Table]:
    """In the order of time, in parts of ``size``."""
    ordered = sorted(samples)
    names = ("at_ns", "target", "name", "labels", "value")
    columns = [[ns(s[0]) if i == 0 else s[i] for s in ordered] for i in range(5)]
    whole = pa.table(dict(zip(names, columns, strict=True)))
    return [whole.slice(start, size) for start in range(0, len(whole), size)]


def series(samples: Iterable[Row], window: Window = WINDOW, size: int = 1_000_000) -> ServerSeries:
    return read_server_series(tables(samples, size), window)
