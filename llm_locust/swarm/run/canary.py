"""Canary: a request before the load, like the load's own, that is read up to its first token.

A wrong path, key, model or body field, or a prompt that is too long, so ends the start with one line, and not
the load with thousands of failures. Every kind of request is sent once to every target: those of a scenario's
classes, or of user classes with prompts. User classes that build their requests themselves, such as
``OpenAIUser``, have none: nobody knows what they will send.
"""

import logging
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from llm_locust.client.call import LiveCall, LlmClient
from llm_locust.client.http.errors import ClientError
from llm_locust.client.http.target import Target
from llm_locust.client.http.timers import Timeouts
from llm_locust.client.recording import Answer, Call
from llm_locust.core.manifest import CanaryFacts
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.deployment.readiness import Replicas, SentRequest, advice, is_permanent
from llm_locust.deployment.targets import Arm, arm_facts
from llm_locust.options.settings import Settings, UsageError
from llm_locust.scenario.request_kind import RequestForm, RequestKind, models_of, request_form
from llm_locust.swarm.process.event_loop import off_the_hub
from llm_locust.swarm.run.preflight import check_target
from llm_locust.swarm.users.connections import kind_headers, make_pool
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.dialects.table import dialect_of
from llm_locust.wire.foreign_text import blanked
from llm_locust.wire.headers import secret_texts
from llm_locust.workload.body import encoded
from llm_locust.workload.plan import Workload
from llm_locust.workload.text.prompts import Prompt

if TYPE_CHECKING:
    from locust import User

logger = logging.getLogger(__name__)

#: Bodies' fields that the options for them change, not --body.
_OWN_FIELDS = frozenset({"model", "messages", "prompt", "input", "stream", "query", "documents"})


class CanaryError(UsageError):
    """A canary without a token. ``permanent``: waiting does not help."""

    def __init__(self, text: str, *, permanent: bool) -> None:
        super().__init__(text)
        self.permanent = permanent


@dataclass(frozen=True, slots=True)
class Canaries:
    """Canaries of a run: ``kinds`` of requests, and the options. Empty with ``--canary off``."""

    kinds: tuple[RequestKind, ...]
    settings: Settings

    def send(
        self, target: Target, model: str, within_s: float | None = None, arm: Arm | None = None
    ) -> list[CanaryFacts]:
        """Send one request of each kind, and for each of its models, to a target, one after another.

        Args:
            within_s: time limit of each, below that of ``--timeouts``.

        Raises:
            CanaryError: one brought no token.
        """
        own = {} if arm is None else arm.headers
        return [
            _send(
                replace(kind, headers={**kind.headers, **own}),
                self.settings,
                target,
                request_form(kind, name, arm),
                within_s,
            )
            for kind in self.kinds
            for name in models_of(kind, model)
        ]


def canaries_of(settings: Settings, user_classes: "Iterable[type[User]]") -> Canaries:
    """Canaries of a run: one for each kind of request that its user classes send."""
    if not settings.deployment.canary:
        return Canaries((), settings)
    classes = list(user_classes)
    without = [cls.__name__ for cls in classes if not _kinds(cls, settings)]
    if without:
        logger.info("no canary for %s: they build their requests themselves", ", ".join(without))
    return Canaries(kinds_sent(settings, classes), settings)


def kinds_sent(settings: Settings, user_classes: "Iterable[type[User]]") -> tuple[RequestKind, ...]:
    """Kinds of request that user classes send, each once, as far as they say so."""
    found: list[RequestKind] = []
    for cls in user_classes:
        found += [kind for kind in _kinds(cls, settings) if not any(_is_same(kind, other) for other in found)]
    return tuple(found)


def _kinds(cls: "type[User]", settings: Settings) -> Sequence[RequestKind]:
    """Kinds of request that a user class sends, as far as it says so."""
    if getattr(cls, "sends_scenario", False):
        return settings.kinds
    if (endpoint := getattr(cls, "endpoint", None)) is None:
        return ()
    dialect = dialect_of(endpoint)
    spec = replace(settings.workload, endpoint=dialect)
    own = getattr(cls, "headers", {})
    return (RequestKind(key=cls, spec=spec, source=dialect, name=cls.__name__, headers=own),)


def _is_same(one: RequestKind, other: RequestKind) -> bool:
    """Whether a server would take both or refuse both."""
    return one.spec == other.spec and dict(one.headers) == dict(other.headers)


def check_arms(settings: Settings, user_classes: "Iterable[type[User]]") -> None:
    """Check that every user class's requests can differ by arm and by model (raises UsageError)."""
    fixed = [cls.__name__ for cls in user_classes if not _kinds(cls, settings)]
    if fixed and not settings.asks_for_one:
        raise UsageError(
            f"--models: {fixed[0]} builds its requests itself, and names their model itself: use a user "
            "class of ChatUser or ScenarioUser"
        )
    differing = [arm.name for arm in settings.deployment.arms if any(arm.differs_in)]
    if differing and fixed:
        raise UsageError(
            f"arms: {fixed[0]} builds its requests itself, so that those of arm {differing[0]!r} would not "
            "differ: use a user class of ChatUser or ScenarioUser, or arms with nothing but a url"
        )


def settings_of_arm(settings: Settings, arm: Arm) -> Settings:
    """The settings as requests to an arm have them: its headers, and its model if it has one."""
    requests = structs.replace(settings.requests, model=arm.model or settings.requests.model)
    return replace(settings, headers={**settings.headers, **arm.headers}, requests=requests)


