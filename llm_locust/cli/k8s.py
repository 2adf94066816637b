"""``llm-locust k8s``: manifests of a run from its scenario, and a run from its start to its files."""

import argparse
import sys
import tempfile
from pathlib import Path

from llm_locust.k8s.arguments import add_load, add_place, add_pods, plan_of
from llm_locust.k8s.chart.build import write_chart
from llm_locust.k8s.following.run import add_arguments as add_run_arguments, run_in_cluster
from llm_locust.k8s.kubectl import render
from llm_locust.k8s.overlay import write_overlay
from llm_locust.k8s.plan import OVERLAYS, OverlayPlan, RenderError
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
    add_run_arguments(started.add_argument_group("the run"))
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
        _say(_write(plan, args.write))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        opened = write_overlay(plan, Path(folder))
        text = render(Path(folder))
    _say(opened)
    sys.stdout.write(text)
    return 0


def _write(plan: OverlayPlan, folder: Path) -> list[str]:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RenderError(f"--write: {str(folder)!r} exists already: remove it, or name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    return write_overlay(plan, folder)


def _say(lines: list[str]) -> None:
    for line in lines:
        print(f"llm-locust k8s render: {one_line(line)}", file=sys.stderr)
