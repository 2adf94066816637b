"""The ``llm-locust`` command: one lazy table of commands, and the parser of their arguments.

A module of a command has ``DESCRIPTION``, ``add_arguments(parser)`` and ``run(args)``, which returns the exit
code; or it raises a ValueError or an OSError whose text says why it cannot be done, for one line and the exit
code 2. Of a further command of a module, such as merge, they are ``MERGE_DESCRIPTION``,
``add_merge_arguments`` and ``run_merge``. Only the module of the command that is run is imported.
"""

import argparse
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn


@dataclass(frozen=True, slots=True)
class Command:
    """A command: the module that runs it, and its line in the help.

    Attributes:
        is_further: the module has another command that the names without this one's are of.
        splits: its arguments after ``--`` are not its own; ``args.rest`` has them.
        hint: ends the error about an unknown option.
    """

    module: str
    help: str
    is_further: bool = False
    splits: bool = False
    hint: str = "see --help"


#: In the order of the help.
COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "run": Command(
            "llm_locust.cli.run",
            "run a load test and print its report",
            splits=True,
            hint="options of Locust itself go after --; see --help",
        ),
        "sweep": Command(
            "llm_locust.cli.run",
            "measure several loads in one run",
            is_further=True,
            splits=True,
            hint="options of Locust itself go after --; see --help",
        ),
        "doctor": Command("llm_locust.doctor.command", "check this machine and a server before a run"),
        "report": Command("llm_locust.cli.report", "compute the report of a run again, with other limits"),
        "compare": Command("llm_locust.cli.compare", "show what changed between runs, beyond noise"),
        "find": Command("llm_locust.cli.capacity", "find the highest load under which limits hold"),
        "presets": Command("llm_locust.cli.run", "list the loads that --preset knows", is_further=True),
        "plan": Command(
            "llm_locust.cli.capacity", "plan replicas and cost for a rate, from a sweep", is_further=True
        ),
        "options": Command(__name__, "list all options of a load test", is_further=True),
        "sim": Command("llm_locust.sim.command", "serve a simulated deployment to test against"),
        "merge": Command(__name__, "make a run of what its master and workers have left", is_further=True),
        "upload": Command(__name__, "copy a run to an object store, or continue an upload", is_further=True),
        "k8s": Command("llm_locust.k8s.command", "run a load in Kubernetes, or print its manifests"),
        "roofline": Command("llm_locust.cli.roofline", "compute what given GPUs allow at best"),
        "schema": Command(
            __name__, "print the JSON schema of summary.json, or a table of its keys", is_further=True
        ),
    }
)

_HEAD = "Load tests of LLM inference servers."

