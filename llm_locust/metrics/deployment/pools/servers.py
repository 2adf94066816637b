"""The ``server`` of a summary, with the pools of disaggregated serving where servers have roles."""

from collections.abc import Mapping
from typing import Any

from llm_locust.metrics.columns import Columns
from llm_locust.metrics.deployment.fairness import jain
from llm_locust.metrics.deployment.pools.findings import WORK, findings, is_of
from llm_locust.metrics.deployment.pools.names import PREFILL, ROLES
from llm_locust.metrics.deployment.pools.roles import Role, of_role, roles_of
from llm_locust.metrics.deployment.server_metrics import (
    client_ttft,
    figures_of,
    server_metrics,
)
from llm_locust.metrics.deployment.server_series import ServerSeries
from llm_locust.metrics.window import Window


def servers(series: ServerSeries, c: Columns, window: Window) -> dict[str, Any]:
    """:func:`~llm_locust.metrics.deployment.server_metrics.server_metrics`, and each target's ``role``.

    ``kv_transfer_failures`` is the share of KV transfers that failed; None without any, and where a server
    returned no page at all. ``pools`` has the figures by role, the
    parts of the TTFT, and what is wrong with prefill and decode; None where no server has a role. The
    ``gateway`` of a deployment with roles is None: the mean TTFT of its servers is of two kinds.
    """
    found = server_metrics(series, c, window)
    if not found:
        return found
    roles = roles_of(series)
    found["targets"] = [_with_role(target, roles.get(target["name"])) for target in found["targets"]]
    found["kv_transfer_failures"] = _failures(found["targets"], found["total"])
    found["pools"] = None
    if roles:
        found |= {"gateway": None, "pools": _pools(series, roles, found, c, window)}
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
    series: ServerSeries, roles: Mapping[str, Role], found: Mapping[str, Any], c: Columns, window: Window
) -> dict[str, Any]:
    by_role = [_pool(series, name, targets) for name in ROLES if (targets := of_role(roles, name, roles))]
    client = client_ttft(c, window)
    return {
        "by_role": by_role,
        "ttft": None if client is None else _ttft(by_role, found["total"], *client),
        "findings": findings(found["targets"], by_role, series.seconds, client and client[1]),
    }


def _pool(series: ServerSeries, role: str, targets: frozenset[str]) -> dict[str, Any]:
    figures = figures_of(series, targets)
    seconds = series.seconds or None
    answering = [t for t in sorted(targets) if any(up.total for up in series.named("up", t).values())]
    work = [sum(each.total for each in series.named(WORK[role], t).values()) for t in answering]
    transfers, moved = figures["kv_transfer_ms"], figures["kv_transfer_bytes"]
    took_s = transfers["n"] * transfers["mean"] * 1e-3 if transfers and transfers["n"] else None
    return {
        "role": role,
        "servers": len(targets),
        "silent": len(targets) - len(answering),
        "prompt_tokens_per_s": _over(figures["prompt_tokens"], seconds),
        "generation_tokens_per_s": _over(figures["generation_tokens"], seconds),
        "kv_transfer_bytes_per_s": _over(moved, took_s),
        "evenness": jain(work),
        "figures": figures,
    }


def _ttft(
    by_role: list[dict[str, Any]], total: Mapping[str, Any], client_ms: float, n: int
) -> dict[str, Any] | None:
    """The mean TTFT of the client, of ``n`` first tokens, in parts that follow each other; None if that at
    the prefill servers is not known."""
    transfers = total["kv_transfer_ms"]
    prefill = next((pool["figures"]["e2el_ms"] for pool in by_role if pool["role"] == PREFILL), None)
    if not prefill or not prefill["n"]:
        return None
    return {
        "client_ms": client_ms,
        "prefill_ms": prefill["mean"],
        "transfer_ms": _spread_over(n, transfers),
        "same_requests": is_of(n, prefill),
    }


def _spread_over(n: int, transfers: Mapping[str, Any] | None) -> float:
    """Mean time of a request in transfers: some have none, or one that failed."""
    if not transfers or not transfers["n"]:
        return 0.0
    mean_ms: float = transfers["mean"]
    return mean_ms if is_of(n, transfers) else mean_ms * transfers["n"] / n


def _failures(targets: list[dict[str, Any]], total: Mapping[str, Any]) -> float | None:
    if any(target["failed"] == target["scrapes"] for target in targets):
        return None  # a silent server may be the one whose transfers fail
    failed, transfers = total["kv_transfers_failed"], total["kv_transfer_ms"]
    every = (failed or 0.0) + (transfers["n"] if transfers else 0.0)
    return (failed or 0.0) / every if every else None


def _over(amount: float | None, by: float | None) -> float | None:
    return amount / by if amount is not None and by else None
