"""Every summary has the stated types, and tables of keys and the JSON schema are made of these."""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import golden_run
import msgspec
import pytest
from live_cases import Run
from metrics_cases import Row, batch, failed, manifest, request, rows, series, stage
from roofline_cases import MODELS
from summaries import summarise, typed

from llm_locust.cli.main import main
from llm_locust.core.manifest import TaskException, TrajectoryFacts, WorkerFacts
from llm_locust.core.record import OtherRequests, Outcome
from llm_locust.figures.reference import (
    SCHEMA_FILE,
    TABLE,
    key_table,
    schema_text,
    sections,
    with_gate_tables,
    with_key_tables,
    write_reference,
)
from llm_locust.figures.summary import SummaryError, as_json, read_summary
from llm_locust.live.snapshot import live_end
from llm_locust.metrics.question import Question
from llm_locust.metrics.server_series import ServerSeries
from llm_locust.roofline import read_model

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "summary-keys.md"

#: Keys that the summaries here have not: of other reports, of hours, of a replica that was away, of several
#: loads.
NOT_HERE = (
    *("analysis.", "by.", "run.so_far", "server.total.name"),
    *("curve.", "drift.client_rss_mib.", "replicas[].outages[]."),
    *("parts.", "since_start.", "dropped."),  # of a soak: tests/report/run
    *("stages[].figures", "arms[].figures"),  # they repeat keys that have rows of their own
    "stages[].lengths.",  # of a sweep over them: tests/figures/test_figures_stages.py
    # Of a prefix-cache experiment: tests/figures/test_figures_stages.py
    *("stages[].prefix.", "repeats[].prefix", "prefix_cache."),
    *(
        "server.pools.",
        "server.total.role",
    ),  # of separate prefill and decode: test_figures_servers
    "sessions.header.",  # given back by sessions: tests/figures/test_figures_sessions.py
    *("stages[].lengths.", "curves[]."),  # of a sweep over lengths: tests/metrics/stages, tests/swarm/stages
    "client.calibration.",  # of a run with --calibrate
    "fairness.headers[]",  # counted by workers: tests/figures/test_figures_fairness.py
    *("arms[]", "gates[].arm"),  # of an interleaved comparison: tests/metrics/arms
)

OTHER = OtherRequests(method="GET", name="/", requests=2, failures=1, times=[(300, 1)])

#: What a run of the summaries here searches.
FIND = "max concurrency under p50_ttft<1s"

#: A peak between two stages of one rate.
SPIKE = [stage(i, 3.0 * i + 0.5, 3.0 * i + 3, kind="rate", asked=(5, 20, 5)[i]) for i in range(3)]

Path_ = tuple[str, ...]

SERVER_HISTOGRAMS = ("ttft_s", "tpot_s", "itl_s", "queue_s", "e2el_s", "kv_transfer_s")


def leaves(value: Any, path: Path_ = ()) -> Iterator[tuple[Path_, bool]]:
    """The path of every value that is neither an object nor a list of objects, and whether it is empty.

    ``[]`` follows the name of a list of objects.
    """
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from leaves(each, (*path, key))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for each in value:
            yield from leaves(each, (*path[:-1], f"{path[-1]}[]"))
    else:
        yield path, value is None or value in ({}, [])


def expanded(pattern: str) -> list[str]:
    """``a.{b,c}`` as ``a.b`` and ``a.c``."""
    parts = [part.split(",") if i % 2 else [part] for i, part in enumerate(re.split(r"\{([^}]*)\}", pattern))]
    return ["".join(choice) for choice in product(*parts)]


def fits(path: Path_, pattern: Path_, *, empty: bool = False) -> bool:
    """Whether the pattern names the path; of an empty value also whether it names something below it."""
    if empty:
        at = len(path) - 1
        pattern = (*pattern[:at], *(word.removesuffix("[]") for word in pattern[at : at + 1]))
    return len(pattern) == len(path) and all(w in ("*", step) for w, step in zip(pattern, path, strict=True))


@cache
def patterns() -> tuple[Path_, ...]:
    """What the first cells of the tables of the page name, word by word."""
    page = with_key_tables(PAGE.read_text())
    cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    names = (name for cell in cells for name in re.findall(r"`([^`]+)`", cell))
    return tuple(tuple(p.split(".")) for name in names for p in expanded(name))


