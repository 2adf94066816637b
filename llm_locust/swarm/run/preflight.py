"""Before the load: the harness measured, the target and its replicas reached, waited for and checked."""

import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import gevent
import gevent.socket
import msgspec
from gevent.pool import Pool as Greenlets
from msgspec import structs

from llm_locust.client.call import LiveCall, LlmClient
from llm_locust.client.http.clock import hold_stamping
from llm_locust.client.http.errors import ClientError
from llm_locust.client.http.target import Target, TargetError
from llm_locust.client.http.timers import Timeouts
from llm_locust.client.probing import Plain, ask, list_models
from llm_locust.client.recording import Answer, Call, ReplicaNames
from llm_locust.core.manifest import CalibrationFacts, CanaryFacts, HeaderFacts, better_header
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.deployment.replicas import (
    EVERY_S,
    NOT_READY,
    Check,
    Clock,
    NotReadyError,
    Replicas,
    SentRequest,
    advice,
    count_replicas,
    is_permanent,
    look,
    wait_until_ready,
)
from llm_locust.deployment.targets import Arm, arm_facts
from llm_locust.doctor.calibration import WHOLE_S, calibrate, facts
from llm_locust.doctor.finding import TimeLeft
from llm_locust.figures.client import calibration_text
from llm_locust.options.deployment import DNS, patience_s
from llm_locust.options.settings import Settings, UsageError
from llm_locust.scenario.request_kind import RequestForm, RequestKind, models_of, request_form
from llm_locust.swarm.process.children import (
    STDERR,
    STDOUT,
    ElsewhereError,
    LateError,
    last_words,
    run_elsewhere,
)
from llm_locust.swarm.process.event_loop import off_the_hub
from llm_locust.swarm.run.checks import _kinds, kinds_sent
from llm_locust.swarm.run.finishing import CREDENTIALS
from llm_locust.swarm.users.open_loop import open_loop_class
from llm_locust.swarm.users.traffic import kind_headers, make_pool, request_headers, shared_headers
from llm_locust.wire.dialects import DIALECTS
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.foreign_text import (
    blanked,
    blanked_name,
    clean_name,
    is_key_name,
    public_url,
    shown_variable,
)
from llm_locust.wire.headers import secret_texts
from llm_locust.wire.payload import DECODE_ERRORS
from llm_locust.workload.body import body_template, encoded, one_token
from llm_locust.workload.plan import Workload
from llm_locust.workload.prompts import Prompt

if TYPE_CHECKING:
    from locust import User
    from locust.env import Environment

logger = logging.getLogger(__name__)

# --- The client's error on this machine, measured before the load of a run


def calibrate_run(
    environment: "Environment", settings: Settings, *, at_once: bool
) -> CalibrationFacts | None:
    """Measure the client at the streams of one worker; None if that was not asked for.

    It is this process's client, on this machine: that of the users if the run has no workers, or if they are
    here. It never ends the run: what could not be measured is said.

    Raises:
        UsageError: it is not known how many streams the run has.
    """
    if not settings.run.calibration:
        return None
    options = environment.parsed_options
    workers = max(1, int(getattr(options, "expect_workers", 1) or 1))
    asked = settings.run.calibration
    streams = math.ceil(_users(environment, settings, at_once) / workers) if asked is True else int(asked)
    logger.info("calibrating the client at %d streams, before the load", streams)
    stamping = hold_stamping()
    try:
        found = facts(calibrate(streams, TimeLeft(WHOLE_S + 1.0)), streams, workers)
    finally:
        if stamping is not None:
            stamping.close()
    logger.info("calibrated: %s", calibration_text(found))
    return found


def _users(environment: "Environment", settings: Settings, at_once: bool) -> int:
    """Users of a closed loop, each with a stream at most."""
    load, options = settings.load, environment.parsed_options
    if open_loop_class(environment.user_classes, settings) is not None:
        why = "an open loop has as many streams as the answers last"
    elif load.sweep is not None or environment.shape_class is not None:
        why = "the load changes"
    elif not at_once:
        why = "the web UI says later how many users there are"
    else:
        return max(1, int(getattr(options, "num_users", None) or 1))
    raise UsageError(f"--calibrate: {why}: give --calibrate-streams N, those of one worker")


# --- The destination of an upload


#: Time limit of the question whether an object store answers.
REACH_WITHIN_S = 15.0


