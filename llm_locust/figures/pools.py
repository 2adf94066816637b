"""Prefill and decode servers by role: their figures, the parts of the TTFT, KV transfers, and what is wrong.

Engines count a transfer once for each rank. vLLM counts time and failures at the decode server, SGLang
the time at the prefill server and failures at both: failures of different roles are the same ones.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from llm_locust.core.texts import UNDEFINED, probability, quantity
from llm_locust.figures.fairness import BEYOND_CHANCE, UNEVEN_CV, jain, variation
from llm_locust.figures.server_metrics import ServerFigures, ServerHistogram, figures_of, is_of
from llm_locust.figures.text import (
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
    sentence,
)
from llm_locust.metrics.server_roles import DECODE, PREFILL, ROLES, SEEN
from llm_locust.metrics.server_series import ServerSeries
from llm_locust.metrics.stats.proportions import equal_shares
from llm_locust.metrics.structs import SummaryPart, key

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary

_WINDOW = "the window"


_FIRST = "first tokens in the window"


class PoolFigures(SummaryPart, frozen=True):
    """The servers of one role in disaggregated serving."""

    role: Annotated[str, key("`prefill` or `decode`")]
    servers: Annotated[int, key("number of servers")]
    silent: Annotated[int, key("those without a metrics page: nothing is known of them", _WINDOW)]
    prompt_tokens_per_s: Annotated[float | None, key("prompt tokens a second, wherever computed", _WINDOW)]
    generation_tokens_per_s: Annotated[float | None, key("generated tokens a second", _WINDOW)]
    kv_transfer_bytes_per_s: Annotated[float | None, key("bytes / time of their KV transfers", _WINDOW)]
    evenness: Annotated[
        float | None,
        key("Jain's index of prompt tokens (prefill), generated tokens (decode)", "its servers"),
    ]
    figures: ServerFigures


class TtftParts(SummaryPart, frozen=True):
    """Mean TTFT in parts that follow each other."""

    client_ms: Annotated[float, key("mean TTFT of the client, ms", _FIRST)]
    prefill_ms: Annotated[float, key("mean time at a prefill server, its queue included, ms", _FIRST)]
    transfer_ms: Annotated[float, key("mean time of the KV transfers, ms", _FIRST)]
    same_requests: Annotated[bool, key("the prefill servers saw as many requests as the client", _FIRST)]


class PoolFinding(SummaryPart, frozen=True):
    """What speaks against prefill and decode, or against their figures."""

    kind: Annotated[
        str,
        key(
            "`missing_role`, `silent`, `no_role`, `other_requests`, `doubt`, `transfers_failed`, "
            "`no_transfer`, `prefill_in_decode`, `idle`, `uneven` or `bottleneck`"
        ),
    ]
    text: Annotated[str, key("it, with its evidence")]
    server: Annotated[str | None, key("the server that it is about; null where it is about none")]


class Pools(SummaryPart, frozen=True):
    """Prefill and decode servers."""

    by_role: list[PoolFigures]
    ttft: TtftParts | None
    findings: list[PoolFinding]


#: What a server of each role does.
WORK = {PREFILL: "prompt_tokens", DECODE: "generation_tokens"}


@dataclass(frozen=True, slots=True)
class Transfers:
    """``done`` is None where no server counts them. ``complete`` says whether every server that may have some
    told both numbers."""

    done: float | None
    failed: float
    complete: bool

    @property
    def failed_share(self) -> float | None:
        """None without any, or where one of the two numbers is not known."""
        if self.done is None or not self.complete or not self.failed + self.done:
            return None
        return self.failed / (self.failed + self.done)


def answers(target: ServerFigures) -> bool:
    """Whether anything is known of a server in the window; a page may have none of our metrics."""
    if target.running_mean is not None:
        return True
    amounts = [target.figure(WORK[role]) for role in ([target.role] if target.role else ROLES)]
    return target.scrapes > target.failed and any(amount is not None for amount in amounts)


def is_sglang(series: ServerSeries, target: str) -> bool:
    """Whether a server is an SGLang: its pages have a labelled counter from the first increase on, and its
    requests wait in queues of both roles at a time that are not in ``waiting``."""
    return any(key.target == target and key.label("engine_type") is not None for key in series.by_key)


def transfers_of(series: ServerSeries, targets: Sequence[ServerFigures]) -> Transfers:
    """KV transfers by the figures of ``targets``, with their roles."""
    by_role = {role: [t for t in targets if t.role == role] for role in (*ROLES, None)}
    failed = {role: sum(t.kv_transfers_failed or 0.0 for t in some) for role, some in by_role.items()}
    counted = {role: _done(some) for role, some in by_role.items()}
    known = [n for n in counted.values() if n is not None]
    of_role = max(ROLES, key=lambda role: (-1.0 if (n := counted[role]) is None else n, failed[role]))
    counting = [*(by_role[of_role] if counted[of_role] is not None else ()), *by_role[None]]
    return Transfers(
        done=sum(known) if known else None,
        failed=(failed[of_role] or max(failed[role] for role in ROLES)) + failed[None],
        complete=all(_has_both(series, t) for t in counting)
        and not any(_is_missed(t, targets) for t in targets),
    )


def _done(targets: Sequence[ServerFigures]) -> float | None:
    known: list[float] = [t.kv_transfer_ms.n for t in targets if t.kv_transfer_ms is not None]
    return sum(known) if known else None


def _has_both(series: ServerSeries, target: ServerFigures) -> bool:
    """Whether a server told both numbers; one without a role may have none of them (an exporter)."""
    has = {target.kv_transfer_ms is not None, target.kv_transfers_failed is not None}
    return has == {True} or (target.role is None and has == {False}) or is_sglang(series, target.target)


def _is_missed(target: ServerFigures, targets: Sequence[ServerFigures]) -> bool:
    """Whether transfers of a silent server may be missing.

    One without a role may be an exporter of GPUs; but if others have theirs by what they serve, it may as
    well be a server whose role is not seen because it is silent.
    """
    if target.role is not None:
        return not answers(target)
    sources = {t.role_source for t in targets if t.role}
    return target.failed == target.scrapes and (not sources or bool(sources & SEEN))


# --- What is wrong with prefill and decode, in words that name the evidence; most severe first


_WORK_WORDS = {PREFILL: "prompt tokens", DECODE: "generated tokens"}

#: Share of the decode servers' prompt tokens that they compute themselves, from which on that is told.
REDONE = 0.1
#: A role is the bottleneck with so many waiting requests for each of its servers, and so many times those of
#: the other role.
_WAITING, _TIMES_THE_OTHER = 1.0, 3.0


def findings(
    targets: Sequence[ServerFigures],
    by_role: Sequence[PoolFigures],
    seconds: float,
    first_tokens: int | None,
    transfers: Transfers,
    *,
    queues_known: bool,
) -> list[PoolFinding]:
    """What speaks against a healthy deployment, or against these figures of it; nothing where nothing does.

    Args:
        targets: those of a summary, with their roles.
        by_role: pools that have a server.
        seconds: of the window.
        first_tokens: that the client saw in it; None where it saw none.
        transfers: of KV caches.
        queues_known: whether the servers' ``waiting`` has all that wait there.
    """
    pools = {pool.role: pool for pool in by_role}
    rules: tuple[Callable[[], Iterator[PoolFinding]], ...] = (
        lambda: _missing(targets, pools),
        lambda: _unlike(pools, first_tokens),
        lambda: _doubted(targets),
        lambda: _not_transferred(pools, transfers),
        lambda: _redone(pools),
        lambda: _uneven(targets),
        lambda: _bottleneck(pools, seconds) if queues_known else iter(()),
    )
    return [found for rule in rules for found in rule()]


def _missing(targets: Sequence[ServerFigures], pools: Mapping[str, PoolFigures]) -> Iterator[PoolFinding]:
    """Servers without figures: then those of their role are of some of it, or of nothing."""
    for role in ROLES:
        if role not in pools:
            text = f"no {role} server was scraped, so its queue is in no figure: give its --metrics-url"
            yield PoolFinding(kind="missing_role", text=text, server=None)
            continue
        silent = [t for t in targets if t.role == role and not answers(t)]
        without_page = sum(t.failed == t.scrapes for t in silent)
        for n, what in (
            (without_page, "no metrics page"),
            (len(silent) - without_page, "pages without known metrics"),
        ):
            if n:
                of = f"{n} of {pools[role].servers} {role} servers"
                text = f"{of} returned {what}: nothing is known of them"
                yield PoolFinding(kind="silent", text=text, server=None)
    without = [t.target for t in targets if t.role is None and t.running_mean is not None]
    if without:
        names = ", ".join(without[:3]) + (f" and {len(without) - 3} more" if len(without) > 3 else "")
        text = f"no role is known of {names}: in the figures of neither; write prefill=URL or decode=URL"
        yield PoolFinding(kind="no_role", text=text, server=None)


def _unlike(pools: Mapping[str, PoolFigures], first_tokens: int | None) -> Iterator[PoolFinding]:
    """First tokens of other requests than the client's, or of some of them."""
    found = pools[DECODE].figures.ttft_ms if DECODE in pools else None
    if found is None or first_tokens is None or is_of(first_tokens, found):
        return
    why = "some are not scraped" if found.n < first_tokens else "other clients use them"
    text = f"decode servers saw {found.n:,.0f} first tokens, the client {first_tokens:,}: {why}"
    yield PoolFinding(kind="other_requests", text=text, server=None)


