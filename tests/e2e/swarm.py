"""A real headless ``locust`` before a server, in processes of its own."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from swarm_process import CHAT, Process, forked, locust

__all__ = ["CHAT", "QUESTIONS", "ROOT", "Run", "begun", "finish", "load"]

ROOT = Path(__file__).parents[2]
QUESTIONS = ROOT / "examples/questions.jsonl"


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of ``locust`` left behind."""

    folder: Path
    exit_code: int
    output: str
    rows: list[dict[str, Any]]
    summary: dict[str, Any]
    report: str  # report.md

    @property
    def ok(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["outcome"] == "ok"]


def load(url: str, folder: Path, locustfile: Path, arguments: Sequence[str], workers: int = 2) -> Run:
    """A run against ``url``, read back from its run directory."""
    with begun(url, folder, locustfile, arguments, workers=workers) as process:
        return finish(process, folder)


@contextmanager
def begun(
    url: str,
    folder: Path,
    locustfile: Path,
    arguments: Sequence[str],
    environ: Mapping[str, str] | None = None,
    workers: int = 2,
) -> Iterator[Process]:
    """A run against ``url`` that leaves its run directory in ``folder``; without workers, of one process."""
    words = ["--headless", *(forked(workers) if workers else ()), "-H", url, "--out", str(folder), *arguments]
    out = f"{folder.name}.stdout"
    with locust(folder.parent, *words, locustfile=locustfile, environ=environ, stdout=out) as process:
        yield process


def finish(process: Process, folder: Path) -> Run:
    """What a run left behind, once it has ended by itself."""
    code = process.exit_code()
    output = f"{process.stdout}\n{process.stderr}"
    files = ("requests.parquet", "summary.json", "report.md")
    missing = [name for name in files if not (folder / name).exists()]
    assert not missing, f"exit code {code}, no {', '.join(missing)} in {folder}:\n{output}"
    return Run(
        folder,
        code,
        output,
        rows=pq.read_table(folder / "requests.parquet").to_pylist(),
        summary=json.loads((folder / "summary.json").read_text(encoding="utf-8")),
        report=(folder / "report.md").read_text(encoding="utf-8"),
    )
