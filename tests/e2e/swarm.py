"""A real headless ``locust`` before a server: one master and two workers, in processes of their own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from e2e.servers import HOST, free_port

ROOT = Path(__file__).parents[2]
CHAT = ROOT / "locustfiles/chat.py"
QUESTIONS = ROOT / "examples/questions.jsonl"
ENDS_WITHIN_S = 90.0


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


def load(
    url: str,
    folder: Path,
    locustfile: Path,
    arguments: Sequence[str],
    processes: int = 2,
    within_s: float = ENDS_WITHIN_S,
) -> Run:
    """A run against ``url``, read back from its run directory; of one process, it is its own master."""
    return finish(start(url, folder, locustfile, arguments, processes=processes), folder, within_s)


def start(
    url: str,
    folder: Path,
    locustfile: Path,
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
    processes: int = 2,
) -> subprocess.Popen[str]:
    """A run against ``url`` that leaves its run directory in ``folder``; hand it to :func:`finish`."""
    port = str(free_port())
    command = [sys.executable, "-m", "locust", "-f", str(locustfile), "--headless"]
    if processes > 1:
        command += ["--processes", str(processes)]
        command += ["--master-port", port, "--master-bind-port", port, "--master-bind-host", HOST]
    command += ["-H", url, "--out", str(folder), *arguments]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LOCUST_", "LLM_LOCUST_"))}
    clean |= {"LLM_LOCUST_CANARY": "off", "LLM_LOCUST_BACKOFF": "off"}  # servers' logs are compared
    return subprocess.Popen(
        command,
        env=clean | dict(environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], folder: Path, within_s: float = ENDS_WITHIN_S) -> Run:
    """What a run left behind, once it has ended by itself."""
    try:
        output, _ = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        output = abandon(process)
        pytest.fail(f"the run did not end within {within_s:.0f} s:\n{output}")
    code = process.returncode
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


def abandon(process: subprocess.Popen[str]) -> str:
    """Kill the run with its workers; what it said."""
    os.killpg(process.pid, signal.SIGKILL)
    output, _ = process.communicate()
    return output