def _doubted(targets: Sequence[ServerFigures]) -> Iterator[PoolFinding]:
    for t in targets:
        if t.role_doubt:
            other = DECODE if t.role == PREFILL else PREFILL
            text = f"{t.target} is taken as {t.role} ({t.role_source}), but {t.role_doubt} say {other}"
            yield PoolFinding(kind="doubt", text=text, server=t.target)


def _not_transferred(pools: Mapping[str, PoolFigures], transfers: Transfers) -> Iterator[PoolFinding]:
    """Transfers that failed, or that nobody counted."""
    failed, done = transfers.failed, transfers.done
    if round(failed):
        of = "an unknown number of" if done is None else f"{failed + done:,.0f}"
        share = f"{failed:,.0f} of {of} KV transfers failed"
        yield PoolFinding(
            kind="transfers_failed",
            text=f"{share}: prompts are computed again, or requests fail",
            server=None,
        )
    elif DECODE in pools and not done and (finished := pools[DECODE].figures.finished):
        why = "their connector has no metrics, or prompts are computed where they are decoded"
        text = f"no KV transfer was counted while decode servers finished {finished:,.0f} requests: {why}"
        yield PoolFinding(kind="no_transfer", text=text, server=None)


def _redone(pools: Mapping[str, PoolFigures]) -> Iterator[PoolFinding]:
    """Prompts that decode servers computed. One token of each prompt is always computed there."""
    if DECODE not in pools:
        return
    figures = pools[DECODE].figures
    computed, prompts = figures.prompt_tokens_computed, figures.prompt_tokens
    if computed is None or not prompts:
        return
    n = figures.ttft_ms.n if figures.ttft_ms else figures.finished or 0.0
    share = max(0.0, computed - n) / prompts
    if share >= REDONE:
        text = (
            f"decode servers computed {100 * share:.0f} % of their prompt tokens themselves: transfers "
            "failed, or these prompts did not go to a prefill server"
        )
        yield PoolFinding(kind="prefill_in_decode", text=text, server=None)


