"""What prefill and decode servers said of themselves, in the spans of the client's time axis."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from llm_locust.metrics.charts.increases import increases, over
from llm_locust.metrics.columns import Floats
from llm_locust.metrics.deployment.pools.names import DECODE, PREFILL, ROLES
from llm_locust.metrics.deployment.pools.roles import of_role, roles_of
from llm_locust.metrics.deployment.server_metrics import in_parts
from llm_locust.metrics.deployment.server_series import ServerSeries, Targets


@dataclass(frozen=True, slots=True)
class RoleCurves:
    """Curves of what is known of a role at any time; one value a span, NaN where nothing is known.

    ``waiting`` are the requests in the queues of all servers of a role. ``parts_s`` are means of the requests
    that ended in each span, which follow each other up to the first token, and the client's mean TTFT.
    """

    waiting: Mapping[str, Floats]
    parts_s: Mapping[str, Floats]


def role_curves(series: ServerSeries, client_ttft_s: Floats) -> RoleCurves | None:
    """None where no server has a role."""
    roles = roles_of(series)
    if not roles:
        return None
    of = {name: of_role(roles, name, roles) for name in ROLES}
    parts = {
        "prefill server, queue": _mean(series, "queue_s", of[PREFILL]),
        "prefill server, whole request": _mean(series, "e2el_s", of[PREFILL]),
        "KV transfer": _mean(series, "kv_transfer_s"),
        "decode server, queue": _mean(series, "queue_s", of[DECODE]),
    }
    waiting = {f"{name} servers": in_parts(series, "waiting", of[name]) for name in ROLES}
    parts_s = _known(parts)
    return RoleCurves(_known(waiting), {"TTFT of the client": client_ttft_s} | parts_s if parts_s else {})


def _mean(series: ServerSeries, name: str, of: Targets = None) -> Floats:
    """The mean of a histogram's samples in each span."""
    return over(increases(series, f"{name}_sum", of), increases(series, f"{name}_count", of))


def _known(curves: Mapping[str, Floats]) -> dict[str, Floats]:
    return {label: curve for label, curve in curves.items() if not np.isnan(curve).all()}
