"""What is seen of a run before a server is asked: do options, user classes, files and this machine fit?"""

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_locust.client.http.clock import hold_stamping
from llm_locust.client.http.target import endpoint_at_end
from llm_locust.core.files import FileReading
from llm_locust.core.manifest import CalibrationFacts
from llm_locust.doctor.calibration import WHOLE_S, calibrate, facts
from llm_locust.doctor.finding import TimeLeft
from llm_locust.figures.client import calibration_text
from llm_locust.figures.gate_rules import fewest_for, fewest_for_certified, fewest_for_share
from llm_locust.metrics.limits import EDGE, Gate, MetricKind, parse_gates
from llm_locust.metrics.stats.censoring import PERCENTILES
from llm_locust.options.deployment import metrics_words
from llm_locust.options.load import LENGTHS, PREFIX, LoadSettings, against_lengths, against_prefix
from llm_locust.options.settings import Settings, UsageError
from llm_locust.scenario.document import sole_class
from llm_locust.scenario.request_kind import RequestKind
from llm_locust.store import StoreError, create_run_dir, holds_a_run
from llm_locust.store.facts import next_part
from llm_locust.store.upload import UploadError, check_address, open_destination
from llm_locust.swarm.users.open_loop import open_loop_class
from llm_locust.wire.dialects import dialect_of
from llm_locust.wire.dialects.chat import CHAT
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.foreign_text import public_url, url_secret
from llm_locust.wire.headers import HeaderError, header_templates
from llm_locust.workload.answers import ValidatorError, checks_of
from llm_locust.workload.trace_formats import TraceError
from llm_locust.workload.traces import Trace, how_read
from llm_locust.workload.trajectories import how_read as how_pool_read

if TYPE_CHECKING:
    from locust import User
    from locust.env import Environment

logger = logging.getLogger(__name__)


# --- The locustfile: hosts, tasks, and what its user classes send


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


def kinds_sent(settings: Settings, user_classes: "Iterable[type[User]]") -> tuple[RequestKind, ...]:
    """Kinds of request that user classes send, each once, as far as they say so."""
    found: list[RequestKind] = []
    for cls in user_classes:
        # A server takes both or refuses both of two with the same headers and body.
        before = [(kind.spec, dict(kind.headers)) for kind in found]
        found += [k for k in kinds_of_class(cls, settings) if (k.spec, dict(k.headers)) not in before]
    return tuple(found)


def kinds_of_class(cls: "type[User]", settings: Settings) -> Sequence[RequestKind]:
    """Kinds of request that a user class sends, as far as it says so."""
    if getattr(cls, "sends_scenario", False):
        return settings.kinds
    if (endpoint := getattr(cls, "endpoint", None)) is None:
        return ()
    dialect = dialect_of(endpoint)
    spec = replace(settings.workload, endpoint=dialect)
    own = getattr(cls, "headers", {})
    return (RequestKind(key=cls, spec=spec, source=dialect, name=cls.__name__, headers=own),)


# --- The load: options against user classes, files and workers


def check_load(settings: Settings, user_classes: Iterable[type]) -> None:
    """Check that the options fit the user classes (raises UsageError)."""
    _check_gates(settings)
    classes = list(user_classes)
    check_arms(settings, classes)
    _check_session_header(settings, classes)
    found = [cls.__name__ for cls in classes if open_loop_class([cls], settings) is not None]
    flag = settings.load.open_loop_option
    names = ", ".join(cls.__name__ for cls in classes) or "none"
    if flag is not None and not found:
        raise UsageError(f"{flag} requires an OpenLoopUser or a ScenarioUser (the locustfile has: {names})")
    replaying = next((cls.__name__ for cls in classes if getattr(cls, "needs_trace", False)), None)
    if replaying is not None and settings.load.trace is None:
        raise UsageError(f"{replaying} replays a trace, and none is given: add --arrival trace:FILE")
    walking = next((cls.__name__ for cls in classes if getattr(cls, "needs_trajectories", False)), None)
    if walking is not None and settings.pool is None:
        raise UsageError(f"{walking} walks through trajectories, and none are given: add --trajectories FILE")
    if settings.workload.images is not None:
        _check_images(classes)
    if found and settings.load.sweep is not None and settings.load.sweep.kind == "users":
        rate = "rate=" if settings.load.search is None else "max rate"
        flag = settings.load.sweep_flag
        raise UsageError(f"{flag}: {found[0]} is an open loop, whose load is a rate; write {rate}")
    _check_prompts(settings, classes)
    if found and len(classes) > 1:
        raise UsageError(f"an open loop has one user class, and the locustfile has {len(classes)}: {names}")


