"""A kind of requests as one process sends it during one run."""

from dataclasses import dataclass

from llm_locust.client.routes import Heads
from llm_locust.scenario.request_kind import RequestKind
from llm_locust.swarm.users.judging import Judge
from llm_locust.wire.reply import Endpoint
from llm_locust.workload.body import BodyTemplate, path_of
from llm_locust.workload.plan import Workload


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """What all requests of a kind share here.

    Attributes:
        workload: this worker's part of what is sent.
        warm_up: what is sent before the measured phase; the same object where that has no prompts of its own.
        seed: of the kind's draws.
    """

    kind: RequestKind
    workload: Workload
    warm_up: Workload
    template: BodyTemplate
    heads: Heads
    judge: Judge
    seed: int

    @property
    def endpoint(self) -> Endpoint:
        return self.kind.endpoint

    @property
    def path(self) -> str:
        return path_of(self.kind.endpoint)

    @property
    def name(self) -> str:
        return self.kind.name or self.kind.endpoint.value
