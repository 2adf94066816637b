"""The ``server`` of a summary, with the pools of disaggregated serving where servers have roles."""

from collections.abc import Mapping, Sequence
from typing import Any

from llm_locust.metrics.columns import Columns
from llm_locust.metrics.deployment.fairness import jain
from llm_locust.metrics.deployment.pools.findings import findings, is_of
from llm_locust.metrics.deployment.pools.names import PREFILL, ROLES
from llm_locust.metrics.deployment.pools.roles import Role, of_role, roles_of
from llm_locust.metrics.deployment.pools.transfers import WORK, Transfers, answers, is_sglang, transfers_of
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
