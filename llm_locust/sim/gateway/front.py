"""What is behind one port, and which replica a request goes to."""

import random
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web

from llm_locust.sim.answers.jobs import Job
from llm_locust.sim.answers.prompt import RequestError
from llm_locust.sim.gateway.upstream import ReplicaState, Upstream
from llm_locust.sim.routing import Policy, Routed
from llm_locust.wire.session_header import SessionHeader

#: Header with the session for the sticky policy.
SESSION_HEADER = "X-Session-Id"


@dataclass(frozen=True, slots=True)
class Front:
    """The gateway's policy and replicas, or one replica without a policy.

    A request whose ``session_header`` names a replica in rotation goes to that one, whatever the policy.
    ``prefill`` picks the replica that computes its prompt first; None if its own one does.
    """

    upstreams: Sequence[Upstream]
    policy: Policy | None
    session_header: SessionHeader | None = None
    prefill: "Front | None" = None

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
        named = self.session_replica(request)
        for index in loads:
            if self.upstreams[index].name == named:
                return self.upstreams[index]
        routed = Routed(_session(request), job.block_hashes, source)
        return self.upstreams[self.policy.pick(loads, routed)]

    def session_replica(self, request: web.Request) -> str | None:
        """Name of the replica in the request's session header; None without one, or if it is none of ours."""
        if self.session_header is None:
            return None
        if self.session_header.cookie is not None:
            given = request.cookies.get(self.session_header.cookie.decode())
        else:
            given = request.headers.get(self.session_header.sends.decode())
        try:
            return None if given is None else b64decode(given, validate=True).decode()
        except ValueError:
            return None


def session_fields(header: SessionHeader, replica: str) -> dict[str, str]:
    """Response headers that give a session its replica, in the form of llm-d's: base64 of its name."""
    token = b64encode(replica.encode()).decode()
    if header.cookie is not None:
        return {"Set-Cookie": f"{header.cookie.decode()}={token}; Path=/; HttpOnly"}
    return {header.takes.decode(): token}


def _session(request: web.Request) -> str:
    """Session given by the client, else the connection, which is all that a TCP balancer has."""
    named = request.headers.get(SESSION_HEADER)
    if named:
        return named
    peer = request.transport.get_extra_info("peername") if request.transport else None
    return str(peer)
