"""From the records of a run directory to its summary and reports."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_locust.metrics.gates import parse_gates
from llm_locust.metrics.slo import parse_slo
from llm_locust.metrics.summary import exit_code, summarise
from llm_locust.report.markdown import markdown
from llm_locust.report.timeseries import timeseries_csv
from llm_locust.store import (
    REPORT_MD_FILE,
    SUMMARY_FILE,
    TIMESERIES_FILE,
    StoreError,
    open_requests,
    read_manifest,
    write_json,
    write_text,
)


@dataclass(frozen=True, slots=True)
class Report:
    """What a run amounts to. ``exit_code`` is None where no gate was given: the caller's own stands."""

    summary: dict[str, Any]
    exit_code: int | None


def build_report(
    run: Path,
    *,
    slo: str | None = None,
    gates: str | None = None,
    warmup_s: float | None = None,
    window: str = "run",
    allow_incomplete: bool = False,
) -> Report:
    """Compute a run's summary and write ``summary.json``, ``report.md`` and ``timeseries.csv``.

    The requests are read part by part: memory grows by some 250 bytes a request, however
    many tokens each of them had. What is not given is the manifest's. Each file is replaced as a whole.

    Args:
        run: a run directory with its manifest and requests.
        slo, gates: texts such as ``ttft=500ms`` and ``goodput>=95%``; an empty one means none.
        window: ``run`` or ``steady``.
        allow_incomplete: missing records do not make the exit code 2.

    Raises:
        StoreError: the run cannot be read or the reports cannot be written.
        SloError, GateError: a text is no SLO or no gates.
        ValueError: another window, or a negative warm-up.
    """
    manifest, requests = read_manifest(run), open_requests(run)
    summary = summarise(
        requests,
        manifest,
        slo=None if slo is None else parse_slo(slo),
        gates=None if gates is None else parse_gates(gates),
        warmup_s=warmup_s,
        window=window,
    )
    seconds = timeseries_csv(requests, manifest)
    try:
        write_text(run / TIMESERIES_FILE, seconds)
        write_text(run / REPORT_MD_FILE, markdown(summary))
        write_json(run / SUMMARY_FILE, summary)
    except OSError as e:
        raise StoreError(f"the reports in {str(run)!r} cannot be written: {e.strerror or e}") from e
    return Report(summary, exit_code(summary, manifest, allow_incomplete))
