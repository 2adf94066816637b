"""Every text that the present code makes of the run directories in ``runs``.

make frozen  # write it anew into ``expected``, where git shows which lines a change has changed
"""

import html
import io
import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from llm_locust.figures.relative_gates import parse_relative_gates
from llm_locust.figures.summary import Summary
from llm_locust.figures.verdict import RunVerdict, verdict
from llm_locust.metrics.question import PLAIN
from llm_locust.options.table import NOT_LOAD
from llm_locust.report import pareto
from llm_locust.report.analysis import analyse, write_reports
from llm_locust.report.comparison import answer, compare_runs
from llm_locust.report.comparison_page import as_data, page, sections
from llm_locust.report.console import print_report, print_sections
from llm_locust.report.finish import join_parts
from llm_locust.report.headline import headline_of
from llm_locust.report.inputs import open_source
from llm_locust.report.markdown import markdown_of
from llm_locust.report.output import shown_json
from llm_locust.store import REPORT_HTML_FILE, REPORT_MD_FILE, SUMMARY_FILE
from llm_locust.store.facts import parts_of

HERE = Path(__file__).parent
RUNS, EXPECTED = HERE / "runs", HERE / "expected"
NAMES = sorted(path.name for path in RUNS.iterdir())

#: Sets of runs that ``compare`` sets side by side, with its gates.
COMPARED: dict[str, tuple[Sequence[str], str]] = {
    "compare-alike": (("chat", "chat-again"), "p99_ttft<=+20% goodput>=-5pp"),
    "compare-slower": (("chat", "chat-slower"), "p50_tpot<=+10% error_rate<=+1pp p99_ttft<=+100%"),
    "compare-unlike": (("chat", "completions"), ""),
    "compare-three": (("chat", "chat-again", "chat-slower"), "p50_tpot<=+10%"),
}
PARETO = ("sweep", "chat", "chat-slower")

#: The widths of the console and whether all is shown. The run named below has every combination.
CONSOLES = ((80, False), (140, True))
WIDTHS = (80, 140)
EVERY_CONSOLE = "chat"


def normalised(name: str, text: str) -> str:
    """The text without what may differ where nothing has changed; this is all of it:

    - summaries: figures have 9 digits, as the last ones depend on the processor.
    - pages: what they show, one piece of text a line, without scripts and the charts' data.
    """
    if name.endswith(".json"):
        # An encoder that indents is the slow one.
        data = json.dumps(_rounded(json.loads(text)), ensure_ascii=False).encode()
        return msgspec.json.format(data, indent=1).decode() + "\n"
    return _visible(text) if name.endswith(".html") else text


def outputs(name: str) -> dict[str, str]:
    """All texts of a run, or of a comparison, by their file names. They are made in a copy of the runs."""
    with TemporaryDirectory() as folder, chdir(folder):
        if name == "compare-pareto":
            _copied(*PARETO)
            found = dict(_of_pareto())
        elif name in COMPARED:
            _copied(*COMPARED[name][0])
            found = dict(_of_comparison(*COMPARED[name]))
        else:
            _copied(name)
            found = dict(_of_run(Path("runs", name)))
    return {
        file.replace(".html", ".html.txt"): normalised(file, text) for file, text in sorted(found.items())
    }


def every() -> tuple[str, ...]:
    return (*NAMES, *COMPARED, "compare-pareto")


def _copied(*names: str) -> None:
    for name in names:
        shutil.copytree(RUNS / name, Path("runs", name))


def _of_run(run: Path) -> Iterator[tuple[str, str]]:
    summary, judged = _reported(run)
    for name in (SUMMARY_FILE, REPORT_MD_FILE, REPORT_HTML_FILE):
        yield name, (run / name).read_text()
    yield from ((path.name, path.read_text()) for path in run.glob("*.csv"))
    headline = headline_of(summary, judged)
    consoles = product(WIDTHS, (False, True)) if run.name == EVERY_CONSOLE else CONSOLES
    for width, full in consoles:
        file = io.StringIO()
        print_report(summary, run, file, width, found=headline, full=full)
        yield f"console-{width}{'-full' if full else ''}.txt", file.getvalue()


def _reported(run: Path) -> tuple[Summary, RunVerdict | None]:
    """Write a run's own report, as the run's end does."""
    if parts_of(run):
        report = join_parts(run)
        return report.summary, report.verdict
    with open_source([run]) as source:
        found = analyse(source, PLAIN)
        judged = verdict(found.summary, found.manifest, False)
        write_reports(run, found, judged)
        return found.summary, judged


def _of_comparison(names: Sequence[str], gates: str) -> Iterator[tuple[str, str]]:
    paths = [Path("runs", name) for name in names]
    outcome = compare_runs(paths, gates=parse_relative_gates(gates), not_load=NOT_LOAD)
    yield "compare.json", shown_json(as_data(outcome))
    yield "compare.md", markdown_of("Comparison of runs", [], sections(outcome))
    yield "compare.html", page(outcome).decode()
    for width, full in CONSOLES:
        file = io.StringIO()
        print_sections(sections(outcome, full=full), file, width, last=answer(outcome).line)
        yield f"console-{width}{'-full' if full else ''}.txt", file.getvalue()


def _of_pareto() -> Iterator[tuple[str, str]]:
    found = pareto.pareto_of([Path("runs", name) for name in PARETO], None, 2.0)
    yield "pareto.csv", pareto.pareto_csv(found)
    yield "pareto.html", pareto.pareto_page(found).decode()
    for width in WIDTHS:
        file = io.StringIO()
        print_sections(pareto.sections(found), file, width)
        yield f"console-{width}.txt", file.getvalue()


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, Mapping):
        return {key: _rounded(each) for key, each in value.items()}
    return [*map(_rounded, value)] if isinstance(value, list) else value


def _visible(page: str) -> str:
    """The texts of a page, cells of a row on one line."""
    parts = _MARKUP.split(page.replace("\n", " "))
    texts = (text if at % 2 == 0 else _between(text) for at, text in enumerate(parts))
    lines = (" ".join(html.unescape(line).split()) for line in "".join(texts).split("\n"))
    return "\n".join(filter(None, lines)) + "\n"


#: Scripts, styles, comments and tags of a page.
_MARKUP = re.compile(
    r"""(<(?:script|style)\b.*?</(?:script|style)>|<!--.*?-->|<[!/a-z](?:[^>"']|"[^"]*"|'[^']*')*>)"""
)
_INLINE = frozenset({"a", "abbr", "b", "code", "em", "i", "small", "span", "strong", "sub", "sup"})
_CELLS = frozenset({"td", "th"})


def _between(markup: str) -> str:
    """What a tag stands for between two texts."""
    ends, name = re.match(r"<(/?)(\w*)", markup).groups()  # type: ignore[union-attr]
    if not name or name in ("script", "style"):
        return ""
    if name in _INLINE | _CELLS:
        return "" if ends else " | " if name in _CELLS else " "
    return "\n"


def main(names: Sequence[str]) -> None:
    if not names and EXPECTED.exists():
        shutil.rmtree(EXPECTED)
    for name in names or every():
        folder = EXPECTED / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in outputs(name).items():
            (folder / file).write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