def _check_images(classes: Iterable[type]) -> None:
    """Check that every user class has prompts that images can be put into."""
    for cls in classes:
        if getattr(cls, "needs_trajectories", False):
            why = f"the turns of {cls.__name__} are as recorded; leave out --images"
        elif getattr(cls, "dialogues", ()):
            why = f"the dialogues of {cls.__name__} are asked as they are; leave out one of the two"
        elif getattr(cls, "sends_scenario", False) or getattr(cls, "endpoint", None) is not None:
            continue
        else:
            why = f"{cls.__name__} builds its requests itself: put images into them, or use a user of prompts"
        raise UsageError(f"--images: {why}")


def _check_session_header(settings: Settings, classes: Iterable[type]) -> None:
    """Check that there may be sessions, whose next requests give the header back."""
    has_sessions = settings.pool or settings.load.trace or any(kind.plan for kind in settings.kinds)
    # What users of other classes ask is known to their own code only.
    fixed = all(getattr(cls, "sends_scenario", False) for cls in classes)
    if settings.requests.session_header is not None and fixed and not has_sessions:
        raise UsageError(
            "--session-header: no request is of a session; give a class of the scenario a conversation, or "
            "use --trajectories or a trace with sessions"
        )


def _check_prompts(settings: Settings, classes: Sequence[Any]) -> None:
    """Check that the prompts that a sweep sets are those of all that the user classes send."""
    sweep = settings.load.sweep
    if sweep is None or not (sweep.lengths or sweep.shares):
        return
    flag, against = (PREFIX, against_prefix) if sweep.shares else (LENGTHS, against_lengths)
    if sweep.shares and len(classes) > 1:
        raise UsageError(f"{flag}: there are {len(classes)} user classes, and an experiment is of one")
    for cls in classes:
        if getattr(cls, "sends_scenario", False):
            continue
        if getattr(cls, "endpoint", None) is None:
            why = "builds its requests itself: use a user class with prompts"
        elif hasattr(cls, "converse"):
            why = "holds conversations, whose prompts grow with each turn: use single requests"
        elif not getattr(getattr(cls, "prompt_of", None), "__module__", "llm_locust.").startswith(
            "llm_locust."
        ):
            why = "makes its prompts itself (prompt_of): leave that to the workload"
        else:
            spec = replace(settings.workload, endpoint=dialect_of(cls.endpoint))
            why = next(against(spec), "")
        if why:
            raise UsageError(f"{flag}: {cls.__name__}: {why}")


def _check_gates(settings: Settings) -> None:
    """Check that gates are on what the run will have: figures of one load, or the edge of a search."""
    load, gates = settings.load, parse_gates(settings.run.gates)
    of_edge = [gate.metric == EDGE for gate in gates]
    if any(of_edge) and load.search is None:
        raise UsageError(f"--gate: {EDGE} is the answer of a search; add --find, or limit another figure")
    if load.sweep is not None and settings.text.get("window") not in (None, "", "run"):
        raise UsageError("--window: a sweep has several loads, and each stage has its own measured part")
    if load.sweep is not None and not all(of_edge):
        flag = "--sweep" if load.search is None else "--find"
        only = "" if load.search is None else f" only {EDGE} is of all loads, as in {EDGE}>=30;"
        raise UsageError(
            f"--gate beside {flag}: a gate holds for one load;{only} judge a stage afterwards, by "
            "`llm-locust report RUN --where stage==3 --gate ...`"
        )
    of_goodput = next((gate for gate in gates if gate.metric in ("goodput", "goodput_rps")), None)
    if of_goodput is not None and not settings.run.slo and not settings.class_slos:
        raise UsageError(
            f"--gate: {of_goodput.text} needs limits of a request, without which none is good: add "
            '--slo "ttft=500ms tpot=50ms", or limit error_rate'
        )


def check_amount(
    settings: Settings, user_classes: Iterable[type], *, users: object, run_time_s: object
) -> None:
    """Check that there will be a load, and that some of it is measured (raises UsageError).

    Args:
        users, run_time_s: Locust's; None is its default. An open loop with a rate of its own
            ignores the number of users.
    """
    ignored = open_loop_class(list(user_classes), settings) is not None and not settings.load.users_are_rate
    if isinstance(users, int) and users < 1 and not ignored:
        raise UsageError(f"-u {users}: without users nothing is sent; give -u 1 or more")
    if isinstance(run_time_s, int | float) and 0 < run_time_s <= settings.run.warmup_s:
        raise UsageError(
            f"--warmup: {settings.run.warmup_s:g} s is not shorter than the run, -t {run_time_s:g}s, so that "
            "nothing would be measured; give a shorter --warmup or a longer -t"
        )


