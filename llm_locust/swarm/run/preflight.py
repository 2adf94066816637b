"""Checks before any load: the host answers, the model exists, the run directory can be written."""

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from llm_locust.client.http.clock import hold_stamping
from llm_locust.client.http.errors import ClientError
from llm_locust.client.http.target import Target, TargetError, endpoint_at_end
from llm_locust.client.probing import list_models
from llm_locust.client.recording import ReplicaNames
from llm_locust.core.manifest import CalibrationFacts, HeaderFacts
from llm_locust.deployment.readiness import NOT_READY
from llm_locust.doctor.calibration import WHOLE_S, calibrate, facts
from llm_locust.doctor.finding import TimeLeft
from llm_locust.figures.client import calibration_text
from llm_locust.figures.gates import fewest_for, fewest_for_certified, fewest_for_share
from llm_locust.metrics.gates import Gate, MetricKind, parse_gates
from llm_locust.metrics.stats.censoring import PERCENTILES
from llm_locust.options.deployment import DNS, metrics_words
from llm_locust.options.settings import Settings, UsageError
from llm_locust.scenario import sole_class
from llm_locust.store import StoreError, create_run_dir, holds_a_run
from llm_locust.store.facts import next_part
from llm_locust.store.upload.destination import UploadError, check_address, open_destination
from llm_locust.swarm.open_loop.load import open_loop_class
from llm_locust.swarm.process.children import STDERR, STDOUT, LateError, run_elsewhere
from llm_locust.swarm.run.finishing import CREDENTIALS
from llm_locust.swarm.users.connections import make_pool, request_headers
from llm_locust.wire.dialects.chat import CHAT
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.dialects.table import DIALECTS, dialect_of
from llm_locust.wire.foreign_text import (
    blanked,
    blanked_name,
    clean_name,
    is_key_name,
    public_url,
    shown_variable,
    url_secret,
)
from llm_locust.wire.headers import HeaderError, header_templates
from llm_locust.workload.answers import ValidatorError, checks_of

if TYPE_CHECKING:
    from locust import User
    from locust.env import Environment


# --- The client's error on this machine, measured before the load of a run


logger = logging.getLogger(__name__)


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


# --- What is known of a run before its first request: gates that it cannot show, a ramp that fills it,
# options without an effect, an upload that nobody takes


#: A ramp of this share of the measured time is most of what the figures are of.
MOST_RAMP = 0.5

#: Time limit of the question whether an object store answers.
REACH_WITHIN_S = 15.0


def foreseen(
    settings: Settings, hosts: Iterable[str], *, users: object, spawn_rate: object, run_time_s: object
) -> Iterator[str]:
    """What the person who starts the run should know now, a line each.

    Args:
        hosts: those of the load.
        users, spawn_rate, run_time_s: Locust's; None is its default.
    """
    seconds = float(run_time_s) if isinstance(run_time_s, int | float) and run_time_s > 0 else None
    yield from _too_few(settings, seconds)
    if seconds is not None:
        yield from _ramp(settings, seconds, users, spawn_rate)
    hosts = list(hosts)
    if hosts and not any(host.startswith("https://") for host in hosts):
        given = {"--ca-cert": settings.access.ca_cert, "--client-cert": settings.access.client_cert}
        for flag in (flag for flag, path in given.items() if path is not None):
            yield f"{flag} has no effect: {hosts[0]!r} is not https"


def fewest_of(gate: Gate) -> int:
    """Requests without which a gate cannot hold; 1 of those that any number shows."""
    if gate.metric in ("goodput", "error_rate"):
        return fewest_for_share(gate)
    if gate.kind is not MetricKind.LATENCY or gate.latency == "itl" or not gate.is_upper:
        return 1
    if gate.statistic not in PERCENTILES:
        return 1
    return fewest_for_certified(gate.statistic) if gate.is_certified else fewest_for(gate.statistic)


