"""The growth of a run is announced as what its records then take."""

from pathlib import Path

import numpy as np
import pytest
from metrics_cases import request

from llm_locust.core.batch import RecordBatch
from llm_locust.store import write_requests
from llm_locust.store.files import growth_of, size_of, size_text


def batch_of(rows: int, tokens: int) -> RecordBatch:
    """Requests with irregular arrivals, and random ids, which do not compress."""
    rng = np.random.default_rng(tokens)
    records = []
    for i in range(rows):
        arrivals = int(1.8e18) + i * 10**7 + np.cumsum(rng.normal(2e7, 2e6, tokens)).astype(int)
        records.append(request(request_id=rng.bytes(16).hex(), arrivals_ns=arrivals))
    return RecordBatch.from_records(records, "a worker's name of 27 chars")


@pytest.mark.parametrize(("rows", "tokens"), [(1, 1), (1, 2000), (60, 20), (256, 128), (256, 600)])
def test_frames_take_about_what_is_announced(rows: int, tokens: int) -> None:
    taken = len(batch_of(rows, tokens).to_bytes())
    assert 0.6 * taken < growth_of(rows, tokens, 1).frames < 2.5 * taken


@pytest.mark.parametrize(("rows", "tokens"), [(5000, 20), (2000, 128), (500, 1000)])
def test_so_does_the_file_that_is_made_of_them(rows: int, tokens: int, tmp_path: Path) -> None:
    write_requests(tmp_path / "x.parquet", [batch_of(rows, tokens)])
    taken = (tmp_path / "x.parquet").stat().st_size
    assert 0.9 * taken < growth_of(rows, tokens, 1).kept < 2.5 * taken


def test_growth_adds_up_and_many_small_batches_take_more() -> None:
    one = growth_of(1000, 100, 10)
    assert growth_of(2000, 100, 20).frames == pytest.approx(2 * one.frames)
    assert growth_of(1000, 100, 1000).frames > 5 * one.frames
    assert growth_of(0, 100, 10).peak == 0
    # No batch is without a request.
    assert growth_of(10, 100, 10).frames == growth_of(10, 100, 1e9).frames


def test_sizes_are_texts_for_a_person() -> None:
    sizes = [size_text(each) for each in (0, 2048, 5 << 20, 1.25 * (1 << 30), 3 << 40)]
    assert sizes == ["0 KiB", "2 KiB", "5.0 MiB", "1.2 GiB", "3.0 TiB"]


def test_the_size_of_a_folder_is_that_of_all_its_files(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a").write_bytes(b"1234")
    (tmp_path / "b").write_bytes(b"56")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    assert size_of(tmp_path) == 6
