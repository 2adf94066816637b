"""Batches, facts and statistics of a worker that lies: no process ends, and no record is hidden."""

import math
import os
import random
import resource
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given, strategies as st
from mutated_frames import damaged, payloads
from record_strategies import record
from report_cases import write_run
from warm_process import warm_code

from llm_locust.cli.main import main
from llm_locust.core.arrow import SCHEMA, StreamError, read_stream
from llm_locust.core.batch import BatchError, RecordBatch
from llm_locust.core.manifest import Manifest
from llm_locust.metrics.columns import Part
from llm_locust.report.analysis import build_report
from llm_locust.store import (
    FRAMES_FILE,
    MANIFEST_FILE,
    FrameHeader,
    StoreError,
    encode_frame,
    frame_header,
    read_manifest,
    write_manifest,
)
from llm_locust.store.frames import _PREFIX, BadFrame, index_frames, placed_batches
from llm_locust.swarm.channel.messages import CountsMessage, MessageError, read
from llm_locust.swarm.run.roster import Roster

# --- Batches that a hostile worker sends end no process, fill no memory, and hide no record


TESTS = Path(__file__).parent.parent
ORIGINALS = payloads()


def test_batches_with_random_damage_end_no_process_and_are_all_accounted_for(tmp_path: Path) -> None:
    script = Path(__file__).with_name("mutated_frames.py")
    words = [sys.executable, str(script), "40", str(tmp_path), *map(str, range(4))]
    path = os.pathsep.join((str(TESTS / "support"), str(TESTS.parent)))
    ended = subprocess.run(words, env=os.environ | {"PYTHONPATH": path}, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr.decode()


@given(place=st.integers(0, 1 << 20), chance=st.randoms(use_true_random=False))
@example(place=0, chance=random.Random(0))
def test_any_damage_gives_a_batch_that_can_be_used_or_a_batch_error(
    place: int, chance: random.Random
) -> None:
    data = damaged(ORIGINALS[place % len(ORIGINALS)], chance)
    with suppress(BatchError):
        RecordBatch.from_bytes(data).table.to_pylist()


@given(data=st.binary(max_size=200))
@example(data=b"\xff\xff\xff\xff\x00\x00\x00\x00")
@example(data=b"\xff\xff\xff\xff\xff\xff\xff\x7f")
@example(data=b"")
def test_any_bytes_are_no_stream(data: bytes) -> None:
    with pytest.raises(BatchError):
        RecordBatch.from_bytes(data)


def test_a_clock_that_was_set_by_years_during_a_request_does_not_end_the_report() -> None:
    step_ns = 56 * 365 * 86_400 * 10**9 + 1
    batch = RecordBatch.from_records([replace(record(1), clock_step_ns=step_ns)], "w1")
    assert batch.floats("clock_step_ns").tolist() == [float(step_ns)]
    assert Part.from_batch(batch, 0).stepped.tolist() == [True]


@pytest.mark.parametrize("count", [-1, 2**53 + 1, 2**63 - 1])
@pytest.mark.parametrize("column", ["output_tokens", "input_tokens", "bytes_received"])
def test_a_batch_with_a_count_that_nothing_has_is_left_out_and_the_others_are_reported(
    column: str, count: int, tmp_path: Path
) -> None:
    values: list[Any] = [{column: 5}, {column: count}]
    batches = [RecordBatch.from_records([replace(record(1), **each)], "w1") for each in values]
    frames = [encode_frame(FrameHeader("run", "w1", n, 1), each.to_bytes()) for n, each in enumerate(batches)]
    (tmp_path / FRAMES_FILE).write_bytes(b"".join(frames))
    bad: list[BadFrame] = []
    index = index_frames(tmp_path / FRAMES_FILE)
    ((_, good),) = placed_batches(index.frames, bad)
    assert good.floats(column).tolist() == [5]
    assert [each.why.rpartition(": ")[2] for each in bad] == [f"{column} has counts out of range"]


def bomb(column: str, size: int) -> bytes:
    """A stream whose one text unpacks to so many bytes."""
    table = RecordBatch.from_records([record(1)], "w1").table
    place = table.column_names.index(column)
    table = table.set_column(place, SCHEMA.field(column), pa.array(["x" * size], pa.string()))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def test_a_stream_that_unpacks_to_too_much_is_refused_before_it_is_unpacked() -> None:
    data = bomb("session", 300 << 20)
    assert len(data) < 100_000
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BatchError, match=r"unpacks to 314,\d+,\d+ bytes, allowed is 268,435,456"):
        RecordBatch.from_bytes(data)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 50 << 10


