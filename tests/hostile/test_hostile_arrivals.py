"""One request with more token arrivals than any answer has: 30 million of them took 3 GB in a report."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from reads import read as one_read
from record_strategies import record

from llm_locust.client.decoder import BodyDecoder
from llm_locust.client.http.exchange import Exchange
from llm_locust.core.batch import BatchError, RecordBatch
from llm_locust.core.manifest import Manifest, WorkerFacts
from llm_locust.core.record import MAX_ARRIVALS, RequestRecord
from llm_locust.report.inputs import open_source
from llm_locust.store import (
    FRAMES_FILE,
    REQUESTS_FILE,
    FrameHeader,
    StoreError,
    create_run_dir,
    encode_frame,
    open_requests,
    read_manifest,
    read_requests,
    write_manifest,
    write_requests,
)
from llm_locust.store.requests import compact
from llm_locust.swarm.delivery.unacked import BATCH_ARRIVALS, Recorder
from llm_locust.wire.dialects.chat import CHAT


def long(number: int, arrivals: int) -> RequestRecord:
    return replace(record(number), arrivals_ns=np.arange(arrivals, dtype=np.int64))


def batch(*arrivals: int) -> RecordBatch:
    return RecordBatch.from_records([long(n, each) for n, each in enumerate(arrivals)], "w1")


def facts(rows: int) -> Manifest:
    worker = WorkerFacts(id="w1", index=0, announced=rows, received=rows, received_seqs="0-1")
    return Manifest(id="run", name="x", started_ns=1, ended_ns=9, workers=[worker])


def test_as_many_arrivals_as_the_client_takes_are_read() -> None:
    data = batch(MAX_ARRIVALS, 0).to_bytes()
    assert len(RecordBatch.from_bytes(data).arrivals().values) == MAX_ARRIVALS


def test_one_more_is_no_batch() -> None:
    with pytest.raises(BatchError, match="a request has 200,001 values in arrivals_ns, at most 200,000"):
        RecordBatch.from_bytes(batch(3, MAX_ARRIVALS + 1).to_bytes())


def test_a_batch_with_such_a_request_is_left_out_named_and_its_records_are_missing(tmp_path: Path) -> None:
    run = create_run_dir(tmp_path / "run")
    good, bad = batch(3, 4), batch(1, 10 * MAX_ARRIVALS)
    frames = [
        encode_frame(FrameHeader("run", "w1", seq, 2), each.to_bytes())
        for seq, each in enumerate((good, bad))
    ]
    (run / FRAMES_FILE).write_bytes(b"".join(frames))
    write_manifest(run, facts(4))
    assert compact(run) == 2
    manifest = read_manifest(run)
    assert (manifest.records_lost, manifest.complete) == (2, False)
    (line,) = manifest.torn
    assert "number 1 of worker w1 with 2 records" in line


def test_a_file_with_3_million_arrivals_in_a_row_is_refused_before_they_are_decoded(tmp_path: Path) -> None:
    run = create_run_dir(tmp_path / "run")
    write_manifest(run, facts(1))
    write_requests(run / REQUESTS_FILE, [batch(3_000_000)])
    for read in (read_requests, lambda path: list(open_requests(path).parts())):
        with pytest.raises(StoreError, match=r"3,000,0\d\d values in 1 rows"):
            read(run)
    with open_source([run], skip_bad=True) as source:
        assert (len(source.requests), source.manifest.records_lost) == (0, 1)


def test_a_row_that_hides_among_others_is_refused_too(tmp_path: Path) -> None:
    run = create_run_dir(tmp_path / "run")
    write_requests(run / REQUESTS_FILE, [batch(MAX_ARRIVALS + 1, *[0] * 50)])
    with pytest.raises(StoreError, match="200,001 values in arrivals_ns"):
        list(open_requests(run).parts())


def test_row_groups_are_closed_at_a_number_of_arrivals(tmp_path: Path) -> None:
    path = tmp_path / REQUESTS_FILE
    write_requests(path, [batch(*[MAX_ARRIVALS] * 8)] * 8)
    metadata = pq.read_metadata(path)
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [24, 24, 16]


def test_long_answers_close_a_batch_before_its_rows_do() -> None:
    headers: list[FrameHeader] = []
    recorder = Recorder("run", "w1", lambda header, _: headers.append(header))
    for number in range(12):
        recorder.add(long(number, BATCH_ARRIVALS // 6))
    recorder.close_batch()
    assert [header.rows for header in headers] == [6, 6]
    assert recorder.finished == 12


@pytest.mark.parametrize("in_one_read", [True, False])
def test_the_client_records_no_more_than_the_bound(
    in_one_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_locust.client.decoder.MAX_ARRIVALS", 2_000)
    event = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    body = event * 2_500
    exchange = Exchange(1 << 30)
    decoder = BodyDecoder(exchange, CHAT, streamed=True)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(body)
    step = len(body) if in_one_read else 1 << 13
    for at, data in enumerate((head, *(body[i : i + step] for i in range(0, len(body), step)))):
        exchange.on_reads(*one_read(data, at))
    reply = decoder.finish()
    assert len(reply.token_ends) == 2_000
    assert decoder.fault == "the stream has more than 2,000 events"
