"""The ``llm-locust`` command: one lazy table of commands, one module a command.

A module of a command has ``DESCRIPTION``, ``add_arguments(parser)`` and ``run(args)``, which returns the exit
code. Only the module of the command that is run is imported.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType

from llm_locust.cli.parser import CommandParser, did_you_mean


@dataclass(frozen=True, slots=True)
class Command:
    """A command: the module that runs it, and its line in the help.

    Attributes:
        splits: its arguments after ``--`` are not its own; ``args.rest`` has them.
        hint: ends the error about an unknown option.
    """

    module: str
    help: str
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
            "llm_locust.cli.sweep",
            "measure several loads in one run",
            splits=True,
            hint="; options of Locust itself go after --; see --help",
        ),
        "doctor": Command("llm_locust.cli.doctor", "check this machine and a server before a run"),
        "report": Command("llm_locust.cli.report", "compute the report of a run again, with other limits"),
        "compare": Command("llm_locust.cli.compare", "show what changed between runs, beyond noise"),
        "find": Command("llm_locust.cli.find", "find the highest load under which limits hold"),
        "presets": Command("llm_locust.cli.presets", "list the loads that --preset knows"),
        "plan": Command("llm_locust.cli.plan", "plan replicas and cost for a rate, from a sweep"),
        "options": Command("llm_locust.cli.options", "list all options of a load test"),
        "sim": Command("llm_locust.sim.command", "serve a simulated deployment to test against"),
        "merge": Command("llm_locust.cli.merge", "make a run of what its master and workers have left"),
        "upload": Command("llm_locust.cli.upload", "copy a run to an object store, or continue an upload"),
        "k8s": Command("llm_locust.k8s.command", "run a load in Kubernetes, or print its manifests"),
        "roofline": Command("llm_locust.cli.roofline", "compute what given GPUs allow at best"),
        "schema": Command(
            "llm_locust.cli.schema", "print the JSON schema of summary.json, or a table of its keys"
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
    parser = CommandParser(prog=f"llm-locust {name}", description=module.DESCRIPTION, hint=command.hint)
    module.add_arguments(parser)
    rest: list[str] = []
    if command.splits and "--" in words:
        at = words.index("--")
        words, rest = words[:at], words[at + 1 :]
    args = parser.parse_args(words)
    if command.splits:
        args.rest = rest
    code: int = module.run(args)
    return code
