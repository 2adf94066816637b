"""The formats of ``llm-locust report --format``, a row each, and the gates as JUnit XML."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

from llm_locust.figures.client import ClientFacts
from llm_locust.figures.completeness import Completeness
from llm_locust.figures.gate_rules import GateOutcome
from llm_locust.figures.summary import Summary, as_json
from llm_locust.figures.text import clean, plural
from llm_locust.figures.verdict import verdict
from llm_locust.report.analysis import Analysis
from llm_locust.report.benchmark_formats import (
    dynamo,
    dynamo_files,
    genai_perf,
    inferencex,
    llmd,
    mlperf,
    vllm_json,
)
from llm_locust.report.headline import Headline, headline_of
from llm_locust.report.markdown import markdown
from llm_locust.report.output import shown_json

# --- JUnit XML: verdict and gates of a run as test cases, for what shows those in a pipeline


_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'


def junit(summary: Summary, found: Headline | None = None) -> str:
    """One test suite: a case for the verdict, for each gate, for completeness, for the client's validity.

    The verdict's case fails where the run did not pass, and has the cause. A gate fails where it broke,
    completeness where records are missing or a fault ended the run early, the client where its verdict is
    ``invalid``; of a suspect one the reasons are in its output.
    """
    run, found = summary.run, found or headline_of(summary)
    complete = _complete(summary.completeness, run.stop_reason)
    cases = [_verdict(found), complete, _client(summary.client), *_gates(summary.gates)]
    suite = ElementTree.Element(
        "testsuite",
        name=f"llm-locust {_shown(run.name)}",
        timestamp=run.started.rstrip("Z"),
        tests=str(len(cases)),
        failures=str(sum(case.find("failure") is not None for case in cases)),
        errors="0",
        skipped="0",
        time=f"{summary.window.seconds:.3f}",
    )
    properties = ElementTree.SubElement(suite, "properties")
    facts = {"id": run.id, "host": run.host, "model": run.model, "scenario": run.scenario, "seed": run.seed}
    for name, value in facts.items():
        if value is not None:
            ElementTree.SubElement(properties, "property", name=name, value=_shown(value))
    suite.extend(cases)
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    return f"{_HEAD}{ElementTree.tostring(suites, encoding='unicode')}\n"


def _verdict(found: Headline) -> ElementTree.Element:
    case = _case("run", "verdict")
    if found.is_good:
        ElementTree.SubElement(case, "system-out").text = _shown(found.line)
    else:
        _fail(case, "verdict", _shown(found.headline.text), _shown(found.line))
    return case


def _gates(gates: Sequence[GateOutcome]) -> Iterator[ElementTree.Element]:
    for gate in gates:
        case = _case("gate", _shown(gate.shown))
        value = "no value" if gate.value is None else f"{gate.value:.6g}"
        if not gate.passed:
            _fail(case, "gate", _shown(gate.reason), f"{_shown(gate.shown)}: measured {value}")
        yield case


def _complete(part: Completeness, stop_reason: str | None) -> ElementTree.Element:
    case = _case("run", "complete")
    if not part.complete:
        workers = f"{part.workers_seen} of {plural(part.workers_expected, 'worker')}"
        why = f"{plural(part.records_lost, 'request')} without a record, {workers} seen"
        lines = [
            f"announced {part.records_announced}, received {part.records_received}, "
            f"stored {part.records_stored}",
            *(f"{_shown(worker)}: {n} missing" for worker, n in part.missing.items()),
            *map(_shown, part.torn),
        ]
        _fail(case, "completeness", why, "\n".join(lines))
    elif part.cut_short:
        _fail(case, "completeness", "a fault ended the run before its time", _shown(stop_reason or ""))
    return case


def _client(client: ClientFacts) -> ElementTree.Element:
    case = _case("run", "client")
    reasons = [_shown(reason) for reason in client.reasons]
    if client.verdict == "invalid":
        _fail(case, "validity", f"invalid: {reasons[0]}", "\n".join(reasons))
    elif reasons:
        ElementTree.SubElement(case, "system-out").text = f"{client.verdict}: " + "\n".join(reasons)
    return case


def _case(kind: str, name: str) -> ElementTree.Element:
    return ElementTree.Element("testcase", classname=f"llm-locust.{kind}", name=name, time="0")


def _fail(case: ElementTree.Element, kind: str, message: str, text: str) -> None:
    ElementTree.SubElement(case, "failure", type=kind, message=message).text = text


def _shown(value: object) -> str:
    """Text without the characters that XML has no way to write."""
    return clean(value).replace("\ufffe", "").replace("\uffff", "")


# --- The formats


def _markdown(analysis: Analysis) -> str:
    return markdown(analysis.summary, _headline(analysis), analysis.manifest)


def _junit(analysis: Analysis) -> str:
    return junit(analysis.summary, _headline(analysis))


def _headline(analysis: Analysis) -> Headline:
    return headline_of(analysis.summary, verdict(analysis.summary, analysis.manifest))


#: What a format has the figures of: one load, all loads of a sweep, or whatever the run is.
Scope = Literal["one load", "a sweep", "any run"]


@dataclass(frozen=True, slots=True)
class Format:
    """A format: its name, what it is, its text, and its files with ``--out``, unless every report has those.

    ``file`` has the text; ``files`` makes several of it, by their paths below the directory.
    """

    name: str
    meaning: str
    text: Callable[[Analysis], str]
    file: str | None = None
    scope: Scope = "one load"
    files: Callable[[str], Mapping[str, bytes]] | None = None

    def written(self, text: str) -> Mapping[str, bytes]:
        """The files of a text, by their paths."""
        if self.files is not None:
            return self.files(text)
        return {} if self.file is None else {self.file: text.encode()}


FORMATS = (
    Format(
        "json",
        "summary.json",
        lambda analysis: shown_json(as_json(analysis.summary), indent=2) + "\n",
        scope="any run",
    ),
    Format("md", "the report as Markdown", _markdown, scope="any run"),
    Format("junit", "verdict and gates as test cases", _junit, "junit.xml", scope="any run"),
    Format("vllm", "result file of vllm bench serve", vllm_json, "vllm.json"),
    Format("llmd", "Benchmark Report 0.2.1 of llm-d", llmd, "benchmark_report.yaml"),
    Format("inferencex", "aggregate JSON of InferenceX", inferencex, "inferencex.json"),
    Format("mlperf", "result_summary.json of MLPerf Endpoints", mlperf, "result_summary.json"),
    Format("genai-perf", "export of GenAI-Perf and AIPerf", genai_perf, "profile_export_genai_perf.json"),
    Format("dynamo", "engine profile of NVIDIA Dynamo", dynamo, scope="a sweep", files=dynamo_files),
)

FORMAT = {each.name: each for each in FORMATS}
