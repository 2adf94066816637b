"""Separate prefill and decode: which server does what, the figures of each role, and their faults."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from llm_locust.core.texts import probability, quantity
from llm_locust.metrics.columns import Columns
from llm_locust.metrics.deployment.fairness import BEYOND_CHANCE, UNEVEN_CV, jain, variation
from llm_locust.metrics.deployment.server_metrics import (
    SAME_REQUESTS,
    client_ttft,
    figures_of,
    server_metrics,
)
from llm_locust.metrics.deployment.server_series import ServerSeries
from llm_locust.metrics.stats.proportions import equal_shares
from llm_locust.metrics.summary_types.deployment import PoolFinding
from llm_locust.metrics.window import Window

# --------------------
# Roles of servers in disaggregated serving, and how they are written before a URL.
# --------------------


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
    for key in series.by_key:
        if said := _said(key.name == ROLE_SAMPLE, key.labels):
            told.setdefault(key.target, []).append(said)
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

Figures = Mapping[str, Any]


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


def answers(target: Figures) -> bool:
    """Whether anything is known of a server in the window; a page may have none of our metrics."""
    if target["running_mean"] is not None:
        return True
    amounts = [target[WORK[role]] for role in ([target["role"]] if target["role"] else ROLES)]
    return target["scrapes"] > target["failed"] and any(amount is not None for amount in amounts)


def is_sglang(series: ServerSeries, target: str) -> bool:
    """Whether a server is an SGLang: its pages have a labelled counter from the first increase on, and its
    requests wait in queues of both roles at a time that are not in ``waiting``."""
    return any(key.target == target and key.label("engine_type") is not None for key in series.by_key)


def transfers_of(series: ServerSeries, targets: Sequence[Figures]) -> Transfers:
    """KV transfers by the figures of ``targets``, with their roles."""
    by_role = {role: [t for t in targets if t["role"] == role] for role in (*ROLES, None)}
    failed = {role: sum(t["kv_transfers_failed"] or 0.0 for t in some) for role, some in by_role.items()}
    counted = {role: _done(some) for role, some in by_role.items()}
    known = [n for n in counted.values() if n is not None]
    of_role = max(ROLES, key=lambda role: (-1.0 if (n := counted[role]) is None else n, failed[role]))
    counting = [*(by_role[of_role] if counted[of_role] is not None else ()), *by_role[None]]
    return Transfers(
        done=sum(known) if known else None,
        failed=(failed[of_role] or max(failed[role] for role in ROLES)) + failed[None],
        complete=all(_told(series, t) for t in counting) and not any(_is_missed(t, targets) for t in targets),
    )


def _done(targets: Sequence[Figures]) -> float | None:
    known: list[float] = [t["kv_transfer_ms"]["n"] for t in targets if t["kv_transfer_ms"] is not None]
    return sum(known) if known else None


def _told(series: ServerSeries, target: Figures) -> bool:
    """Whether a server told both numbers; one without a role may have none of them (an exporter)."""
    has = {target["kv_transfer_ms"] is not None, target["kv_transfers_failed"] is not None}
    return has == {True} or (target["role"] is None and has == {False}) or is_sglang(series, target["name"])


def _is_missed(target: Figures, targets: Sequence[Figures]) -> bool:
    """Whether transfers of a silent server may be missing.

    One without a role may be an exporter of GPUs; but if others have theirs by what they serve, it may as
    well be a server whose role is not seen because it is silent.
    """
    if target["role"] is not None:
        return not answers(target)
    sources = {t["role_source"] for t in targets if t["role"]}
    return target["failed"] == target["scrapes"] and (not sources or bool(sources & SEEN))


# --------------------
# What is wrong with prefill and decode, in words that name the evidence; most severe first.
# --------------------


_WORK_WORDS = {PREFILL: "prompt tokens", DECODE: "generated tokens"}

#: Share of the decode servers' prompt tokens that they compute themselves, from which on that is told.
REDONE = 0.1
#: A role is the bottleneck with so many waiting requests for each of its servers, and so many times those of
#: the other role.
_WAITING, _TIMES_THE_OTHER = 1.0, 3.0


def findings(
    targets: Sequence[Figures],
    by_role: Sequence[Figures],
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
    pools = {pool["role"]: pool for pool in by_role}
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


def _missing(targets: Sequence[Figures], pools: Mapping[str, Figures]) -> Iterator[PoolFinding]:
    """Servers without figures: then those of their role are of some of it, or of nothing."""
    for role in ROLES:
        if role not in pools:
            text = f"no {role} server was scraped, so its queue is in no figure: give its --metrics-url"
            yield PoolFinding(kind="missing_role", text=text, server=None)
            continue
        silent = [t for t in targets if t["role"] == role and not answers(t)]
        without_page = sum(t["failed"] == t["scrapes"] for t in silent)
        for n, what in (
            (without_page, "no metrics page"),
            (len(silent) - without_page, "pages without known metrics"),
        ):
            if n:
                of = f"{n} of {pools[role]['servers']} {role} servers"
                text = f"{of} returned {what}: nothing is known of them"
                yield PoolFinding(kind="silent", text=text, server=None)
    without = [t["name"] for t in targets if t["role"] is None and t["running_mean"] is not None]
    if without:
        names = ", ".join(without[:3]) + (f" and {len(without) - 3} more" if len(without) > 3 else "")
        text = f"no role is known of {names}: in the figures of neither; write prefill=URL or decode=URL"
        yield PoolFinding(kind="no_role", text=text, server=None)


def _unlike(pools: Mapping[str, Figures], first_tokens: int | None) -> Iterator[PoolFinding]:
    """First tokens of other requests than the client's, or of some of them."""
    found = pools[DECODE]["figures"]["ttft_ms"] if DECODE in pools else None
    if found is None or first_tokens is None or is_of(first_tokens, found):
        return
    why = "some are not scraped" if found["n"] < first_tokens else "other clients use them"
    text = f"decode servers saw {found['n']:,.0f} first tokens, the client {first_tokens:,}: {why}"
    yield PoolFinding(kind="other_requests", text=text, server=None)