def _too_few(settings: Settings, seconds: float | None) -> Iterator[str]:
    """Gates that need more requests than a number of them, or a rate for its time, gives."""
    load = settings.load
    for gate in parse_gates(settings.run.gates):
        fewest = fewest_of(gate)
        what = f"--gate {gate.text} needs {fewest:,} requests"
        if load.num_requests is not None and load.num_requests < fewest:
            yield f"{what}, and --num-requests sends {load.num_requests:,}: it cannot hold"
        elif load.num_requests is None and load.profile is not None and load.sweep is None and seconds:
            before = float(load.profile.load(settings.run.warmup_s))
            given = float(load.profile.load(seconds)) - before
            if given + 3 * math.sqrt(given) < fewest:
                enough_s = float(load.profile.time(before + fewest))
                more = f"; run for {enough_s:.0f} s or more" if math.isfinite(enough_s) else ""
                yield f"{what}, and the schedule has about {given:.0f} in the measured time{more}"


def _ramp(settings: Settings, seconds: float, users: object, spawn_rate: object) -> Iterator[str]:
    """A load that is at its whole for less than half of the measured time."""
    measured_s = seconds - settings.run.warmup_s
    if settings.load.sweep is not None or measured_s <= 0:
        return
    how = "give a higher --spawn-rate (-r), a longer run, or --window steady"
    if settings.load.profile is None and settings.load.trace is None and isinstance(users, int):
        rate = float(spawn_rate) if isinstance(spawn_rate, int | float) and spawn_rate > 0 else 1.0
        whole_s = (users - 1) / rate
        what = f"all {users} users are there after {whole_s:.0f} s"
    elif settings.load.profile is not None and len(settings.load.profile.segments) == 2:
        first, _ = settings.load.profile.segments
        whole_s = settings.load.profile.segments[1].start_s if first.slope else 0.0
        what, how = f"the rate is at its end after {whole_s:.0f} s", "give a longer run, or --window steady"
    else:
        return
    if whole_s - settings.run.warmup_s > MOST_RAMP * measured_s:
        yield f"{what}, and the run is {seconds:g} s long: its rates are those of the ramp; {how}"


def reach_upload(to: str) -> str | None:
    """Why a destination in an object store does not answer, asked by a process of its own; None if it does.

    Call it in the main thread. A folder is looked at when it is opened.
    """
    if not to.startswith(("s3://", "gs://")):
        return None
    try:
        code, said = run_elsewhere(
            "llm_locust.store.upload.reach",
            ["--", to],
            heard=(STDOUT, STDERR),
            prefixes=CREDENTIALS,
            within_s=REACH_WITHIN_S,
        )
    except LateError:
        return f"no answer within {REACH_WITHIN_S:g} s"
    except OSError as e:
        return f"the process that asks cannot be started: {e.strerror or e}"
    told = " ".join(said.decode(errors="replace").split())[-500:]
    return (told or f"the process that asked ended with {code}") if code else None


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
            f"--scenario: {scenario.path!r} says what requests are like, which requires a "
            f"ScenarioUser (the locustfile has: {names})"
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
        port = "" if _names_port(host) else f"; the URL names no port, so {target.port} was tried: add :PORT"
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
    path = settings.run.out or Path("runs") / f"{started:%Y%m%d-%H%M%S}-{name}"
    if settings.restartable and settings.run.out is not None and not again:
        path = next_part(settings.run.out)
    if again or settings.run.out is None:
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
        _check_parts(settings.run.out)
    elif settings.run.out is None:
        _probe(Path("runs"))
    elif holds_a_run(settings.run.out):
        raise UsageError(
            f"--out: {str(settings.run.out)!r} holds a run already: remove it, or name another directory"
        )
    else:
        _probe(settings.run.out)


def _check_parts(folder: Path | None) -> None:
    if folder is None:
        raise UsageError("--restartable and --resume: name the directory of the whole run by --out")
    _probe(folder)


def check_upload(settings: Settings) -> None:
    """Check that ``--upload`` is a valid destination (raises UsageError)."""
    if settings.report.upload is None:
        return
    try:
        check_address(settings.report.upload)
        if not settings.report.upload.startswith(("s3://", "gs://")):
            open_destination(settings.report.upload)
        # An object store's client starts threads, so it is opened in the process that uploads.
    except UploadError as e:
        raise UsageError(f"--upload: {e}") from e


def check_metrics(settings: Settings) -> None:
    """Check that ``--metrics-url`` can be scraped with its options (raises UsageError)."""
    if not settings.deployment.metrics_urls:
        return
    try:
        metrics_words(settings.deployment, Path("server_metrics.parquet"))
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
