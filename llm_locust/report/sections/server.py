"""What the servers said of themselves, the gateway before them, and the energy that the answers took."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llm_locust.report.section import Column, Line, Row, Section, Table, Tone
from llm_locust.report.text import clean, count, number, percent, plural, sentence, short

Part = Mapping[str, Any]

MOST_ROWS = 20

#: Less of the window scraped than this is worth a line.
LEAST_COVERED = 0.95

_NAME_LENGTH = 64
_COLUMNS = (
    Column("Server", left=True, verbatim=True, wraps=True),
    Column("mean", over="running"),
    Column("max", over="running", wide=True),
    Column("mean", over="waiting"),
    Column("max", over="waiting", wide=True),
    Column("max", over="KV cache"),
    Column("prefix hits"),
    Column("preempted"),
    Column("TTFT ms"),
    Column("GPU"),
    Column("W"),
    Column("no page"),
)


def servers(summary: Part) -> Section | None:
    """The figures by target, and of all; None where nothing was scraped, nor should have been."""
    part = summary.get("server") or {}
    targets = part.get("targets") or ()
    failure = [Line(clean(part["failure"]), Tone.WARN, verbatim=True)] if part.get("failure") else []
    if not targets:
        return Section("Servers", tuple(failure)) if failure else None
    rows = [_row(target, short(clean(target.get("name")), _NAME_LENGTH)) for target in targets[:MOST_ROWS]]
    if len(targets) > 1:
        rows.append(_row(part["total"], "all"))
    table = Table(_COLUMNS, tuple(rows)).without_empty()
    notes = (*failure, *_gateway(part.get("gateway")), *_gaps(targets), *_left_out(len(targets)))
    return Section("Servers", table=table, notes=notes)


def energy(summary: Part) -> Section | None:
    """Energy by token and by request, and what a watt and a GPU gave; None where no GPU was watched."""
    part = summary.get("energy") or {}
    if not part:
        return None
    if part.get("missing"):
        return Section("Energy", (Line(f"no figures: {clean(part['missing'])}", Tone.WARN, verbatim=True),))
    watt, gpu = part.get("per_watt") or {}, part.get("per_gpu") or {}
    by = "by their energy counters" if part.get("by_counter") == part.get("gpus") else "by samples of power"
    lines = (
        f"{plural(part.get('gpus'), 'GPU')}: {number(part.get('power_w'))} W, "
        f"{number(part.get('joules'))} J in the window, {by}",
        sentence(
            [
                _figure(part.get("joules_per_output_token"), "J an output token"),
                _figure(part.get("joules_per_request"), "J a request"),
                _figure(part.get("joules_per_good_request"), "J a good request"),
            ]
        ),
        sentence(
            [
                _figure(watt.get("output_tokens_per_s"), "output tokens/s a watt"),
                _figure(watt.get("goodput_requests_per_s"), "good requests/s a watt"),
                _figure(gpu.get("output_tokens_per_s"), "output tokens/s a GPU"),
                _figure(gpu.get("goodput_requests_per_s"), "good requests/s a GPU"),
            ]
        ),
    )
    return Section("Energy", tuple(Line(line) for line in lines if line))


def _row(target: Part, name: str) -> Row:
    return Row(
        (
            name,
            _known(target.get("running_mean")),
            _known(target.get("running_max")),
            _known(target.get("waiting_mean")),
            _known(target.get("waiting_max")),
            _share(target.get("kv_cache_usage_max")),
            _share(_hits(target)),
            count(target["preemptions"]) if target.get("preemptions") else "",
            _known((target.get("ttft_ms") or {}).get("mean")),
            _share(target.get("gpu_utilisation_mean")),
            _known(target.get("power_w_mean")),
            f"{count(target['failed'])} of {count(target.get('scrapes'))}" if target.get("failed") else "",
        )
    )


def _hits(target: Part) -> float | None:
    by_counts = target.get("prefix_cache_hit_ratio")
    told: float | None = target.get("prefix_cache_hit_rate_mean") if by_counts is None else by_counts
    return told


def _known(value: float | None) -> str:
    """Nothing for what a server does not tell: a column that none tells is left out."""
    return "" if value is None else number(value)


def _share(ratio: float | None) -> str:
    return "" if ratio is None else percent(ratio)


def _figure(value: float | None, unit: str) -> str:
    return "" if value is None else f"{number(value)} {unit}"


def _gateway(part: Part | None) -> Iterator[Line]:
    if not part:
        return
    rtt = f" − round trip {number(part['rtt_ms'])}" if part.get("rtt_ms") is not None else ""
    yield Line(
        f"gateway and balancer: {number(part.get('gateway_ms'))} ms of a mean TTFT (client "
        f"{number(part.get('client_ttft_ms'))} − servers {number(part.get('server_ttft_ms'))}{rtt})"
    )
    if not part.get("same_requests"):
        yield Line(
            f"the servers saw {count(part.get('server_n'))} first tokens, the client "
            f"{count(part.get('client_n'))}: others use them, or some are not "
            "scraped, and that difference is of unlike requests",
            Tone.WARN,
        )


def _gaps(targets: Sequence[Part]) -> Iterator[Line]:
    """The targets that gave no page now and then, or were not asked all of the time."""
    failed = [target for target in targets if target.get("failed")]
    if failed:
        scrapes, of = (sum(target[key] for target in failed) for key in ("failed", "scrapes"))
        who = plural(len(failed), "server")
        yield Line(f"{count(scrapes)} of {count(of)} scrapes of {who} gave no page of metrics", Tone.WARN)
    answering = [target for target in targets if target.get("failed") != target.get("scrapes")]
    covered = [target["covered"] for target in answering if target.get("covered") is not None]
    if covered and min(covered) < LEAST_COVERED:
        yield Line(f"scraped over {percent(min(covered))} of the window only", Tone.WARN)


def _left_out(targets: int) -> Iterator[Line]:
    if targets > MOST_ROWS:
        yield Line(f"{count(targets - MOST_ROWS)} more in summary.json", Tone.FAINT)