#: The commands to begin with, and what each is for.
_FIRST = (
    ("llm-locust run --sim", "try it against a simulated server"),
    ("llm-locust run http://HOST:8000", "test a server"),
    ("llm-locust compare runs/A runs/B", "see whether a change made it faster"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 success, 1 a gate broke, 2 usage error, 3 measurement
    invalid, 4 records missing or the run cut short.

    Without a command print the help and return 2: nothing was done.

    Raises:
        SystemExit: by argparse, for ``--help`` of a command and wrong arguments.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        from llm_locust.swarm.process.early_signals import open_standard_files

        open_standard_files()
    name = words[0] if words else ""
    if name in COMMANDS:
        if argv is None:  # the process is the command's own
            if COMMANDS[name].splits:  # it becomes a load test
                from llm_locust.swarm.process.early_signals import end_at_a_signal

                end_at_a_signal()
            from llm_locust.report.output import block_pandas_import

            block_pandas_import()
        return _run(name, words[1:])
    if name in ("-h", "--help", "help"):
        print(help_text())
        return 0
    if name == "--version":
        from importlib.metadata import version

        print(f"llm-locust {version('llm-locust')}")
        return 0
    if not words:
        print(help_text(), file=sys.stderr)
    else:
        kind = "an option" if name.startswith("-") else "a command"
        meant = did_you_mean(name, (*COMMANDS, "--help", "--version"))
        print(f"llm-locust: {name!r} is not {kind}; {meant}see llm-locust --help", file=sys.stderr)
    return 2


def help_text() -> str:
    """The commands, and the ones to begin with."""
    wide = max(len(line) for line, _ in _FIRST)
    return "\n".join(
        (
            "usage: llm-locust COMMAND ...",
            "",
            _HEAD,
            "",
            "begin with:",
            *(f"  {line:<{wide}}  {what}" for line, what in _FIRST),
            "",
            "commands:",
            *(f"  {name:<9} {command.help}" for name, command in COMMANDS.items()),
            "",
            "llm-locust COMMAND --help explains a command, --version prints the version.",
        )
    )


def _run(name: str, words: list[str]) -> int:
    command = COMMANDS[name]
    module = import_module(command.module)
    of, run = (f"{name}_", f"run_{name}") if command.is_further else ("", "run")
    description = getattr(module, f"{of.upper()}DESCRIPTION")
    parser = CommandParser(prog=f"llm-locust {name}", description=description, hint=command.hint)
    getattr(module, f"add_{of}arguments")(parser)
    rest: list[str] = []
    if command.splits and "--" in words:
        at = words.index("--")
        words, rest = words[:at], words[at + 1 :]
    args = parser.parse_args(words)
    if command.splits:
        args.rest = rest
    try:
        code: int = getattr(module, run)(args)
    except (ValueError, OSError) as e:
        from llm_locust.report.output import one_line

        print(f"llm-locust {name}: {one_line(e)}", file=sys.stderr)
        return 2
    return code


# --- Parser of a command's arguments: what is wrong with them, in one line, and what may have been meant


#: Lines of help longer than this are hard to read, however wide the terminal is.
_WIDEST_HELP = 100

_UNKNOWN = "unrecognized arguments: "

#: Options of other tools, as whole words without their dashes, and ours that does the same.
_ELSEWHERE = {
    "--users N": "(max-)?concurren(cy|t|t-requests)|num-(concurrent-requests|users|clients)|c|vus",
    "--num-requests N": "(max-)?requests|(max-)?num-(prompts|request|queries|completed-requests)"
    "|request-count|n",
    "--for TIME": "(benchmark-|max-)?(duration|seconds)|run-time|test-duration|d",
    "--rate R": "rps|qps|arrival-rate|constant-rate",
    "--arrival gamma:CV": "burstiness|arrival-pattern",
    "--input-tokens D": "isl|(random-|mean-|max-|num-|synthetic-)?(input|prompt)-(len|length|tokens)(-mean)?",
    "--output-tokens D": "osl|(random-|mean-|max-|num-|sharegpt-)?output-(len|length|tokens)(-mean)?"
    "|max(-new|-completion)?-tokens",
    "--body JSON": "ignore-eos|extra-(inputs|body|request-body)|additional-sampling-params|sampling-params"
    "|temperature|top-[kp]|min-p",
    "--slo LIMITS": "goodput|sla",
    "--dataset FILE": "dataset-(name|path)|input-file|data(-file)?|prompts?(-file)?|custom-dataset",
    "--out DIR": "save-result|results?-(dir|filename)|output(-dir|-path|-file)?|artifact-dir(ectory)?",
    "--warmup TIME": "(num-)?warm-?ups?(-request-count|-requests|-count)?",
    "--header NAME=VALUE": "H|headers",
    "--api-key-env NAME": "(openai-)?api-key|auth-token|token",
    "--scenario FILE with `endpoint:`": "backend|endpoint(-type)?|llm-api|service-kind|api",
    "the address as the first word": "(base-)?url|host|target|server(-url)?|api-base|endpoint-url|u",
}


class CommandParser(argparse.ArgumentParser):
    """Reports in one line what is wrong with the arguments; ``--help`` has the usage.

    Args:
        hint: ends the error about an unknown option.
    """

    def __init__(self, *args: Any, hint: str = "see --help", **kwargs: Any) -> None:
        super().__init__(*args, **{"formatter_class": _HelpFormatter, "allow_abbrev": False, **kwargs})
        self._hint = hint

    def error(self, message: str) -> NoReturn:
        if message.startswith(_UNKNOWN):
            message = self._unknown(message.removeprefix(_UNKNOWN))
        self.exit(2, f"{self.prog}: {message}\n")

    def _unknown(self, words: str) -> str:
        word = next((each for each in words.split() if each.startswith("-")), "")
        if not word:
            return f"unexpected {words!r}; {self._hint}"
        flag = word.partition("=")[0]
        flags = set(_flags(self))
        ours = _ours(flag) if "--users" in flags else None
        here = did_you_mean(flag, flags) if ours is None else f"here it is {ours}; "
        return f"unknown option {flag}; {here}{self._hint}"


def _ours(flag: str) -> str | None:
    """What does the same here as an option of another tool; None where it is none."""
    word = flag.lstrip("-").replace("_", "-")
    return next((ours for ours, theirs in _ELSEWHERE.items() if re.fullmatch(theirs, word)), None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``did you mean X? ``, or an empty text if nothing known is similar to ``word``."""
    close = get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]}? " if close else ""


def _flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _flags(inner)


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Wraps the description, and keeps the lines of the epilog."""

    def __init__(self, prog: str, **kwargs: Any) -> None:
        super().__init__(prog, max_help_position=26, width=help_width(), **kwargs)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)


def help_width() -> int:
    """Columns of a help text: the terminal's, if it is not too wide."""
    return min(_WIDEST_HELP, shutil.get_terminal_size().columns - 1)


# --- ``llm-locust options``: the options of a load test


OPTIONS_DESCRIPTION = "List all options of a load test, beside Locust's own."


def add_options_arguments(_: argparse.ArgumentParser) -> None:
    """None."""


def run_options(_: argparse.Namespace) -> int:
    """Print the options. Return the exit code, 0."""
    # Imported here: Locust takes long to import, and patches the standard library.
    from llm_locust.options.table import options_help
    from llm_locust.report.output import printing

    with printing():
        print(options_help())
    return 0


# --- ``llm-locust schema``: the JSON schema of ``summary.json``, or its keys as a table


SCHEMA_DESCRIPTION = (
    "Print the JSON schema of summary.json: every key with its type, and what it means in one sentence. "
    "With --keys, print the same as a table in Markdown."
)


def add_schema_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llm-locust schema``."""
    from llm_locust.figures.reference import sections

    parser.add_argument(
        "--keys",
        nargs="*",
        choices=sections(),
        metavar="SECTION",
        help="print a table of the keys of these sections, such as latency_ms; of all if none is named",
    )


def run_schema(args: argparse.Namespace) -> int:
    """Print it. Return the exit code, 0."""
    from llm_locust.figures.reference import key_table, schema_text, sections
    from llm_locust.report.output import printing

    with printing():
        sys.stdout.write(schema_text() if args.keys is None else key_table(args.keys or sections()))
    return 0


# --- ``llm-locust merge``: a run directory from what is left of a run


MERGE_DESCRIPTION = (
    "Make a run directory from what is left of a run whose master died, or that lacks batches: run "
    "directories and workers' spools, in any order, searched recursively. Then report on it."
)


def add_merge_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llm-locust merge``."""
    parser.add_argument(
        "sources", type=Path, nargs="+", metavar="DIR", help="run directory, spool, or file of frames"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="RUN", help="run directory to make")
    parser.add_argument("--run", metavar="ID", help="id of the run, where there are batches of several")
    parser.add_argument(
        "--allow-incomplete", action="store_true", help="missing records do not make the exit code 4"
    )


def run_merge(args: argparse.Namespace) -> int:
    """Merge, and print the report. Return the report's exit code (raises ValueError or OSError)."""
    from llm_locust.report.analysis import build_report
    from llm_locust.report.console import print_report
    from llm_locust.report.headline import headline_of
    from llm_locust.report.inputs import carry_over
    from llm_locust.report.output import one_line, printing
    from llm_locust.store import merge

    merged = merge(args.sources, args.out, args.run)
    for line in merged.unreadable:
        print(f"llm-locust merge: warning: {one_line(line)}", file=sys.stderr)
    carry_over(args.sources, args.out, merged.manifest.id)
    report = build_report(args.out, allow_incomplete=args.allow_incomplete)
    with printing():
        found = headline_of(report.summary, report.verdict)
        print_report(report.summary, args.out, sys.stdout, found=replace(found, code=report.exit_code))
    return report.exit_code


# --- ``llm-locust upload``: a run directory to an object store; continues an interrupted upload


UPLOAD_DESCRIPTION = (
    "Copy a run directory to TO/<run id>, the manifest last. Files that are there are not sent again. "
    "Credentials come from the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
    "GOOGLE_APPLICATION_CREDENTIALS."
)


def add_upload_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``llm-locust upload``."""
    from llm_locust.core.texts import positive
    from llm_locust.store.upload import RetryPolicy

    parser.add_argument("run", type=Path, metavar="RUN", help="run directory, such as runs/demo")
    parser.add_argument(
        "to", metavar="TO", help="s3://bucket/prefix, gs://bucket/prefix, file:///path, or a path"
    )
    parser.add_argument(
        "--attempts",
        type=positive,
        default=RetryPolicy().attempts,
        metavar="N",
        help="attempts of each step (%(default)s)",
    )


def run_upload(args: argparse.Namespace) -> int:
    """Upload, and print the result in one line. Return the exit code, 0 (raises ValueError or OSError)."""
    from llm_locust.report.output import one_line
    from llm_locust.store.upload import RetryPolicy, SlowStoreError, upload_run

    try:
        with _libraries_unheard():
            done = upload_run(args.run, args.to, RetryPolicy(attempts=args.attempts))
    except SlowStoreError as e:
        print(f"llm-locust upload: {one_line(e)}", file=sys.stderr, flush=True)
        os._exit(2)  # Python, and Arrow, would wait for the thread that waits for the store
    print(done)
    return 0


@contextmanager
def _libraries_unheard() -> Iterator[None]:
    """Arrow writes warnings to standard error itself, with a server's words as they came."""
    try:
        kept = os.dup(2)
    except OSError:  # there is none
        yield
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