def reach_upload(to: str) -> str | None:
    """Why a destination in an object store does not answer, asked by a process of its own; None if it does.

    Call it in the main thread. A folder is looked at when it is opened.
    """
    if not to.startswith(("s3://", "gs://")):
        return None
    try:
        code, said = run_elsewhere(
            "llm_locust.store.upload",
            ["--", to],
            heard=(STDOUT, STDERR),
            prefixes=CREDENTIALS,
            within_s=REACH_WITHIN_S,
        )
    except LateError:
        return f"no answer within {REACH_WITHIN_S:g} s"
    except ElsewhereError as e:
        return f"the process that asks {e}"
    return (last_words(said) or f"the process that asked ended with {code}") if code else None


# --- The server and its models


#: Time limit of all checks together, after which the server counts as unreachable.
CHECK_TIMEOUT_S = 10.0

_SHOWN_MODELS = 20


class RefusedError(UsageError):
    """The server answers but refuses access."""


@dataclass(frozen=True, slots=True)
class CheckedServer:
    """Result of the check: the API's base path, the model to request, and the headers of its list of models
    that may name the replica."""

    base: str
    model: str
    naming: tuple[HeaderFacts, ...] = ()


def host_of(environment: "Environment", settings: Settings) -> str:
    """Host of the load: the first of ``--targets`` or ``--arm``, ``-H`` or the web UI's form, else that of
    the user classes.

    Raises:
        UsageError: none is given, or the classes do not agree.
    """
    if settings.deployment.targets:
        return settings.deployment.targets[0].removeprefix(DNS)
    if settings.deployment.arms:
        return settings.deployment.arms[0].url
    hosts = dict.fromkeys(cls.host for cls in environment.user_classes if cls.host)
    if environment.host:
        return environment.host
    if not hosts:
        raise UsageError("no host: give -H http://HOST:PORT, or set host in the locustfile")
    if len(hosts) > 1:
        shown = ", ".join(repr(public_url(host)) for host in hosts)
        raise UsageError(
            f"the user classes have {len(hosts)} hosts: {shown}. Give one by -H; or spread the load by "
            "--targets URL,URL, compare the two by --arm NAME=URL, or start a run for each"
        )
    return next(iter(hosts))


def check_target(host: str, settings: Settings, own: Sequence[Dialect] = ()) -> CheckedServer:
    """Reach the server, list its models, choose the one of requests that name none themselves.

    Args:
        own: dialects of the user classes. Listing may need their headers.

    Raises:
        UsageError: no answer, access refused, or a model that the server does not have.
    """
    asked = [*settings.models, *([settings.requests.model] if settings.asks_for_one else [])]
    try:
        target = Target.parse(host)
        if settings.deployment.canary or None in asked:
            base, models, naming = _list_models(target, settings, own, needs_list=None in asked)
        else:  # nothing has to be known, and nothing is to be asked
            base, models, naming = target.base, None, ()
    except TargetError as e:
        raise UsageError(str(e)) from e
    except ClientError as e:
        reason = blanked(str(e), settings.secrets)
        has_port = urlsplit(host if "://" in host else f"http://{host}").port is not None
        port = "" if has_port else f"; the URL names no port, so {target.port} was tried: add :PORT"
        raise UsageError(f"host {host!r} cannot be reached: {reason}{port}") from e
    named = [_choose(name, models, host) for name in settings.models]
    model = _choose(settings.requests.model, models, host) if settings.asks_for_one else named[0]
    return CheckedServer(base, model, naming)


def _list_models(
    target: Target, settings: Settings, own: Sequence[Dialect], *, needs_list: bool
) -> tuple[str, list[str] | None, tuple[HeaderFacts, ...]]:
    """Return the base under which ``/models`` answers, the models, None if the server has no list, and the
    answer's headers that may name the replica.

    Raises:
        RefusedError: it refuses access.
        UsageError: it takes no requests yet, and its list is needed.
        ClientError: no complete answer.
    """
    headers = request_headers(settings, *DIALECTS.values(), *own, target=target)
    pool = make_pool(target, settings)
    try:
        listing = list_models(pool, headers, CHECK_TIMEOUT_S)
    finally:
        pool.close()
    if listing.is_refused:
        raise RefusedError(_refusal(target, listing.answer.status, settings))
    names = listing.names
    if names is None and needs_list and listing.answer.status in NOT_READY:
        raise UsageError(
            f"{target.url} takes no requests (HTTP {listing.answer.status} for its models): let "
            "--ready-timeout 5m wait for it, or give --model NAME"
        )
    naming = ReplicaNames(settings.run.replica_headers, settings.secrets)
    naming.read(listing.answer.headers)
    shown = None if names is None else [blanked_name(name, settings.secrets) for name in names]
    return listing.base, shown, tuple(naming.facts())