@dataclass(frozen=True, slots=True)
class ReadTrace:
    """A trace, what was read of it, and how, in words."""

    trace: Trace
    reading: FileReading
    how: str


def checked_trace(load: LoadSettings) -> ReadTrace | None:
    """Open the trace of the options, if there is one, and check what its numbers mean (raises UsageError)."""
    if load.trace is None:
        return None
    try:
        trace = load.open_trace()
        reading = trace.reading()
        return ReadTrace(trace, reading, how_read(trace, reading, stretched=load.rate is not None))
    except TraceError as e:
        raise UsageError(f"--arrival: {e}") from e


def tell_files(settings: Settings) -> tuple[Trace | None, dict[str, int]]:
    """Log how the files of the load were read; give the trace, and the number of lines that were skipped of
    each file (raises UsageError)."""
    found = {id(kind.spec.dataset): kind.spec.dataset for kind in settings.kinds}
    datasets = [dataset for dataset in found.values() if dataset is not None]
    for dataset in datasets:
        logger.info("%s", dataset.how_read)
    if settings.pool is not None:
        logger.info("%s", how_pool_read(settings.text["trajectories"], settings.pool.trajectories))
    skipped = {dataset.path: dataset.skipped for dataset in datasets if dataset.skipped}
    read = checked_trace(settings.load)
    if read is None:
        return None, skipped
    logger.info("%s", read.how)
    of_trace = {str(read.trace.path): read.reading.skipped} if read.reading.skipped else {}
    return read.trace, skipped | of_trace


def check_shares(load: LoadSettings, workers: int) -> None:
    """Check that every worker may send at least one request at a time (raises UsageError)."""
    if load.max_in_flight is not None and load.max_in_flight < workers:
        raise UsageError(
            f"--max-in-flight: {load.max_in_flight} requests cannot be shared by {workers} workers; "
            f"give {workers} or more"
        )


def check_arms(settings: Settings, user_classes: "Iterable[type[User]]") -> None:
    """Check that arms are compared at one load, and that every user class's requests can differ by arm and by
    model (raises UsageError)."""
    arms = settings.deployment.arms
    if settings.load.sweep is not None and arms:
        other = "--sweep" if settings.load.search is None else "--find"
        raise UsageError(f"--arm beside {other}: arms are compared at one load; give one load, such as -u 8")
    fixed = [cls.__name__ for cls in user_classes if not kinds_of_class(cls, settings)]
    if fixed and not settings.asks_for_one:
        raise UsageError(
            f"--models: {fixed[0]} builds its requests itself, and names their model itself: use a user "
            "class of ChatUser or ScenarioUser"
        )
    differing = [arm.name for arm in arms if any(arm.differs_in)]
    if differing and fixed:
        raise UsageError(
            f"arms: {fixed[0]} builds its requests itself, so that those of arm {differing[0]!r} would not "
            "differ: use a user class of ChatUser or ScenarioUser, or arms with nothing but a url"
        )


# --- What can be foreseen: gates that the run cannot show, a ramp that fills it, options without an effect


#: A ramp of this share of the measured time is most of what the figures are of.
MOST_RAMP = 0.5


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


# --- Where results go: the run directory, the upload, the metrics


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
    _refuse_held(path)
    return _made(path)


def check_run_dir(settings: Settings) -> None:
    """Check that ``--out`` can be used, before there is a run (raises UsageError)."""
    out = settings.run.out
    if settings.restartable and out is None:
        raise UsageError("--restartable and --resume: name the directory of the whole run by --out")
    if out is not None and not settings.restartable:
        _refuse_held(out)
    _made(out or Path("runs"))


def _refuse_held(path: Path) -> None:
    if holds_a_run(path):
        raise UsageError(f"--out: {str(path)!r} holds a run already: remove it, or name another directory")


def _made(path: Path) -> Path:
    try:
        return create_run_dir(path)
    except StoreError as e:
        raise UsageError(f"--out: {e}") from e


def _free(path: Path) -> Path:
    number, free = 2, path
    while holds_a_run(free):
        free = path.with_name(f"{path.name}-{number}")
        number += 1
    return free


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
