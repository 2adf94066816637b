"""Arguments of ``llm-locust k8s render`` and ``run``, and the plan made of them."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import TypeVar

from llm_locust.core.texts import argument, positive
from llm_locust.k8s import checks
from llm_locust.k8s.overlay import CLOUD_IDENTITIES
from llm_locust.k8s.plan import WITH_TARGET, OverlayPlan, PodPlan, RenderError
from llm_locust.options.table import GRAMMAR
from llm_locust.scenario.document import load_scenario

T = TypeVar("T")

Group = argparse._ArgumentGroup


def add_load(group: Group, overlays: Sequence[str]) -> None:
    """Add what is sent, and to whom."""
    group.add_argument(
        "--scenario", type=Path, required=True, metavar="FILE", help="documentation: scenario.md"
    )
    group.add_argument(
        *("--workers", "-w"), type=positive, required=True, metavar="N", help="worker pods, of one CPU each"
    )
    group.add_argument("--overlay", choices=overlays, default="headless", help="(%(default)s)")
    group.add_argument(
        "--target", metavar="URL", help="server under test (default: the scenario's host; demo: its own)"
    )
    _add_list(group, "--target-cidr", "CIDR", "addresses of servers outside of the cluster; repeatable")
    group.add_argument("--locustfile", "-f", type=Path, metavar="FILE", help="users of your own")
    _add_list(group, "--file", "FILE[=PATH]", "a further file, beside the locustfile or at PATH; repeatable")


def add_place(group: Group) -> None:
    """Add where it runs, and what it may reach."""
    group.add_argument(
        "--name",
        metavar="NAME",
        type=argument(checks.run_name),
        help="of the run: several runs fit into a namespace",
    )
    group.add_argument(
        *("--namespace", "-n"),
        metavar="NAME",
        type=argument(checks.namespace_name),
        help="an existing one (default: llm-locust, which is created)",
    )
    group.add_argument(
        "--image",
        metavar="IMAGE",
        type=argument(checks.image_name),
        help=f"name with tag or digest (default: llm-locust:{version('llm-locust')})",
    )
    _add_list(
        group, "--label", "KEY=VALUE", "label of every object and pod, such as Kueue's queue; repeatable"
    )
    group.add_argument("--api-key-secret", metavar="SECRET/KEY", help="Secret with the target's API key")
    group.add_argument(
        "--pod-discovery",
        action="store_true",
        help="let the master list pods, for --metrics-url k8s:app=vllm:8000",
    )
    group.add_argument(
        "--monitoring",
        action="store_true",
        help="PodMonitor, alerts and Grafana's dashboard, for the Prometheus operator",
    )
    group.add_argument(
        "--upload", metavar="TO", help="destination of the run: s3://bucket/prefix, gs://bucket"
    )
    group.add_argument(
        "--upload-secret", metavar="SECRET", help="credentials for it, as environment variables"
    )
    group.add_argument(
        "--cloud-identity",
        choices=sorted(CLOUD_IDENTITIES),
        help="let the master ask this cloud's metadata server for credentials",
    )
    group.add_argument(
        "--no-network-policies",
        action="store_true",
        help="leave out the network policies, for a cluster's own",
    )


def add_pods(group: Group) -> None:
    """Add what the pods have."""
    group.add_argument(
        "--cpu", metavar="N", type=argument(checks.whole_cpus), help="CPUs of a worker, whole (default 1)"
    )
    group.add_argument(
        "--memory", metavar="AMOUNT", type=argument(checks.memory), help="memory of a worker (default 1Gi)"
    )
    group.add_argument(
        "--deadline",
        metavar="TIME",
        type=argument(checks.whole_seconds),
        help="Kubernetes ends the run after this time (default: a day, or the run's time and three hours)",
    )
    group.add_argument(
        "--service-account", metavar="NAME", type=argument(checks.object_name), help="of the pods"
    )
    _add_list(group, "--env", "NAME=VALUE", "variable of master and workers, no secret; repeatable")
    _add_list(group, "--env-from", "secret/NAME", "variables from a Secret, or configmap/NAME; repeatable")
    _add_list(
        group, "--volume", "CLAIM[:/PATH]", "claim for the results, or with a path for data; repeatable"
    )
    _add_list(group, "--image-pull-secret", "NAME", "for the image's registry; repeatable")
    _add_list(group, "--node-selector", "KEY=VALUE", "label of the nodes; repeatable")
    _add_list(group, "--toleration", "KEY[=VALUE][:EFFECT]", "taint that pods tolerate; repeatable")


def plan_of(args: argparse.Namespace) -> OverlayPlan:
    """Check the arguments, read the scenario (raises ValueError or OSError).

    The scenario's folder, and the locustfile's, become part of Python's search path, as in a run: the
    scenario may name functions there.
    """
    folders = {path.parent for path in (args.scenario, args.locustfile) if path is not None}
    sys.path[:0] = [str(folder.resolve()) for folder in sorted(folders)]
    scenario = load_scenario(args.scenario, GRAMMAR)
    if args.upload is None and (said := scenario.options.get("upload")) is not None:
        _one("upload", str(said), checks.destination)
    if args.overlay in WITH_TARGET and args.target is not None:
        raise RenderError(f"--target with --overlay {args.overlay}, which has a target of its own")
    return OverlayPlan(
        scenario=scenario,
        workers=args.workers,
        overlay=args.overlay,
        name=args.name,
        namespace=args.namespace,
        image=args.image,
        target=args.target,
        cidrs=tuple(args.target_cidr),
        locustfile=args.locustfile,
        files=_files(args.file),
        api_key_secret=_one("--api-key-secret", args.api_key_secret, checks.key_of_secret),
        pod_discovery=args.pod_discovery,
        monitoring=args.monitoring,
        upload=_one("--upload", args.upload, checks.destination),
        upload_secret=_one("--upload-secret", args.upload_secret, checks.object_name),
        cloud_identity=args.cloud_identity,
        network_policies=not args.no_network_policies,
        deadline_s=args.deadline,
        labels=_pairs("--label", args.label, checks.label),
        pods=_pods(args),
    )


def _pods(args: argparse.Namespace) -> PodPlan:
    volumes = _each("--volume", args.volume, checks.volume)
    if path := checks.twice(path for _, path in volumes):
        raise RenderError(f"--volume: two claims for {path}")
    return PodPlan(
        env=_pairs("--env", args.env, checks.variable),
        env_from=tuple(_each("--env-from", args.env_from, checks.variables_of)),
        service_account=args.service_account,
        pull_secrets=tuple(_each("--image-pull-secret", args.image_pull_secret, checks.object_name)),
        node_selector=_pairs("--node-selector", args.node_selector, checks.label),
        tolerations=tuple(_each("--toleration", args.toleration, checks.toleration)),
        volumes={path: claim for claim, path in volumes},
        cpu=args.cpu,
        memory=args.memory,
    )


def _files(texts: Sequence[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for text in texts:
        source, _, place = text.partition("=")
        path, name = Path(source), place or Path(source).name
        if not path.is_file():
            raise RenderError(f"--file {source!r}: there is no such file")
        if name.startswith("/") or ".." in PurePosixPath(name).parts:
            raise RenderError(
                f"--file: {name!r} must be a path beside the locustfile, such as data/{path.name}"
            )
        if name in found or name in ("scenario.yaml", "locustfile.py"):
            raise RenderError(f"--file: {name!r} is taken")
        found[name] = path
    return found


def _one(flag: str, text: str | None, check: Callable[[str], str]) -> str | None:
    return None if text is None else _each(flag, [text], check)[0]


def _each(flag: str, texts: Sequence[str], check: Callable[[str], T]) -> list[T]:
    found = []
    for text in texts:
        try:
            found.append(check(text))
        except ValueError as e:
            raise RenderError(f"{flag}: {e}") from e
    return found


def _pairs(flag: str, texts: Sequence[str], check: Callable[[str], tuple[str, str]]) -> Mapping[str, str]:
    pairs = _each(flag, texts, check)
    if name := checks.twice(name for name, _ in pairs):
        raise RenderError(f"{flag}: {name} is given twice")
    return dict(pairs)


def _add_list(group: Group, flag: str, metavar: str, text: str) -> None:
    group.add_argument(flag, action="append", default=[], metavar=metavar, help=text)
