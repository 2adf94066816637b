"""``llm-locust find`` and ``plan``: the highest load under which limits hold, and what a rate takes."""

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from msgspec import to_builtins

from llm_locust.core.stages import of_lengths
from llm_locust.core.texts import argument, parse_time
from llm_locust.figures.bottleneck import (
    Capacity,
    CapacityNeed,
    NoCapacityError,
    capacity_of_law,
    capacity_under_slo,
    need,
    replicas_at_once,
)
from llm_locust.figures.comparison import unlike_beside_load
from llm_locust.figures.edge import Bounds, NextStage, SearchResult
from llm_locust.figures.objective import UNITS, Objective, Probe, parse_objective, probes
from llm_locust.figures.search import (
    SearchStage,
    answer,
    last_answer,
    next_step,
    parse_share,
    readings,
    search_answer,
    search_stages,
)
from llm_locust.figures.sides import Compared, measure_for_comparison
from llm_locust.figures.stages import Stage
from llm_locust.figures.summary import Summary
from llm_locust.figures.text import (
    Column,
    Line,
    Section,
    Table,
    TableRow,
    Tone,
    clean,
    count,
    number,
    percent,
    plural,
)
from llm_locust.metrics.question import Question
from llm_locust.report.analysis import analyse
from llm_locust.report.console import print_sections
from llm_locust.report.inputs import Source, open_source
from llm_locust.report.output import printing, shown_json

# --- ``llm-locust find``: the next load, or the answer, from runs at several loads


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
            print_sections(_find_sections(objective, stages, step, warnings), sys.stdout)
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


