"""The server of a load, before it: host, models, and the header that tells its replicas apart."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec import structs

from llm_locust.client.http.errors import ClientError, ConnectionBrokenError
from llm_locust.client.http.target import Target, TargetError
from llm_locust.client.probing import ask, list_models
from llm_locust.client.recording import ReplicaNames
from llm_locust.core.manifest import HeaderFacts, better_header
from llm_locust.deployment.replicas import NOT_READY
from llm_locust.deployment.targets import Arm
from llm_locust.options.deployment import DNS
from llm_locust.options.settings import Settings, UsageError
from llm_locust.swarm.users.traffic import make_pool, request_headers
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

if TYPE_CHECKING:
    from locust.env import Environment

logger = logging.getLogger(__name__)


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
        urls = ", ".join(repr(public_url(host)) for host in hosts)
        raise UsageError(
            f"the user classes have {len(hosts)} hosts: {urls}. Give one by -H; or spread the load by "
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
        hint = "" if has_port else f"; the URL names no port, so {target.port} was tried: add :PORT"
        if isinstance(e, ConnectionBrokenError) and target.scheme == "http":
            hint += "; servers of HTTPS do so, whose URL begins with https://"
        raise UsageError(f"host {host!r} cannot be reached: {reason}{hint}") from e
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
    models = None if names is None else [blanked_name(name, settings.secrets) for name in names]
    return listing.base, models, tuple(naming.facts())


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
    listed = ", ".join(map(clean_name, models[:_SHOWN_MODELS])) + (
        ", …" if len(models) > _SHOWN_MODELS else ""
    )
    if asked is None:
        if len(models) == 1 and clean_name(models[0]) == models[0]:
            return models[0]
        raise UsageError(f"{host!r} has {len(models)} models, give --model NAME: {listed}")
    if asked not in models:
        raise UsageError(f"model {asked!r} is not on {host!r}, which has: {listed or 'none'}")
    return asked


def settings_of_arm(settings: Settings, arm: Arm) -> Settings:
    """The settings as requests to an arm have them: its headers, and its model if it has one."""
    requests = structs.replace(settings.requests, model=arm.model or settings.requests.model)
    return replace(settings, headers={**settings.headers, **arm.headers}, requests=requests)


#: Requests that find out which header tells replicas apart: three in turn are asked twice each, and more.
_MOST_LISTINGS = 8

#: Time limit of each of them.
_LISTING_TIMEOUT_S = 5.0


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
