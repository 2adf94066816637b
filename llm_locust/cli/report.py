"""``llm-locust report``: a run's report from its records, with other limits if given."""

import argparse
import sys
from dataclasses import asdict, replace
from pathlib import Path
from shlex import quote
from typing import Any

import pyarrow as pa

from llm_locust.core.files import replacing
from llm_locust.core.texts import argument, parse_time
from llm_locust.figures.parts import DIMENSIONS, parse_dimensions
from llm_locust.figures.verdict import RunVerdict, verdict
from llm_locust.metrics.question import WINDOWS, Prices, Question, parse_window
from llm_locust.metrics.stats.censoring import parse_percentiles
from llm_locust.options.option import parse_count
from llm_locust.report.analysis import Analysis, analyse, write_reports
from llm_locust.report.benchmark_formats import dynamo, vllm_json
from llm_locust.report.console import print_report
from llm_locust.report.formats import FORMAT, Format
from llm_locust.report.headline import Headline, headline_of
from llm_locust.report.inputs import Source, answers_of, open_source
from llm_locust.report.output import one_line, printing
from llm_locust.report.so_far import open_so_far
from llm_locust.roofline import read_model
from llm_locust.store import StoreError, create_run_dir, holds_a_run

DESCRIPTION = (
    "Compute a report from a run's records again, with other limits, another window or for some of "
    "its requests, and print it. A plain report is written into the run "
    "directory; any other leaves the run's own report unchanged, and is written to --out."
)

