"""``llm-locust k8s``: manifests of a run from its scenario, and a run from its start to its files."""

import argparse
import re
import secrets
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from llm_locust.k8s.chart import write_chart
from llm_locust.k8s.kubectl import (
    ClusterRun,
    CopyError,
    Kubectl,
    KubectlError,
    PodLog,
    RunState,
    ended_code,
    fetch,
    fetch_from_volume,
    release,
    render,
)
from llm_locust.k8s.overlay import write_overlay
from llm_locust.k8s.plan import (
    LONGEST_NAME,
    NAMESPACE,
    OVERLAYS,
    OverlayPlan,
    RenderError,
    add_load,
    add_place,
    add_pods,
    plan_of,
    whole_seconds,
)
from llm_locust.report.output import one_line

DESCRIPTION = "Kubernetes: `llm-locust k8s run --scenario s.yaml --workers 20`, or `llm-locust k8s render`."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the commands of ``llm-locust k8s``."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    started = commands.add_parser(
        "run",
        help="run a load in the cluster, fetch its files, end with its exit code",
        description="Render under a name of its own, create, follow the log, fetch the run directory, remove "
        "everything, and end with the run's exit code. Uses this machine's kubectl and its rights.",
    )
    started.set_defaults(k8s=_run)
    add_load(
        started.add_argument_group("the load"), [name for name in OVERLAYS if name in ("headless", "demo")]
    )
    add_place(started.add_argument_group("where"))
    add_pods(started.add_argument_group("the pods"))
    add_run(started.add_argument_group("the run"))
    rendered = commands.add_parser(
        "render",
        help="print the manifests of a run",
        description="Put a scenario on one of the kustomize overlays and print the manifests, by the "
        "kubectl or kustomize of this machine. What network policies open is said on standard error.",
    )
    rendered.set_defaults(k8s=_render)
    add_load(rendered.add_argument_group("the load"), sorted(OVERLAYS))
    place = rendered.add_argument_group("where")
    add_place(place)
    add_pods(rendered.add_argument_group("the pods"))
    place.add_argument(
        "--write",
        type=Path,
        metavar="DIR",
        help="write the overlay to this folder, and render nothing",
    )
    charted = commands.add_parser(
        "chart",
        help="write a Helm chart",
        description="Write a Helm chart made from the kustomize overlays headless, jobset, nightly and soak, "
        "by the kubectl or kustomize of this machine. Its values.yaml explains its values.",
    )
    charted.set_defaults(k8s=_chart)
    charted.add_argument("folder", type=Path, metavar="DIR", help="an empty folder, or a new one")


def run(args: argparse.Namespace) -> int:
    """Carry out the command. Return its exit code: that of a run, or 2 if it cannot be done."""
    command = args.k8s.__name__.removeprefix("_")
    try:
        code: int = args.k8s(args)
    except (ValueError, OSError) as e:
        print(f"llm-locust k8s {command}: {one_line(e)}", file=sys.stderr)
        return 2
    return code


def _run(args: argparse.Namespace) -> int:
    return run_in_cluster(plan_of(args), args)


def _chart(args: argparse.Namespace) -> int:
    write_chart(args.folder)
    return 0


def _render(args: argparse.Namespace) -> int:
    plan = plan_of(args)
    if args.write is not None:
        _say_each(_write(plan, args.write))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        opened = write_overlay(plan, Path(folder))
        text = render(Path(folder))
    _say_each(opened)
    sys.stdout.write(text)
    return 0