def _servers() -> ServerSeries:
    def histogram(name: str) -> list[Row]:
        buckets = [
            r for le, n in (("0.1", 9), ("+Inf", 9)) for r in rows("a", f"{name}_bucket", [0, n], 10.0, le=le)
        ]
        return [*buckets, *rows("a", f"{name}_sum", [0, 1], 10.0), *rows("a", f"{name}_count", [0, 9], 10.0)]

    return series(
        [
            *rows("a", "up", [1] * 11),
            *rows("a", "energy_j", [500 * i for i in range(11)], UUID="g1"),
            *(row for name in SERVER_HISTOGRAMS for row in histogram(name)),
        ]
    )


#: Options of a roofline.
ROOF = {"gpu_type": "h100", "model_shape": asdict(read_model(MODELS / "llama-3-8b.yaml")), "gpus": 1}


@cache
def summaries() -> tuple[dict[str, Any], ...]:
    """The golden run's, and small ones that have what it has not, as their files have them."""
    some = [*(request(at=i * 0.1) for i in range(90)), failed(at=1.0)]
    hung = request(at=9.0, arrivals=(), ended=30.0, outcome=Outcome.CANCELLED)
    live = Run()
    live.ended(some, "w0")
    live.clock.tick()
    live.report()
    made = (
        golden_run.summary(),
        summarise(
            batch(*some), manifest(), Question(roof=ROOF), server=_servers(), live=live_end(live.store)
        ),
        summarise(batch(*some), manifest(), Question(window="steady")),
        summarise(batch(*some, hung), manifest()),
        summarise(
            batch(*(replace(each, user=i % 3) for i, each in enumerate(some))), manifest(slo="ttft=1s")
        ),
        summarise(batch(*some), manifest(), server=series(rows("a", "power_w", [9] * 3, UUID="g"))),
        summarise(
            batch(*some), manifest(options={"gpu_hour_cost": "1"}), Question(roof=ROOF), rows_of_run=len(some)
        ),
        summarise(batch(*some), manifest(), Question(percentiles={"p99_95": 99.95})),
        summarise(
            batch(),
            manifest(
                task_exceptions=[TaskException(error="KeyError: 1", count=2)],
                options={"insecure": True},
                skipped_lines={"a.jsonl": 3},
                workers=[WorkerFacts(id="w", index=0, announced=0, received=0, others=[OTHER])],
            ),
        ),
        summarise(batch(*some), manifest(options={"find": FIND}, stages=[stage(0, 1.0, 9.0)])),
        summarise(batch(*some), manifest(open_loop=True, stages=SPIKE)),
        summarise(
            batch(*some),
            manifest(options={"until": "p50_ttft±5%"}, stages=[stage(0, 1.0, 4.0), stage(1, 5.0, 9.0)]),
        ),
        summarise(
            batch(*(request(at=i, session="w-t0-of2", turn=i, cached_tokens=4) for i in range(2))),
            manifest(
                options={"gpus": "2"},
                trajectories=TrajectoryFacts(ids=["a"], roots=1, possible=[[0.1, 0.5]], pauses_s=[[0.9, 0]]),
            ),
        ),
        summarise(
            batch(*(request(i / 10, replica="b" if i > 120 and i % 2 else "a") for i in range(240))),
            manifest(24.0, stages=[stage(0, 0.5, 8.0), stage(1, 8.5, 24.0, asked=2.0)]),
        ),
        summarise(
            batch(*(request(i / 10, (0.1 + i / 100, 0.2 + i / 100)) for i in range(300))),
            manifest(30.0, open_loop=True, slo="ttft=9s"),
        ),
        summarise(
            batch(*(request(i / 10, (0.1, 0.1 + i / 20)) for i in range(600))), manifest(60.0, open_loop=True)
        ),
        summarise(batch(*(request(i / 10, name="ab"[i % 2], inputs=3) for i in range(9))), manifest()),
        summarise(
            batch(*(request(i / 10, images=i % 3 or None, pixels=64 * i) for i in range(9))), manifest()
        ),
    )
    return tuple(json.loads(msgspec.json.encode(summary)) for summary in made)


@cache
def seen() -> frozenset[tuple[Path_, bool]]:
    """The keys of these summaries, without percentiles that were asked for."""
    usual = [summary for summary in summaries() if "p99_95" not in summary["latency_ms"]["ttft"]]
    return frozenset(path for summary in usual for path in leaves(summary))


