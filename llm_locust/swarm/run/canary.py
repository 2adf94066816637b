"""Canary: a request before the load, like the load's own, that is read up to its first token.

A wrong path, key, model or body field, or a prompt that is too long, so ends the start with one line, and
not the load with thousands of failures. Every kind of request is sent once to every target: those of a
scenario's classes, or of user classes with prompts. User classes that build their requests themselves, such
as ``OpenAIUser``, have none: nobody knows what they will send.
"""

import logging
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from llm_locust.client.call import LiveCall, LlmClient
from llm_locust.client.http.errors import ClientError
from llm_locust.client.http.target import Target
from llm_locust.client.http.timers import Timeouts
from llm_locust.client.recording import Answer, Call
from llm_locust.core.manifest import CanaryFacts
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.deployment.replicas import SentRequest, advice, is_permanent
from llm_locust.deployment.targets import Arm
from llm_locust.options.settings import Settings, UsageError
from llm_locust.scenario.request_kind import RequestForm, RequestKind, models_of, request_form
from llm_locust.swarm.process.event_loop import off_the_hub
from llm_locust.swarm.run.checks import kinds_of_class, kinds_sent
from llm_locust.swarm.users.traffic import kind_headers, make_pool
from llm_locust.wire.foreign_text import blanked
from llm_locust.wire.headers import secret_texts
from llm_locust.workload.body import encoded
from llm_locust.workload.plan import Workload
from llm_locust.workload.prompts import Prompt

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
    without = [cls.__name__ for cls in classes if not kinds_of_class(cls, settings)]
    if without:
        logger.info("no canary for %s: they build their requests themselves", ", ".join(without))
    return Canaries(kinds_sent(settings, classes), settings)


def _send(
    kind: RequestKind, settings: Settings, target: Target, form: RequestForm, within_s: float | None
) -> CanaryFacts:
    prompt = off_the_hub(_prompt, kind, settings)
    fields = form.template.fields(prompt)
    path, body = form.path, encoded(fields)
    bound_s = settings.run.timeouts.first_s
    most_s = bound_s if within_s is None else min(bound_s, within_s)
    timeouts = Timeouts(first_s=most_s, gap_s=most_s, total_s=most_s + 1.0)
    client = client_beside(kind, settings, target, timeouts, "canary")
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


def client_beside(
    kind: RequestKind, settings: Settings, target: Target, timeouts: Timeouts, name: str
) -> LlmClient:
    """A client for requests of a kind that are not the run's: they have no record."""
    return LlmClient(
        make_pool(target, settings),
        sink=lambda _: None,
        headers=kind_headers(settings, kind),
        timeouts=timeouts,
        max_answer_bytes=settings.run.max_answer_bytes,
        secrets=(*settings.secrets, *secret_texts(dict(kind.headers))),
        worker=name,
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