def _write(plan: OverlayPlan, folder: Path) -> list[str]:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RenderError(f"--write: {str(folder)!r} exists already: remove it, or name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    return write_overlay(plan, folder)


def _say_each(lines: list[str]) -> None:
    for line in lines:
        print(f"llm-locust k8s render: {one_line(line)}", file=sys.stderr)


# --- Ctrl-C and SIGTERM of a command that has to clean up


class StopSignals:
    """What the user has asked for since the start: the first Ctrl-C to end in order, the second and SIGTERM
    to end at once."""

    def __init__(self) -> None:
        self.to_end = False
        self.at_once = False
        self._news = threading.Event()

    def note(self, number: int) -> None:
        if self.to_end or number == signal.SIGTERM:
            self.at_once = True
        self.to_end = True
        self._news.set()

    def wait(self, seconds: float) -> None:
        """Wait, at most until something new is asked for."""
        self._news.wait(seconds)
        self._news.clear()


@contextmanager
def asked_to_end() -> Iterator[StopSignals]:
    """Note signals instead of dying of them."""
    asked = StopSignals()

    def note(number: int, _: FrameType | None) -> None:
        asked.note(number)

    former = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


# --- ``llm-locust k8s run``: one run in a cluster, from its objects to its exit code


#: How long a master waits for its files to be fetched.
HOLD_S = 900

#: Codes of a run. Any other is that of a process that was killed.
_CODES = range(5)
_CUT_SHORT, _NO_START = 4, 2

#: Pauses between looks at the cluster: the first, the longest, and the growth in between.
_FIRST_LOOK_S, _LAST_LOOK_S, _SLOWER = 0.3, 4.0, 1.3

#: How long an API server may be out of reach before the run is left to itself.
_OUT_OF_REACH_S = 120.0


class StartError(ValueError):
    """A run that did not start; the text says in one line why."""


def add_run(group: argparse._ArgumentGroup) -> None:
    """Add what only a run has."""
    group.add_argument(
        "--out", type=Path, metavar="DIR", help="where the run directory is put (default: runs/NAME)"
    )
    group.add_argument("--context", metavar="NAME", help="of kubectl's configuration")
    group.add_argument(
        "--start-timeout",
        type=whole_seconds,
        default=600,
        metavar="TIME",
        help="give up if the master does not run by then (default 10m)",
    )
    group.add_argument(
        "--no-fetch", action="store_true", help="leave the files where they are: uploaded, or on --volume"
    )
    group.add_argument("--keep", action="store_true", help="leave the objects in the cluster")


def run_in_cluster(plan: OverlayPlan, args: argparse.Namespace) -> int:
    """Run a load in the cluster and return its exit code.

    It is 2 if the master did not run, and 4 if the run was cut short or could not be followed to its end.

    Raises:
        ValueError: it cannot be rendered, or there is no kubectl.
        OSError: a file cannot be read or written.
    """
    name = unique_name(plan)
    to: Path = args.out or Path("runs") / name
    if to.exists():
        raise RenderError(f"--out: {str(to)!r} exists already: remove it, or name another folder")
    to.parent.mkdir(parents=True, exist_ok=True)
    plan = replace(plan, name=name, out=name, hold_s=None if args.no_fetch else HOLD_S)
    namespace = plan.namespace or NAMESPACE
    kubectl = Kubectl.of(namespace, args.context)
    with tempfile.TemporaryDirectory() as folder:
        for line in write_overlay(plan, Path(folder)):
            _say(line)
        manifests = render(Path(folder))
    objects = [document for document in yaml.safe_load_all(manifests) if document]
    with asked_to_end() as asked:
        cluster = ClusterRun(kubectl, name, namespace, objects, plan.workers)
        _say(f"{name} in namespace {namespace}")
        following = _Following(cluster, asked, plan, to, args.start_timeout)
        try:
            cluster.create()
            return following.until_it_ends()
        except (StartError, KubectlError) as e:
            _say(one_line(e))
            return _NO_START
        finally:
            _clean_up(cluster, args.keep or following.is_left)


def unique_name(plan: OverlayPlan) -> str:
    """Name that no other run has: the one asked for, or the scenario's, and five random letters."""
    stem = plan.name or re.sub(r"[^a-z0-9]+", "-", Path(plan.scenario.path).stem.lower()).strip("-")
    if not stem or not stem[0].isalpha():
        stem = f"run-{stem}".rstrip("-")
    end = "".join(secrets.choice("bcdfghjkmnpqrstvwxz2456789") for _ in range(5))
    return f"{stem[: LONGEST_NAME - len(end) - 1].rstrip('-')}-{end}"


class _Following:
    """A created run, watched until its master has ended.

    Attributes:
        is_left: the run was left to itself, and its objects have to stay.
    """

    def __init__(
        self, cluster: ClusterRun, asked: StopSignals, plan: OverlayPlan, to: Path, start_timeout_s: float
    ) -> None:
        self._cluster, self._asked, self._plan, self._to = cluster, asked, plan, to
        self._start_by = time.monotonic() + start_timeout_s
        self._reached = time.monotonic()
        self._log: PodLog | None = None
        self._waiting = ""
        self._was_told = False
        self.is_left = False

    def until_it_ends(self) -> int:
        """Follow it; return its exit code (raises StartError)."""
        pause_s, code = _FIRST_LOOK_S, None
        while code is None:
            self._asked.wait(pause_s)
            pause_s = min(pause_s * _SLOWER, _LAST_LOOK_S)
            if self._asked.at_once:
                _say("ended at once; its records are lost, but for what was uploaded or is on --volume")
                return _CUT_SHORT
            code = self._look()
        return code if code in _CODES else _CUT_SHORT

    def _look(self) -> int | None:
        """Take a look; the exit code, if the master has ended."""
        try:
            state = self._cluster.state()
        except KubectlError as e:
            return self._out_of_reach(e)
        self._reached = time.monotonic()
        if state.master is not None and (state.is_running or state.code is not None):
            if self._log is None:
                self._log = PodLog(self._cluster.kubectl, state.master, "master", _print)
            code = self._code(state)
            if code is not None:
                return code
        elif self._log is not None:
            return self._gone(state)
        self._check_start(state)
        if self._asked.to_end and not self._was_told:
            self._tell_to_end(state)
        return None

    def _out_of_reach(self, error: KubectlError) -> int | None:
        """Try again for a while. A master that has run may have results: then all is left as it is."""
        if time.monotonic() - self._reached <= _OUT_OF_REACH_S:
            self._say_once(f"{one_line(error)}; trying again")
            return None
        if self._log is None:
            raise error
        self.is_left = True
        self._end_log()
        _say(f"{one_line(error)}; tried for {_OUT_OF_REACH_S:.0f} s: the run is left to itself")
        if self._claim is not None:
            _say(self._on_the_claim)
        elif self._plan.hold_s is not None:
            hold = f"{self._plan.hold_s // 60} minutes after its end"
            _say(f"its files are in /runs/{self._cluster.name} of the master's pod until {hold}")
        _say(f"remove it later by: {self._cluster.removal}")
        return _CUT_SHORT

    def _gone(self, state: RunState) -> int:
        """A master that has run and whose pod is not there any more: only a volume still has its files."""
        self._end_log()
        _say(f"the master's pod is gone: {state.trouble or 'it was deleted, or its node is gone'}")
        self._fetch_rest()
        return _CUT_SHORT

    def _check_start(self, state: RunState) -> None:
        if state.trouble is not None:
            if state.culprit is not None:
                _show_log(self._cluster.kubectl, state.culprit)
            raise StartError(state.trouble)
        if state.master is None and (reason := self._cluster.refusal()):
            raise StartError(reason)
        if state.waiting:
            self._say_once(state.waiting)
        if not state.is_running and time.monotonic() > self._start_by:
            raise StartError(f"the master did not run in time: {state.waiting or 'no pod'}")

    def _code(self, state: RunState) -> int | None:
        """Exit code of the run, its files fetched; None while it goes on."""
        kubectl, pod = self._cluster.kubectl, str(state.master)
        if state.code is not None:
            self._end_log()
            if state.code not in _CODES:
                _say(f"the master was ended with code {state.code}: {state.reason or 'no reason is given'}")
            self._fetch_rest()
            return state.code
        if self._plan.hold_s is None or (code := ended_code(kubectl, pod)) is None:
            return None
        self._end_log()
        try:
            if fetch(kubectl, pod, "master", self._cluster.name, self._to):
                _say(f"the run directory is {self._to}")
            release(kubectl, pod)
        except (CopyError, KubectlError, OSError) as e:
            rest = "the report above is all that there is" if self._claim is None else self._on_the_claim
            _say(f"{one_line(e)}: {rest}")
            return _CUT_SHORT if code in (0, 1) else code
        return code

    @property
    def _claim(self) -> str | None:
        return self._plan.pods.volumes.get("/runs")

    @property
    def _on_the_claim(self) -> str:
        return f"the files are on the claim {self._claim} as {self._cluster.name}"

    def _fetch_rest(self) -> None:
        """Files of a master that ended without waiting for us: on a volume they are still there."""
        claim = self._claim
        if claim is None or self._plan.hold_s is None:
            return
        try:
            if fetch_from_volume(self._cluster, claim, self._to):
                _say(f"the run directory is {self._to}; `llm-locust merge` makes a run of an unfinished one")
        except (CopyError, KubectlError, OSError) as e:
            _say(f"{one_line(e)}: {self._on_the_claim}")

    def _tell_to_end(self, state: RunState) -> None:
        self._was_told = True
        if not state.is_running:
            raise StartError("ended before the master ran")
        _say("ending the run: it delivers its records and makes its report; again to end at once")
        try:
            self._cluster.kubectl("exec", str(state.master), "--container=master", "--", *_INTERRUPT)
        except KubectlError as e:
            _say(one_line(e))

    def _end_log(self) -> None:
        if self._log is not None:
            self._log.finish()

    def _say_once(self, text: str) -> None:
        if text != self._waiting:
            self._waiting = text
            _say(one_line(text))


_INTERRUPT = ("sh", "-c", "kill -INT 1")


def _show_log(kubectl: Kubectl, pod: str) -> None:
    """The end of the log of a pod that could not start, where there is one."""
    try:
        text = kubectl("logs", pod, "--all-containers", "--tail=20")
    except KubectlError:
        return
    for line in text.splitlines():
        print(f"  {one_line(line)}", file=sys.stderr)


def _clean_up(cluster: ClusterRun, keep: bool) -> None:
    if keep:
        _say(f"kept: kubectl -n {cluster.namespace} get all -l app.kubernetes.io/instance={cluster.name}")
        return
    try:
        cluster.delete()
    except KubectlError as e:
        _say(f"{one_line(e)}; remove the rest by: {cluster.removal}")


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _say(line: Any) -> None:
    print(f"llm-locust k8s run: {line}", file=sys.stderr, flush=True)
