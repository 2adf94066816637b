"""What is behind one port, and which replica a request goes to."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web

from llm_locust.sim.answers.jobs import Job, RequestError
from llm_locust.sim.gateway.upstream import ReplicaState, Upstream
from llm_locust.sim.routing import Policy, Routed

#: Header with the session for the sticky policy.
SESSION_HEADER = "X-Session-Id"


@dataclass(frozen=True, slots=True)
class Front:
    """The gateway's policy and replicas, or one replica without a policy."""

    upstreams: Sequence[Upstream]
    policy: Policy | None

    @property
    def gone(self) -> bool:
        """Whether it is the port of a replica that was killed, which has reset its connections."""
        return self.policy is None and self.upstreams[0].state is ReplicaState.DOWN

    def route(self, request: web.Request, job: Job, source: random.Random) -> Upstream:
        """Replica of a request.

        Raises:
            RequestError: 503 if none accepts requests.
        """
        if self.policy is None:
            (upstream,) = self.upstreams
            if upstream.state is ReplicaState.DRAINING:
                raise RequestError(503, "ServiceUnavailableError", f"{upstream.name} takes no new requests.")
            return upstream
        loads = {i: upstream.in_flight for i, upstream in enumerate(self.upstreams) if upstream.in_rotation}
        if not loads:
            raise RequestError(503, "ServiceUnavailableError", "No replica is in rotation.")
        routed = Routed(_session(request), job.block_hashes, source)
        return self.upstreams[self.policy.pick(loads, routed)]


def _session(request: web.Request) -> str:
    """Session given by the client, else the connection, which is all that a TCP balancer has."""
    named = request.headers.get(SESSION_HEADER)
    if named:
        return named
    peer = request.transport.get_extra_info("peername") if request.transport else None
    return str(peer)
