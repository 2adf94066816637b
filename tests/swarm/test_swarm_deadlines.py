"""Processes beside a run, a summary and an upload, that hang: they are killed, and a line says so."""

from pathlib import Path

import pytest
from report_cases import write_run

from llm_locust.swarm.run import finishing
from llm_locust.swarm.web import reports


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose processes have no time at all."""
    monkeypatch.setattr(finishing, "PATIENCE_S", 0.0)
    monkeypatch.setattr(finishing, "UPLOAD_PATIENCE_S", 0.0)
    for module in (finishing, finishing):
        monkeypatch.setattr(module, "_SLOWEST_BYTES_PER_S", 1e12)
    return write_run(tmp_path / "run")


def test_an_upload_that_hangs_is_killed_and_said(run: Path, tmp_path: Path) -> None:
    done, told = finishing.upload_elsewhere(run, str(tmp_path / "away"))
    assert not done
    assert told == "the process that uploads was killed because it had not ended within 0 s"


def test_a_rolling_summary_that_hangs_is_killed_and_said(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not reports.summarise_elsewhere(run, lambda: run)
    assert "no rolling summary this time: its process was killed because it had not ended" in caplog.text