def _find_sections(
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


# --- ``llm-locust plan``: replicas, GPUs and cost for a rate, from a sweep


PLAN_DESCRIPTION = (
    "Plan replicas, GPUs and cost for a rate of requests of the mix that a sweep or a search measured, under "
    "its SLO; documentation: capacity.md."
)


@dataclass(frozen=True, slots=True)
class _Measured:
    """What a run shows: its capacity, its replicas, and the loads that are not used.

    ``names`` are those that replicas were counted by, ``are_addresses``: of connections. None where their
    number was given.
    """

    capacity: Capacity
    replicas: int
    unused: tuple[Stage, ...]
    names: int
    are_addresses: bool


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llm-locust plan``."""
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory of a sweep or a search")
    parser.add_argument("--rate", type=_positive, required=True, metavar="R", help="requests/s to plan for")
    parser.add_argument("--slo", metavar="TEXT", help="limits per request (the run's own)")
    parser.add_argument("--lengths", metavar="IN:OUT", help="of a sweep over lengths: the pair to plan for")
    parser.add_argument(
        "--goodput",
        type=argument(parse_share),
        default=0.95,
        metavar="SHARE",
        help="share of requests that must meet the SLO (95%%)",
    )
    parser.add_argument(
        "--replicas",
        type=_whole,
        metavar="N",
        help="replicas that were measured (those that answers named; required if they named none, or with "
        "prefill and decode apart)",
    )
    parser.add_argument(
        "--spare", type=_from_0, default=1, metavar="N", help="replicas that may be lost (%(default)s)"
    )
    parser.add_argument(
        "--gpus-per-replica", type=_positive, metavar="N", help="GPUs of one of these replicas"
    )
    parser.add_argument("--price-per-gpu-hour", type=_positive, metavar="P", help="in any currency")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_plan(args: argparse.Namespace) -> int:
    """Print the plan. Return the exit code, 0 (raises ValueError or OSError)."""
    if args.price_per_gpu_hour is not None and args.gpus_per_replica is None:
        raise ValueError("--price-per-gpu-hour without --gpus-per-replica: give both for a cost")
    with open_source([args.run], Question(slo=args.slo)) as source:
        found = _measured(source, args)
    wanted = need(
        found.capacity,
        args.rate,
        measured_replicas=found.replicas,
        spare=args.spare,
        gpus_per_replica=args.gpus_per_replica,
        gpu_hour_price=args.price_per_gpu_hour,
    )
    with printing():
        if args.json:
            print(shown_json(_plan_data(found, wanted), indent=2))
        else:
            print_sections(list(_plan_sections(found, wanted)), sys.stdout)
    return 0


def _measured(source: Source, args: argparse.Namespace) -> _Measured:
    question = Question(slo=args.slo, gates="")
    summary = analyse(source, question).summary
    if not summary.is_sweep or not summary.stages:
        raise NoCapacityError("the run is no sweep: a plan needs several loads, by llm-locust sweep")
    replicas = args.replicas or _counted(summary)
    names = 0 if args.replicas else len(summary.replicas)
    by_address = not args.replicas and summary.fairness.named_by == "peer"
    numbers = {stage.number for stage in of_lengths(source.manifest.stages, args.lengths)}
    stages = [stage for stage in summary.stages if stage.number in numbers]
    unused = tuple(stage for stage in stages if not stage.is_result)
    capacity = _capacity(source, question, summary, stages, args)
    return _Measured(capacity, replicas, unused, names, by_address)


def _counted(summary: Summary) -> int:
    """The replicas that served at a time, by their names; raises NoCapacityError where these do not tell."""
    if summary.server is not None and summary.server.pools is not None:
        raise NoCapacityError(
            "prefill and decode are apart, and answers name servers of one role: the GPUs of the other would "
            "be in no plan; give --replicas 1, and as --gpus-per-replica all GPUs of the deployment"
        )
    return replicas_at_once([each.in_flight for each in summary.replicas])


def _capacity(
    source: Source, question: Question, summary: Summary, stages: Sequence[Stage], args: argparse.Namespace
) -> Capacity:
    kind, goodput = stages[0].kind, args.goodput
    if not question.slo_of(source.manifest).limits and not source.manifest.class_slos:
        curve = summary.curve_of(stages[0].pair)
        usl = None if curve is None else curve.usl
        if usl is None:
            why = "" if curve is None else curve.missing.get("usl", "")
            raise NoCapacityError(f"without an SLO the throughput decides, and it shows nothing: {why}")
        return capacity_of_law(usl)
    axis = "rate" if kind == "rate" else "concurrency"
    objective = parse_objective(f"max {axis} under goodput>={goodput:g}")
    found = probes(source.requests, source.manifest, question, objective, args.lengths)
    held = last_answer(objective, Bounds(found[0].load, seed=source.manifest.seed), found)
    return capacity_under_slo(held, stages, kind, found, goodput)


def _plan_sections(found: _Measured, wanted: CapacityNeed) -> Iterator[Section]:
    yield Section("Measured", tuple(_measured_lines(found)), stacked=True)
    lost = f"{plural(wanted.spare, 'replica')} may be lost" if wanted.spare else "none may be lost"
    rows = [
        TableRow(("replicas", _range(wanted), lost)),
        TableRow(("used of their capacity", percent(wanted.used), "with all replicas")),
    ]
    if wanted.replicas > 1:
        tone = Tone.BAD if wanted.used_after_loss > 1 else Tone.PLAIN
        after = (
            "more than they take: the SLO breaks" if wanted.used_after_loss > 1 else "after the loss of one"
        )
        rows.append(TableRow(("", percent(wanted.used_after_loss), after), tone))
    if wanted.gpus is not None:
        rows.append(TableRow(("GPUs", number(wanted.gpus), "")))
    if wanted.cost_per_hour is not None:
        rows.append(TableRow(("cost per hour", number(wanted.cost_per_hour), "")))
        rows.append(TableRow(("cost of a million requests", number(wanted.cost_per_million), "at this rate")))
    columns = (Column("", left=True), Column("plan"), Column("", left=True, wraps=True))
    yield Section(
        f"For {number(wanted.rate)} requests/s",
        table=Table(columns, tuple(rows)),
        notes=tuple(_reservations(found, wanted)),
        stacked=True,
    )


def _range(wanted: CapacityNeed) -> str:
    if wanted.fewest == wanted.most:
        return count(wanted.replicas)
    return f"{count(wanted.replicas)} ({count(wanted.fewest)} to {count(wanted.most)})"


def _measured_lines(found: _Measured) -> Iterator[Line]:
    capacity = found.capacity
    ends = (
        "without an interval"
        if capacity.low is None
        else f"{number(capacity.low)} held, {number(capacity.high)} broke it"
        if capacity.is_bracket
        else f"at least {number(capacity.low)}"
        if capacity.high is None
        else f"{number(capacity.low)} to {number(capacity.high)}, 95 % interval"
    )
    bound = "at least " if capacity.is_bound else ""
    of = plural(found.replicas, "replica")
    yield Line(f"{bound}{number(capacity.rate)} requests/s of {of} ({ends}): {clean(capacity.basis)}")
    for stage in found.unused:
        why = clean(stage.reasons[0] if stage.reasons else "")
        breaks = stage.saturated or stage.all_failed
        use = "is no result" if breaks else "is not used"
        tone = Tone.FAINT if breaks else Tone.WARN
        yield Line(f"stage {stage.number} ({number(stage.asked)}) {use}: {why}", tone)


def _reservations(found: _Measured, wanted: CapacityNeed) -> Iterator[Line]:
    """What the plan assumes beyond what was measured."""
    capacity = found.capacity
    if capacity.is_bracket:
        yield Line("planned with the load that held: no stage was near the edge, try loads there", Tone.WARN)
    elif capacity.low is not None:
        yield Line("planned with the lower end of the interval", Tone.FAINT)
    if capacity.is_bound:
        yield Line("a lower bound: fewer replicas may do; measure higher loads", Tone.WARN)
    if capacity.is_model:
        yield Line("the plateau is a model (universal scalability law): it was not reached", Tone.WARN)
    if capacity.low is None:
        yield Line("the capacity has no interval: make stages longer", Tone.WARN)
    if found.names > found.replicas:
        yield Line(
            f"{found.names} names of replicas answered, {found.replicas} at a time: one that was restarted "
            "counts once; give --replicas if their number was changed",
            Tone.WARN,
        )
    if found.are_addresses:
        yield Line(
            "replicas were counted by the addresses of their connections; give --replicas if these are of "
            "balancers",
            Tone.WARN,
        )
    if wanted.replicas > found.replicas:
        measured = plural(found.replicas, "replica")
        yield Line(
            f"a model beyond the {measured} measured: it takes the load to be spread evenly, and nothing "
            "to be shared by replicas",
            Tone.WARN,
        )


def _plan_data(found: _Measured, wanted: CapacityNeed) -> dict[str, object]:
    after = wanted.used_after_loss
    return {
        "capacity": asdict(found.capacity),
        "replicas_measured": found.replicas,
        "unused_stages": [{"stage": s.number, "load": s.asked, "reasons": s.reasons} for s in found.unused],
        "plan": asdict(wanted) | {"used_after_loss": after if math.isfinite(after) else None},
        "is_model": found.capacity.is_model or wanted.replicas > found.replicas,
    }


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _whole(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def _from_0(text: str) -> int:
    return 0 if text == "0" else _whole(text)
