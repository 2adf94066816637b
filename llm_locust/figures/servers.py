"""What the servers said of themselves in the window, the gateway before them, and their pools."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

from llm_locust.figures.figure import Run
from llm_locust.figures.pools import Pools, pools, transfers_of
from llm_locust.figures.server_metrics import GatewayFigures, ServerFigures, client_ttft, figures_of, gateway
from llm_locust.figures.text import (
    MOST_ROWS,
    Column,
    Line,
    Section,
    Table,
    TableRow,
    Tone,
    clean,
    count,
    number,
    percent,
    plural,
    rows_left_out,
    short_name,
)
from llm_locust.metrics.columns import Columns
from llm_locust.metrics.server_roles import roles_of
from llm_locust.metrics.server_series import ServerSeries
from llm_locust.metrics.structs import SummaryPart, key
from llm_locust.metrics.window import Window

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary

#: Less of the window scraped than this is worth a line.
LEAST_COVERED = 0.95


class Servers(SummaryPart, frozen=True):
    """What was scraped of the servers."""

    targets: list[ServerFigures]
    total: ServerFigures
    gateway: GatewayFigures | None
    failure: Annotated[str | None, key("why the scraping ended early; null where it did not")]
    kv_transfer_failures: Annotated[
        float | None,
        key(
            "share of the KV transfers that failed; null without any, or if a server did not tell",
            "the window",
        ),
    ]
    pools: Pools | None


def servers(series: ServerSeries, c: Columns, window: Window) -> Servers | None:
    """What the servers said of themselves in the window, and what lies before them.

    Counts are increases in the window. ``covered`` is the share of the window between a target's first and
    last scrape, ``failed`` how many scrapes gave nothing. Histograms have n, how far that may be off, mean
    and, as the buckets tell no more, bounds of p50 and p99, in milliseconds. What a target does not tell is
    None. ``failure`` is why all that is not of the whole run, None where it is.

    ``kv_transfer_failures`` is the share of KV transfers that failed; None without any, and where a server
    did not tell both numbers. ``pools`` has the figures by role, the parts of the TTFT, and what is wrong
    with prefill and decode; None where no server has a role. The ``gateway`` of a deployment with roles is
    None: the mean TTFT of its servers is of two kinds.

    Returns:
        None where nothing was scraped, and nothing went wrong with it.
    """
    if not series.by_key and not series.failure:
        return None
    roles = roles_of(series)
    targets = [figures_of(series, name, roles.get(name)) for name in series.targets]
    total, transfers = figures_of(series, None), transfers_of(series, targets)
    return Servers(
        targets=targets,
        total=total,
        gateway=None if roles else gateway(total.ttft_ms, c, window),
        failure=series.failure or None,
        kv_transfer_failures=transfers.failed_share,
        pools=pools(series, targets, total, transfers, client_ttft(c, window)) if roles else None,
    )


def compute(run: Run) -> Servers | None:
    return servers(run.server, run.m.c, run.m.window) if run.server else None


_MIB = 1 << 20
_SERVER_COLUMNS = (
    Column("Server", left=True, verbatim=True),
    Column("role", left=True),
    Column("mean", over="running"),
    Column("max", over="running", wide=True),
    Column("mean", over="waiting"),
    Column("max", over="waiting", wide=True),
    Column("max", over="KV cache"),
    Column("prefix hits"),
    Column("preempted"),
    Column("length", over="accepted"),
    Column("share", over="accepted"),
    Column("ms", over="KV transfer"),
    Column("MiB", over="KV transfer", wide=True),
    Column("failed", over="KV transfer"),
    Column("TTFT ms"),
    Column("GPU"),
    Column("W"),
    Column("no page"),
)


def show(summary: "Summary") -> Section | None:
    """The figures by target, and of all; None where nothing was scraped, nor should have been."""
    part = summary.server
    if part is None:
        return None
    targets = part.targets
    failure = [Line(clean(part.failure), Tone.WARN, verbatim=True)] if part.failure else []
    if not targets:
        return Section("Servers", tuple(failure), key="servers") if failure else None
    rows = [_server_row(target, short_name(target.target)) for target in targets[:MOST_ROWS]]
    if len(targets) > 1 and part.pools is None:
        rows.append(_server_row(part.total, "all"))
    table = Table(_SERVER_COLUMNS, tuple(rows)).without_empty()
    notes = (*failure, *_gateway(part.gateway), *_gaps(targets), *rows_left_out(len(targets)))
    return Section("Servers", table=table, notes=notes, key="servers")


def _server_row(target: ServerFigures, name: str) -> TableRow:
    return TableRow(
        (
            name,
            target.role or "",
            _cell(target.running_mean),
            _cell(target.running_max),
            _cell(target.waiting_mean),
            _cell(target.waiting_max),
            _share(target.kv_cache_usage_max),
            _share(_hits(target)),
            count(target.preemptions) if target.preemptions else "",
            _cell(target.acceptance_length),
            _share(target.acceptance_rate),
            *_kv_transfers(target),
            _cell(target.ttft_ms.mean if target.ttft_ms else None),
            _share(target.gpu_utilisation_mean),
            _cell(target.power_w_mean),
            f"{count(target.failed)} of {count(target.scrapes)}" if target.failed else "",
        )
    )


def _kv_transfers(target: ServerFigures) -> tuple[str, str, str]:
    """Mean time of a transfer, mean MiB of one, and how many failed."""
    found = target.kv_transfer_ms
    each = target.kv_transfer_bytes / found.n if found and found.n and target.kv_transfer_bytes else None
    failed = count(target.kv_transfers_failed) if target.kv_transfers_failed else ""
    return _cell(found.mean if found else None), _cell(each / _MIB if each else None), failed


def _hits(target: ServerFigures) -> float | None:
    by_counts = target.prefix_cache_hit_ratio
    return target.prefix_cache_hit_rate_mean if by_counts is None else by_counts


def _cell(value: float | None) -> str:
    """Nothing for what a server does not tell: a column that none tells is left out."""
    return "" if value is None else number(value)


def _share(ratio: float | None) -> str:
    return "" if ratio is None else percent(ratio)


def _gateway(part: GatewayFigures | None) -> Iterator[Line]:
    if part is None:
        return
    rtt = f" − round trip {number(part.rtt_ms)}" if part.rtt_ms is not None else ""
    yield Line(
        f"gateway and balancer: {number(part.gateway_ms)} ms of a mean TTFT (client "
        f"{number(part.client_ttft_ms)} − servers {number(part.server_ttft_ms)}{rtt})"
    )
    if not part.same_requests:
        yield Line(
            f"the servers saw {count(part.server_n)} first tokens, the client "
            f"{count(part.client_n)}: other clients use them, or some are "
            "not scraped, so the difference compares different requests",
            Tone.WARN,
        )


def _gaps(targets: Sequence[ServerFigures]) -> Iterator[Line]:
    """The targets that gave no page now and then, or were not asked all of the time."""
    failed = [target for target in targets if target.failed]
    if failed:
        scrapes, of = sum(target.failed for target in failed), sum(target.scrapes for target in failed)
        who = plural(len(failed), "server")
        yield Line(f"{count(scrapes)} of {count(of)} scrapes of {who} returned no metrics page", Tone.WARN)
    answering = [target for target in targets if target.failed != target.scrapes]
    covered = [target.covered for target in answering if target.covered is not None]
    if covered and min(covered) < LEAST_COVERED:
        yield Line(f"scraped over only {percent(min(covered))} of the window", Tone.WARN)