def is_of(n: int, histogram: Figures) -> bool:
    """Whether a server's histogram is of as many requests as the client saw."""
    return bool(abs(histogram["n"] - n) <= max(1.0, histogram["n_error"] + SAME_REQUESTS * n))


def _doubted(targets: Sequence[Figures]) -> Iterator[PoolFinding]:
    for t in targets:
        if t["role_doubt"]:
            other = DECODE if t["role"] == PREFILL else PREFILL
            text = (
                f"{t['name']} is taken as {t['role']} ({t['role_source']}), but {t['role_doubt']} say {other}"
            )
            yield PoolFinding(kind="doubt", text=text, server=t["name"])


def _not_transferred(pools: Mapping[str, Figures], transfers: Transfers) -> Iterator[PoolFinding]:
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
    elif DECODE in pools and not done and (finished := pools[DECODE]["figures"]["finished"]):
        why = "their connector has no metrics, or prompts are computed where they are decoded"
        text = f"no KV transfer was counted while decode servers finished {finished:,.0f} requests: {why}"
        yield PoolFinding(kind="no_transfer", text=text, server=None)


def _redone(pools: Mapping[str, Figures]) -> Iterator[PoolFinding]:
    """Prompts that decode servers computed. One token of each prompt is always computed there."""
    if DECODE not in pools:
        return
    figures = pools[DECODE]["figures"]
    computed, prompts = figures["prompt_tokens_computed"], figures["prompt_tokens"]
    if computed is None or not prompts:
        return
    n = figures["ttft_ms"]["n"] if figures["ttft_ms"] else figures["finished"] or 0.0
    share = max(0.0, computed - n) / prompts
    if share >= REDONE:
        text = (
            f"decode servers computed {100 * share:.0f} % of their prompt tokens themselves: transfers "
            "failed, or these prompts did not go to a prefill server"
        )
        yield PoolFinding(kind="prefill_in_decode", text=text, server=None)


def _uneven(targets: Sequence[Figures]) -> Iterator[PoolFinding]:
    """Servers of one role that do nothing, or not their share: never compared with those of the other."""
    for role in ROLES:
        mine = [t for t in targets if t["role"] == role and answers(t)]
        amounts = [float(t[WORK[role]] or 0.0) for t in mine]  # a counter may begin with the first token
        idle = [t["name"] for t, amount in zip(mine, amounts, strict=True) if not amount]
        if not any(amounts):
            continue
        for name in idle:
            others = f"others of its role {sum(amounts):,.0f}"
            text = f"{name} ({role}) had no {_WORK_WORDS[role]} in the window, {others}"
            yield PoolFinding(kind="idle", text=text, server=name)
        spread = variation(amounts)
        chance = equal_shares([round(t["finished"] or 0) for t in mine])
        if not idle and (spread or 0.0) > UNEVEN_CV and chance is not None and chance.p < BEYOND_CHANCE:
            most = mine[amounts.index(max(amounts))]["name"]
            text = (
                f"{_WORK_WORDS[role]} of the {role} servers are uneven (variation "
                f"{100 * (spread or 0):.0f} %), and their requests beyond chance ({probability(chance.p)}); "
                f"{most} has the most"
            )
            yield PoolFinding(kind="uneven", text=text, server=most)


def _bottleneck(pools: Mapping[str, Figures], seconds: float) -> Iterator[PoolFinding]:
    """The role whose queue is the longer one; a request whose KV cache is on its way waits for no server."""
    if any(role not in pools for role in ROLES):
        return
    moving = _moving(pools[DECODE]["figures"], seconds)
    waiting = {role: pools[role]["figures"]["waiting_mean"] for role in ROLES}
    if any(value is None for value in waiting.values()):
        return
    waiting[DECODE] = max(0.0, waiting[DECODE] - moving)
    for role, other in ((PREFILL, DECODE), (DECODE, PREFILL)):
        each = waiting[role] / pools[role]["servers"]
        if each >= _WAITING and each >= _TIMES_THE_OTHER * waiting[other] / pools[other]["servers"]:
            text = (
                f"{role} is the bottleneck: {quantity(waiting[role])} requests wait there on average "
                f"(servers: {pools[role]['servers']}), {quantity(waiting[other])} for {other} "
                f"({pools[other]['servers']})"
            )
            yield PoolFinding(kind="bottleneck", text=text, server=None)


