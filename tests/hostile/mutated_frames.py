"""Run as a process: batches with random damage, in frames with right checksums, through all that reads them.

    python mutated_frames.py COUNT FOLDER SEED...

Damage to a frame itself is found by its checksum. This is what a hostile worker sends.
"""

import random
import sys
from pathlib import Path

import pyarrow as pa
from record_strategies import record

from llm_locust.core.arrow import SCHEMA
from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import Manifest, WorkerFacts
from llm_locust.store import (
    FRAMES_FILE,
    FrameHeader,
    compact,
    encode_frame,
    merge,
    read_manifest,
    read_requests,
    write_manifest,
)

ROWS = 20
_LENGTHS = [b"\xff" * 8, bytes(8), *((1 << n).to_bytes(8, "little") for n in (20, 31, 40, 62))]


def payloads() -> list[bytes]:
    """The same batch as workers send it, without compression, and with another one."""
    batch = RecordBatch.from_records([record(n) for n in range(ROWS)], "w1")
    made = [batch.to_bytes()]
    for compression in (None, "zstd"):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(
            sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression=compression)
        ) as writer:
            writer.write_table(batch.table)
        made.append(bytes(sink.getvalue()))
    return made


def damaged(payload: bytes, chance: random.Random) -> bytes:
    data = bytearray(payload)
    for _ in range(chance.choice([1, 1, 2, 4, 16])):
        at = chance.randrange(len(data))
        match chance.randrange(5):
            case 0:
                data[at] ^= 1 << chance.randrange(8)
            case 1:
                data[at] = chance.choice([0, 1, 127, 128, 255])
            case 2:
                at -= at % 8
                data[at : at + 8] = chance.choice(_LENGTHS)
            case 3:
                data[at : at + 4] = chance.randbytes(4)
            case _:
                del data[at : at + chance.choice([1, 8, 64])]
    return bytes(data)


def main(seed: int, count: int, folder: Path) -> None:
    print("seed", seed, file=sys.stderr, flush=True)
    chance, originals = random.Random(seed), payloads()
    folder = folder / str(seed)
    run = folder / "run"
    run.mkdir(parents=True)
    frames = [
        encode_frame(FrameHeader("run", "w1", seq, ROWS), damaged(chance.choice(originals), chance))
        for seq in range(count)
    ]
    (run / FRAMES_FILE).write_bytes(b"".join(frames))
    worker = WorkerFacts(id="w1", index=0, announced=ROWS * count, received=ROWS * count)
    write_manifest(run, Manifest(id="run", name="x", started_ns=1, ended_ns=9, workers=[worker]))
    merged = merge([run], folder / "merged")
    compact(run)
    manifest, rows = read_manifest(run), len(read_requests(run))
    assert rows == merged.rows == manifest.records_received
    assert rows + manifest.records_lost == ROWS * count
    assert len(manifest.torn) == manifest.records_lost // ROWS > count // 2
    read_requests(folder / "merged").table.to_pylist()


if __name__ == "__main__":
    for each in sys.argv[3:]:
        main(int(each), int(sys.argv[1]), Path(sys.argv[2]))
