"""What workers and files say of a run beside its records: nothing of it may cost the run its report."""

import math
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from report_cases import write_run

from llm_locust.cli.main import main
from llm_locust.core.manifest import Manifest
from llm_locust.report.run.analysis import build_report
from llm_locust.store import MANIFEST_FILE, StoreError, frame_header, read_manifest, write_manifest
from llm_locust.store.frames import _PREFIX, FrameHeader, encode_frame
from llm_locust.swarm.channel.messages import CountsMessage, MessageError, read
from llm_locust.swarm.run.roster import Roster

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
