"""What a gate on tokens, or on their pace, rests on: counts that are the server's, and a pace that is."""

from collections.abc import Mapping
from typing import Any

from llm_locust.metrics.gates import Gate
from llm_locust.metrics.requests.tokens import NO_GAP_MS

#: Share of the answers whose count by the server is not used above which that is said with what it changes.
ODD_COUNTS = 0.01

#: Answers that take so small a part of their time between their first token and their last came at once.
_AT_ONCE = 0.05


def counted_otherwise(gate: Gate, summary: Mapping[str, Any]) -> str | None:
    """That the tokens which a gate depends on are not those of the server, whose counts contradict them."""
    depends = gate.metric in ("output_tps", "total_tps") or _is_of_tpot(gate, summary)
    share = summary["tokens"]["faults"]["not_used"] if depends else None
    if share is None or share < ODD_COUNTS:
        return None
    return f"tokens of {share * 100:.3g} % of the answers by what came: the server's counts contradict them"


def came_at_once(gate: Gate, summary: Mapping[str, Any]) -> str | None:
    """Why a limit on a pace that holds shows nothing: whole answers came at once, after a silence."""
    if gate.latency != "itl" and not _is_of_tpot(gate, summary):
        return None
    gap_ms, first_ms, last_ms = (summary["latency_ms"][key]["p50"] for key in ("itl", "ttft", "e2el"))
    if first_ms is None or last_ms is None or last_ms - first_ms >= _AT_ONCE * last_ms:
        return None
    tokens = summary["tokens"].get("output", {}).get("p50")
    if (gap_ms is None and (tokens or 0.0) < 2) or (gap_ms is not None and gap_ms >= NO_GAP_MS):
        return None
    return (
        "cannot tell: answers came at once, as from a buffer on the way, and their pace is not the server's"
    )


def _is_of_tpot(gate: Gate, summary: Mapping[str, Any]) -> bool:
    if gate.metric in ("goodput", "goodput_rps"):
        slos = [summary["goodput"]["slo"], *summary["goodput"]["slo_by_class"].values()]
        return any("tpot" in slo for slo in slos)
    return gate.latency == "tpot"
