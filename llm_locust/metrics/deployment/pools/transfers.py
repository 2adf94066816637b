"""KV transfers of a deployment: how many there were, and how many of them failed.

Engines count a transfer once for each rank. vLLM counts time and failures at the decode server, SGLang the
time at the prefill server and failures at both: failures of different roles are the same ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_locust.metrics.deployment.pools.names import DECODE, PREFILL, ROLES
from llm_locust.metrics.deployment.pools.roles import SEEN
from llm_locust.metrics.deployment.server_series import ServerSeries

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