def _refusal(target: Target, status: int, settings: Settings) -> str:
    """What a server that refuses access was given, and what to do."""
    if settings.api_key is not None:
        variable = shown_variable(str(settings.text.get("api_key_env") or ""))
        given = f"the key in {variable}"
        advice = "is it a key of this server, and may it use the API?"
    elif any(is_key_name(name) for name in settings.headers):
        given, advice = "the key in --header", "is it a key of this server, and may it use the API?"
    else:
        given = "requests without a key"
        advice = (
            "give one by --api-key-env NAME or --header-env; if users get theirs themselves, as in on_start, "
            "--model NAME --canary off starts without asking"
        )
    return f"{target.url} refuses {given} (HTTP {status}): {advice}"


def _choose(asked: str | None, models: list[str] | None, host: str) -> str:
    if models is None:
        if asked is None:
            raise UsageError(f"{host!r} does not list its models: give --model NAME")
        return asked
    shown = ", ".join(map(clean_name, models[:_SHOWN_MODELS])) + (
        ", …" if len(models) > _SHOWN_MODELS else ""
    )
    if asked is None:
        if len(models) == 1 and clean_name(models[0]) == models[0]:
            return models[0]
        raise UsageError(f"{host!r} has {len(models)} models, give --model NAME: {shown}")
    if asked not in models:
        raise UsageError(f"model {asked!r} is not on {host!r}, which has: {shown or 'none'}")
    return asked


# --------------------
# Canary: a request before the load, like the load's own, that is read up to its first token.
#
# A wrong path, key, model or body field, or a prompt that is too long, so ends the start with one line, and
# not the load with thousands of failures. Every kind of request is sent once to every target: those of a
# scenario's classes, or of user classes with prompts. User classes that build their requests themselves, such
# as ``OpenAIUser``, have none: nobody knows what they will send.
# --------------------


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


# --------------------
# Replicas: found by name or address, waited for, and checked for what a run needs.
#
# A run that starts with five of eight replicas would measure another deployment.
# --------------------


#: Most replicas queried at once.
_AT_ONCE = 64

#: Requests that find out which header tells replicas apart: three in turn are asked twice each, and more.
_MOST_LISTINGS = 8

#: Time limit of each of them.
_LISTING_TIMEOUT_S = 5.0

_QUESTION = "Are you there?"

_CLOCK = Clock(sleep=gevent.sleep)


class _NoAccessError(Exception):
    """Access is refused: waiting does not change that."""


def wait_for_replicas(
    host: str, settings: Settings, endpoint: Dialect, canaries: Canaries, *, within_s: float | None = None
) -> Replicas:
    """Find the replicas, wait until all of them serve, and send each the run's canaries.

    Args:
        host: target of the load, if there are no targets.
        endpoint: endpoint of the load's requests.
        canaries: go to the host if no replicas are waited for.
        within_s: time limit below that of the settings.

    Raises:
        UsageError: some are missing after the time limit (which, and why), a name has no address, or access
            or a canary is refused.
    """
    deployment = settings.deployment
    bound_s = patience_s(deployment)
    if bound_s is not None and within_s is not None:
        bound_s = min(bound_s, within_s)
    probe = _Probe(
        settings, endpoint, canaries, min(settings.run.timeouts.first_s, max(bound_s or 0.0, EVERY_S))
    )
    named = deployment.targets or deployment.replica_urls
    try:
        if deployment.arms:
            waited_s = 0.0 if bound_s is None else _wait_for_arms(settings, endpoint, bound_s)
            return replace(ask_arms(settings, endpoint, canaries), waited_s=waited_s)
        if bound_s is None:
            return Replicas(known=(host,), canaries=tuple(_send_to_host(host, settings, canaries)))
        began_s = _CLOCK.now_s()
        expected = deployment.expect_replicas
        urls = _addresses(named or (host,), bound_s, expected if named else None)
        left_s = bound_s - (_CLOCK.now_s() - began_s)
        ready = wait_until_ready(
            urls, probe.check, within_s=left_s, together=probe.together, clock=_CLOCK, tell=logger.info
        )
        if expected is not None and not named:
            left_s = bound_s - (_CLOCK.now_s() - began_s)
            ready = count_replicas(
                expected, lambda: probe.replica(host), within_s=left_s, clock=_CLOCK, tell=logger.info
            )
    except (NotReadyError, _NoAccessError) as e:
        raise UsageError(f"the load does not start: {e}") from e
    waited_s = _CLOCK.now_s() - began_s
    what = "1 replica is" if len(ready.names) == 1 else f"all {len(ready.names)} replicas are"
    logger.info("%s ready after %.1f s", what, waited_s)
    targets = tuple(probe.bases[url] for url in urls) if deployment.targets else ()
    sent = tuple(chain.from_iterable(probe.canaries.values()))
    known = tuple(urls) if named else (host,)
    return Replicas(targets, known, ready.names, waited_s, sent)


