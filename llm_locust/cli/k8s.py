"""``llm-locust k8s render``: manifests of a run from its scenario."""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from llm_locust.k8s.overlay import OVERLAYS, OverlayPlan, write_overlay
from llm_locust.k8s.scenario_files import RenderError
from llm_locust.options.table import GRAMMAR
from llm_locust.report.output import one_line
from llm_locust.scenario import load_scenario

DESCRIPTION = "Kubernetes: `llm-locust k8s render --scenario s.yaml --workers 20 | kubectl apply -f -`."

#: Programs that render an overlay, with their arguments before the folder.
_RENDERERS = {"kubectl": ["kustomize"], "kustomize": ["build"]}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the commands of ``llm-locust k8s``."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    render = commands.add_parser(
        "render",
        help="print the manifests of a run",
        description="Put a scenario on one of the kustomize overlays and print the manifests, by the "
        "kubectl or kustomize of this machine.",
    )
    _add_load(render.add_argument_group("the run"))
    _add_place(render.add_argument_group("where"))


def _add_load(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--scenario", type=Path, required=True, metavar="FILE", help="see docs/scenario.md")
    group.add_argument(
        "--workers", type=_positive, required=True, metavar="N", help="worker pods, of one CPU each"
    )
    group.add_argument("--overlay", choices=sorted(OVERLAYS), default="headless", help="(%(default)s)")
    group.add_argument(
        "--target", metavar="URL", help="server under test (default: the scenario's host; demo: its own)"
    )
    group.add_argument(
        "--target-cidr",
        action="append",
        default=[],
        metavar="CIDR",
        help="addresses of a target outside of the cluster; repeatable",
    )
    group.add_argument("--locustfile", type=Path, metavar="FILE", help="users of your own")


def _add_place(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--namespace", metavar="NAME", help="an existing one (default: llm-locust, which is created)"
    )
    group.add_argument("--image", metavar="IMAGE", help="name with tag or digest (default: llm-locust:0.1.0)")
    group.add_argument("--api-key-secret", metavar="SECRET/KEY", help="Secret with the target's API key")
    group.add_argument(
        "--pod-discovery",
        action="store_true",
        help="let the master list pods, for --metrics-url k8s:app=vllm:8000",
    )
    group.add_argument(
        "--upload", metavar="TO", help="destination of the run: s3://bucket/prefix, gs://bucket"
    )
    group.add_argument(
        "--upload-secret", metavar="SECRET", help="credentials for it, as environment variables"
    )
    group.add_argument(
        "--write",
        type=Path,
        metavar="DIR",
        help="write the overlay to this folder, and render nothing",
    )


def run(args: argparse.Namespace) -> int:
    """Print the manifests, or write the overlay. Return the exit code: 0, or 2 on failure."""
    try:
        plan = _plan(args)
        if args.write is not None:
            _write(plan, args.write)
        else:
            with tempfile.TemporaryDirectory() as folder:
                write_overlay(plan, Path(folder))
                sys.stdout.write(render(Path(folder)))
    except (ValueError, OSError) as e:
        print(f"llm-locust k8s render: {one_line(e)}", file=sys.stderr)
        return 2
    return 0


def render(folder: Path) -> str:
    """Render the manifests of a kustomize overlay.

    Raises:
        RenderError: there is no program to render it, or the program failed.
    """
    found = [(path, words) for name, words in _RENDERERS.items() if (path := shutil.which(name))]
    if not found:
        raise RenderError(
            "neither kubectl nor kustomize is on the PATH: install one, or make the overlay by --write DIR "
            "and render it elsewhere"
        )
    path, words = found[0]
    done = subprocess.run([path, *words, str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RenderError(f"{Path(path).name} {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def _plan(args: argparse.Namespace) -> OverlayPlan:
    scenario = load_scenario(args.scenario, GRAMMAR)
    if args.overlay == "demo" and args.target is not None:
        raise RenderError("--target with --overlay demo, which has a target of its own")
    return OverlayPlan(
        scenario=scenario,
        workers=args.workers,
        overlay=args.overlay,
        namespace=args.namespace,
        image=args.image,
        target=args.target,
        target_cidrs=tuple(args.target_cidr),
        locustfile=args.locustfile,
        api_key_secret=args.api_key_secret,
        pod_discovery=args.pod_discovery,
        upload=args.upload,
        upload_secret=args.upload_secret,
    )


def _write(plan: OverlayPlan, folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RenderError(f"--write: {str(folder)!r} exists already: remove it, or name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_overlay(plan, folder)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)
