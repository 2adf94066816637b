"""Servers by what they say of themselves; of separate prefill and decode the figures of each role, and their
faults."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated

import msgspec

from llm_locust.core.texts import UNDEFINED, probability, quantity
from llm_locust.figures.fairness import BEYOND_CHANCE, UNEVEN_CV, jain, variation
from llm_locust.figures.figure import Run
from llm_locust.figures.server_metrics import (
    GatewayFigures,
    ServerFigures,
    ServerHistogram,
    client_ttft,
    figures_of,
    gateway,
    is_of,
)
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
    sentence,
    short_name,
)
from llm_locust.metrics.columns import Columns
from llm_locust.metrics.server_series import ServerSeries
from llm_locust.metrics.stats.proportions import equal_shares
from llm_locust.metrics.structs import SummaryPart, key
from llm_locust.metrics.window import Window

if TYPE_CHECKING:
    from llm_locust.figures.summary import Summary


# --- What the servers said of themselves, the gateway before them, and the energy that the answers took


#: Less of the window scraped than this is worth a line.
LEAST_COVERED = 0.95


_WINDOW = "the window"


# --- What servers said of themselves, and of their roles in disaggregated serving


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


class Servers(SummaryPart, frozen=True):
    """What was scraped of the servers."""

    targets: list[ServerFigures]
    total: ServerFigures
    gateway: GatewayFigures | None
    failure: Annotated[str | None, key("why the scraping ended early; null where it did not")]
    kv_transfer_failures: Annotated[
        float | None,
        key("share of the KV transfers that failed; null without any, or if a server did not tell", _WINDOW),
    ]
    pools: Pools | None


# --- Roles of servers in disaggregated serving, and how they are written before a URL


PREFILL, DECODE = "prefill", "decode"
ROLES = (PREFILL, DECODE)

_ROLE = re.compile(rf"\s*({'|'.join(ROLES)})=")


def split_role(url: str) -> tuple[str | None, str]:
    """The role before a URL (``prefill=URL``), None without one, and the URL."""
    found = _ROLE.match(url)
    return (found[1], url[found.end() :].strip()) if found else (None, url.strip())


def label_of_server(name: str, role: str | None) -> str:
    """A server's name where roles stand in it."""
    return f"{role} {name}" if role else name


def role_of_label(label: str) -> str:
    """The role in a name that :func:`label_of_server` made; empty without one."""
    role, space, _ = label.partition(" ")
    return role if space and role in ROLES else ""


# --------------------
# Roles of servers in disaggregated serving, each with who says so.
#
# In this order: what the run was told (``prefill=URL``) or the pod's label, what a server's own samples are
# labelled with, and what its counts show. Counts show roles only together: a server that gives one token
# for each of its requests prefills if others give more, and those decode if KV caches came to them.
# Everything else has no role: a server without a role is one that does both.
# --------------------


#: Name of the sample that a scraper adds for a server whose role it knows before the first page. Its labels
#: are ``role`` and ``source``.
ROLE_SAMPLE = "role"

#: Labels in which servers name their role: SGLang's, Dynamo's.
ROLE_LABELS = ("engine_type", "dynamo_component")

_COUNTS = "its counts"
#: Sources that tell the role of a server only if it answers.
SEEN = frozenset({*ROLE_LABELS, _COUNTS})

#: What counts show is by so many requests at least.
_LEAST_REQUESTS = 10
#: Tokens a request of a server that prefills, at most, and of one that decodes, at least.
_ONE_TOKEN, _SEVERAL_TOKENS = 1.1, 1.5
#: Share of the prompt tokens that came from elsewhere, from which on a server is one that decodes.
_RECEIVED = 0.5


@dataclass(frozen=True, slots=True)
class Role:
    """``name`` is prefill or decode; ``source`` says who says so, ``doubt`` who says another one."""

    name: str
    source: str
    doubt: str | None = None


def roles_of(series: ServerSeries) -> dict[str, Role]:
    """The roles of the targets that have one."""
    told: dict[str, list[tuple[str, str]]] = {}
    for which in series.by_key:
        if said := _said(which.name == ROLE_SAMPLE, which.labels):
            told.setdefault(which.target, []).append(said)
    shown = _shown(series)
    found = {}
    for target in series.targets:
        of_target = sorted(set(told.get(target, ())), key=lambda said: said[1] in ROLE_LABELS)
        names = {name for name, source in of_target if source in ROLE_LABELS}
        if len(names) > 1:  # a page of several engines: it has no role of its own
            of_target = [said for said in of_target if said[1] not in ROLE_LABELS]
        if target in shown:
            of_target.append((shown[target], _COUNTS))
        if of_target:
            (name, source), *others = of_target
            found[target] = Role(name, source, next((by for other, by in others if other != name), None))
    return found