def telling_header(host: str, found: CheckedServer, settings: Settings, own: Sequence[Dialect] = ()) -> str:
    """The response header that tells replicas apart where the first that names one has one value; else empty.

    Asks for the list of models a few times, and only if its answer had several headers that may name the
    replica. A header of the user's comes first in any case.

    Args:
        found: what the host answered.
        own: dialects of the user classes. Listing may need their headers.
    """
    users = {name.lower() for name in settings.run.replica_headers}
    if len(found.naming) < 2 or found.naming[0].name in users:
        return ""
    names = ReplicaNames((), settings.secrets)
    target = Target.parse(host).with_base(found.base)
    headers = request_headers(settings, *DIALECTS.values(), *own, target=target)
    pool = make_pool(target, settings)
    try:
        for _ in range(_MOST_LISTINGS):
            names.read(ask(pool, "GET", target.path("/models"), headers, _LISTING_TIMEOUT_S).headers)
    except ClientError:
        return ""  # the run counts the headers of its own answers
    finally:
        pool.close()
    better = better_header(names.facts())
    if better is None:
        return ""
    used = found.naming[0]
    logger.info(
        "%s names the replicas: %d values in %d answers, while %s had one (%s)",
        better.name,
        len(better.values),
        better.answers,
        used.name,
        used.value,
    )
    return better.name


def _send_to_host(host: str, settings: Settings, canaries: Canaries) -> list[CanaryFacts]:
    """Send the canaries to a host (raises UsageError)."""
    if not canaries.kinds:
        return []
    found = check_target(host, settings, [kind.endpoint for kind in canaries.kinds])
    return canaries.send(Target.parse(host).with_base(found.base), found.model)


class _Probe:
    """Queries replicas; ``bases`` is the API base found for those that serve, ``canaries`` those sent."""

    def __init__(self, settings: Settings, endpoint: Dialect, canaries: Canaries, timeout_s: float) -> None:
        self.bases: dict[str, str] = {}
        self.canaries: dict[str, list[CanaryFacts]] = {}
        self._canaries = canaries
        self._settings = settings
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._headers = request_headers(settings, endpoint)
        self._names = ReplicaNames(settings.run.replica_headers, settings.secrets)
        self._refusal: str | None = None
        self.check = look(self._health, self._complete)

    def together(self, check: Check, urls: Sequence[str]) -> list[str | None]:
        """Results of ``check`` for each URL, run concurrently (raises _NoAccessError)."""
        found: list[str | None] = Greenlets(_AT_ONCE).map(check, urls)
        if self._refusal is not None:
            raise _NoAccessError(self._refusal)
        return found

    def replica(self, url: str) -> str | None:
        """Name of the replica in its answer to one real request; raises as :meth:`_one_token`."""
        try:
            answer, _ = self._one_token(url)
        except ValueError:
            if self._refusal is not None:
                raise _NoAccessError(self._refusal) from None
            raise
        return self._names.read(answer.headers)

    def _health(self, url: str) -> int:
        target = Target.parse(url)
        # Servers have it next to their API, not below its version.
        at = target.base.rfind("/v1") if target.base.endswith("/v1") else len(target.base)
        return self._ask(target, "GET", target.base[:at] + "/health").status

    def _complete(self, url: str) -> str | None:
        if not self._canaries.kinds:
            _, self.bases[url] = self._one_token(url)
            return None
        target, model = self._found(url)
        try:
            self.canaries[url] = self._canaries.send(target, model, self._timeout_s)
        except CanaryError as e:
            if e.permanent:
                self._refusal = str(e)
            return str(e)
        self.bases[url] = target.url
        return None

    def _one_token(self, url: str) -> tuple[Plain, str]:
        """Return the answer to a request of one token, and the URL of the API that gave it.

        Raises:
            ValueError: it is not a valid answer; UsageError, a subclass, if the model cannot be found.
            _NoAccessError: access is refused.
        """
        target, model = self._found(url)
        path = target.path(self._endpoint.path_to(model, stream=False))
        answer = self._ask(target, "POST", path, _one_token_body(self._settings, self._endpoint, model))
        if answer.status != 200:
            raise ValueError(f"a request of one token was answered by {answer.status}")
        try:
            said = msgspec.json.decode(answer.body)
        except DECODE_ERRORS:
            said = None
        if not isinstance(said, dict) or said.get("error"):
            raise ValueError("a request of one token was answered by something that is not an answer")
        return answer, target.url

    def _found(self, url: str) -> tuple[Target, str]:
        """The API of a replica, and its model; raises as :meth:`_one_token`."""
        try:
            found = check_target(url, self._settings, [self._endpoint])
        except RefusedError as e:
            self._refusal = str(e)
            raise ValueError(self._refusal) from e
        return Target.parse(url).with_base(found.base), found.model

    def _ask(self, target: Target, method: str, path: str, body: bytes = b"") -> Plain:
        pool = make_pool(target, self._settings)
        try:
            return ask(pool, method, path, self._headers, self._timeout_s, body)
        except ClientError as e:
            raise ValueError(blanked(str(e), self._settings.secrets)) from e
        finally:
            pool.close()


