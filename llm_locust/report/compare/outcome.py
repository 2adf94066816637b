"""From run directories to all that a comparison of them says."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from llm_locust.core.exit_codes import EXIT_GATE, EXIT_INVALID
from llm_locust.core.manifest import Manifest
from llm_locust.metrics.compare.comparability import doubts, models_differ, unlike
from llm_locust.metrics.compare.compared import Compared, measure_for_comparison
from llm_locust.metrics.compare.comparison import Comparison, compare_in_turn
from llm_locust.metrics.compare.relative_gates import (
    Finding,
    GateResult,
    RelativeGate,
    Unknown,
    evaluate_relative,
)
from llm_locust.metrics.question import PLAIN, Question
from llm_locust.metrics.requests.slo import Slo
from llm_locust.report.text import clean
from llm_locust.store import open_requests, read_manifest


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run directory and what is compared of it; ``label`` is foreign text, cleaned."""

    label: str
    path: Path
    compared: Compared


@dataclass(frozen=True, slots=True)
class ComparedRuns:
    """Runs, each compared with the one before.

    Two are base and new, as they were given; several are in the order of their starts, and gates are on
    the last against the first.
    """

    runs: tuple[ComparedRun, ...]
    comparisons: tuple[Comparison, ...]
    gates: tuple[GateResult, ...]
    warnings: tuple[str, ...]
    slo: Slo
    gate_unknown: Unknown = "fail"

    @property
    def is_pair(self) -> bool:
        return len(self.runs) == 2

    @property
    def models_differ(self) -> bool:
        return any(models_differ(c.base, c.new) for c in self.comparisons)

    @property
    def finding(self) -> Finding:
        """Broken where one gate is, else unknown where one is, else held; so without gates."""
        found = {gate.state.finding for gate in self.gates}
        return "broken" if "broken" in found else "unknown" if "unknown" in found else "held"

    @property
    def exit_code(self) -> int:
        """1 when a gate broke, 3 when the runs cannot show whether one held, unless such a one passes."""
        if self.finding == "broken":
            return EXIT_GATE
        return EXIT_INVALID if self.finding == "unknown" and self.gate_unknown == "fail" else 0


def compare_runs(
    paths: Sequence[Path],
    question: Question = PLAIN,
    *,
    gates: tuple[RelativeGate, ...] = (),
    gate_unknown: Unknown = "fail",
    not_load: frozenset[str] = frozenset(),
) -> ComparedRuns:
    """Read the runs one after the other and compare them.

    Args:
        question: the SLO that all runs are judged by, without it that of the first run that has one; the
            window and the warm-up of each. Nothing else of it can be asked here.
        not_load: options in which the runs may differ, see :func:`unlike`.
        gate_unknown: what becomes of a gate where the runs cannot show whether it held.

    Raises:
        StoreError: a run cannot be read.
        ValueError: a run that is given twice, an SLO that is none, more than can be asked, or a run without a
            request in its window.
    """
    if question != Question(slo=question.slo, window=question.window, warmup_s=question.warmup_s):
        raise ValueError("a comparison is asked for an SLO, a window and a warm-up: leave out the rest")
    manifests = [read_manifest(path) for path in paths]
    _refuse_copies(paths, manifests)
    swept = next((path for path, manifest in zip(paths, manifests, strict=True) if manifest.is_sweep), None)
    if swept is not None and isinstance(question.window, str):
        raise ValueError(
            f"{str(swept)!r} is a sweep, which has several loads: `llm-locust compare RUN RUN --pareto` sets "
            "the loads of several runs side by side, `llm-locust report RUN --where stage==0` reports one"
        )
    if question.slo is None:
        question = replace(question, slo=next(filter(None, (m.slo for m in manifests)), ""))
    runs = []
    for path, manifest in zip(paths, manifests, strict=True):
        compared = measure_for_comparison(open_requests(path), manifest, question)
        if not len(compared.population.judged):
            raise ValueError(f"{str(path)!r} has no finished request in its window: nothing to compare")
        runs.append(ComparedRun(clean(path.name or path.resolve().name), path, compared))
    if len(runs) > 2:
        runs.sort(key=lambda run: run.compared.manifest.started_ns)
    measured = [run.compared for run in runs]
    first, last = measured[0], measured[-1]
    return ComparedRuns(
        tuple(runs),
        tuple(compare_in_turn(measured)),
        tuple(evaluate_relative(gates, first, last)),
        tuple(_warnings(runs, not_load)),
        question.slo_of(manifests[0]),
        gate_unknown,
    )


def _refuse_copies(paths: Sequence[Path], manifests: Sequence[Manifest]) -> None:
    """A run and its copy differ in nothing, which would hold every gate (raises ValueError)."""
    first: dict[str, Path] = {}
    for path, manifest in zip(paths, manifests, strict=True):
        if manifest.id in first:
            same = f"{str(first[manifest.id])!r} and {str(path)!r}"
            raise ValueError(f"{same} are the same run, {manifest.id}: compare it with another one")
        first[manifest.id] = path


def _warnings(runs: Sequence[ComparedRun], not_load: frozenset[str]) -> list[str]:
    """What stands against single runs, then against each pair of neighbours."""
    names = ["base", "new"] if len(runs) == 2 else [run.label for run in runs]
    alone = [
        f"{name}: {text}" for name, run in zip(names, runs, strict=True) for text in doubts(run.compared)
    ]
    pairs = [
        ("" if len(runs) == 2 else f"{base.label} and {new.label}: ") + text
        for base, new in pairwise(runs)
        for text in unlike(base.compared, new.compared, not_load)
    ]
    return [clean(text) for text in alone + pairs]
