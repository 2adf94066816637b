"""Limits on what the web UI's forms may set. Locust's own views set any option, and any attribute of a user
class.

So a form is checked before Locust sees it: an unexpected field is refused, and nothing of the form is set.
Values are checked by the options' own parsers, within bounds. Files and hosts must be those that the process
was started with.
"""

import argparse
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from flask import Response, jsonify, request
from locust.argument_parser import default_args_dict, get_parser
from locust.env import Environment
from locust.runners import STATE_CLEANUP, STATE_RUNNING, STATE_SPAWNING, STATE_STOPPING
from locust.util.timespan import parse_timespan
from locust.web import WebUI
from werkzeug.datastructures import ImmutableMultiDict, MultiDict

from llm_locust.client.http.target import Target, TargetError
from llm_locust.figures.text import clean, short
from llm_locust.options.deployment import DNS
from llm_locust.options.table import OPTIONS
from llm_locust.wire.foreign_text import public_url

logger = logging.getLogger(__name__)

MOST_USERS = 1_000_000
MOST_RUN_TIME_S = 366 * 86_400
LONGEST_VALUE = 4096

#: Longest request to the web UI, in bytes.
LONGEST_BODY = 1 << 20

#: A value that names a file, as in ``file:lengths.csv`` and ``trace:arrivals.csv``.
_NAMES_A_FILE = re.compile(r"\b(file|trace)\s*:", re.IGNORECASE)

#: Options whose values are paths.
_PATHS = frozenset(row.name for row in OPTIONS if row.kind == "path")

#: (scheme, host, port)
Place = tuple[str, str, int]


class FormError(ValueError):
    """A form that is refused; one line for the person who sent it."""


class Forms:
    """Filter in front of Locust's views that set something: ``/swarm`` and ``/user``.

    The settings that the process was started with are read when the first form arrives: no request has
    changed anything by then, and every locustfile has been loaded.

    Args:
        is_draining: whether the load of the run has ended, and its last requests may not have.
    """

    def __init__(self, web_ui: WebUI, environment: Environment, is_draining: Callable[[], bool]) -> None:
        self._environment = environment
        self._is_draining = is_draining
        self._web_ui = web_ui
        self._start: dict[str, Any] | None = None
        self._actions: dict[str, argparse.Action] = {}
        self._places: set[Place] = set()
        app = web_ui.app
        assert app is not None
        if app.config.get("MAX_CONTENT_LENGTH") is None:
            app.config["MAX_CONTENT_LENGTH"] = LONGEST_BODY
        for endpoint, check in (
            ("locust.swarm", self._check_start),
            ("locust.update_user", self._check_user),
        ):
            view = app.view_functions[endpoint]
            app.view_functions[endpoint] = web_ui.auth_required_if_enabled(self._checked(check, view))

    def _checked(self, check: Callable[[], None], view: Callable[..., Any]) -> Callable[..., Any]:
        def checked_view(*args: Any, **kwargs: Any) -> Any:
            try:
                self._look()
                check()
            except FormError as e:
                return self._refused(str(e))
            return view(*args, **kwargs)

        return checked_view

    def _refused(self, reason: str) -> Response:
        """Refusal as Locust's page expects it: it shows the message to whoever sent the form."""
        logger.error("refused a request to the web UI: %s", reason)
        return jsonify({"success": False, "message": reason, "host": self._environment.host})

    def _look(self) -> None:
        """Remember the settings that the process was started with, once."""
        if self._start is not None:
            return
        options = vars(self._environment.parsed_options)
        own = default_args_dict()
        arguments = get_parser().args_included_in_web_ui
        self._actions = {name: action for name, action in arguments.items() if name not in own}
        self._places = set(places_of(self._hosts(options)))
        self._start = dict(options)

    def _hosts(self, options: Mapping[str, Any]) -> Iterable[str | None]:
        environment = self._environment
        classes: list[Any] = [*environment.user_classes, *(environment.available_user_classes or {}).values()]
        named = (options.get("targets") or (), options.get("allow_host") or ())
        texts = [url for words in named for text in words for url in re.findall(r"[^\s,]+", text)]
        return [environment.host, options.get("host"), *(cls.host for cls in classes), *texts]

    # -- /swarm ---------------------------------------------------------------------------

    def _check_start(self) -> None:
        for name in request.form:
            for value in request.form.getlist(name):
                self._check_field(name, value)
        if self._running:
            if self._is_draining():  # Locust would change the load of a run that has none any more
                raise FormError(
                    "requests of the last run are under way: start the next one when they have ended"
                )
            self._keep_choices()

    def _keep_choices(self) -> None:
        """Refuse another choice of classes, shape or profile than the run has, and keep those in the form.

        Locust's dialog for a running test names all classes, whichever were chosen, and no shape: with the
        class picker its view would then change both.
        """
        environment = self._environment
        own = [cls.__name__ for cls in environment.user_classes]
        shape = _name_of_shape(environment)
        classes = set(request.form.getlist("user_classes"))
        changed = {
            "user_classes": classes not in (set(), set(own), set(environment.available_user_classes or own)),
            "shape_class": request.form.get("shape_class", shape) != shape,
            "profile": request.form.get("profile", environment.profile or "") != (environment.profile or ""),
        }
        for name in (name for name, is_changed in changed.items() if is_changed):
            raise FormError(f"{name} cannot be changed while a run goes on: stop it first")
        if self._web_ui.userclass_picker_is_active:
            kept = MultiDict(request.form)
            kept.setlist("user_classes", own)
            kept["shape_class"] = shape
            request.form = ImmutableMultiDict(kept)

    def _check_field(self, name: str, value: str) -> None:
        if len(value) > LONGEST_VALUE:
            raise FormError(f"{_shown(name)}: the value has over {LONGEST_VALUE:,} characters")
        match name:
            case "user_count" | "spawn_rate":
                _check_users(name, value)
            case "run_time":
                _check_run_time(value)
            case "host":
                self._check_host(value)
            case "profile" | "user_classes" | "shape_class":
                _check_name(name, value)
            case _ if name in self._actions:
                self._check_option(name, value)
            case _:
                raise FormError(f"{_shown(name)} cannot be set in the web UI; nothing was set")

    @property
    def _running(self) -> bool:
        runner = self._environment.runner
        return runner is not None and runner.state in (STATE_RUNNING, STATE_SPAWNING)

    def _check_host(self, host: str, now: str | None = None) -> None:
        current = self._environment.host if now is None else now
        if host == (current or ""):
            return
        if self._running:
            raise FormError("the host cannot be changed while a run goes on: stop it first")
        if not host:
            return  # those of the user classes, which are known
        if not self._places.intersection(places_of([host])) or "<" in host or ">" in host:
            raise FormError(
                f"host {_shown(public_url(host))} is not one that this process was started with; "
                "load and keys are sent to no other: start it with --allow-host URL"
            )

    def _check_option(self, name: str, value: str) -> None:
        flag = f"--{name.replace('_', '-')}"
        assert self._start is not None
        now, begun = (
            _text(vars(self._environment.parsed_options).get(name)),
            _text(self._start.get(name)),
        )
        if self._running and value not in (now, ""):
            raise FormError(f"{flag} cannot be changed while a run goes on: stop it first")
        if not value or value in (now, begun):
            return
        if name in _PATHS or _NAMES_A_FILE.search(value):
            raise FormError(f"{flag}: a file is named when the process is started, not in the web UI")
        if not value.isprintable():
            raise FormError(f"{flag}: {_shown(value)} holds a control character")
        _check_parses(self._actions[name], flag, value)

    # -- /user ----------------------------------------------------------------------------

    def _check_user(self) -> None:
        try:
            sent = msgspec.json.decode(request.get_data())
        except (msgspec.DecodeError, UnicodeDecodeError) as e:
            raise FormError("the settings of a user class are not JSON") from e
        classes = self._environment.available_user_classes or {}
        name = sent.get("user_class_name") if isinstance(sent, dict) else None
        if not isinstance(name, str) or name not in classes:
            raise FormError("the settings name no user class of the locustfile as user_class_name")
        runner = self._environment.runner
        ending = runner is not None and runner.state in (STATE_STOPPING, STATE_CLEANUP)
        if self._running or ending:
            raise FormError(f"{name} cannot be changed while a run goes on: stop it first")
        for field, value in sent.items():
            self._check_user_field(classes[name], field, value)

    def _check_user_field(self, cls: Any, field: str, value: object) -> None:
        match field, value:
            case "user_class_name", _:
                return
            case "host", str() | None:
                self._check_host(value or "", cls.host or "")
            case "weight" | "fixed_count", int() if not isinstance(value, bool) and 0 <= value <= MOST_USERS:
                return
            case "weight" | "fixed_count", _:
                raise FormError(
                    f"{field} must be a whole number from 0 to {MOST_USERS:,}, got {_shown(value)}"
                )
            case "tasks", list():
                tasks: list[Any] = (self._environment.available_user_tasks or {}).get(cls.__name__, [])
                names = [each.__name__ for each in tasks]
                if unknown := [task for task in value if task not in names]:
                    raise FormError(f"{cls.__name__} has no task {_shown(unknown[0])}")
            case _:
                raise FormError(f"{_shown(field)} of a user class cannot be set in the web UI")


