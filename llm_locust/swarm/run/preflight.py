"""Checks before any load: the host answers, the model exists, the run directory can be written."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from llm_locust.client.http.errors import ClientError
from llm_locust.client.http.pool import Target, TargetError
from llm_locust.client.http.target import endpoint_at_end
from llm_locust.client.models import list_models
from llm_locust.client.naming import ReplicaNames
from llm_locust.core.replica_headers import HeaderFacts
from llm_locust.deployment.refusals import NOT_READY
from llm_locust.options.deployment import DNS, metrics_words
from llm_locust.options.settings import Settings, UsageError
from llm_locust.scenario import sole_class
from llm_locust.store import StoreError, create_run_dir, holds_a_run
from llm_locust.store.parts import next_part
from llm_locust.store.upload.destination import UploadError, check_address, open_destination
from llm_locust.swarm.users.connections import make_pool, request_headers
from llm_locust.wire.dialects.chat import CHAT
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.dialects.table import DIALECTS, dialect_of
from llm_locust.wire.headers import HeaderError, header_templates
from llm_locust.wire.names import clean_name
from llm_locust.wire.secrecy import blanked, blanked_name, is_key_name, public_url, shown_variable, url_secret
from llm_locust.workload.answers.validators import ValidatorError, checks_of

if TYPE_CHECKING:
    from locust import User
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
        shown = ", ".join(repr(public_url(host)) for host in hosts)
        raise UsageError(
            f"the user classes have {len(hosts)} hosts: {shown}. Give one by -H; or spread the load by "
            "--targets URL,URL, compare the two by --arm NAME=URL, or start a run for each"
        )
    return next(iter(hosts))


def check_hosts(environment: "Environment") -> None:
    """Check that no host contains a key: the web UI and Locust's reports show hosts (raises UsageError)."""
    named = {"-H": environment.host, **{f"{c.__name__}.host": c.host for c in environment.user_classes}}
    for where, host in named.items():
        if host and (endpoint := endpoint_at_end(host)):
            logger.info(
                "%s: %r is the path of one endpoint and is left out; users add theirs to what is before it",
                where,
                endpoint,
            )
        if host and (found := url_secret(host)):
            raise UsageError(
                f"{where}: {public_url(host)!r} has {found} in it: leave user, query and fragment out of the "
                "URL; give keys by --api-key-env or --header"
            )


def check_tasks(environment: "Environment") -> None:
    """Leave out user classes that ``--tags`` and ``--exclude-tags`` leave without a task.

    Raises:
        UsageError: a class has none anyway, or none is left. Each of its users would raise an exception.
    """
    classes = list(environment.user_classes)
    for cls in classes:
        if not _has_tasks(cls):
            raise UsageError(f"user class {cls.__name__} has no task: mark a method with @task")
    tags = sorted({tag for cls in classes for tag in _tags(cls)})
    environment._filter_tasks_by_tags()
    left = [cls for cls in classes if _has_tasks(cls)]
    without = ", ".join(cls.__name__ for cls in classes if cls not in left)
    if not left:
        have = f"tasks have the tags {', '.join(map(repr, tags))}" if tags else "no task has a tag"
        raise UsageError(f"--tags and --exclude-tags leave no task of {without}: {have}")
    if without:
        logger.warning("the tags leave no task of %s: no user of that class is started", without)
        environment.user_classes[:] = left


def _has_tasks(cls: "type[User]") -> bool:
    return bool(cls.tasks or getattr(cls, "functions", None))  # those of pytest


def _tags(holder: Any, depth: int = 0) -> Iterator[str]:
    """Tags of the tasks of a user class or a task set."""
    for task in getattr(holder, "tasks", ()) if depth < 10 else ():
        yield from getattr(task, "locust_tag_set", ())
        yield from _tags(task, depth + 1)


def check_workload(settings: Settings, user_classes: "Iterable[type[User]]") -> None:
    """Check that the workload fits the endpoint of every user class that sends it, and that its headers and
    validators can be used (raises UsageError)."""
    user_classes = list(user_classes)
    _check_scenario(settings, user_classes)
    for endpoint in own_endpoints(user_classes):
        try:
            replace(settings.workload, endpoint=endpoint).body_template("")
        except ValueError as e:
            raise UsageError(str(e)) from e
    for cls in user_classes:
        try:
            header_templates(getattr(cls, "headers", {}))
        except HeaderError as e:
            raise UsageError(f"{cls.__name__}.headers: {e}") from e
        try:
            checks_of(getattr(cls, "validators", ()))
        except ValidatorError as e:
            raise UsageError(f"{cls.__name__}.validators: {e}") from e


def own_endpoints(user_classes: "Iterable[type[User]]") -> list[Dialect]:
    """Dialects of the user classes (raises UsageError)."""
    found: dict[Dialect, None] = {}
    for cls in user_classes:
        if (endpoint := getattr(cls, "endpoint", None)) is not None:
            try:
                found[dialect_of(endpoint)] = None
            except ValueError as e:
                raise UsageError(f"{cls.__name__}.endpoint: {e}") from e
    return list(found)