def role_now(samples: Iterable[tuple[str, str]]) -> str | None:
    """The role that the samples of one scrape tell, by their names and labels; None where they tell none,
    or both."""
    told = {said for name, labels in samples if (said := _said(name == ROLE_SAMPLE, labels))}
    names = {role for role, source in told if source not in ROLE_LABELS} or {role for role, _ in told}
    return names.pop() if len(names) == 1 else None


@lru_cache(4_096)
def _said(is_role: bool, text: str) -> tuple[str, str] | None:
    """The role that a sample tells by its labels, and who says so; None where it tells none."""
    labels = msgspec.json.decode(text, type=dict[str, str])
    if is_role:
        role, source = labels.get("role", ""), labels.get("source", "")
        return (role, source) if role in ROLES and source else None
    return next(((labels[label], label) for label in ROLE_LABELS if labels.get(label) in ROLES), None)


def _shown(series: ServerSeries) -> dict[str, str]:
    """Roles by the counts of the window: of none, if only one of the two is seen."""
    prefills = {target for target in series.targets if _prefills(series, target)}
    decodes = {target for target in series.targets if _decodes(series, target)}
    if not prefills or not decodes:
        return {}
    return dict.fromkeys(prefills, PREFILL) | dict.fromkeys(decodes, DECODE)


def _prefills(series: ServerSeries, target: str) -> bool:
    finished, generated = (_total(series, name, target) for name in ("finished", "generation_tokens"))
    return finished >= _LEAST_REQUESTS and 0 < generated <= _ONE_TOKEN * finished


def _decodes(series: ServerSeries, target: str) -> bool:
    finished, generated = (_total(series, name, target) for name in ("finished", "generation_tokens"))
    if generated < max(_LEAST_REQUESTS, _SEVERAL_TOKENS * finished):
        return False
    prompts, received = (_total(series, f"prompt_tokens{of}", target) for of in ("", "_received"))
    transfers = [_total(series, name, target) for name in ("kv_transfer_s_count", "kv_transfers_failed")]
    return sum(transfers) > 0 or received >= _RECEIVED * prompts > 0


def _total(series: ServerSeries, name: str, target: str) -> float:
    return sum(each.total for each in series.named(name, target).values())


def of_role(roles: Mapping[str, Role], name: str, among: Iterable[str]) -> frozenset[str]:
    """The targets of a role."""
    return frozenset(target for target in among if target in roles and roles[target].name == name)


# --------------------
# KV transfers of a deployment: how many there were, and how many of them failed.
#
# Engines count a transfer once for each rank. vLLM counts time and failures at the decode server, SGLang
# the time at the prefill server and failures at both: failures of different roles are the same ones.
# --------------------


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
        complete=all(_told(series, t) for t in counting) and not any(_is_missed(t, targets) for t in targets),
    )


def _done(targets: Sequence[ServerFigures]) -> float | None:
    known: list[float] = [t.kv_transfer_ms.n for t in targets if t.kv_transfer_ms is not None]
    return sum(known) if known else None


def _told(series: ServerSeries, target: ServerFigures) -> bool:
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


# --- The ``server`` of a summary, with the pools of disaggregated serving where servers have roles


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
        pools=_pools(series, targets, total, transfers, client_ttft(c, window)) if roles else None,
    )


def compute(run: Run) -> Servers | None:
    return servers(run.server, run.m.c, run.m.window) if run.server else None


def pool_sizes(series: ServerSeries | None) -> dict[str, int]:
    """How many servers have each role; nothing where none has one."""
    roles = {} if series is None else roles_of(series)
    return {name: len(of_role(roles, name, roles)) for name in ROLES if of_role(roles, name, roles)}


def _pools(
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


def show_pools(summary: "Summary") -> Section | None:
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
    said = [f"{clean(source)} ({plural(n, 'server')})" for source, n in found.items()]
    yield Line(f"roles by {', '.join(said)}", Tone.FAINT, verbatim=True)
