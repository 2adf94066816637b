"""What is wrong with prefill and decode, in words that name the evidence; most severe first."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from llm_locust.core.figures import probability, quantity
from llm_locust.metrics.deployment.causes import BEYOND_CHANCE, UNEVEN_CV
from llm_locust.metrics.deployment.fairness import variation
from llm_locust.metrics.deployment.pools.names import DECODE, PREFILL, ROLES
from llm_locust.metrics.deployment.pools.transfers import WORK, Transfers, answers
from llm_locust.metrics.deployment.server_metrics import SAME_REQUESTS
from llm_locust.metrics.stats.chance import equal_shares
from llm_locust.metrics.summary_types.deployment.servers import PoolFinding

_WORK_WORDS = {PREFILL: "prompt tokens", DECODE: "generated tokens"}

#: Share of the decode servers' prompt tokens that they compute themselves, from which on that is told.
REDONE = 0.1
#: A role is the bottleneck with so many waiting requests for each of its servers, and so many times those of
#: the other role.
_WAITING, _TIMES_THE_OTHER = 1.0, 3.0

Figures = Mapping[str, Any]


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