def _moving(decode: Figures, seconds: float) -> float:
    """Requests whose KV cache was on its way on average, by Little's law. Ranks count each of them once, at
    the same time: there were no more than requests."""
    transfers, finished = decode["kv_transfer_ms"], decode["finished"]
    if not transfers or not transfers["n"] or not seconds:
        return 0.0
    n = transfers["n"] if finished is None else min(transfers["n"], finished)
    return float(n * transfers["mean"] * 1e-3 / seconds)


# --------------------
# The ``server`` of a summary, with the pools of disaggregated serving where servers have roles.
# --------------------


def servers(series: ServerSeries, c: Columns, window: Window) -> dict[str, Any]:
    """:func:`~llm_locust.metrics.deployment.server_metrics.server_metrics`, and each target's ``role``.

    ``kv_transfer_failures`` is the share of KV transfers that failed; None without any, and where a server
    did not tell both numbers. ``pools`` has the figures by role, the parts of the TTFT, and what is wrong
    with prefill and decode; None where no server has a role. The ``gateway`` of a deployment with roles is
    None: the mean TTFT of its servers is of two kinds.
    """
    found = server_metrics(series, c, window)
    if not found:
        return found
    roles = roles_of(series)
    found["targets"] = [_with_role(target, roles.get(target["name"])) for target in found["targets"]]
    transfers = transfers_of(series, found["targets"])
    found["kv_transfer_failures"] = transfers.failed_share
    found["pools"] = None
    if roles:
        found |= {"gateway": None, "pools": _pools(series, found, transfers, client_ttft(c, window))}
    return found


def _with_role(target: Mapping[str, Any], role: Role | None) -> dict[str, Any]:
    said = {
        "role": role and role.name,
        "role_source": role and role.source,
        "role_doubt": role and role.doubt,
    }
    return {"name": target["name"], **said, **target}


def pool_sizes(series: ServerSeries | None) -> dict[str, int]:
    """How many servers have each role; nothing where none has one."""
    roles = {} if series is None else roles_of(series)
    return {name: len(of_role(roles, name, roles)) for name in ROLES if of_role(roles, name, roles)}


def _pools(
    series: ServerSeries, found: Mapping[str, Any], transfers: Transfers, client: tuple[float, int] | None
) -> dict[str, Any]:
    """``client`` is the mean of its first tokens in ms, and their number."""
    of_roles = ((name, [t for t in found["targets"] if t["role"] == name]) for name in ROLES)
    by_role = [_pool(series, name, targets) for name, targets in of_roles if targets]
    queues_known = not any(is_sglang(series, target["name"]) for target in found["targets"] if target["role"])
    said = findings(
        found["targets"],
        by_role,
        series.seconds,
        client and client[1],
        transfers,
        queues_known=queues_known,
    )
    return {
        "by_role": by_role,
        "ttft": None if client is None else _ttft(by_role, found["total"], *client),
        "findings": said,
    }


def _pool(series: ServerSeries, role: str, targets: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    figures = figures_of(series, {target["name"] for target in targets})
    seconds = series.seconds or None
    work = [float(target[WORK[role]] or 0.0) for target in targets if answers(target)]
    transfers, moved = figures["kv_transfer_ms"], figures["kv_transfer_bytes"]
    took_s = transfers["n"] * transfers["mean"] * 1e-3 if transfers and transfers["n"] else None
    return {
        "role": role,
        "servers": len(targets),
        "silent": len(targets) - len(work),
        "prompt_tokens_per_s": _over(figures["prompt_tokens"], seconds),
        "generation_tokens_per_s": _over(figures["generation_tokens"], seconds),
        "kv_transfer_bytes_per_s": _over(moved, took_s),
        "evenness": jain(work),
        "figures": figures,
    }


def _ttft(
    by_role: list[dict[str, Any]], total: Mapping[str, Any], client_ms: float, n: int
) -> dict[str, Any] | None:
    """The mean TTFT of the client, of ``n`` first tokens, in parts that follow each other; None if one of
    them is not known."""
    transfers = total["kv_transfer_ms"]
    prefill = next((pool["figures"]["e2el_ms"] for pool in by_role if pool["role"] == PREFILL), None)
    if not prefill or not prefill["n"] or not transfers or not transfers["n"]:
        return None
    return {
        "client_ms": client_ms,
        "prefill_ms": prefill["mean"],
        "transfer_ms": transfers["mean"] * _share_moved(n, transfers),
        "same_requests": is_of(n, prefill),
    }


def _share_moved(n: int, transfers: Mapping[str, Any]) -> float:
    """Share of ``n`` requests that had a transfer: some have none, or one that failed. Of an engine with
    several ranks each counts it, at the same time."""
    return 1.0 if is_of(n, transfers) else min(1.0, float(transfers["n"]) / n)


def _over(amount: float | None, by: float | None) -> float | None:
    return amount / by if amount is not None and by else None
