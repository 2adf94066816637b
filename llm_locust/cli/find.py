"""``llm-locust find``: the highest load under which limits hold, from runs at several loads."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import to_builtins

from llm_locust.core.texts import argument, parse_time
from llm_locust.figures.comparison import unlike_beside_load
from llm_locust.figures.edge import Bounds, NextStage, SearchResult
from llm_locust.figures.objective import UNITS, Objective, Probe, parse_objective, probes
from llm_locust.figures.search import (
    SearchStage,
    answer,
    next_step,
    parse_share,
    readings,
    search_answer,
    search_stages,
)
from llm_locust.figures.sides import Compared, measure_for_comparison
from llm_locust.figures.text import Line, Section, Tone, clean, number
from llm_locust.metrics.question import Question
from llm_locust.report.console import print_sections
from llm_locust.report.inputs import open_source
from llm_locust.report.output import printing, shown_json

DESCRIPTION = (
    "Find the highest load under which limits hold, from runs at several loads and from the stages of runs. "
    "Prints the load to run next, or the answer with its 95 % interval; documentation: capacity.md."
)

#: Options in which runs at several loads may differ. Not so --until: a stage that ends once its figure looks
#: settled is another sample than one that lasts its full time.
_HOW_MUCH = {
    *("num_users", "spawn_rate", "run_time", "request_rate", "num_requests", "warmup", "sweep", "stage_time"),
    *("repeat", "resume", "find", "first_load", "precision", "max_stages"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llm-locust find``."""
    parser.add_argument(
        "objective",
        metavar="OBJECTIVE",
        help='"max rate under goodput>=95%%", "max concurrency under p99_ttft<500ms p99_tpot<50ms", '
        '"max-goodput"',
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run directories, each at one load")
    parser.add_argument("--slo", metavar="TEXT", help="what goodput is judged by (the first run's)")
    parser.add_argument("--lengths", metavar="IN:OUT", help="of a sweep over lengths: the pair to look at")
    parser.add_argument(
        "--warmup", type=argument(parse_time), metavar="TIME", help="left out at each start, such as 30s"
    )
    parser.add_argument(
        "--precision",
        type=argument(parse_share),
        default=0.05,
        metavar="SHARE",
        help="of the answer: half its interval, as a share of it (5%%)",
    )
    parser.add_argument(
        "--max-stages", type=int, default=12, metavar="N", help="stages after which it ends (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the next load or the answer. Return the exit code, 0 (raises ValueError or OSError)."""
    if url := next((str(run) for run in args.runs if str(run).startswith(("http:/", "https:/"))), ""):
        raise ValueError(f'{url} is a server: search it by `llm-locust sweep URL --find "{args.objective}"`')
    objective = parse_objective(args.objective)
    question = Question(slo=args.slo, warmup_s=args.warmup)
    found, warnings = _probes(args.runs, question, objective, args.lengths)
    if not found:
        raise ValueError("the runs have no load: nothing was sent in them")
    bounds = Bounds(found[0].load, precision=args.precision, most_stages=args.max_stages)
    step = next_step(objective, bounds, found)
    stages = search_stages(objective, found, [None] * len(found))
    with printing():
        if args.json:
            unit = UNITS[objective.axis]
            facts = {"warnings": warnings, "objective": objective.text, "unit": unit, "stages": stages}
            result = search_answer(step) if isinstance(step, SearchResult) else None
            ends = {"next": step if result is None else None, "answer": result}
            print(shown_json(to_builtins(ends | facts), indent=2))
        else:
            print_sections(_sections(objective, stages, step, warnings), sys.stdout)
    return 0


def _probes(
    runs: Sequence[Path], question: Question, objective: Objective, lengths: str | None
) -> tuple[list[Probe], list[str]]:
    """Of all stages in the order in which they ran, and what the runs differ in beside their load.

    Raises:
        ValueError: a run is given twice.
    """
    # Imported here: the options take longer to import than this command's help.
    from llm_locust.options.table import NOT_LOAD

    not_load = NOT_LOAD | _HOW_MUCH
    by_time: list[tuple[int, list[Probe]]] = []
    known: dict[str, Path] = {}
    first: Compared | None = None
    warnings: list[str] = []
    for path in runs:
        with open_source([path], question) as source:
            manifest = source.manifest
            if (before := known.setdefault(manifest.id, path)) is not path:
                raise ValueError(f"{str(before)!r} and {str(path)!r} are one run: give it once")
            if len(runs) > 1 and question.slo is None and manifest.slo:
                question = replace(question, slo=manifest.slo)  # of the first run that has one
            theirs = probes(source.requests, manifest, question, objective, lengths)
            by_time.append((manifest.started_ns, theirs))
            if len(runs) > 1:
                compared = measure_for_comparison(source.requests, manifest, question)
                first = first or compared
                between = f"{runs[0].name} and {path.name}"
                warnings += [f"{between}: {text}" for text in unlike_beside_load(first, compared, not_load)]
    return [probe for _, found in sorted(by_time, key=lambda each: each[0]) for probe in found], warnings


def _sections(
    objective: Objective,
    stages: Sequence[SearchStage],
    step: NextStage | SearchResult,
    warnings: Sequence[str],
) -> list[Section]:
    unit = UNITS[objective.axis]
    shown = [readings(clean(objective.text), unit, stages)]
    if warnings:
        lines = tuple(Line(clean(text), Tone.WARN) for text in warnings)
        shown.insert(0, Section("The runs differ in more than their load", lines, stacked=True))
    if isinstance(step, SearchResult):
        return [*shown, answer(unit, search_answer(step))]
    line = f"{number(step.load)} {unit}: {clean(step.why)}"
    return [*shown, Section("Run next", (Line(line, Tone.WARN),))]