def _uneven(targets: Sequence[ServerFigures]) -> Iterator[PoolFinding]:
    """Servers of one role that do nothing, or not their share: never compared with those of the other."""
    for role in ROLES:
        mine = [t for t in targets if t.role == role and answers(t)]
        amounts = [
            float(t.figure(WORK[role]) or 0.0) for t in mine
        ]  # a counter may begin with the first token
        idle = [t.target for t, amount in zip(mine, amounts, strict=True) if not amount]
        if not any(amounts):
            continue
        for name in idle:
            others = f"others of its role {sum(amounts):,.0f}"
            text = f"{name} ({role}) had no {_WORK_WORDS[role]} in the window, {others}"
            yield PoolFinding(kind="idle", text=text, server=name)
        spread = variation(amounts)
        chance = equal_shares([round(t.finished or 0) for t in mine])
        if not idle and (spread or 0.0) > UNEVEN_CV and chance is not None and chance.p < BEYOND_CHANCE:
            most = mine[amounts.index(max(amounts))].target
            text = (
                f"{_WORK_WORDS[role]} of the {role} servers are uneven (variation "
                f"{100 * (spread or 0):.0f} %), and their requests beyond chance ({probability(chance.p)}); "
                f"{most} has the most"
            )
            yield PoolFinding(kind="uneven", text=text, server=most)


def _bottleneck(pools: Mapping[str, PoolFigures], seconds: float) -> Iterator[PoolFinding]:
    """The role whose queue is the longer one; a request whose KV cache is on its way waits for no server."""
    if any(role not in pools for role in ROLES):
        return
    prefill, decode = (pools[role].figures.waiting_mean for role in ROLES)
    if prefill is None or decode is None:
        return
    waiting = {PREFILL: prefill, DECODE: max(0.0, decode - _moving(pools[DECODE].figures, seconds))}
    for role, other in ((PREFILL, DECODE), (DECODE, PREFILL)):
        each = waiting[role] / pools[role].servers
        if each >= _WAITING and each >= _TIMES_THE_OTHER * waiting[other] / pools[other].servers:
            text = (
                f"{role} is the bottleneck: {quantity(waiting[role])} requests wait there on average "
                f"(servers: {pools[role].servers}), {quantity(waiting[other])} for {other} "
                f"({pools[other].servers})"
            )
            yield PoolFinding(kind="bottleneck", text=text, server=None)


