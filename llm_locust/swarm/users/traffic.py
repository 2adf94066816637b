"""Kinds of requests as one process sends them during one run: connections, headers, checks of answers."""

import logging
import os
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from gevent.threadpool import ThreadPoolExecutor

from llm_locust.client.call import LlmClient
from llm_locust.client.http.pool import Pool
from llm_locust.client.http.target import Target, refuse_proxy
from llm_locust.client.http.tls import tls_context
from llm_locust.client.recording import Answer, Call
from llm_locust.client.routes import Heads, Routes
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.deployment.targets import RandomArm, make_chooser
from llm_locust.options.requests import access_headers
from llm_locust.options.settings import Settings
from llm_locust.scenario.request_kind import RequestForm, RequestKind, models_of, request_form
from llm_locust.swarm.channel.messages import RunInfo
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.headers import secret_texts
from llm_locust.workload.answers import (
    CompiledValidator,
    ExpectedAnswer,
    ExpectedError,
    OwnFunction,
    Validator,
    checks_of,
    expected_answer,
    is_correct,
)
from llm_locust.workload.plan import ModelChooser, Workload
from llm_locust.workload.prompts import Prompt

logger = logging.getLogger(__name__)


# --- Connections to the servers under test and the headers of every request, from the settings


def request_headers(settings: Settings, *dialects: Dialect, target: Target | None = None) -> dict[str, str]:
    """Headers of every request: the API key, those of the dialects and of the target, the user's own."""
    versioned = target is not None and bool(target.query)
    return access_headers(settings.api_key, settings.headers, dialects, versioned=versioned)


def kind_headers(settings: Settings, kind: RequestKind, target: Target | None = None) -> dict[str, str]:
    """Headers of every request of a kind: the run's, its class's limits, its class's own."""
    shared = request_headers(settings, kind.endpoint, target=target)
    return {**shared, **settings.slo_headers(kind.slo_class), **kind.headers}


def shared_headers(settings: Settings, kinds: Iterable[RequestKind]) -> dict[str, str]:
    """Headers that the requests of all kinds have alike, for what is asked of their servers beside them."""
    first, *others = [kind_headers(settings, kind) for kind in kinds] or [request_headers(settings)]
    return {name: value for name, value in first.items() if all(o.get(name) == value for o in others)}


def make_pool(target: Target, settings: Settings) -> Pool:
    """Create a pool with the settings' certificates and limits (raises TargetError for invalid ones)."""
    return make_pools([target], settings)[0]


def make_pools(targets: Sequence[Target], settings: Settings) -> list[Pool]:
    """Create a pool for each target, as :func:`make_pool`; certificates are read once."""
    for target in targets:
        refuse_proxy(target, os.environ)
    secure = any(target.scheme == "https" for target in targets)
    tls = (
        tls_context(settings.access.ca_cert, settings.access.client_cert, insecure=settings.access.insecure)
        if secure
        else None
    )
    bound_s, most = min(10.0, settings.run.timeouts.first_s), settings.deployment.reuse.most
    return [
        Pool(
            target,
            tls=tls,
            tls_name=settings.access.tls_name,
            connect_timeout_s=bound_s,
            most_requests=most,
            kernel_stamps=settings.run.stamps == "kernel",
        )
        for target in targets
    ]


def make_routes(
    run: RunInfo,
    settings: Settings,
    worker: int,
    together: Callable[[Call], str | None],
) -> Routes:
    """Route to the run's host, or to each of ``--targets`` or ``--arm`` (raises TargetError).

    Args:
        worker: index of this process.
        together: key of sticky requests.
    """
    arms, urls = settings.deployment.arms, run.get("arms") or run.get("targets") or ()
    targets = [Target.at(url) for url in urls] or [Target.parse(run["host"]).with_base(run["base"])]
    pools, session_header = make_pools(targets, settings), settings.requests.session_header
    if run.get("arms"):  # every request or session draws one
        random_arm = RandomArm([arm.weight for arm in arms], run["seed"], worker)
        return Routes(pools, random_arm, arms=[arm.name for arm in arms], session_header=session_header)
    if not urls:
        return Routes(pools, session_header=session_header)
    policy = settings.deployment.target_policy
    chooser = make_chooser(policy, len(targets), worker=worker, seed=run["seed"])
    return Routes(pools, chooser, together, session_header=session_header)


# --- Checks of answers against validators and expected answers, before the record is passed on


_REASON_LENGTH = 200

#: Checks of one answer that take longer are logged, once.
SLOW_S = 0.02