def _one_token_body(settings: Settings, endpoint: Dialect, model: str) -> bytes:
    extra = {k: v for k, v in settings.workload.extra_body.items() if k not in ("stream", "stream_options")}
    return one_token(body_template(endpoint, model, stream=False, extra_body=extra), Prompt(text=_QUESTION))


def post_to(settings: Settings, timeout_s: float, kinds: Iterable[RequestKind]) -> Callable[[str], int]:
    """Return a function that posts an empty body to a URL of a replica and returns the status; it raises
    ValueError without an answer. ``kinds`` are those of the load, whose headers it has."""
    headers = shared_headers(settings, kinds)
    hidden = (*settings.secrets, *secret_texts(headers))

    def post(url: str) -> int:
        pool = make_pool(Target.parse(url), settings)
        path = "/" + url.split("://", 1)[-1].partition("/")[2]
        try:
            return ask(pool, "POST", path, headers, timeout_s).status
        except ClientError as e:
            raise ValueError(blanked(str(e), hidden)) from e
        finally:
            pool.close()

    return post


def _addresses(urls: Sequence[str], within_s: float, expected: int | None) -> list[str]:
    """Expand each host that has several addresses to one URL per address.

    Args:
        expected: number of addresses to wait for.

    Raises:
        NotReadyError: there are fewer, or a host has no address.
    """
    end_s = _CLOCK.now_s() + within_s
    while True:
        try:
            found = list(dict.fromkeys(one for url in urls for one in _one_by_one(url)))
            missing = None if len(found) >= (expected or 1) else f"{len(found)} of {expected} addresses"
        except OSError as e:
            missing = f"{e.strerror or e}"
        if missing is None:
            return found
        if _CLOCK.now_s() + EVERY_S > end_s:
            raise NotReadyError(
                f"{', '.join(urls)}: {missing} after {within_s:.0f} s; the name must have one address per "
                "replica, as that of a headless Service"
            )
        _CLOCK.sleep(EVERY_S)


def _one_by_one(url: str) -> Iterable[str]:
    if not url.startswith(DNS):
        return (url,)
    url = url.removeprefix(DNS)
    target = Target.parse(url)
    entries = gevent.socket.getaddrinfo(target.host, target.port, 0, gevent.socket.SOCK_STREAM)
    hosts = sorted({str(entry[4][0]) for entry in entries})
    return [f"{target.scheme}://{f'[{h}]' if ':' in h else h}:{target.port}{target.base}" for h in hosts]


# --- Arms: each is waited for, and asked, as its own requests are


def _wait_for_arms(settings: Settings, endpoint: Dialect, bound_s: float) -> float:
    """Wait until every arm has answered a request of one token, with its headers and model; return how long.

    Raises:
        NotReadyError, _NoAccessError: one has not within ``bound_s``, or refuses access.
    """
    began_s = _CLOCK.now_s()
    timeout_s = min(settings.run.timeouts.first_s, max(bound_s, EVERY_S))
    for arm in settings.deployment.arms:
        own = settings_of_arm(settings, arm)
        probe = _Probe(own, endpoint, Canaries((), own), timeout_s)
        left_s = bound_s - (_CLOCK.now_s() - began_s)
        wait_until_ready(
            [arm.url], probe.check, within_s=left_s, together=probe.together, clock=_CLOCK, tell=logger.info
        )
    return _CLOCK.now_s() - began_s


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