def _send(
    kind: RequestKind, settings: Settings, target: Target, form: RequestForm, within_s: float | None
) -> CanaryFacts:
    prompt = off_the_hub(_prompt, kind, settings)
    fields = form.template.fields(prompt)
    path, body = form.path, encoded(fields)
    client = _client(kind, settings, target, within_s)
    call = Call(
        request_id=client.new_request_id(),
        name="canary",
        scheduled_ns=time.time_ns(),
        endpoint=kind.endpoint,
        slo_class=kind.slo_class,
        model=form.model,
        streamed=form.template.streamed,
        user=0,
        asked=form.template.asked(fields),
    )
    began_s = time.monotonic()
    try:
        record = _until_token(client, path, body, call).record
    finally:
        client.routes.close()
    took_s = time.monotonic() - began_s
    whose = kind.slo_class or kind.name or kind.endpoint.name
    whose += "" if kind.spec.models is None else f" of {form.model}"
    came = record.outcome is Outcome.OK if call.asked else len(record.arrivals_ns)
    if came and record.outcome in (Outcome.OK, Outcome.CANCELLED):
        what = "an answer" if call.asked else "a token"
        logger.info("canary: %s has %s from %s after %.2f s", whose, what, target.url, took_s)
        return CanaryFacts(
            target=target.url,
            endpoint=kind.endpoint.name,
            name=whose,
            began_ns=call.scheduled_ns,
            took_s=took_s,
        )
    sent = SentRequest(
        base=target.base,
        path=path,
        fields=[name for name in msgspec.json.decode(body) if name not in _OWN_FIELDS],
        limit_field=kind.endpoint.limit_field,
        model=form.model,
        input_tokens=prompt.asked_input_tokens,
        output_tokens=prompt.asked_output_tokens,
        has_key=settings.api_key is not None or any(h.lower() == "authorization" for h in settings.headers),
    )
    raise _error(record, sent, f"{target.url}{path}", client.secrets)


def _client(kind: RequestKind, settings: Settings, target: Target, within_s: float | None) -> LlmClient:
    bounds = settings.run.timeouts
    most_s = bounds.first_s if within_s is None else min(bounds.first_s, within_s)
    return LlmClient(
        make_pool(target, settings),
        sink=lambda _: None,  # no request of the run
        headers=kind_headers(settings, kind),
        timeouts=Timeouts(first_s=most_s, gap_s=most_s, total_s=most_s + 1.0),
        max_answer_bytes=settings.run.max_answer_bytes,
        secrets=(*settings.secrets, *secret_texts(dict(kind.headers))),
        worker="canary",
    )


def _until_token(client: LlmClient, path: str, body: bytes, call: Call) -> Answer:
    """Send, and break off at the first token: a server that notices stops generating."""
    route = client.routes.choose(call)
    live = LiveCall(client, route, client.request(route, path, body, call), call)
    try:
        live.open()
        while not (live.has_token or live.answered or live.ended):
            live.read()
    except ClientError:  # the record says why
        pass
    except BaseException:
        live.conclude(cancelled=True)
        raise
    return live.conclude() if live.ended else live.abandon()


def _prompt(kind: RequestKind, settings: Settings) -> Prompt:
    """A prompt as the load's own, of other words: no prefix cache knows the load's prompts from it."""
    seed = secrets.randbelow(2**31) if settings.run.seed is None else settings.run.seed
    own = replace(kind, stream=f"canary/{kind.stream}")
    workload = Workload(kind.spec, own.seed(seed), 0, 1, secrets.token_hex(4))
    if settings.load.trace is not None:
        entry = next(iter(settings.load.open_trace()))
        return workload.replayed(0, max(1, entry.input_tokens), max(1, entry.output_tokens))
    prompt = next(workload.prompts(0))
    if prompt.asked_output_tokens is not None:
        return prompt
    return replace(prompt, asked_output_tokens=next(workload.output_lengths(0)))


def _error(record: RequestRecord, sent: SentRequest, url: str, hidden: Sequence[str]) -> CanaryError:
    what = record.error or "it was answered without a token"
    return CanaryError(
        f"one request before the load failed: {blanked(url, hidden)}: {what}; "
        f"{blanked(advice(record, sent), hidden)} (--canary off starts without such a request)",
        permanent=is_permanent(record),
    )


def ask_arms(settings: Settings, endpoint: Dialect, canaries: Canaries) -> Replicas:
    """Reach every arm and send it the canaries (raises UsageError)."""
    arms = settings.deployment.arms
    served = served_arms(settings, endpoint)
    asked = zip(arms, served, strict=True)
    sent = [canaries.send(Target.at(base), model, arm=arm) for arm, (base, model) in asked]
    return Replicas(
        known=tuple(dict.fromkeys(arm.url for arm in arms)),
        canaries=tuple(chain.from_iterable(sent)),
        arms=arm_facts(arms, served),
    )


def served_arms(settings: Settings, endpoint: Dialect) -> list[tuple[str, str]]:
    """The base URL of each arm's API, and its model.

    Raises:
        UsageError: an arm cannot be reached, or two have different models although neither asks for its own.
    """
    served, unasked = [], {}
    for arm in settings.deployment.arms:
        try:
            found = check_target(arm.url, settings_of_arm(settings, arm), [endpoint])
        except UsageError as e:
            raise UsageError(f"arm {arm.name!r}: {e}") from e
        served.append((Target.parse(arm.url).with_base(found.base).url, found.model))
        if arm.model is None:
            unasked[arm.name] = found.model
    if len(set(unasked.values())) > 1:
        names = " and ".join(f"{name!r} has {model!r}" for name, model in unasked.items())
        raise UsageError(
            f"--arm: {names}: serve one model under one name, so that tokens are comparable, or give each "
            "arm its model in the scenario"
        )
    return served
