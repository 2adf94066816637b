"""docs/metrics.md defines every key of summary.json, and no key that a summary does not have."""

import json
import re
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import golden_run
import pytest
from live_cases import Run
from metrics_cases import batch, failed, manifest, request
from roofline_cases import plain_roof
from server_cases import Row, rows, series

from llm_locust.core.record import Outcome
from llm_locust.live.ending import live_end
from llm_locust.metrics.deployment.server_series import ServerSeries
from llm_locust.metrics.summary import summarise

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
HEADING = "## Every key of summary.json"

Path_ = tuple[str, ...]


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


def fits(path: Path_, pattern: str, *, empty: bool = False) -> bool:
    """Whether the pattern names the path; of an empty value also whether it names something below it."""
    words = pattern.split(".")
    if empty:
        words = [
            *words[: len(path) - 1],
            *(word.removesuffix("[]") for word in words[len(path) - 1 : len(path)]),
        ]
    return len(words) == len(path) and all(w in ("*", step) for w, step in zip(words, path, strict=True))


@cache
def patterns() -> tuple[str, ...]:
    """What the first cells of the tables below the heading name."""
    section = DOCS.read_text().split(HEADING)[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return tuple(p for cell in cells for name in re.findall(r"`([^`]+)`", cell) for p in expanded(name))


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
            *(row for name in ("ttft_s", "tpot_s", "itl_s", "queue_s", "e2el_s") for row in histogram(name)),
        ]
    )


@cache
def seen() -> frozenset[tuple[Path_, bool]]:
    """The keys of the golden run's summary, and of small ones that have what it has not."""
    records = golden_run.records()
    some = [*(request(at=i * 0.1) for i in range(90)), failed(at=1.0)]
    hung = request(at=9.0, arrivals=(), ended=30.0, outcome=Outcome.CANCELLED)
    live = Run()
    live.ended(some, "w0")
    live.clock.tick()
    live.report()
    summaries = [
        summarise(golden_run.batch(records), golden_run.manifest(records)),
        summarise(batch(*some), manifest(), server=_servers(), roof=plain_roof(), live=live_end(live.store)),
        summarise(batch(*some), manifest(), window="steady"),
        summarise(batch(*some, hung), manifest()),
        summarise(batch(*some), manifest(), server=series(rows("a", "power_w", [9] * 3, UUID="g"))),
        summarise(
            batch(*some), manifest(options={"gpu_hour_cost": "1"}), roof=plain_roof(), rows_of_run=len(some)
        ),
    ]
    return frozenset(path for summary in summaries for path in leaves(json.loads(json.dumps(summary))))


def shared(path: Path_) -> Path_:
    """What a name, a class and the adjusted latencies repeat, as the whole run has it."""
    path = path[2:] if path[0] in ("by_name", "by_class") else path
    return ("latency_ms", *path[1:]) if path[:1] == ("latency_ms_adjusted",) else path


@pytest.mark.parametrize("section", sorted({path[0].removesuffix("[]") for path, _ in seen()}))
def test_every_key_of_a_summary_is_defined_in_the_docs(section: str) -> None:
    paths = {(shared(path), empty) for path, empty in seen() if path[0].removesuffix("[]") == section}
    unknown = {
        path for path, empty in paths if path and not any(fits(path, p, empty=empty) for p in patterns())
    }
    assert not {".".join(path) for path in unknown}


def test_the_docs_define_no_key_that_summaries_do_not_have() -> None:
    paths = {shared(path) for path, _ in seen()}
    assert not {pattern for pattern in patterns() if not any(fits(path, pattern) for path in paths)}