def test_a_stream_below_the_bound_is_unpacked() -> None:
    table = read_stream(bomb("session", 1 << 20), SCHEMA)
    assert len(table.column("session")[0].as_py()) == 1 << 20
    with pytest.raises(StreamError, match=r"unpacks to 1,04\d,\d+ bytes, allowed is 1,000,000"):
        read_stream(bomb("session", 1 << 20), SCHEMA, max_unpacked_bytes=1_000_000)


def lengths_in(data: bytes, size: int) -> Iterator[int]:
    """Where a packed buffer says that it has so many bytes unpacked."""
    at = data.find(wanted := struct.pack("<q", size))
    while at >= 0:
        yield at
        at = data.find(wanted, at + 1)


@pytest.mark.parametrize("claimed", [1 << 40, 1 << 62, -2, -(1 << 62)])
def test_a_buffer_that_lies_about_its_unpacked_size_is_refused(claimed: int) -> None:
    data = bomb("session", 1 << 20)
    (*_, at) = lengths_in(data, 1 << 20)
    with pytest.raises(BatchError, match="unpack"):
        RecordBatch.from_bytes(data[:at] + struct.pack("<q", claimed) + data[at + 8 :])


def test_an_index_outside_of_its_dictionary_is_found_before_it_is_used() -> None:
    table = RecordBatch.from_records([record(1)], "w1").table
    wrong = pa.DictionaryArray.from_arrays(pa.array([7], pa.int32()), pa.array(["only"]), safe=False)
    table = table.set_column(table.column_names.index("name"), SCHEMA.field("name"), wrong)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_table(table)
    with pytest.raises(BatchError, match="not a whole Arrow stream"):
        RecordBatch.from_bytes(bytes(sink.getvalue()))


def test_a_batch_with_more_text_than_a_client_writes_is_left_out(tmp_path: Path) -> None:
    made = [replace(record(n), name=f"{n} " + "x" * 16_000) for n in range(2_200)]
    batch = RecordBatch.from_records(made, "w1")
    frame = encode_frame(FrameHeader("run", "w1", 0, len(batch)), batch.to_bytes())
    (tmp_path / FRAMES_FILE).write_bytes(frame)
    bad: list[BadFrame] = []
    assert not [*placed_batches(index_frames(tmp_path / FRAMES_FILE).frames, bad)]
    assert [each.why.rpartition(": ")[2] for each in bad] == [
        f"its texts have {batch.text_bytes:,} bytes, allowed is 33,554,432"
    ]


# --- What workers and files say of a run beside its records: nothing of it may cost the run its report


#: Deeper than any decoder goes.
DEEP = "[" * 100_000 + "]" * 100_000

COUNTS = {"run": "20261121-first", "number": 1, "finished": 100, "in_flight": 0}
CELL = {"at_s": 1.8e9, "seconds": 1.0, "cpu_percent": 5.0}


def told(counts: CountsMessage, run: Path) -> None:
    """Write the manifest of a run of one worker that has said this last."""
    roster = Roster("20261121-first", ["w1"], lambda: 1)
    roster.done("w1", counts, stopped=True)
    (facts,) = roster.facts({})
    write_manifest(run, replace(read_manifest(run), workers=[replace(facts, received=100)]))