def judged(
    answer: Answer,
    validators: Sequence[CompiledValidator],
    expected: ExpectedAnswer | None = None,
    *,
    prompt: Prompt | None = None,
    hashed: bool = False,
    failed: Callable[[CompiledValidator, Exception], None] = lambda check, error: None,
) -> RequestRecord:
    """Record of an answer with the results of the checks; an answer that is not ``ok`` keeps its record.

    The first validator that fails makes it ``rejected``. The comparison with the expected answer is made in
    any case: otherwise validators would raise the accuracy.

    Args:
        prompt: passed to the user's own validators with the answer.
        hashed: identify equal answers by ``answer_hash``; 2 µs for an answer of 2 kB, 70 µs for 100 kB.
        failed: called with each exception of a user's function. It counts as a rejection.
    """
    record, text = answer.record, answer.reply.text
    if record.outcome is not Outcome.OK:
        return record
    changes: dict[str, Any] = {}
    if expected is not None:
        changes["correct"] = is_correct(text, expected)
    if hashed:
        changes["answer_hash"] = answer_hash(text)
    if refusal := _first_refusal(text, validators, prompt, failed):
        check, why_not = refusal
        changes |= {
            "outcome": Outcome.REJECTED,
            "rejected_by": check.name,
            "error": f"{check.name}: {why_not}"[:_REASON_LENGTH],
        }
    return replace(record, **changes) if changes else record


def _first_refusal(
    text: str,
    validators: Sequence[CompiledValidator],
    prompt: Prompt | None,
    failed: Callable[[CompiledValidator, Exception], None],
) -> tuple[CompiledValidator, str] | None:
    for check in validators:
        try:
            why_not = check.why_not(text, prompt)
        except Exception as e:  # from the user's own code
            failed(check, e)
            why_not = f"{type(e).__name__}: {e}"
        if why_not is not None:
            return check, why_not
    return None


def answer_hash(text: str) -> int:
    """64 bits of BLAKE2b, signed: equal for equal answers."""
    return int.from_bytes(
        blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "big", signed=True
    )


@dataclass(slots=True)
class Judge:
    """Checks for the answers of one class of requests, in one process.

    The client calls them at the end of a request, through :attr:`Call.check`. The resulting record is the
    only one: the user's code, Locust's failures, the listeners and the run's file all get it.

    Attributes:
        match: how a plain expected answer is compared, see :mod:`llm_locust.workload.answers`.
        consistency: compare answers to equal prompts, also to prompts without an id.
    """

    validators: tuple[CompiledValidator, ...] = ()
    match: str | None = None
    consistency: bool = False
    _logged: set[str] = field(default_factory=set)

    def check(
        self, prompt: Prompt | None, expected: object = None, *, hashed: bool = False
    ) -> Callable[[Answer], RequestRecord] | None:
        """Value of :attr:`Call.check` for a prompt; None if there is nothing to check.

        Args:
            expected: value of the dataset's line, unchanged.
            hashed: the prompt may occur again.
        """
        right = self._ready(expected)
        hashed = hashed or self.consistency
        if not (self.validators or right or hashed):
            return None

        def check(answer: Answer) -> RequestRecord:
            begun = time.perf_counter()
            record = judged(
                answer, self.validators, right, prompt=prompt, hashed=hashed, failed=self._own_code_failed
            )
            self._mind_the_time(time.perf_counter() - begun)
            return record

        return check

    def _ready(self, expected: object) -> ExpectedAnswer | None:
        if expected is None:
            return None
        try:
            return expected_answer(expected, self.match)
        except ExpectedError as e:
            self._log_once("expected", f"answers are not compared: {e}")
            return None

    def _own_code_failed(self, check: CompiledValidator, error: Exception) -> None:
        self._log_once(
            check.name, f"validator {check.name!r} raised {error!r}: its answers count as rejected"
        )

    def _mind_the_time(self, took_s: float) -> None:
        """Warn of slow checks. Our own are bounded; a user's function, or an overloaded machine, is not."""
        if took_s > SLOW_S:
            self._log_once(
                "slow",
                f"the validators of an answer took {took_s * 1e3:.0f} ms, in which nothing else could be "
                "read; a function of your own must neither wait nor compute for long",
            )

    def _log_once(self, key: str, text: str) -> None:
        if key not in self._logged:
            self._logged.add(key)
            logger.warning("%s", text)


def prompt_key(body: bytes) -> str:
    """Id for a prompt without one: equal for equal bodies."""
    return "body-" + blake2b(body, digest_size=6).hexdigest()


# --- Kinds of requests, as one process sends them during one run


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
        hide: called with secrets that no log may show.
    """

    def __init__(
        self,
        run: RunInfo,
        settings: Settings,
        client: LlmClient,
        place: tuple[int, int],
        hide: Callable[[Iterable[str]], None],
    ) -> None:
        self._hide = hide
        self._run = run
        self._settings = settings
        self._client = client
        self._place = place
        self._secrets: set[str] = set(client.secrets)
        hide(client.secrets)
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
        new = [text for text in secret_texts(own) if text not in self._secrets]
        self._secrets.update(new)
        self._client.secrets += tuple(new)
        self._hide(new)
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
