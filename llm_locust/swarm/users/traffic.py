"""Kinds of requests, as one process sends them during one run."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from gevent.threadpool import ThreadPoolExecutor
from locust.env import Environment

from llm_locust.client.call import LlmClient
from llm_locust.client.routes import Heads
from llm_locust.options.settings import Settings
from llm_locust.scenario.request_kind import RequestForm, RequestKind, models_of, request_form
from llm_locust.swarm.channel.messages import RunInfo
from llm_locust.swarm.process.log import redact
from llm_locust.swarm.users.connections import kind_headers
from llm_locust.swarm.users.judging import Judge
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.headers import secret_texts
from llm_locust.workload.answers import OwnFunction, checks_of
from llm_locust.workload.parts import ModelChooser, Validator
from llm_locust.workload.plan import Workload


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """State shared by all requests of one kind.

    Attributes:
        workload: this worker's part of what is sent.
        warm_up: what is sent before the measured phase; the same object if it has no prompts of its own.
        forms: of its requests by model, for each arm; for one alone without arms.
        models: which of several models is next.
        seed: for the draws of this kind.
    """

    kind: RequestKind
    workload: Workload
    warm_up: Workload
    forms: tuple[Mapping[str, RequestForm], ...]
    heads: Heads
    judge: Judge
    seed: int
    models: ModelChooser | None = None

    def form(self, target: int | None, user: int, session: str | None) -> RequestForm:
        """Form of a user's next request, to an arm if there are any."""
        forms = self.forms[target or 0]
        if self.models is None:
            return next(iter(forms.values()))
        return forms[self.models.choose(user, session)]

    @property
    def endpoint(self) -> Dialect:
        return self.kind.endpoint

    @property
    def name(self) -> str:
        return self.kind.name or self.kind.endpoint.name


class TrafficTable:
    """Kinds of requests of one session, each created at its first request.

    Args:
        client: sends the requests; it is given the secrets in a kind's own headers.
        place: this worker's index and the number of workers.
    """

    def __init__(
        self,
        environment: Environment,
        run: RunInfo,
        settings: Settings,
        client: LlmClient,
        place: tuple[int, int],
    ) -> None:
        self._environment = environment
        self._run = run
        self._settings = settings
        self._client = client
        self._place = place
        self._hidden: set[str] = set(client.secrets)
        redact(environment, client.secrets)
        self._workloads: dict[Hashable, Workload] = {}
        self._judges: dict[Hashable, Judge] = {}
        self._traffic: dict[Hashable, Traffic] = {}
        for kind in settings.kinds:
            if kind.spec.images is not None:
                kind.spec.images.prepare()  # no stream is open yet that would wait for it
        self._writers: ThreadPoolExecutor | None = None  # for prompts that a tokenizer has to count

    def traffic(self, kind: RequestKind) -> Traffic:
        """Traffic of a kind: created at its first request, then reused.

        A user whose headers are its own, such as a token from a login, has heads of its own beside what its
        class shares.

        Raises:
            HeaderError: one of its own headers cannot be sent.
            ValidatorError: a validator cannot be used.
        """
        if kind.key not in self._traffic:
            own = self._settings.run.warmup_s > 0 and not self._settings.shared_warm_up
            workload = self._workload(kind)
            self._traffic[kind.key] = Traffic(
                kind,
                workload,
                self._workload(kind, warm_up=True) if own else workload,
                self._forms(kind),
                self._heads(kind),
                self.judge(kind.key, kind.validators, kind.expected, consistency=kind.consistency),
                kind.seed(self._run["seed"]),
                None
                if kind.spec.models is None
                else ModelChooser(kind.spec.models, kind.seed(self._run["seed"]), self._place[0]),
            )
        shared = self._traffic[kind.key]
        if kind.headers is shared.kind.headers or dict(kind.headers) == dict(shared.kind.headers):
            return shared
        return replace(shared, kind=kind, heads=self._heads(kind))

    def _workload(self, kind: RequestKind, *, warm_up: bool = False) -> Workload:
        """This worker's part of the workload, shared by kinds with the same source."""
        key = kind.source, warm_up
        if key not in self._workloads:
            seed = replace(kind, stream=f"warm-up/{kind.stream}") if warm_up else kind
            if kind.spec.is_slow_to_make and self._writers is None:
                self._writers = ThreadPoolExecutor(1)
            measured = self._workloads.get((kind.source, False))  # which learns from the warm-up's counts too
            self._workloads[key] = Workload(
                kind.spec,
                seed.seed(self._run["seed"]),
                *self._place,
                self._run["salt"],
                self._writers,
                None if measured is None else measured.calibration,
            )
        return self._workloads[key]

    def _forms(self, kind: RequestKind) -> tuple[Mapping[str, RequestForm], ...]:
        arms, models = self._settings.deployment.arms, self._run["arm_models"]
        targets = zip(arms, models, strict=True) if arms else ((None, self._run["model"]),)
        return tuple(
            {name: request_form(kind, name, arm) for name in models_of(kind, model)} for arm, model in targets
        )

    def _heads(self, kind: RequestKind) -> Heads:
        own = dict(kind.headers)
        hidden = [text for text in secret_texts(own) if text not in self._hidden]
        self._hidden.update(hidden)
        self._client.secrets += tuple(hidden)
        redact(self._environment, hidden)
        ours = kind_headers(self._settings, kind, self._client.pool.target)
        make_heads, arms = self._client.make_heads, self._settings.deployment.arms
        if not arms:
            return make_heads(ours)
        return tuple(make_heads({**ours, **arm.headers})[place] for place, arm in enumerate(arms))

    def judge(
        self,
        owner: Hashable,
        validators: Sequence[Validator | OwnFunction] = (),
        match: str | None = None,
        *,
        consistency: bool = False,
    ) -> Judge:
        """Checks of answers: created at an owner's first call, then reused.

        Raises:
            ValidatorError: a validator cannot be used.
        """
        if owner not in self._judges:
            self._judges[owner] = Judge(checks_of(validators), match, consistency)
        return self._judges[owner]