def probed_endpoint(settings: Settings, user_classes: "Iterable[type[User]]") -> Dialect:
    """Endpoint of the load's requests; the first if there are several."""
    for cls in user_classes:
        if getattr(cls, "sends_scenario", False):
            return settings.kinds[0].endpoint
        if own := own_endpoints([cls]):
            return own[0]
    return CHAT


def _check_scenario(settings: Settings, user_classes: "list[type[User]]") -> None:
    """Check that a user class sends what the scenario defines in addition to options."""
    scenario = settings.scenario
    sends = any(getattr(cls, "sends_scenario", False) for cls in user_classes)
    if scenario is not None and not sends and scenario.classes != sole_class({}):
        names = ", ".join(cls.__name__ for cls in user_classes) or "none"
        raise UsageError(
            f"--scenario: {scenario.path!r} says what requests are like, which needs a user class of "
            f"ScenarioUser (the locustfile has: {names}): see locustfiles/scenario.py"
        )
    for kind in settings.kinds:
        try:
            checks_of(kind.validators)
        except ValidatorError as e:
            raise UsageError(f"--scenario: class {kind.slo_class!r}: {e}") from e


def check_target(host: str, settings: Settings, own: Sequence[Dialect] = ()) -> CheckedServer:
    """Reach the server, list its models, choose the one of requests that name none themselves.

    Args:
        own: dialects of the user classes. Listing may need their headers.

    Raises:
        UsageError: no answer, access refused, or a model that the server does not have.
    """
    asked = [*settings.models, *([settings.model] if settings.asks_for_one else [])]
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
        port = "" if _names_port(host) else f"; the URL names no port, so {target.port} was tried: add :PORT"
        raise UsageError(f"host {host!r} cannot be reached: {reason}{port}") from e
    named = [_choose(name, models, host) for name in settings.models]
    model = _choose(settings.model, models, host) if settings.asks_for_one else named[0]
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
    naming = ReplicaNames(settings.replica_headers, settings.secrets)
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


def _names_port(host: str) -> bool:
    return urlsplit(host if "://" in host else f"http://{host}").port is not None


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


def choose_run_dir(settings: Settings, name: str, started: datetime, *, again: bool) -> Path:
    """Create this run's directory: ``--out``, or ``runs/<time>-<name>``.

    Args:
        again: an earlier run of this process has used ``--out``; this one gets a number appended.

    Raises:
        UsageError: it cannot be written, or holds another run.
    """
    path = settings.out or Path("runs") / f"{started:%Y%m%d-%H%M%S}-{name}"
    if settings.restartable and settings.out is not None and not again:
        path = next_part(settings.out)
    if again or settings.out is None:
        path = _free(path)
    if holds_a_run(path):
        raise UsageError(f"--out: {str(path)!r} holds a run already: remove it, or name another directory")
    try:
        return create_run_dir(path)
    except StoreError as e:
        raise UsageError(f"--out: {e}") from e


def check_run_dir(settings: Settings) -> None:
    """Check that ``--out`` can be used, before there is a run (raises UsageError)."""
    if settings.restartable:
        _check_parts(settings.out)
    elif settings.out is None:
        _probe(Path("runs"))
    elif holds_a_run(settings.out):
        raise UsageError(
            f"--out: {str(settings.out)!r} holds a run already: remove it, or name another directory"
        )
    else:
        _probe(settings.out)


def _check_parts(folder: Path | None) -> None:
    if folder is None:
        raise UsageError("--restartable and --resume: name the directory of the whole run by --out")
    _probe(folder)


def check_upload(settings: Settings) -> None:
    """Check that ``--upload`` is a valid destination (raises UsageError)."""
    if settings.upload is None:
        return
    try:
        check_address(settings.upload)
        if not settings.upload.startswith(("s3://", "gs://")):
            open_destination(settings.upload)
        # An object store's client starts threads, so it is opened in the process that uploads.
    except UploadError as e:
        raise UsageError(f"--upload: {e}") from e


def check_metrics(settings: Settings) -> None:
    """Check that ``--metrics-url`` can be scraped with its options (raises UsageError)."""
    if not settings.deployment.metrics.urls:
        return
    try:
        metrics_words(settings.deployment.metrics, Path("server_metrics.parquet"))
    except ValueError as e:
        raise UsageError(f"--metrics-url: {e}") from e


def _probe(path: Path) -> None:
    try:
        create_run_dir(path)
    except StoreError as e:
        raise UsageError(f"--out: {e}") from e


def _free(path: Path) -> Path:
    number, free = 2, path
    while holds_a_run(free):
        free = path.with_name(f"{path.name}-{number}")
        number += 1
    return free
