"""``llm-locust compare``: its options and output."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from llm_locust.core.texts import argument, parse_time
from llm_locust.figures.relative_gates import parse_relative_gates
from llm_locust.metrics.question import WINDOWS, Question
from llm_locust.report import pareto
from llm_locust.report.comparison import ComparedRuns, answer, compare_runs
from llm_locust.report.comparison_page import as_data, page, sections
from llm_locust.report.console import print_sections
from llm_locust.report.markdown import markdown_of
from llm_locust.report.output import printing, shown_json
from llm_locust.store import StoreError, write_text

DESCRIPTION = (
    "Compare two runs and report which differences are beyond noise; for several runs, report "
    "how figures moved over time. The last line is the answer. Exit code 1 when a gate broke beyond noise, 3 "
    "when the runs cannot show whether it held."
)

FORMATS = ("console", "json", "md")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llm-locust compare``."""
    parser.add_argument("base", type=Path, metavar="BASE", help="run directory to compare with")
    parser.add_argument(
        "new", type=Path, nargs="+", metavar="NEW", help="run directory, or several over time"
    )
    parser.add_argument(
        "--gate",
        default="",
        metavar="TEXT",
        help='limits of the change: "p99_ttft<=+5%% goodput>=-1%%", of a share also in points: '
        '"error_rate<=+0.5pp"; one breaks when it is over by more than noise; '
        "of several runs on the last against the first",
    )
    parser.add_argument(
        "--gate-unknown",
        choices=("fail", "pass"),
        default="fail",
        help="result of a gate if the runs cannot show whether it held: too few samples, or too "
        "much noise; fail is exit code 3 (%(default)s)",
    )
    parser.add_argument("--slo", metavar="TEXT", help="limits that all runs are judged by (the first run's)")
    parser.add_argument(
        "--window", choices=WINDOWS, default="run", help="as in llm-locust report (%(default)s)"
    )
    parser.add_argument(
        "--warmup", type=argument(parse_time), metavar="TIME", help="left out at each start, such as 30s"
    )
    parser.add_argument(
        "--format", choices=FORMATS, default="console", help="md: for a pull request (%(default)s)"
    )
    parser.add_argument("--json", action="store_const", dest="format", const="json", help="--format json")
    parser.add_argument(
        "--full", action="store_true", help="all figures, not only the main ones and those that moved"
    )
    parser.add_argument(
        "--pareto",
        action="store_true",
        help="instead, tokens/s per user and per GPU of every load of the runs, sweeps among them, and which "
        "of them no other is better than; --html also writes FILE.csv",
    )
    parser.add_argument("--gpus", type=_gpus, metavar="N", help="GPUs of each run (what its options say)")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page with charts")


def run(args: argparse.Namespace) -> int:
    """Compare and print. Return the exit code.

    0, 1 for a broken gate, 3 for a gate that the runs cannot decide (raises ValueError or OSError).
    """
    # Imported here: the options take longer to import than this command's help.
    from llm_locust.options.table import NOT_LOAD

    paths: Sequence[Path] = [args.base, *args.new]
    if args.pareto:
        return _pareto(args, paths)
    outcome = compare_runs(
        paths,
        Question(slo=args.slo, window=args.window, warmup_s=args.warmup),
        gates=parse_relative_gates(args.gate),
        gate_unknown=args.gate_unknown,
        not_load=NOT_LOAD,
    )
    if args.html is not None:
        _write_page(args.html, outcome)
    with printing():
        _print(outcome, args.format, full=args.full)
    return outcome.exit_code


def _pareto(args: argparse.Namespace, paths: Sequence[Path]) -> int:
    """Print the points of all runs, write the page and its CSV. Return 0 (raises ValueError or OSError)."""
    if args.gate or args.window != "run" or args.warmup is not None or args.format == "json":
        raise ValueError("--pareto takes no --gate, --window, --warmup or --json: leave them out")
    found = pareto.pareto_of(paths, args.slo, args.gpus)
    if args.html is not None:
        write_text(args.html, pareto.pareto_page(found))
        write_text(args.html.with_name(f"{args.html.name}.csv"), pareto.pareto_csv(found))
    with printing():
        if args.format == "md":
            print(markdown_of("Comparison of runs", [], pareto.sections(found)), end="")
        else:
            print_sections(pareto.sections(found), sys.stdout)
    return 0


def _gpus(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r}: write a number of GPUs, such as 8")
    return found


def _write_page(path: Path, outcome: ComparedRuns) -> None:
    try:
        write_text(path, page(outcome))
    except OSError as e:
        raise StoreError(f"the page {str(path)!r} cannot be written: {e.strerror or e}") from e


def _print(outcome: ComparedRuns, form: str, *, full: bool) -> None:
    if form == "json":
        print(shown_json(as_data(outcome), indent=2))
    elif form == "md":
        print(markdown_of("Comparison of runs", [], sections(outcome)), end="")
    else:
        print_sections(sections(outcome, full=full), sys.stdout, last=answer(outcome).line)
