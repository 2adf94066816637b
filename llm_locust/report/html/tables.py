"""Tables that only the page has: workers, errors with examples, peers' words, the configuration."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from llm_locust.core.manifest import Manifest
from llm_locust.metrics.charts import RunCharts
from llm_locust.report.section import Column, Line, Row, Section, Table, Tone
from llm_locust.report.text import UNDEFINED, after, clean, count, number, percent, short

Part = Mapping[str, Any]

_MOST_ROWS = 100
_EXAMPLE_LENGTH = 2_000
_FIGURES = ("mean", "p50", "p99")


def workers(run: RunCharts, summary: Part) -> Section | None:
    """What each worker measured, beside what it cost; None where there was one."""
    known = {w.get("id"): w for w in (summary.get("completeness") or {}).get("workers") or ()}
    if max(len(run.workers), len(known)) < 2:
        return None
    columns = (
        Column("Worker", left=True, verbatim=True, wraps=True),
        Column("requests"),
        Column("share"),
        Column("errors"),
        Column("p50", over="TTFT ms"),
        Column("p99", over="TTFT ms"),
        Column("p50", over="TPOT ms"),
        Column("tokens/s", over="output"),
        Column("goodput"),
        Column("p99 ms", over="hub lag"),
        Column("%", over="CPU"),
    )
    rows = [_worker_row(found, known.get(found["name"]) or {}) for found in run.workers]
    return Section(
        "By worker",
        table=Table(columns, tuple(rows[:_MOST_ROWS])).without_empty(),
        notes=(
            Line(
                "The same server seen by each worker: a worker that differs is a client that differs.",
                Tone.FAINT,
            ),
            *_left_out(rows),
        ),
    )


def _worker_row(found: Part, known: Part) -> Row:
    return Row(
        (
            clean(found["name"]),
            count(found["requests"]),
            percent(found["share"]),
            percent(found["error_rate"]),
            number(found["ttft_p50_ms"]),
            number(found["ttft_p99_ms"]),
            number(found["tpot_p50_ms"]),
            number(found["output_tokens_per_s"]),
            percent(found["goodput_ratio"]),
            number(known["hub_lag_ms_p99"]) if known.get("hub_lag_ms_p99") is not None else "",
            number(known["cpu_percent_max"]) if known.get("cpu_percent_max") is not None else "",
        )
    )


def errors(summary: Part) -> Section | None:
    """The kinds of failure with the first text of each; None without any."""
    kinds = summary.get("errors") or ()
    if not kinds:
        return None
    started = (summary.get("run") or {}).get("started")
    columns = (
        Column("Outcome", left=True),
        Column("Status"),
        Column("Count"),
        Column("First"),
        Column("Last"),
        Column("Kind of message", left=True, verbatim=True, wraps=True),
        Column("Example", left=True, verbatim=True, wraps=True),
    )
    rows = tuple(
        Row(
            (
                clean(kind.get("outcome")),
                UNDEFINED if kind.get("status") is None else str(kind["status"]),
                count(kind.get("count")),
                after(kind.get("first"), started),
                after(kind.get("last"), started),
                _text(kind.get("message")),
                _text(kind.get("example")),
            )
        )
        for kind in kinds
    )
    return Section("Errors", table=Table(columns, rows).without_empty())


def _text(value: object) -> str:
    return UNDEFINED if value is None else short(clean(value), _EXAMPLE_LENGTH)


def peers(run: RunCharts) -> Section:
    """Each peer's word with this run's value by its formula."""
    tools = ("vllm", "guidellm", "aiperf", "inference-perf", "genai-bench")
    vllm, guidellm, aiperf, perf, bench = (run.compat[tool] for tool in tools)
    words = (
        ("vLLM bench serve", "TPOT", "(e2el − ttft) / (n − 1), successes", _stats(vllm["tpot_ms"])),
        (
            "vLLM bench serve",
            "request goodput",
            "good successes / (last end − first sent)",
            _one(vllm["request_goodput"], "/s"),
        ),
        (
            "guidellm",
            "TPOT",
            "(last − sent) / n, with TTFT inside",
            _stats(guidellm["time_per_output_token_ms"]),
        ),
        ("guidellm", "ITL", "(last − first) / (n − 1)", _stats(guidellm["inter_token_latency_ms"])),
        (
            "aiperf",
            "inter token latency",
            "(e2el − ttft) / (n − 1)",
            _stats(aiperf["inter_token_latency_ms"]),
        ),
        ("aiperf", "inter chunk latency", "gaps between chunks", _stats(aiperf["inter_chunk_latency_ms"])),
        ("inference-perf", "NTPOT", "e2el / n", _stats(perf["normalized_time_per_output_token_ms"])),
        ("inference-perf", "goodput", "good / successes", ("", percent(perf["goodput_ratio"]), "")),
        ("genai-bench", "TPOT", "(end with the usage chunk − ttft) / (n − 1)", _stats(bench["tpot_ms"])),
    )
    columns = (
        Column("Tool", left=True),
        Column("Its word", left=True),
        Column("Its formula", left=True, wraps=True),
        *(Column(figure, over="this run, ms") for figure in _FIGURES),
    )
    note = "Over the ok requests of this report's window; the tools themselves take other windows."
    return Section(
        "The same run in the words of others",
        table=Table(
            columns, tuple(Row((tool, word, formula, *stats)) for tool, word, formula, stats in words)
        ),
        notes=(Line(note, Tone.FAINT),),
    )


def _stats(found: Part) -> tuple[str, ...]:
    return tuple(number(found.get(figure)) for figure in _FIGURES)


def _one(value: float | None, unit: str) -> tuple[str, ...]:
    return ("", UNDEFINED if value is None else f"{number(value)} {unit}", "")


def configuration(manifest: Manifest) -> list[Section]:
    """All that the manifest knows of how the run was made; it holds no secrets."""
    facts: dict[str, object] = {
        "id": manifest.id,
        "host": manifest.host,
        "model": manifest.model,
        "scenario": manifest.scenario,
        "seed": manifest.seed,
        "loop": "open" if manifest.open_loop else "closed",
        "slo": manifest.slo,
        "gates": manifest.gates,
        "warm-up": f"{manifest.warmup_s:g} s",
        "workers": f"{len(manifest.workers)} of {manifest.workers_expected} expected",
        "command": shlex.join(manifest.command),
    }
    return [
        _settings("Run", facts),
        _settings("Options", manifest.options),
        _settings("Versions", manifest.versions),
    ]


def _settings(title: str, settings: Mapping[str, object]) -> Section:
    rows = tuple(
        Row((clean(key), _setting(value))) for key, value in settings.items() if value not in (None, "")
    )
    columns = (Column("Setting", left=True), Column("Value", left=True, verbatim=True, wraps=True))
    return Section(title, table=Table(columns, rows))


def _setting(value: object) -> str:
    return clean(value if isinstance(value, str) else msgspec.json.encode(value).decode())


def _left_out(rows: Sequence[object]) -> Iterator[Line]:
    if len(rows) > _MOST_ROWS:
        yield Line(f"{count(len(rows) - _MOST_ROWS)} more are not shown", Tone.FAINT)
