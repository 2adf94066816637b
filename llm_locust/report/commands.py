"""``python -m llm_locust.report.commands COMMAND ...``: work on run directories for other processes.

A process whose event loop must stay free, or that must outlive a report that runs out of memory, has it done
by one of these. Each imports only what it needs.
"""

import os
import sys
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from llm_locust.figures.verdict import RunVerdict
from llm_locust.host import exhausted
from llm_locust.report.output import one_line

#: Below a master that answers heartbeats on the same few cores: of a report that is waited for, and of what
#: may wait while a run goes on.
_NICENESS, _LOW_NICENESS = 5, 10


class FinishAnswer(msgspec.Struct, frozen=True):
    """The line of JSON of ``finish`` and ``join``: the verdict on the run, or why there is no report."""

    verdict: RunVerdict | None
    error: str | None


def main(argv: Sequence[str] | None = None) -> int:
    """Do one piece of work; gives 0, or 1 where it could not be done, and a line says why."""
    parser = ArgumentParser(
        prog="python -m llm_locust.report.commands",
        description="Work on run directories for other processes.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, work: Callable[[Namespace], int], description: str) -> ArgumentParser:
        found = commands.add_parser(name, help=description, description=description)
        found.set_defaults(work=work)
        return found

    finish = command(
        "finish", _finish, "Compact the batches of an ended run, and write its summary and reports."
    )
    finish.add_argument("run", type=Path, metavar="RUN", help="run directory")
    join = command("join", _join, "Write one report of all parts of a run.")
    join.add_argument("run", type=Path, metavar="DIR", help="the --out of a --restartable run")
    for each in (finish, join):
        each.add_argument(
            "--allow-incomplete", action="store_true", help="missing records do not make the exit code 4"
        )
    so_far = command("so-far", _so_far, "Write summary and reports of a run that goes on into its so-far.")
    so_far.add_argument("run", type=Path, metavar="RUN", help="run directory")
    stages = command("stages", _stages, "Print what stages of a run that goes on show, as JSON.")
    stages.add_argument("run", type=Path, metavar="RUN", help="run directory")
    stages.add_argument("question", metavar="QUESTION", help="what is asked of which stages, as JSON")
    drop = command("drop", _drop, "Remove the oldest records of a run, once its uploads are confirmed.")
    drop.add_argument("run", type=Path, metavar="RUN", help="run directory")
    drop.add_argument("to", metavar="TO", help="destination of its uploads")
    drop.add_argument("--older-than", type=float, required=True, metavar="S", help="age in seconds")
    drop.add_argument("--ended", action="store_true", help="the run's master is gone")
    compare = command("compare", _compare, "Write the page of a comparison.")
    compare.add_argument("base", type=Path, metavar="BASE", help="run directory to compare with")
    compare.add_argument("new", type=Path, metavar="NEW", help="run directory")
    compare.add_argument("file", type=Path, metavar="FILE", help="the page to write")
    args = parser.parse_args(argv)
    code: int = args.work(args)
    return code


def _finish(args: Namespace) -> int:
    from llm_locust.report.finish import finish_run

    return _reported(args.run, lambda: finish_run(args.run, allow_incomplete=args.allow_incomplete).verdict)


def _join(args: Namespace) -> int:
    from llm_locust.report.finish import join_parts

    return _reported(args.run, lambda: join_parts(args.run, allow_incomplete=args.allow_incomplete).verdict)


def _reported(run: Path, work: Callable[[], RunVerdict | None]) -> int:
    from llm_locust.report.finish import advice

    with suppress(OSError):
        os.nice(_NICENESS)
    try:
        answer = FinishAnswer(work(), None)
    except MemoryError:
        answer = FinishAnswer(None, f"memory has run out; {advice(run, out_of_memory=True)}")
    except (OSError, ValueError) as e:  # a full disk, a damaged file: a traceback would say no more
        answer = FinishAnswer(None, one_line(exhausted(e) or e))
    except Exception as e:
        if (reason := exhausted(e)) is not None:
            answer = FinishAnswer(None, f"{reason}; {advice(run)}")
        else:
            traceback.print_exc()
            answer = FinishAnswer(None, f"a defect of llm-locust, {type(e).__name__}: {one_line(e)}")
    return _answered(answer, answer.error)


def _stages(args: Namespace) -> int:
    from llm_locust.report.so_far import StageAnswer, StageQuestion, answer_of

    try:
        question = msgspec.json.decode(args.question, type=StageQuestion)
        if not (question.find or question.until):  # nothing waits for it while the load goes on
            os.nice(_LOW_NICENESS)
        answer = answer_of(args.run, question)
    except (OSError, ValueError) as e:
        answer = StageAnswer(error=one_line(e))
    return _answered(answer, answer.error)


def _answered(answer: msgspec.Struct, error: str | None) -> int:
    """Print an answer as one line of JSON; who asked may be gone."""
    # All of it: a pipe takes less than the figures of many stages at once. Nothing is left for the exit.
    with suppress(BrokenPipeError), open(sys.stdout.fileno(), "wb", closefd=False) as out:
        out.write(msgspec.json.encode(answer) + b"\n")
    return 0 if error is None else 1


def _so_far(args: Namespace) -> int:
    from llm_locust.report.so_far import write_so_far

    return _done_beside(lambda: write_so_far(args.run))


def _drop(args: Namespace) -> int:
    from llm_locust.report.dropping import drop
    from llm_locust.store import StoreError

    def work() -> None:
        done = drop(args.run, args.to, args.older_than, ended=args.ended)
        if done.records:
            print(done)
        if done.failure:
            raise StoreError(done.failure)

    return _done_beside(work)


def _compare(args: Namespace) -> int:
    from llm_locust.report.comparison import compare_runs
    from llm_locust.report.comparison_page import page
    from llm_locust.store import write_text

    return _done_beside(lambda: write_text(args.file, page(compare_runs([args.base, args.new]))))


def _done_beside(work: Callable[[], object]) -> int:
    """Do some work; where that is not possible (OSError, ValueError) a line on standard error says why."""
    with suppress(OSError):
        os.nice(_LOW_NICENESS)
    try:
        work()
    except (OSError, ValueError) as e:
        print(one_line(e), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