def _name_of_shape(environment: Environment) -> str:
    """Name of the chosen shape, as Locust's form has it."""
    shapes = environment.available_shape_classes or {}
    return next((name for name, shape in shapes.items() if shape is environment.shape_class), "Default")


def places_of(hosts: Iterable[str | None]) -> Iterable[Place]:
    """Destinations of requests to these hosts; nothing for one that is not a URL."""
    for host in hosts:
        try:
            target = Target.parse((host or "").removeprefix(DNS))
        except TargetError:
            continue
        yield target.scheme, target.host.lower(), target.port


def _check_users(name: str, value: str) -> None:
    """Check a number of users, or of those started in a second. Locust itself reports what is no number."""
    try:
        number = float(value)
    except ValueError:
        return
    if not 0 <= number <= MOST_USERS or math.isnan(number):
        raise FormError(f"{name} must be from 0 to {MOST_USERS:,}, got {_shown(value)}")


def _check_run_time(value: str) -> None:
    try:
        seconds = parse_timespan(value) if value else 0
    except ValueError:
        return  # Locust reports it itself
    if seconds > MOST_RUN_TIME_S:
        raise FormError(f"run_time must be at most 366 days, got {_shown(value)}")


def _check_name(name: str, value: str) -> None:
    if len(value) > 200 or not value.isprintable():
        raise FormError(f"{name}: {_shown(value)} is too long or holds a control character")


def _check_parses(action: argparse.Action, flag: str, value: str) -> None:
    if isinstance(action.type, argparse.FileType):
        raise FormError(f"{flag}: a file is named when the process is started, not in the web UI")
    try:
        parsed = action.type(value) if callable(action.type) else value
    except (argparse.ArgumentTypeError, TypeError, ValueError) as e:
        raise FormError(f"{flag}: {short(clean(e), 400)}") from e
    if action.choices is not None and parsed not in action.choices:
        raise FormError(f"{flag}: {_shown(value)} is not one of {', '.join(map(str, action.choices))}")


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _shown(value: object) -> str:
    return repr(short(clean(value), 100))
