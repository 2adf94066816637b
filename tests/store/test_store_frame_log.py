"""A log of frames takes many at once, without a copy, and each call's whole or not at all."""

import os
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from process_limits import files_limited_to

from llm_locust.store import FrameLog


def test_more_frames_than_one_system_call_takes_are_written_in_order(tmp_path: Path) -> None:
    frames = [bytes([n % 256]) * (n % 5) for n in range(5000)]
    log = FrameLog(tmp_path / "log")
    log.append(*frames)
    log.append()
    log.append(b"end")
    log.close()
    assert (tmp_path / "log").read_bytes() == b"".join(frames) + b"end"


@given(frames=st.lists(st.binary(max_size=9)), most=st.integers(1, 20))
def test_a_kernel_that_takes_a_part_at_a_time_gets_the_rest_after_it(
    frames: list[bytes], most: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("log") / "log"

    def pwritev(file: int, buffers: list[memoryview], at: int) -> int:
        return os.pwrite(file, b"".join(buffers)[:most], at)

    log = FrameLog(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwritev", pwritev)
        log.append(*frames)
    log.close()
    assert path.read_bytes() == b"".join(frames)


def test_of_frames_that_the_disk_took_in_part_none_is_in_the_log(tmp_path: Path) -> None:
    log = FrameLog(tmp_path / "log")
    log.append(b"whole")
    with files_limited_to(1_000_000), pytest.raises(OSError, match="File too large"):
        log.append(b"x" * 800_000, b"y" * 800_000)
    log.append(b"next")
    log.close()
    assert (tmp_path / "log").read_bytes() == b"wholenext"
