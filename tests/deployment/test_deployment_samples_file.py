"""Samples survive whoever writes them."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llm_locust.deployment.samples import (
    SCHEMA,
    SamplesError,
    SampleWriter,
    ServerSample,
    compact_samples,
    read_samples,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "server_metrics.parquet"


def sample(i: int) -> ServerSample:
    return ServerSample(1_795_000_000_000_000_000 + i, f"t{i % 2}", "running", '{"engine":"0"}', i / 2)


def rows(path: Path) -> list[ServerSample]:
    return [ServerSample(**row) for table in read_samples(path) for row in table.to_pylist()]


def test_what_was_written_is_read_and_then_is_parquet(path: Path) -> None:
    made = [sample(i) for i in range(10)]
    with SampleWriter(path) as writer:
        writer.write(made[:4])
        writer.write([])
        writer.write(made[4:])
    assert rows(path) == made
    assert compact_samples(path) == 10
    assert rows(path) == made
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert pq.read_schema(path).names == SCHEMA.names


def test_a_batch_is_in_the_file_when_write_returns(path: Path) -> None:
    writer = SampleWriter(path)
    writer.write([sample(1)])
    assert rows(path) == [sample(1)]
    writer.write([sample(2)])
    assert rows(path) == [sample(1), sample(2)]
    writer.__exit__(None, None, None)


def test_a_stream_cut_at_any_byte_gives_its_whole_batches(path: Path) -> None:
    with SampleWriter(path) as writer:
        for i in range(3):
            writer.write([sample(i)])
    stream = path.with_name("server_metrics-0.arrows")
    data, seen = stream.read_bytes(), set()
    for end in range(0, len(data), 7):
        stream.write_bytes(data[:end])
        found = rows(path)
        assert found == [sample(i) for i in range(len(found))]
        seen.add(len(found))
    assert seen == {0, 1, 2, 3}


def test_writers_one_after_the_other_and_compacting_again_lose_nothing(path: Path) -> None:
    for i in range(2):
        with SampleWriter(path) as writer:
            writer.write([sample(i)])
    assert compact_samples(path) == 2
    assert compact_samples(path) == 2
    with SampleWriter(path) as writer:
        writer.write([sample(2)])
    assert rows(path) == [sample(0), sample(1), sample(2)]
    assert compact_samples(path) == 3


def test_without_anything_there_is_nothing(path: Path) -> None:
    assert rows(path) == []
    assert compact_samples(path) is None


def test_a_file_that_is_none_is_named(path: Path) -> None:
    path.write_bytes(b"PAR1 or not")
    with pytest.raises(SamplesError, match=r"server_metrics\.parquet.*cannot be read") as raised:
        rows(path)
    assert "\n" not in str(raised.value)


def _refused(path: Path, table: pa.Table, why: str) -> None:
    """A table is refused, with its file's name, in both formats."""
    pq.write_table(table, path)
    stream = path.with_name("server_metrics-0.arrows")
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    for damaged in (path, stream):
        with pytest.raises(SamplesError, match=rf"{damaged.name}.*{why}"):
            rows(path)
        damaged.unlink()


@pytest.mark.parametrize("columns", [{"value": pa.array([None], pa.float64())}, {"value": pa.array(["x"])}])
def test_a_file_or_stream_of_another_form_is_named(path: Path, columns: dict[str, pa.Array]) -> None:
    other = pa.table({**{name: pa.array(["1"]) for name in SCHEMA.names[1:4]}, "at_ns": [1], **columns})
    other = other.select(SCHEMA.names)
    _refused(path, other, "cannot be read")


@pytest.mark.parametrize("column", ["target", "name", "labels"])
def test_a_file_or_stream_with_a_text_that_is_not_utf_8_is_named(path: Path, column: str) -> None:
    texts = {column: pa.array([b"{}", b"\xff"], pa.binary()).view(pa.string())}
    plain = {name: pa.array(["{}", "{}"]) for name in SCHEMA.names[1:4]}
    odd = pa.table({"at_ns": [1, 2], **plain, **texts, "value": [1.0, 2.0]})
    _refused(path, odd, "cannot be read.*UTF8")


def test_texts_are_stored_once(path: Path) -> None:
    with SampleWriter(path) as writer:
        writer.write([sample(i) for i in range(20_000)])
    compact_samples(path)
    assert path.stat().st_size < 20_000 * 12
