"""The formats of ``llm-locust report --format``: one row each, and a module for those of other tools."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from llm_locust.figures.summary import as_json
from llm_locust.figures.verdict import verdict
from llm_locust.report.analysis import Analysis
from llm_locust.report.formats.benchmarks import genai_perf, inferencex, mlperf, vllm_json
from llm_locust.report.formats.dynamo import dynamo, dynamo_files
from llm_locust.report.formats.junit import junit
from llm_locust.report.formats.llmd import llmd
from llm_locust.report.headline import Headline, verdict as in_words
from llm_locust.report.markdown import markdown
from llm_locust.report.output import shown_json


def _markdown(analysis: Analysis) -> str:
    return markdown(analysis.summary, _headline(analysis), analysis.manifest)


def _junit(analysis: Analysis) -> str:
    return junit(analysis.summary, _headline(analysis))


def _headline(analysis: Analysis) -> Headline:
    return in_words(analysis.summary, verdict(analysis.summary, analysis.manifest))


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
