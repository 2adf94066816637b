"""Where a worker keeps the batches that the master does not have yet."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from llm_locust.options.option import OWN_SPOOL
from llm_locust.store.facts import SPOOL_DIR
from llm_locust.swarm.delivery.unacked import own_spool


def folder(root: Path, worker: str = "w1", **options: Any) -> Path | None:
    run: Any = {"id": "r1", "path": str(root / "runs" / "r1")}
    spool = own_spool(Namespace(**options), worker, run)
    return None if spool is None else spool.folder


def test_batches_wait_in_the_runs_folder_or_in_one_of_the_run_where_the_worker_was_told(
    tmp_path: Path,
) -> None:
    chosen = {"spool": str(tmp_path / "master"), OWN_SPOOL: str(tmp_path / "own")}
    assert folder(tmp_path, spool=None) == tmp_path / "runs" / "r1" / SPOOL_DIR / "w1"
    assert folder(tmp_path, spool=chosen["spool"]) == tmp_path / "master" / "r1" / "w1"
    assert folder(tmp_path, **chosen) == tmp_path / "own" / "r1" / "w1"
    assert folder(tmp_path, **chosen | {OWN_SPOOL: "off"}) is None


def test_an_id_that_names_another_folder_keeps_batches_in_memory_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert folder(tmp_path, worker="../x") is None
    assert "kept in memory, not in a spool: this worker's id '../x'" in caplog.text
