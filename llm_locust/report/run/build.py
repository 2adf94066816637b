"""From the records of a run directory to its summary and reports."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from llm_locust.core.batch import Requests
from llm_locust.core.manifest import Manifest
from llm_locust.metrics.deployment.cost import Prices
from llm_locust.metrics.gates import parse_gates
from llm_locust.metrics.measured import Measured, measure
from llm_locust.metrics.requests.slo import parse_slo
from llm_locust.metrics.select.selection import asked
from llm_locust.metrics.summary import chosen_window, exit_code, summarise
from llm_locust.report.html import html_report
from llm_locust.report.inputs.live_figures import read_live_end
from llm_locust.report.inputs.scraped import Scraped
from llm_locust.report.render.markdown import markdown
from llm_locust.report.run.timeseries import timeseries_csv
from llm_locust.store import (
    REPORT_HTML_FILE,
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
    prices: Prices | None = None,
    allow_incomplete: bool = False,
) -> Report:
    """Compute a run's summary and write it, ``report.html``, ``report.md`` and ``timeseries.csv``.

    The requests are read part by part: memory grows by some 250 bytes a request, however
    many tokens each of them had. What is not given is the manifest's. Each file is replaced as a whole.

    Args:
        run: a run directory with its manifest and requests.
        slo, gates: texts such as ``ttft=500ms`` and ``goodput>=95%``; an empty one means none.
        window: ``run`` or ``steady``.
        prices: for what answers cost; each that is None is the manifest's.
        allow_incomplete: missing records do not make the exit code 4.

    Raises:
        StoreError: the run cannot be read or the reports cannot be written.
        SloError, GateError, PriceError: a text is no SLO, no gate or no price.
        ValueError: another window, or a negative warm-up.
    """
    manifest, requests = read_manifest(run), asked(open_requests(run))
    limits = parse_slo(manifest.slo if slo is None else slo)
    warmup_s = manifest.warmup_s if warmup_s is None else warmup_s
    measured = measure(requests, manifest, limits, chosen_window(window, warmup_s), warmup_s)
    scraped = Scraped.of(run, manifest)
    summary = summarise(
        requests,
        manifest,
        slo=limits,
        gates=None if gates is None else parse_gates(gates),
        warmup_s=warmup_s,
        window=window,
        prices=prices,
        measured=measured,
        server=None if scraped is None else scraped.series(measured.window),
        live=read_live_end(run, manifest.id),
    )
    write_reports(run, summary, requests, manifest, measured, scraped)
    return Report(summary, exit_code(summary, manifest, allow_incomplete))


def write_reports(
    directory: Path,
    summary: Mapping[str, Any],
    requests: Requests,
    manifest: Manifest,
    measured: Measured | None = None,
    scraped: Scraped | None = None,
) -> None:
    """Write ``summary.json`` and all that is made of it and of ``requests`` into a directory.

    Args:
        measured: the requests, measured as for the summary; without it there is no ``report.html``.
        scraped: what the page draws of the servers.

    Raises:
        StoreError: a file cannot be written.
    """
    requests = asked(requests)
    texts = {TIMESERIES_FILE: timeseries_csv(requests, manifest), REPORT_MD_FILE: markdown(summary)}
    if measured is not None:
        texts[REPORT_HTML_FILE] = html_report(requests, manifest, summary, measured, scraped)
    writers: list[Callable[[], None]] = [
        *(partial(write_text, directory / name, text) for name, text in texts.items()),
        # The last: where it is, the others are.
        partial(write_json, directory / SUMMARY_FILE, summary),
    ]
    refused = []
    for write in writers:
        try:
            write()
        except OSError as e:  # what has less to write may find room
            refused.append(e)
    if refused:
        reason = refused[-1].strerror or refused[-1]
        raise StoreError(f"the reports in {str(directory)!r} cannot be written: {reason}") from refused[-1]
