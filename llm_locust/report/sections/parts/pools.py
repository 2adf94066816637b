"""Prefill and decode servers by role, and what is wrong with them."""

from collections import Counter
from collections.abc import Iterator, Sequence

from llm_locust.metrics.summary_types.deployment.servers import (
    PoolFigures,
    Pools,
    ServerFigures,
    ServerHistogram,
    TtftParts,
)
from llm_locust.metrics.summary_types.summary import Summary
from llm_locust.report.section import Column, Line, Section, Table, TableRow, Tone
from llm_locust.report.text import UNDEFINED, clean, count, number, percent, plural, sentence

_MB = 1e6
_COLUMNS = (
    Column("Role", left=True),
    Column("servers"),
    Column("prompt", over="tokens/s"),
    Column("generated", over="tokens/s"),
    Column("running"),
    Column("waiting"),
    Column("queue ms"),
    Column("max", over="KV cache"),
    Column("preempted"),
    Column("evenness"),
)

#: Findings that are told; the rest are in summary.json.
_MOST_FINDINGS = 8


def pools(summary: Summary) -> Section | None:
    """The figures of each role; None where no server has one."""
    server = summary.server
    if server is None or server.pools is None:
        return None
    part = server.pools
    found = [Line(clean(each.text), Tone.WARN, verbatim=True) for each in part.findings[:_MOST_FINDINGS]]
    if len(part.findings) > _MOST_FINDINGS:
        found.append(Line(f"{count(len(part.findings) - _MOST_FINDINGS)} more in summary.json", Tone.FAINT))
    table = Table(_COLUMNS, tuple(_row(pool) for pool in part.by_role)).without_empty()
    notes = (*found, *_transfers(part), *_ttft(part.ttft), *_sources(server.targets))
    return Section("Prefill and decode", table=table, notes=notes)


def _row(pool: PoolFigures) -> TableRow:
    figures = pool.figures
    return TableRow(
        (
            pool.role,
            count(pool.servers),
            number(pool.prompt_tokens_per_s),
            number(pool.generation_tokens_per_s),
            number(figures.running_mean),
            number(figures.waiting_mean),
            number(figures.queue_ms.mean if figures.queue_ms else None),
            percent(figures.kv_cache_usage_max),
            count(figures.preemptions) if figures.preemptions is not None else UNDEFINED,
            number(pool.evenness) if pool.servers > 1 else "",
        )
    )


def _transfers(part: Pools) -> Iterator[Line]:
    """KV transfers of the role whose servers count them; failures of the other one are the same ones."""
    by_time = [pool for pool in part.by_role if (took := pool.figures.kv_transfer_ms) and took.n]
    if not any(pool.figures.kv_transfers_failed for pool in by_time):
        by_time += [pool for pool in part.by_role if pool.figures.kv_transfers_failed]
    for pool in by_time:
        found, failed = pool.figures.kv_transfer_ms, pool.figures.kv_transfers_failed
        n, moved, rate = (
            (found.n if found else 0),
            pool.figures.kv_transfer_bytes,
            pool.kv_transfer_bytes_per_s,
        )
        facts = [
            f"{count(round(n))} KV transfers" if found else "KV transfers",
            f"mean {number(found.mean)} ms" if found and n else "",
            _bounds(found, "p50"),
            _bounds(found, "p99"),
            f"{number(moved / n / _MB)} MB each" if moved and n else "",
            f"{number(rate / _MB)} MB/s" if rate is not None else "",
            f"{count(failed)} failed" if failed is not None else "",
        ]
        yield Line(sentence(facts), Tone.WARN if failed else Tone.PLAIN)


def _bounds(found: ServerHistogram | None, name: str) -> str:
    """The bucket that a percentile is in: a server's histogram tells no more."""
    edges = getattr(found, f"{name}_bounds") if found else None
    if edges is None:
        return ""
    low, high = edges
    return f"{name} over {number(low)} ms" if high is None else f"{name} {number(low)} to {number(high)} ms"


def _ttft(part: TtftParts | None) -> Iterator[Line]:
    if part is None:
        return
    rest_ms = part.client_ms - part.prefill_ms - part.transfer_ms
    if rest_ms < 0 or not part.same_requests:
        text = "the parts of the TTFT are not known: the prefill servers saw other requests, or parts overlap"
        yield Line(text, Tone.FAINT)
        return
    yield Line(
        f"mean TTFT {number(part.client_ms)} ms = {number(part.prefill_ms)} at prefill servers, queue "
        f"included, + {number(part.transfer_ms)} KV transfer + {number(rest_ms)} at decode servers and on "
        "the way"
    )


def _sources(targets: Sequence[ServerFigures]) -> Iterator[Line]:
    """Who says which role a server has."""
    found = Counter(target.role_source for target in targets if target.role and target.role_source)
    said = [f"{clean(source)} ({plural(n, 'server')})" for source, n in found.items()]
    yield Line(f"roles by {', '.join(said)}", Tone.FAINT, verbatim=True)