@pytest.mark.parametrize(
    "health",
    [
        {"rss_mib": [[math.nan, 1.0]]},
        {"rss_mib": [[1.0, math.inf]]},
        {"rss_mib": [[1.0]]},
        {"rss_mib": [[0.0, 1.0]] * 2000},
        {"cells": [CELL | {"at_s": math.nan}]},
        {"cells": [CELL | {"at_s": 1e308, "seconds": 1e308}]},
        {"cells": [CELL | {"seconds": -math.inf}]},
        {"cells": [CELL] * 2000},
        {"hub_lag_ms_max": 1e300},
        {"cpu_percent_max": math.nan},
    ],
    ids=lambda health: "{}={!r:.40}".format(*next(iter(health.items()))),
)
def test_a_worker_whose_health_is_no_number_is_not_listened_to(health: dict[str, Any]) -> None:
    """JSON has no NaN: the manifest had null in its place, which nobody could read again."""
    with pytest.raises(MessageError, match="health"):
        read(COUNTS | {"health": health}, CountsMessage)


odd_floats = st.floats() | st.sampled_from([1e15, -1e15, 0.0, -1.0])
odd_ints = st.integers(-(2**64), 2**64) | st.sampled_from([2**53, 2**62, -(2**62)])
odd_counts = st.fixed_dictionaries(
    {},
    optional={
        "in_flight": odd_ints,
        "in_flight_ns": odd_ints,
        "clock": st.fixed_dictionaries(
            dict.fromkeys(
                ("offset_ns", "error_ns", "least_offset_ns", "most_offset_ns", "exchanges"), odd_ints
            ),
            optional={"steps": odd_ints, "step_ns": odd_ints},
        ),
        "load": st.fixed_dictionaries(
            {},
            optional={
                **dict.fromkeys(("held_back", "longest_held_ns", "unsent", "cut", "drained_ns"), odd_ints),
                **dict.fromkeys(("backoff_waits", "backoff_ns"), odd_ints),
                "unsent_by_class": st.dictionaries(st.text(max_size=5), odd_ints, max_size=2),
            },
        ),
        "health": st.fixed_dictionaries(
            {},
            optional={
                **dict.fromkeys(("hub_lag_ms_p99", "cpu_percent_max", "steal_percent"), odd_floats),
                "rss_mib": st.lists(st.lists(odd_floats, min_size=2, max_size=2), max_size=2),
                "cells": st.lists(
                    st.fixed_dictionaries(dict.fromkeys(CELL, odd_floats)),
                    max_size=2,
                ),
            },
        ),
    },
)


@given(odd_counts)
def test_whatever_is_taken_from_a_worker_can_be_written_and_read_again(odd: dict[str, Any]) -> None:
    try:
        counts = read(COUNTS | odd, CountsMessage)
    except MessageError:
        return
    roster = Roster("20261121-first", ["w1"], lambda: 1)
    roster.done("w1", counts, stopped=True)
    manifest = Manifest(id="r", name="r", started_ns=0, workers=roster.facts({}))
    assert msgspec.json.decode(msgspec.json.encode(manifest), type=Manifest) == manifest


@pytest.mark.parametrize(
    "odd",
    [
        {"health": {"cells": [CELL | {"at_s": -1e15, "seconds": 1e15, "cpu_percent": 1e15}] * 3}},
        {"health": {"rss_mib": [[1e15, 1e15], [-1e15, -1e15], [0.0, 0.0]] * 9, "hub_lag_ms_max": 1e15}},
        {
            "clock": dict.fromkeys(("offset_ns", "least_offset_ns", "step_ns"), -(2**62))
            | dict.fromkeys(("error_ns", "most_offset_ns"), 2**62)
            | dict.fromkeys(("exchanges", "steps"), 2**53)
        },
        {"load": {"drained_ns": 2**62, "longest_held_ns": 2**62, "unsent": 2**53, "unsent_warmup": 2**53}},
        {"in_flight": 2**53, "in_flight_ns": 2**62},
    ],
    ids=lambda odd: next(iter(odd)),
)
def test_a_report_is_made_of_facts_at_their_bounds(tmp_path: Path, odd: dict[str, Any]) -> None:
    run = write_run(tmp_path / "run")
    told(read(COUNTS | odd, CountsMessage), run)
    assert build_report(run).summary.requests