def shared(path: Path_) -> Path_:
    """What a name, a class and the adjusted latencies repeat, as the whole run has it."""
    path = path[2:] if path[0] in ("by_name", "by_class") or path[:2] == ("stages[]", "figures") else path
    return ("latency_ms", *path[1:]) if path[:1] == ("latency_ms_adjusted",) else path


def test_every_key_of_a_summary_is_defined_in_the_docs() -> None:
    paths = {(shared(path), empty) for path, empty in seen()}
    unknown = {
        path for path, empty in paths if path and not any(fits(path, p, empty=empty) for p in patterns())
    }
    assert not {".".join(path) for path in unknown}


def test_the_docs_define_no_key_that_summaries_do_not_have() -> None:
    paths = {shared(path)[:n] for path, _ in seen() for n in range(1, len(path) + 1)}
    unseen = {".".join(words) for words in patterns() if not any(fits(path, words) for path in paths)}
    assert not {pattern for pattern in unseen if not pattern.startswith(NOT_HERE)}


@pytest.mark.parametrize("i", range(8))
def test_a_summary_has_the_types_that_are_stated_and_loses_nothing_by_them(i: int) -> None:
    content = msgspec.json.encode(summaries()[i])
    assert msgspec.json.encode(as_json(read_summary(content))) == content


def test_the_tables_of_gates_in_the_docs_are_those_of_the_types() -> None:
    gates = (DOCS / "gates.md").read_text()
    assert with_gate_tables(gates) == gates, "make docs"


def test_the_page_has_a_place_for_every_section_of_a_summary_and_no_table(tmp_path: Path) -> None:
    page = PAGE.read_text()
    named = [name for found in TABLE.finditer(page) for name in found[2].split()]
    assert named.count("others") == 1  # the place of those that no line names
    named.remove("others")
    assert len(set(named)) == len(named)
    assert set(named) <= set(sections())
    assert "| `" not in page, "the tables are made by make site"
    write_reference(DOCS, tmp_path)
    assert (tmp_path / PAGE.name).read_text().count("\n| `") > 500
    assert json.loads((tmp_path / SCHEMA_FILE).read_text()) == json.loads(schema_text())


def test_the_command_prints_the_schema_and_the_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert capsys.readouterr().out == schema_text()
    assert main(["schema", "--keys"]) == 0
    assert capsys.readouterr().out == key_table(sections())
    assert main(["schema", "--keys", "goodput"]) == 0
    assert "| `goodput.ratio` |" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["schema", "--keys", "goodputs"])
    assert "invalid choice: 'goodputs'" in capsys.readouterr().err


def test_every_key_has_a_sentence_in_the_schema() -> None:
    parts = json.loads(schema_text())["$defs"]
    silent = {
        f"{name}.{key}"
        for name, part in parts.items()
        for key, value in part["properties"].items()
        if not {"description", "$ref", "anyOf", "items", "additionalProperties"} & value.keys()
    }
    assert not silent


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"new": 1}, "Object contains unknown field `new`"),
        ({"gates": None}, "Expected `array`, got `null` - at `$.gates`"),
        (
            {"energy": {"missing": "no GPU", "gpus": 1}},
            "Object contains unknown field `missing` - at `$.energy`",
        ),
        ({"latency_ms": {"ttft": {}}}, "Object missing required field `n`"),
        ({"latency_ms": {"ttft": 1}}, "Expected `object`, got `int`"),
        ({"latency_ms": {"ttft": {"p50": "?"}}}, "Expected `float | null`, got `str`"),
    ],
)
def test_what_is_no_summary_is_refused_in_one_line(change: dict[str, Any], said: str) -> None:
    with pytest.raises(SummaryError) as refused:
        typed({**summaries()[1], **change})
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is no JSON"),
        (b"[]", "it is no JSON object"),
        (b'{"schema": 1}', "its schema is 1, and 2 is needed: make it again with llm-locust report"),
        (b"{}", "its schema is None, and 2 is needed"),
        (b'{"schema": 2}', "Object missing required field `run`"),
    ],
)
def test_a_file_that_is_old_or_damaged_says_so_in_one_line(content: bytes, said: str) -> None:
    with pytest.raises(SummaryError, match=re.escape(said)):
        read_summary(content)
