"""A run for notebooks: its requests as a pandas DataFrame, with the metrics of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from llm_locust.core.arrow import SCHEMA
from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import Manifest
from llm_locust.metrics.catalogue import FORMULAS, LATENCY
from llm_locust.metrics.measured import Measured, measure
from llm_locust.metrics.question import Question, parse_window
from llm_locust.metrics.requests.judgement import OUTCOME
from llm_locust.metrics.requests.latency import user_tps
from llm_locust.metrics.select import without_first_tries
from llm_locust.store import read_manifest, read_requests

#: pandas' types that have a missing value, for columns that may lack one: as floats, an ``answer_hash`` or a
#: time since the epoch would lose digits.
_NULLABLE = {
    pa.int16(): pd.Int16Dtype(),
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
}

_TIMES = ("scheduled", "started", "sent", "ended")

#: The columns that :attr:`RunData.requests` has beside those of ``requests.parquet``.
COMPUTED_COLUMNS = (
    *(f"{time}_s" for time in _TIMES),
    *(LATENCY[metric].column[0] for metric in FORMULAS),
    *("events", "n_output_tokens", "user_tps", "on_time_ratio"),
    *("in_window", "good", "first_failed"),
)


@dataclass(frozen=True, slots=True, eq=False)
class RunData:
    """One run, read into memory as a whole.

    Attributes:
        requests: one row a request; docs/notebooks.md says what each column means.
        first_tries: sendings that broke before they were worked on, and whose requests, by ``request_id``,
            were sent again: the columns of ``requests.parquet`` alone.
        manifest: what is known of the run beside its requests.
        window_s: start and end of the window, in seconds after the run's start.
    """

    requests: pd.DataFrame
    first_tries: pd.DataFrame
    manifest: Manifest
    window_s: tuple[float, float]

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        *,
        slo: str | None = None,
        window: str = "run",
        warmup_s: float | None = None,
    ) -> "RunData":
        """Read a run directory and measure each request.

        Args:
            path: a run directory with its manifest and requests.
            slo: limits such as ``ttft=500ms tpot=50ms``, by which ``good``, ``first_failed`` and
                ``on_time_ratio`` are told; those of the run without it.
            window: ``run``, ``steady`` or a span such as ``30s-90s``: what ``in_window`` marks.
            warmup_s: left out of the window at its start; that of the run without it.

        Raises:
            StoreError: the run cannot be read.
            SloError: the text is no SLO.
            ValueError: an unknown window, or a warm-up that is negative.
        """
        run = Path(path)
        manifest, requests = read_manifest(run), without_first_tries(read_requests(run))
        batch = requests.in_memory()
        question = Question(slo=slo, window=parse_window(window), warmup_s=warmup_s)
        measured = measure(batch, manifest, question)
        frame = pd.concat([_recorded(batch), pd.DataFrame(_computed(measured, manifest))], axis="columns")
        span = measured.window
        after = [(edge_ns - manifest.started_ns) * 1e-9 for edge_ns in (span.start_ns, span.end_ns)]
        return cls(frame, _recorded(requests.first_tries()), manifest, (after[0], after[1]))


def _recorded(batch: RecordBatch) -> pd.DataFrame:
    """The columns as they were recorded; texts of few values are categories."""
    columns: dict[str, Any] = {}
    for field in SCHEMA:
        column = batch.table.column(field.name)
        if field.nullable and field.type in _NULLABLE:
            columns[field.name] = column.to_pandas(types_mapper=_NULLABLE.get)
        else:
            columns[field.name] = column.to_pandas()
    return pd.DataFrame(columns)


def _computed(m: Measured, manifest: Manifest) -> Mapping[str, Any]:
    c, start_s = m.c, m.c.after_origin_s(manifest.started_ns)
    latencies = {LATENCY[metric].column: m.values[metric] for metric in FORMULAS}
    return {
        **{f"{time}_s": getattr(c, f"{time}_s") - start_s for time in _TIMES},
        **{name: values * scale for (name, scale), values in latencies.items()},
        "events": c.events,
        "n_output_tokens": c.output_tokens,
        "user_tps": user_tps(c),
        "on_time_ratio": np.full(len(c), np.nan) if m.on_time is None else m.on_time,
        "in_window": m.window.scheduled(c),
        "good": _good(m),
        "first_failed": _first_failed(m),
    }


def _good(m: Measured) -> "pd.arrays.BooleanArray":
    """Missing without an SLO, and for requests that were cancelled before they broke a limit."""
    if m.judgement is None:
        return pd.arrays.BooleanArray(np.zeros(len(m.c), np.bool_), np.ones(len(m.c), np.bool_))
    return pd.arrays.BooleanArray(m.judgement.good.copy(), ~m.judgement.judged)


def _first_failed(m: Measured) -> "pd.Categorical[str]":
    """What broke first for each request that was not good; missing for the others, and without an SLO."""
    if m.judgement is None:
        return pd.Categorical.from_codes(np.full(len(m.c), -1), pd.Index([OUTCOME]))
    return pd.Categorical.from_codes(m.judgement.first_failed, pd.Index(m.judgement.causes))
