"""What the servers said of themselves, the gateway before them, and the energy that the answers took."""

from collections.abc import Iterator, Sequence

from llm_locust.metrics.summary_types.deployment.servers import GatewayFigures, ServerFigures
from llm_locust.metrics.summary_types.summary import Summary
from llm_locust.report.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.report.text import clean, count, number, percent, plural, sentence, short

MOST_ROWS = 20

#: Less of the window scraped than this is worth a line.
LEAST_COVERED = 0.95

_NAME_LENGTH = 64
_MIB = 1 << 20
_COLUMNS = (
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


def servers(summary: Summary) -> Section | None:
    """The figures by target, and of all; None where nothing was scraped, nor should have been."""
    part = summary.server
    if part is None:
        return None
    targets = part.targets
    failure = [Line(clean(part.failure), Tone.WARN, verbatim=True)] if part.failure else []
    if not targets:
        return Section("Servers", tuple(failure)) if failure else None
    rows = [_row(target, short(clean(target.name), _NAME_LENGTH)) for target in targets[:MOST_ROWS]]
    if len(targets) > 1 and part.pools is None:
        rows.append(_row(part.total, "all"))
    table = Table(_COLUMNS, tuple(rows)).without_empty()
    notes = (*failure, *_gateway(part.gateway), *_gaps(targets), *_left_out(len(targets)))
    return Section("Servers", table=table, notes=notes)


def energy(summary: Summary) -> Section | None:
    """Energy by token and by request, and what a watt and a GPU gave; None where no GPU was watched."""
    part = summary.energy
    if part is None:
        return None
    if isinstance(part, str):
        return Section("Energy", (Line(f"no figures: {clean(part)}", Tone.WARN, verbatim=True),))
    watt, gpu = part.per_watt, part.per_gpu
    by = "by their energy counters" if part.by_counter == part.gpus else "by power samples"
    lines = (
        f"{plural(part.gpus, 'GPU')}: {number(part.power_w)} W, {number(part.joules)} J in the window, {by}",
        sentence(
            [
                _figure(part.joules_per_output_token, "J per output token"),
                _figure(part.joules_per_request, "J per request"),
                _figure(part.joules_per_good_request, "J per good request"),
            ]
        ),
        sentence(
            [
                _figure(watt.output_tokens_per_s, "output tokens/s per watt"),
                _figure(watt.goodput_requests_per_s, "good requests/s per watt"),
                _figure(gpu.output_tokens_per_s, "output tokens/s per GPU"),
                _figure(gpu.goodput_requests_per_s, "good requests/s per GPU"),
            ]
        ),
    )
    return Section("Energy", tuple(Line(line) for line in lines if line))


def _row(target: ServerFigures, name: str) -> TableRow:
    return TableRow(
        (
            name,
            target.role or "",
            _known(target.running_mean),
            _known(target.running_max),
            _known(target.waiting_mean),
            _known(target.waiting_max),
            _share(target.kv_cache_usage_max),
            _share(_hits(target)),
            count(target.preemptions) if target.preemptions else "",
            _known(target.acceptance_length),
            _share(target.acceptance_rate),
            *_kv_transfers(target),
            _known(target.ttft_ms.mean if target.ttft_ms else None),
            _share(target.gpu_utilisation_mean),
            _known(target.power_w_mean),
            f"{count(target.failed)} of {count(target.scrapes)}" if target.failed else "",
        )
    )


def _kv_transfers(target: ServerFigures) -> tuple[str, str, str]:
    """Mean time of a transfer, mean MiB of one, and how many failed."""
    found = target.kv_transfer_ms
    each = target.kv_transfer_bytes / found.n if found and found.n and target.kv_transfer_bytes else None
    failed = count(target.kv_transfers_failed) if target.kv_transfers_failed else ""
    return _known(found.mean if found else None), _known(each / _MIB if each else None), failed


def _hits(target: ServerFigures) -> float | None:
    by_counts = target.prefix_cache_hit_ratio
    return target.prefix_cache_hit_rate_mean if by_counts is None else by_counts


def _known(value: float | None) -> str:
    """Nothing for what a server does not tell: a column that none tells is left out."""
    return "" if value is None else number(value)


def _share(ratio: float | None) -> str:
    return "" if ratio is None else percent(ratio)


def _figure(value: float | None, unit: str) -> str:
    return "" if value is None else f"{number(value)} {unit}"


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


def _left_out(targets: int) -> Iterator[Line]:
    if targets > MOST_ROWS:
        yield Line(f"{count(targets - MOST_ROWS)} more in summary.json", Tone.FAINT)
