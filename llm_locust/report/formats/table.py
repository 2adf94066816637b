"""The formats of ``llm-locust report --format``: one row each, and a module for those of other tools."""

from collections.abc import Callable
from dataclasses import dataclass

from llm_locust.metrics.summary_types.summary import as_json
from llm_locust.report.formats.genai_perf import genai_perf
from llm_locust.report.formats.inferencex import inferencex
from llm_locust.report.formats.junit import junit
from llm_locust.report.formats.llmd import llmd
from llm_locust.report.formats.mlperf import mlperf
from llm_locust.report.formats.vllm import vllm_json
from llm_locust.report.output import shown_json
from llm_locust.report.render.markdown import markdown
from llm_locust.report.run.analysis import Analysis


@dataclass(frozen=True, slots=True)
class Format:
    """A format: its name, what it is, its text, and its file with ``--out``, unless every report has that.

    ``of_one_load``: its figures are of one load, so that a sweep as a whole has none.
    """

    name: str
    meaning: str
    text: Callable[[Analysis], str]
    file: str | None = None
    of_one_load: bool = True


FORMATS = (
    Format(
        "json",
        "summary.json",
        lambda analysis: shown_json(as_json(analysis.summary), indent=2) + "\n",
        of_one_load=False,
    ),
    Format("md", "the report as Markdown", lambda analysis: markdown(analysis.summary), of_one_load=False),
    Format(
        "junit",
        "gates as test cases",
        lambda analysis: junit(analysis.summary),
        "junit.xml",
        of_one_load=False,
    ),
    Format("vllm", "result file of vllm bench serve", vllm_json, "vllm.json"),
    Format("llmd", "Benchmark Report 0.2.1 of llm-d", llmd, "benchmark_report.yaml"),
    Format("inferencex", "aggregate JSON of InferenceX", inferencex, "inferencex.json"),
    Format("mlperf", "result_summary.json of MLPerf Endpoints", mlperf, "result_summary.json"),
    Format("genai-perf", "export of GenAI-Perf and AIPerf", genai_perf, "profile_export_genai_perf.json"),
)

FORMAT = {each.name: each for each in FORMATS}