_PRICES = {
    "gpu_hour_cost": "price of one GPU for an hour",
    "gpus": "GPUs of the deployment",
    "input_token_price": "price of a million input tokens",
    "output_token_price": "price of a million output tokens",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llm-locust report``."""
    parser.add_argument(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="run directory, such as runs/demo; several are one population; spools and the directory of an "
        "unfinished run are merged first",
    )
    _add_questions(parser.add_argument_group("what is asked"))
    told = parser.add_argument_group("what is printed and written")
    told.add_argument("--so-far", action="store_true", help="report on the records so far of a running run")
    told.add_argument(
        "--skip-bad",
        action="store_true",
        help="leave out the unreadable part of a damaged run: its records are then missing",
    )
    formats = ", ".join(f"{each.name} ({each.meaning})" for each in FORMAT.values())
    told.add_argument(
        "--format",
        choices=("console", *FORMAT),
        default="console",
        metavar="FORMAT",
        help=f"what is printed: console (default), {formats}",
    )
    told.add_argument("--full", action="store_true", help="on the console: all sections of the report")
    told.add_argument(
        "--save-detailed", action="store_true", help="with --format vllm: the lists of every request too"
    )
    told.add_argument(
        "--max-kv-tokens",
        type=argument(parse_count),
        metavar="N",
        help="with --format dynamo: tokens that the KV cache of the engine holds",
    )
    told.add_argument("--out", type=Path, metavar="DIR", help="write the reports into this directory")
    told.add_argument(
        "--allow-incomplete", action="store_true", help="missing records do not make the exit code 4"
    )


def _add_questions(asked: argparse._ArgumentGroup) -> None:
    asked.add_argument("--slo", metavar="TEXT", help='limits of a request: "ttft=500ms tpot=50ms"')
    asked.add_argument("--gate", metavar="TEXT", help='limits of the run: "goodput>=95%% p99_ttft<800ms"')
    asked.add_argument(
        "--warmup", type=argument(parse_time), metavar="TIME", help="left out at the start, such as 30s"
    )
    asked.add_argument(
        "--window",
        type=argument(parse_window),
        default=None,
        metavar="WINDOW",
        help=f"{WINDOWS[0]}: without warm-up and drain; {WINDOWS[1]}: the longest span of steady "
        "concurrency; 30s-90s: a span after the run's start (default: the run's own)",
    )
    asked.add_argument(
        "--percentiles",
        type=argument(parse_percentiles),
        metavar="LIST",
        help="of the latencies, such as 50,90,99,99.9",
    )
    asked.add_argument(
        "--by",
        type=argument(parse_dimensions),
        default=(),
        metavar="LIST",
        help=f"break the figures down by these, such as replica,turn: {', '.join(DIMENSIONS)}",
    )
    asked.add_argument(
        "--quality-baseline",
        type=Path,
        metavar="RUN",
        help="a run of the same prompts, such as on an idle server, whose accuracy is shown for comparison",
    )
    asked.add_argument(
        "--where",
        metavar="TEXT",
        help='only requests that meet it: "input_tokens>1000 and name==chat", "not (ttft<=500ms or reused)"',
    )
    for name, meaning in _PRICES.items():
        asked.add_argument(f"--{name.replace('_', '-')}", type=float, metavar="N", help=meaning)
    asked.add_argument("--gpu-type", metavar="NAME", help="the GPU type, as h100: for MFU and MBU")
    asked.add_argument(
        "--model-shape", metavar="FILE", help="the model's shape, a YAML file (documentation: roofline.md)"
    )


def run(args: argparse.Namespace) -> int:
    """Report, and return the exit code: see :func:`~llm_locust.figures.verdict.verdict`.

    Raises:
        ValueError, OSError: input that cannot be read, or options that cannot be used.
    """
    try:
        _refuse_senseless(args)
        question = _question(args)
        opened = (
            open_so_far(args.runs[0])
            if args.so_far
            else open_source(args.runs, question, skip_bad=args.skip_bad)
        )
        with opened as source:
            for line in source.unreadable:
                _say(f"warning: {line}")
            analysis = analyse(source, question)
            directory = _directory(args, source, question)
            text = _text(args, analysis)
            found = verdict(analysis.summary, analysis.manifest, args.allow_incomplete)
            _write(args, directory, analysis, text, found)
    except (UnicodeDecodeError, pa.ArrowException, ArithmeticError, LookupError) as e:
        runs = ", ".join(map(str, args.runs))
        raise ValueError(f"the records of {runs} hold an invalid value: {one_line(e)}") from e
    code = 0 if found is None else found.code
    _print(args, directory, analysis, text, source, replace(headline_of(analysis.summary, found), code=code))
    return code


def _question(args: argparse.Namespace) -> Question:
    return Question(
        slo=args.slo,
        gates=args.gate,
        warmup_s=args.warmup,
        window=args.window,
        percentiles=args.percentiles,
        by=args.by,
        where=args.where,
        quality_baseline=answers_of(args.quality_baseline) if args.quality_baseline else None,
        prices=Prices(**{name: getattr(args, name) for name in _PRICES}) or None,
        roof=_roof(args),
    )


def _roof(args: argparse.Namespace) -> dict[str, Any] | None:
    """Options of the roofline that were given, with the content of --model-shape; the number of GPUs alone
    requests none (raises RooflineError)."""
    given = {name: getattr(args, name) for name in ("gpu_type", "model_shape", "gpus")}
    given = {name: value for name, value in given.items() if value is not None}
    if "model_shape" in given:
        given["model_shape"] = asdict(read_model(Path(given["model_shape"])))
    return None if given.keys() <= {"gpus"} else given


def _refuse_senseless(args: argparse.Namespace) -> None:
    if args.warmup is not None and not isinstance(args.window, str | None):
        raise ValueError("--warmup and a window FROM-TO: give one of them, FROM leaves the warm-up out")
    if args.so_far and len(args.runs) != 1:
        raise ValueError("--so-far takes one run: the one that still goes on")
    if args.save_detailed and args.format != "vllm":
        raise ValueError("--save-detailed adds lists to --format vllm only: leave it out")
    if args.max_kv_tokens is not None and args.format != "dynamo":
        raise ValueError("--max-kv-tokens is of --format dynamo only: leave it out")
    if args.out is not None and holds_a_run(args.out):
        raise ValueError(f"--out {str(args.out)!r} holds a run, whose own report stays: name a new directory")


def _directory(args: argparse.Namespace, source: Source, question: Question) -> Path | None:
    """Directory of the reports: --out, or that of the run if this is its own report."""
    if args.out is not None:
        return Path(args.out)
    own = question.is_plain and len(source.runs) == 1 and not source.merged
    return args.runs[0] if own and len(args.runs) == 1 else None


def _text(args: argparse.Namespace, analysis: Analysis) -> str | None:
    """Text to print; None for the console's report, which depends on the terminal."""
    if args.format == "console":
        return None
    wanted = FORMAT[args.format]
    _refuse_other_scope(wanted, analysis)
    if wanted.name == "vllm":
        return vllm_json(analysis, args.percentiles, detailed=args.save_detailed)
    if wanted.name == "dynamo":
        return dynamo(analysis, args.max_kv_tokens)
    return wanted.text(analysis)


def _refuse_other_scope(wanted: Format, analysis: Analysis) -> None:
    """Refuse a format for a run that it has no figures of (raises ValueError)."""
    if wanted.scope == "any run":
        return
    name = f"--format {wanted.name}"
    if wanted.scope == "one load" and analysis.summary.is_sweep:
        raise ValueError(f"{name} is of one load, and a sweep has several: add --where stage==0")
    if wanted.scope == "a sweep" and not analysis.summary.is_sweep:
        raise ValueError(f"{name} is of a sweep, and this is one load: make a run with --sweep")
    if analysis.summary.arms:
        raise ValueError(f"{name} is of one server, and the run has several arms: add --where arm==NAME")
    if analysis.summary.inputs is not None:
        raise ValueError(
            f"{name} is of generated tokens, and embeddings and rerank have none: add "
            "--where endpoint==chat for the chat requests alone, or take --format json"
        )


def _write(
    args: argparse.Namespace,
    directory: Path | None,
    analysis: Analysis,
    text: str | None,
    found: RunVerdict | None,
) -> None:
    if directory is None:
        return
    if args.out is not None:
        create_run_dir(directory)
    write_reports(directory, analysis, found)
    if args.out is None or text is None:
        return
    try:
        for path, content in FORMAT[args.format].written(text).items():
            (directory / path).parent.mkdir(exist_ok=True)
            with replacing(directory / path) as file:
                file.write(content)
    except OSError as e:
        raise StoreError(f"the report in {str(directory)!r} cannot be written: {e.strerror or e}") from e


def _print(
    args: argparse.Namespace,
    directory: Path | None,
    analysis: Analysis,
    text: str | None,
    source: Source,
    found: Headline,
) -> None:
    own = directory is not None and args.out is None
    with printing():
        if text is None:
            run_dir = directory if own else None
            print_report(analysis.summary, run_dir, sys.stdout, found=found, full=args.full)
        else:
            sys.stdout.write(text)
    if directory is None and source.merged and not args.so_far:
        runs = " ".join(quote(str(run)) for run in args.runs)
        _say(
            "nothing was written: the report is of batches that are in no finished run yet; --out DIR keeps "
            f"it, `llm-locust merge {runs} --out NEW` makes a run of them with a report of its own"
        )
    elif directory is None:
        _say("nothing was written, the run's own report is unchanged; --out DIR keeps this one")
    elif not own:
        _say(f"written into {str(directory)!r}")


def _say(text: str) -> None:
    print(f"llm-locust report: {one_line(text)}", file=sys.stderr)