def test_a_long_run_of_many_users_does_not_outgrow_the_bounds() -> None:
    """2^53 ns are 104 days: a thousand requests under way are that much together in two and a half hours."""
    month_of_1000_ns = 1000 * 30 * 86_400 * 10**9
    counts = read(COUNTS | {"in_flight_ns": month_of_1000_ns}, CountsMessage)
    assert counts.in_flight_ns == month_of_1000_ns


# -- manifest.json -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("started_ns", "1" + "0" * 30),
        ("started_ns", "-9223372036854775808"),
        ("warmup_s", "1e308"),
        ("warmup_s", "null"),
        ("workers_expected", "-1"),
        ("options", f'{{"a": {DEEP}}}'),
        ("of_later", DEEP),
        ("master", f'{{"later": {DEEP}}}'),
    ],
    ids=lambda text: text[:20],
)
def test_a_manifest_with_what_no_run_has_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, value: str
) -> None:
    run = write_run(tmp_path / "run")
    path = run / MANIFEST_FILE
    facts = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
    path.write_bytes(msgspec.json.encode(facts | {key: msgspec.Raw(value.encode())}))
    with pytest.raises(StoreError, match="is not a manifest"):
        read_manifest(run)
    for command in (["report"], ["compare", str(run)], ["upload", str(tmp_path / "there")]):
        assert main([command[0], str(run), *command[1:]]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert MANIFEST_FILE in said


def test_a_frame_whose_header_is_nested_without_end_is_none() -> None:
    whole = encode_frame(FrameHeader("r", "w", 0, 1), b"")
    head = whole[_PREFIX.size :][:-1] + b',"later":' + DEEP.encode() + b"}"
    magic = _PREFIX.unpack_from(whole)[0]
    assert frame_header(_PREFIX.pack(magic, len(head), 0, zlib.crc32(head)) + head) is None


# --- What a worker that lies can put into Locust's own statistics


COMMON = """
import itertools
import logging
from types import SimpleNamespace

import psutil
from locust.event import Events
from locust.stats import RequestStats, setup_distributed_stats_event_listeners

from llm_locust.swarm.channel import locust_messages
from llm_locust.swarm.channel.locust_messages import (
    MOST_NAMES,
    MOST_SECONDS,
    MOST_TIMES,
    OTHERS,
    Reported,
    coarse,
)

runner = SimpleNamespace(stats=RequestStats(), exceptions={})
bounds = Reported(runner)
events = Events()
setup_distributed_stats_event_listeners(events, runner.stats)
times = itertools.count(1_800_000_000)

def entry(name="n", method="POST", response_times={7: 1}, seconds={1_800_000_000: 1}):
    return {
        "name": name, "method": method, "last_request_timestamp": float(next(times)), "start_time": 1.8e9,
        "num_requests": sum(response_times.values()), "num_none_requests": 0, "num_failures": 0,
        "total_response_time": 7.0, "max_response_time": 7.0, "min_response_time": 7.0,
        "total_content_length": 1, "response_times": dict(response_times), "num_reqs_per_sec": dict(seconds),
        "num_fail_per_sec": dict(seconds),
    }

def report(entries, errors={}):
    total = entry("Aggregated", "", entries[0]["response_times"])
    data = {"stats": entries, "stats_total": total, "errors": dict(errors)}
    bounds.bound_stats(data)
    events.worker_report.fire(client_id="w", data=data)
    bounds.after()

def error(text):
    seen = {"first_seen": 1.8e9, "last_seen": 1.8e9}
    return {"method": "POST", "name": "n", "error": text, "occurrences": 1, **seen}

rss = psutil.Process().memory_info
"""


def run(code: str) -> None:
    warm_code(COMMON + code)


def test_names_beyond_a_number_are_one_and_no_count_is_lost() -> None:
    run("""
said = []
logging.getLogger(locust_messages.__name__).addFilter(lambda record: said.append(record.getMessage()))
for i in range(0, 2000, 100):
    report([entry(f"name {j}") for j in range(i, i + 100)])
report([entry("name 3"), entry("name 1999")])
entries = runner.stats.entries
assert len(entries) == MOST_NAMES + 1, len(entries)
assert sum(e.num_requests for e in entries.values()) == 2002
assert entries["name 3", "POST"].num_requests == 2
assert entries[OTHERS, ""].num_requests == 1501
assert bounds.folded == 1501
assert len(said) == 1 and "more than 500 names" in said[0], said
""")


def test_few_names_are_left_as_they_are() -> None:
    run("""
times_ms = {7: 2, 0.25: 1, 123_456: 3}
report([entry("chat", response_times=times_ms), entry("chat", None)])
report([entry("chat", response_times=times_ms)])
assert set(runner.stats.entries) == {("chat", "POST"), ("chat", "")}
assert runner.stats.entries["chat", "POST"].response_times == {7: 4, 0.25: 2, 123_456: 6}
assert runner.stats.entries["chat", "POST"].response_times_cache
assert bounds.folded == 0
""")


def test_long_names_and_texts_are_cut() -> None:
    run("""
report([entry("n" * 4096, "M" * 4096)], {"k": error("e" * 100_000)})
((name, method),) = runner.stats.entries
assert len(name) == len(method) == 200
assert len(runner.stats.errors["k"].error) == 4096
""")


def test_a_worker_that_lies_about_everything_costs_bounded_memory() -> None:
    run("""
def attack(rounds):
    for i in rounds:
        lies = [
            entry(
                f"{j}",
                response_times={k + i / 1000 + j: 1 for k in range(40)},
                seconds={i * 40 + k: 1 for k in range(40)},
            )
            for j in range(i % 5 * 200, i % 5 * 200 + 200)
        ]
        report(lies, {f"{i} {k}": error(f"{i} {k} " + "e" * 5000) for k in range(100)})
        for k in range(50):
            bounds.bound_exception(data := {"msg": "m", "traceback": f"{i} {k} " + "t" * 50_000})
            row = {"count": 0, **data}
            runner.exceptions.setdefault(hash(data["traceback"]), row)["count"] += 1

attack(range(3))
before = rss().rss
attack(range(3, 60))
grown = (rss().rss - before) / 2**20
stats = runner.stats
assert grown < 100, grown
assert len(stats.entries) == MOST_NAMES + 1
assert len(stats.errors) <= 1000 and len(runner.exceptions) <= 501
assert sum(row["count"] for row in runner.exceptions.values()) == 60 * 50
assert sum(e.occurrences for e in stats.errors.values()) == 60 * 100
assert sum(e.num_requests for e in stats.entries.values()) == 60 * 200 * 40
assert sum(sum(e.response_times.values()) for e in stats.entries.values()) == 60 * 200 * 40
assert max(len(e.num_reqs_per_sec) for e in stats.entries.values()) <= MOST_SECONDS
assert len(stats.total.response_times) <= MOST_TIMES + 731
""")


def test_coarse_times_have_two_digits_and_keep_their_counts() -> None:
    run("""
odd = {1e300: 1, -5: 1, float("nan"): 1, float("inf"): 1}
found = coarse({0: 1, 99: 1, 99.6: 2, 147: 1, 3432: 1, 58_760: 1, **odd})
assert found == {0: 3, 99: 1, 100: 2, 150: 1, 3400: 1, 59_000: 1, 10**9: 2}, found
every = coarse({k: 1 for k in range(300_000)})
assert len(every) <= 731 and sum(every.values()) == 300_000
""")