def _moving(decode: ServerFigures, seconds: float) -> float:
    """Requests whose KV cache was on its way on average, by Little's law. Ranks count each of them once, at
    the same time: there were no more than requests."""
    transfers = decode.kv_transfer_ms
    if transfers is None or transfers.mean is None or not seconds:
        return 0.0
    n = transfers.n if decode.finished is None else min(transfers.n, decode.finished)
    return n * transfers.mean * 1e-3 / seconds


def pools(
    series: ServerSeries,
    targets: Sequence[ServerFigures],
    total: ServerFigures,
    transfers: Transfers,
    client: tuple[float, int] | None,
) -> Pools:
    """``client`` is the mean of its first tokens in ms, and their number."""
    of_roles = ((name, [t for t in targets if t.role == name]) for name in ROLES)
    by_role = [_pool(series, name, theirs) for name, theirs in of_roles if theirs]
    queues_known = not any(is_sglang(series, target.target) for target in targets if target.role)
    first_tokens = client and client[1]
    return Pools(
        by_role=by_role,
        ttft=None if client is None else _ttft(by_role, total, *client),
        findings=findings(
            targets, by_role, series.seconds, first_tokens, transfers, queues_known=queues_known
        ),
    )


def _pool(series: ServerSeries, role: str, targets: Sequence[ServerFigures]) -> PoolFigures:
    figures = figures_of(series, {target.target for target in targets})
    seconds = series.seconds or None
    work = [target.figure(WORK[role]) or 0.0 for target in targets if answers(target)]
    took = figures.kv_transfer_ms
    took_s = None if took is None or took.mean is None else took.n * took.mean * 1e-3
    return PoolFigures(
        role=role,
        servers=len(targets),
        silent=len(targets) - len(work),
        prompt_tokens_per_s=_over(figures.prompt_tokens, seconds),
        generation_tokens_per_s=_over(figures.generation_tokens, seconds),
        kv_transfer_bytes_per_s=_over(figures.kv_transfer_bytes, took_s),
        evenness=jain(work),
        figures=figures,
    )


def _ttft(by_role: Sequence[PoolFigures], total: ServerFigures, client_ms: float, n: int) -> TtftParts | None:
    """The mean TTFT of the client, of ``n`` first tokens, in parts that follow each other; None if one of
    them is not known."""
    transfers = total.kv_transfer_ms
    prefill = next((pool.figures.e2el_ms for pool in by_role if pool.role == PREFILL), None)
    if prefill is None or prefill.mean is None or transfers is None or transfers.mean is None:
        return None
    return TtftParts(
        client_ms=client_ms,
        prefill_ms=prefill.mean,
        transfer_ms=transfers.mean * _share_moved(n, transfers),
        same_requests=is_of(n, prefill),
    )


def _share_moved(n: int, transfers: ServerHistogram) -> float:
    """Share of ``n`` requests that had a transfer: some have none, or one that failed. Of an engine with
    several ranks each counts it, at the same time."""
    return 1.0 if is_of(n, transfers) else min(1.0, transfers.n / n)


def _over(amount: float | None, by: float | None) -> float | None:
    return amount / by if amount is not None and by else None


# --- Prefill and decode servers by role, and what is wrong with them


_MB = 1e6
_POOLS_COLUMNS = (
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


def show(summary: "Summary") -> Section | None:
    """The figures of each role; None where no server has one."""
    server = summary.server
    if server is None or server.pools is None:
        return None
    part = server.pools
    found = [Line(clean(each.text), Tone.WARN, verbatim=True) for each in part.findings[:_MOST_FINDINGS]]
    if len(part.findings) > _MOST_FINDINGS:
        found.append(Line(f"{count(len(part.findings) - _MOST_FINDINGS)} more in summary.json", Tone.FAINT))
    table = Table(_POOLS_COLUMNS, tuple(_pools_row(pool) for pool in part.by_role)).without_empty()
    notes = (*found, *_transfer_remarks(part), *_ttft_remark(part.ttft), *_sources(server.targets))
    return Section("Prefill and decode", table=table, notes=notes, key="pools")


def _pools_row(pool: PoolFigures) -> TableRow:
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


def _transfer_remarks(part: Pools) -> Iterator[Line]:
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


def _ttft_remark(part: TtftParts | None) -> Iterator[Line]:
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
    sources = [f"{clean(source)} ({plural(n, 'server')})" for source, n in found.items()]
    yield Line(f"roles by {', '.join(sources)}", Tone.FAINT, verbatim=True)
