"""A run made of what is left of it is the run that ended well, or says what is missing."""

import json
import random
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st
from metrics_cases import ORIGIN_NS, request
from record_strategies import record

from llm_locust.core import EXIT_INCOMPLETE
from llm_locust.core.batch import RecordBatch
from llm_locust.core.manifest import ClockFacts, Manifest, NodeHealth, WorkerFacts
from llm_locust.figures.summary import as_json
from llm_locust.metrics.question import PLAIN
from llm_locust.report.analysis import analyse, build_report
from llm_locust.report.inputs import Source, open_source
from llm_locust.store import (
    FRAMES_FILE,
    MANIFEST_FILE,
    REQUESTS_FILE,
    SUMMARY_FILE,
    FrameHeader,
    Merged,
    StoreError,
    compact,
    create_run_dir,
    encode_frame,
    merge,
    open_requests,
    read_manifest,
    read_requests,
    write_json,
    write_manifest,
    write_requests,
)
from llm_locust.store.facts import by_knowledge
from llm_locust.store.frame_log import Expired, ExpiredBatches, read_expired, write_expired
from llm_locust.store.merge import NO_END, is_damaged, salvage

RUN = "20261121-120000-abcdef"
WORKER_FILE = "worker.json"


#: Offset and error of each worker's clock, batch by batch: none, one within its error, one that counts.
CLOCKS: list[list[tuple[int | None, int | None]]] = [
    [(None, None)] * 5,
    [(None, None), (40_000, 90_000), (90_001, 90_000), (60_000, 90_000), (None, None)],
    [(None, None), (-3_000_000, 200_000), (-3_100_000, 150_000), (-2_900_000, 150_000), (5, 10)],
]


@dataclass(frozen=True)
class Batch:
    """One batch: its identity and its frame."""

    worker: str
    seq: int
    frame: bytes


def batches(*counts: int, rows: int = 2, run: str = RUN) -> list[Batch]:
    """``counts[i]`` batches of worker ``w<i>``, by (worker, seq)."""
    made = []
    for index, count in enumerate(counts):
        for seq in range(count):
            first = 0.1 * index + 0.5 * seq
            records = [
                request(
                    first + 0.05 * k, (0.05 + 0.01 * k, 0.1 + 0.02 * seq), request_id=f"{index}-{seq}-{k}"
                )
                for k in range(rows)
            ]
            offset, error = CLOCKS[index % 3][seq % 5]
            header = FrameHeader(run, f"w{index}", seq, rows, rows * (seq + 1), 3, offset, error)
            payload = RecordBatch.from_records(records, f"w{index}").to_bytes()
            made.append(Batch(f"w{index}", seq, encode_frame(header, payload)))
    return made


def facts(index: int, count: int, rows: int = 2, **more: Any) -> WorkerFacts:
    """What a master says of a worker of which everything came."""
    known = WorkerFacts(
        id=f"w{index}",
        index=index,
        announced=count * rows,
        received=count * rows,
        batches=count,
        resent=index,
        joined_ns=ORIGIN_NS - 5,
        heard_ns=ORIGIN_NS + 10_000_000_000 + index,
        received_seqs={0: "", 1: "0"}.get(count, f"0-{count - 1}"),
        clock=ClockFacts(offset_ns=7, error_ns=9, least_offset_ns=5, most_offset_ns=9, exchanges=4),
        health=NodeHealth(cpu_percent_max=31.0 + index, hub_lag_ms_p99=0.4),
    )
    return replace(known, **more)


def manifest(*counts: int, **more: Any) -> Manifest:
    """A master's manifest of a run that ended well."""
    known = Manifest(
        id=RUN,
        name="first",
        started_ns=ORIGIN_NS,
        stopped_ns=ORIGIN_NS + 3_000_000_000,
        ended_ns=ORIGIN_NS + 10_000_000_000,
        slo="ttft=80ms",
        workers_expected=len(counts),
        workers=[facts(index, count) for index, count in enumerate(counts)],
        master=NodeHealth(rss_mib_max=80.0),
    )
    return replace(known, **more)


def beginning(*counts: int) -> Manifest:
    """The manifest as the master told it when the run began."""
    fresh = [
        WorkerFacts(id=f"w{i}", index=i, announced=None, received=0, joined_ns=ORIGIN_NS - 5)
        for i in range(len(counts))
    ]
    return manifest(*counts, stopped_ns=None, ended_ns=None, workers=fresh, master=NodeHealth())


def write_log(
    folder: Path, each: Iterable[Batch], known: Manifest | None = None, name: str = FRAMES_FILE
) -> Path:
    """A master's directory before its end: frames in one file, and a manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"".join(b.frame for b in each))
    if known is not None:
        write_manifest(folder, known)
    return folder


def write_spool(
    root: Path, each: Iterable[Batch], known: Manifest | None, words: Iterable[WorkerFacts] = ()
) -> Path:
    """The spools of workers: a folder each, with a file a frame."""
    for b in each:
        (root / b.worker).mkdir(parents=True, exist_ok=True)
        (root / b.worker / f"{b.seq:08d}.frame").write_bytes(b.frame)
    for word in words:
        (root / word.id).mkdir(parents=True, exist_ok=True)
        write_json(root / word.id / WORKER_FILE, word)
    for folder in root.iterdir():
        if known is not None:
            write_manifest(folder, known)
    return root


def finished(folder: Path, each: Sequence[Batch], known: Manifest) -> Path:
    """A run directory whose run has ended."""
    write_log(folder, each, known)
    compact(folder)
    return folder


def summary(run: Path) -> Any:
    return json.loads(json.dumps(as_json(analyse(Source.of(run), PLAIN).summary)))


def files(run: Path) -> dict[str, Any]:
    """What a run directory holds, and its summary."""
    stored = {name: (run / name).read_bytes() for name in (REQUESTS_FILE, MANIFEST_FILE)}
    return stored | {SUMMARY_FILE: summary(run)}


def merged(out: Path, *sources: Path) -> Merged:
    return merge(sources, out)


def ids(run: Path) -> list[str | None]:
    return read_requests(run).texts("request_id")


COUNTS = (4, 3, 5)
ALL = batches(*COUNTS)


@pytest.fixture(scope="module")
def well(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The files of the run that ended well."""
    return files(finished(tmp_path_factory.mktemp("well"), ALL, manifest(*COUNTS)))


@settings(max_examples=6)
@given(
    st.lists(st.sets(st.sampled_from(["log", "spool", "a", "b"]), min_size=1), min_size=12, max_size=12),
    st.randoms(use_true_random=False),
    st.integers(0, 400),
)
def test_the_run_is_the_same_however_its_batches_are_spread_repeated_cut_and_ordered(
    tmp_path_factory: pytest.TempPathFactory,
    well: dict[str, Any],
    places: list[set[str]],
    chance: random.Random,
    cut: int,
) -> None:
    folder = tmp_path_factory.mktemp("spread")
    shuffled = chance.sample([*zip(ALL, places, strict=True)] * 2, 2 * len(ALL))
    in_place = {name: [b for b, where in shuffled if name in where] for name in ("log", "spool", "a", "b")}
    torn = [Batch("", 0, chance.choice(ALL).frame[:cut])]
    sources = [
        write_log(folder / "log", in_place["log"] + torn, manifest(*COUNTS)),
        write_spool(folder / "spool", in_place["spool"] + ALL[:1], beginning(*COUNTS)),
        write_log(folder, in_place["a"], name="a.frames") / "a.frames",
        write_log(folder / "b", torn + in_place["b"], beginning(*COUNTS), name="b.frames"),
    ]
    done = merged(folder / "out", *chance.sample(sources, 4), *chance.sample(sources, 2))
    assert files(folder / "out") == well
    assert done.rows == 2 * len(ALL)
    assert done.tears == ()


@settings(max_examples=6)
@given(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 5)), st.booleans())
def test_a_finished_run_and_the_batches_that_it_lacks_are_the_run(
    tmp_path_factory: pytest.TempPathFactory, well: dict[str, Any], first: tuple[int, int, int], twice: bool
) -> None:
    """What it has of each worker is not taken again from anywhere."""
    folder = tmp_path_factory.mktemp("finished")
    has = [b for b in ALL if b.seq < first[int(b.worker[1])]]
    known = manifest(*first, workers=[facts(i, n, announced=2 * COUNTS[i]) for i, n in enumerate(first)])
    sources = [finished(folder / "run", has, known), write_spool(folder / "spool", ALL, beginning(*COUNTS))]
    if twice:
        sources.append(Path(shutil.copytree(folder / "run", folder / "copy")))
    done = merged(folder / "out", *sources)
    assert read_requests(folder / "out").table.to_pylist() == sorted(
        read_requests(folder / "out").table.to_pylist(), key=lambda row: row["request_id"]
    )
    # A finished run keeps its places on the axis: they are off by some ms where no clock was measured yet.
    out = files(folder / "out")
    assert timeless(out[SUMMARY_FILE]) == timeless(well[SUMMARY_FILE])
    assert out[MANIFEST_FILE] == well[MANIFEST_FILE]
    assert done.duplicates == sum(first)


def timeless(summary: Any) -> Any:
    """A summary without what depends on the order in time alone."""
    if not isinstance(summary, dict):
        return summary
    return {key: timeless(value) for key, value in summary.items() if key not in ("n_effective", "ci95")}


def part(folder: Path, each: Sequence[Batch], seqs: Sequence[str], rows: int = 2) -> Path:
    """A finished run with a part of the batches, ``seqs`` of each worker."""
    known = [
        facts(i, COUNTS[i], received=rows * sum(b.worker == f"w{i}" for b in each), received_seqs=has)
        for i, has in enumerate(seqs)
    ]
    return finished(folder, each, manifest(*COUNTS[: len(seqs)], workers=known))


FIRST, LAST = [b for b in ALL if b.seq < 2], [b for b in ALL if b.seq >= 2]
SEQS_OF_LAST = ("2-3", "2", "2-4")


def test_finished_runs_that_complete_each_other_are_one(tmp_path: Path, well: dict[str, Any]) -> None:
    sources = [part(tmp_path / "a", FIRST, ["0-1"] * 3), part(tmp_path / "b", LAST, SEQS_OF_LAST)]
    merged(tmp_path / "out", *sources)
    assert summary(tmp_path / "out") == well[SUMMARY_FILE]
    build_report(tmp_path / "out")  # what it leaves is not taken for a part of the run
    merged(tmp_path / "again", tmp_path / "out", *sources[::-1])
    assert summary(tmp_path / "again") == well[SUMMARY_FILE]


def test_what_a_finished_run_has_with_gaps_is_not_taken_again(tmp_path: Path) -> None:
    has = [b for b in ALL if b.seq in (0, 2)]
    run = part(tmp_path / "run", has, ["0 2"] * 3)
    done = merge([run, write_spool(tmp_path / "spool", ALL, beginning(*COUNTS))], tmp_path / "out")
    assert (done.rows, done.duplicates) == (2 * len(ALL), len(has))


def test_batches_from_before_a_finished_run_stand_before_its_requests(tmp_path: Path) -> None:
    run = part(tmp_path / "run", LAST, SEQS_OF_LAST)
    merge([run, write_spool(tmp_path / "spool", ALL, beginning(*COUNTS))], tmp_path / "out")
    assert ids(tmp_path / "out") == [f"{b.worker[1]}-{b.seq}-{k}" for b in ALL for k in range(2)]


def test_of_finished_runs_only_the_workers_that_they_have_most_of_are_taken(tmp_path: Path) -> None:
    ours, theirs = batches(3, 1, rows=1), batches(1, 3, rows=1)
    sources = [
        part(tmp_path / "a", ours, ["0-2", "0"], rows=1),
        part(tmp_path / "b", theirs, ["0", "0-2"], rows=1),
    ]
    merge(sources, tmp_path / "out")
    assert ids(tmp_path / "out") == [f"{worker}-{seq}-0" for worker in range(2) for seq in range(3)]


def test_the_run_may_be_made_inside_a_source(tmp_path: Path, well: dict[str, Any]) -> None:
    source = write_log(tmp_path / "run", ALL, manifest(*COUNTS))
    merged(source / "merged", source)
    assert files(source / "merged") == well


def test_what_a_worker_says_itself_of_its_schedule_counts_and_not_what_a_master_took_for_unsent(
    tmp_path: Path,
) -> None:
    """A worker that was cut off went on without its master."""
    told = [facts(0, 3), facts(1, 1, lost=True, unsent=40, unsent_warmup=9), facts(2, 5)]
    run = write_log(tmp_path / "run", ALL, manifest(*COUNTS, workers=told))
    word = [facts(1, COUNTS[1], unsent=2, unsent_by_class={"": 2})]
    done = merged(tmp_path / "out", run, write_spool(tmp_path / "spool", ALL, beginning(*COUNTS), word))
    (cut_off,) = (w for w in done.manifest.workers if w.id == "w1")
    assert (cut_off.unsent, cut_off.unsent_warmup, cut_off.unsent_by_class) == (2, 0, {"": 2})


def test_a_dead_masters_run_is_whole_with_its_workers_last_words(tmp_path: Path) -> None:
    log = write_log(tmp_path / "run", ALL[:5], beginning(*COUNTS))
    words = [facts(i, n, resent=0, heard_ns=None) for i, n in enumerate(COUNTS)]
    done = merged(tmp_path / "out", log, write_spool(tmp_path / "spool", ALL[4:], beginning(*COUNTS), words))
    assert done.manifest.complete
    assert done.manifest.stopped_ns is None
    assert done.manifest.ended_ns == max(read_requests(tmp_path / "out").ints("ended_ns").tolist())
    assert [w.health.cpu_percent_max for w in done.manifest.workers] == [31.0, 32.0, 33.0]
    assert [w.clock for w in done.manifest.workers] == [w.clock for w in words]
    assert read_manifest(tmp_path / "out") == done.manifest
    report = build_report(tmp_path / "out")
    assert report.summary.window.rule.endswith("to the last end")
    # Nobody knows how long the load was meant to go on, and no coordinator watched its last part.
    assert done.manifest.cut_short
    assert (done.manifest.stop_reason, report.exit_code) == (NO_END, EXIT_INCOMPLETE)


def test_a_run_whose_master_died_after_the_end_of_the_load_was_not_cut_short(tmp_path: Path) -> None:
    """Its drain and its report were still to come: the records alone decide."""
    words = [facts(i, n) for i, n in enumerate(COUNTS)]
    log = write_log(tmp_path / "run", ALL, manifest(*COUNTS, ended_ns=None))
    done = merged(tmp_path / "out", log, write_spool(tmp_path / "spool", [], None, words))
    assert done.manifest.complete
    assert not done.manifest.cut_short
    assert build_report(tmp_path / "out").exit_code == 0


def test_an_end_that_a_later_merge_finds_takes_back_that_the_run_was_cut_short(tmp_path: Path) -> None:
    words = [facts(i, n) for i, n in enumerate(COUNTS)]
    spool = write_spool(tmp_path / "spool", ALL, beginning(*COUNTS), words)
    assert merged(tmp_path / "first", spool).manifest.cut_short
    master = write_log(tmp_path / "run", [], manifest(*COUNTS, ended_ns=None))
    done = merged(tmp_path / "second", tmp_path / "first", master)
    assert not done.manifest.cut_short
    assert done.manifest.stop_reason == ""
    assert build_report(tmp_path / "second").exit_code == 0


def test_a_worker_without_a_last_word_is_lost_with_what_it_had_under_way(tmp_path: Path) -> None:
    log = write_log(tmp_path / "run", ALL, beginning(*COUNTS))
    words = [facts(0, 4), facts(2, 5)]
    manifest = merged(tmp_path / "out", log, write_spool(tmp_path / "spool", [], None, words)).manifest
    assert [w.lost for w in manifest.workers] == [False, True, False]
    assert [w.in_flight for w in manifest.workers] == [0, 3, 0]
    assert manifest.records_lost == 3


def test_a_worker_that_had_left_before_the_master_died_is_not_lost(tmp_path: Path) -> None:
    known = manifest(2, 2, ended_ns=None, workers=[facts(0, 2, left=True), facts(1, 2)])
    done = merged(tmp_path / "out", write_log(tmp_path / "run", batches(2, 2), known))
    assert [w.lost for w in done.manifest.workers] == [False, True]


def test_missing_batches_are_missing_records(tmp_path: Path) -> None:
    rest = [b for b in ALL if (b.worker, b.seq) not in {("w0", 1), ("w2", 4), ("w2", 2)}]
    done = merged(tmp_path / "out", write_log(tmp_path / "run", rest, manifest(*COUNTS)))
    assert [w.missing for w in done.manifest.workers] == [2, 0, 4]
    assert [w.received_seqs for w in done.manifest.workers] == ["0 2-3", "0-2", "0-1 3"]
    assert [w.batches for w in done.manifest.workers] == [3, 3, 3]
    assert not done.manifest.complete


def test_the_manifest_that_knows_most_is_taken_in_whatever_order() -> None:
    end, stop, begin = manifest(2), manifest(2, ended_ns=None), beginning(2)
    two = beginning(2, 2)
    heard = replace(begin, workers=[facts(0, 2)])
    assert by_knowledge([begin, two, heard, stop, end]) == [end, stop, two, heard, begin]
    assert by_knowledge([end, stop, heard, two, begin]) == [end, stop, two, heard, begin]


def test_the_stop_is_known_if_any_manifest_has_it(tmp_path: Path) -> None:
    first = write_log(tmp_path / "a", ALL, manifest(*COUNTS, stopped_ns=None))
    second = write_log(tmp_path / "b", [], manifest(*COUNTS, ended_ns=None))
    assert merged(tmp_path / "out", first, second).manifest.stopped_ns == ORIGIN_NS + 3_000_000_000


@pytest.mark.parametrize(
    ("told", "word", "announced", "in_flight"),
    [
        ((8, 5), None, 8, 5),
        ((3, 5), None, 4, 3),  # the last frame says more
        ((4, 5), None, 4, 5),
        ((8, 5), (9, 0), 9, 0),
        ((8, 5), (8, 0), 8, 0),
        ((8, 5), (2, 0), 8, 5),
        ((None, 0), None, 4, 3),
        ((None, 0), (None, 0), 4, 3),
    ],
)
def test_announced_is_the_largest_count_that_anybody_knew(
    tmp_path: Path, told: tuple[int | None, int], word: tuple[int, int] | None, announced: int, in_flight: int
) -> None:
    lost = facts(0, 2, announced=told[0], in_flight=told[1], lost=True)
    log = write_log(tmp_path / "run", batches(2), manifest(2, workers=[lost]))
    words = [] if word is None else [facts(0, 2, announced=word[0], in_flight=word[1])]
    spool = write_spool(tmp_path / "run" / "spool", batches(1), beginning(2), words)
    (worker,) = merged(tmp_path / "out", log, spool).manifest.workers
    assert (worker.announced, worker.in_flight) == (announced, in_flight)
    assert worker.lost == (word is None)


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ({"announced": 3}, {"announced": 4}),
        ({"announced": None}, {"announced": 4}),
        ({"announced": 4, "heard_ns": ORIGIN_NS + 1}, {"announced": 4, "heard_ns": ORIGIN_NS + 2}),
        ({"announced": 4, "heard_ns": None}, {"announced": 4, "heard_ns": 1}),
    ],
)
def test_of_two_copies_of_a_spool_the_later_last_word_counts(
    tmp_path: Path, earlier: dict[str, Any], later: dict[str, Any]
) -> None:
    for name, words in (("ab", (earlier, later)), ("ba", (later, earlier))):
        spools = [
            write_spool(
                tmp_path / name / str(n),
                batches(2),
                beginning(2),
                [facts(0, 2, dropped=int(word is later), in_flight=int(word is later), **word)],
            )
            for n, word in enumerate(words)
        ]
        (worker,) = merged(tmp_path / f"out-{name}", *spools).manifest.workers
        assert (worker.announced, worker.in_flight, worker.dropped) == (4, 1, 1)


def test_a_worker_that_only_its_batches_tell_of_gets_facts_of_its_own(tmp_path: Path) -> None:
    log = write_log(tmp_path / "run", batches(1, 1, 2), manifest(1))
    spool = write_spool(tmp_path / "spool", [], None, [replace(facts(3, 0), index=0)])
    workers = merged(tmp_path / "out", log, spool).manifest.workers
    assert [(w.id, w.index, w.announced, w.in_flight, w.received, w.lost) for w in workers] == [
        ("w0", 0, 2, 0, 2, False),
        ("w1", 1, 2, 3, 2, True),
        ("w2", 2, 4, 3, 4, True),
        ("w3", 3, 0, 0, 0, False),
    ]


def spoiled(b: Batch) -> Batch:
    """The same frame, its last byte another one."""
    return replace(b, frame=b.frame[:-1] + bytes([b.frame[-1] ^ 1]))


LOST = [facts(0, 4), facts(1, 3, lost=True), facts(2, 5)]


def test_damage_that_took_something_is_named_and_what_is_whole_taken(tmp_path: Path) -> None:
    start, end = len(ALL[0].frame), len(ALL[0].frame) + len(ALL[1].frame)
    write_log(tmp_path / "run" / "deep", [ALL[0], spoiled(ALL[1]), *ALL[2:]], manifest(*COUNTS))
    done = merged(tmp_path / "out", tmp_path)
    assert done.manifest.torn == [f"run/deep/batches.frames: bytes {start} to {end} are not a frame"]
    assert [(t.start, t.end) for t in done.tears] == [(start, end)]
    assert ids(tmp_path / "out") == [f"{b.worker[1]}-{b.seq}-{k}" for b in ALL if b != ALL[1] for k in (0, 1)]


def test_a_torn_file_of_a_batch_is_named_unless_the_batch_is_elsewhere(tmp_path: Path) -> None:
    log = write_log(tmp_path / "run", ALL[:-1], manifest(*COUNTS, workers=LOST))
    spool = write_spool(tmp_path / "spool", [], None, [facts(0, 4)])
    for b, whole in ((ALL[0], 0.5), (ALL[3], 0.0), (ALL[-1], 0.9)):
        cut = replace(b, frame=b.frame[: int(whole * len(b.frame))])
        write_spool(tmp_path / "spool", [cut], None)
    (tmp_path / "spool" / "w2" / "00000009.frame").touch()
    assert merged(tmp_path / "out", log, spool).manifest.torn == [
        f"w2/00000004.frame: bytes 0 to {int(0.9 * len(ALL[-1].frame))} are not a frame",
        "w2/00000009.frame: is empty",
    ]


def test_tears_are_named_alike_whatever_sources_find_them(tmp_path: Path) -> None:
    write_log(tmp_path / "x" / "run", [*ALL, Batch("", 0, b"LLB1")], manifest(*COUNTS, workers=LOST))
    told = [
        merged(tmp_path / f"out{number}", *sources).manifest.torn
        for number, sources in enumerate(
            [
                (tmp_path / "x", tmp_path / "x" / "run"),
                (tmp_path / "x" / "run", tmp_path / "x"),
                (tmp_path / "x" / "run" / FRAMES_FILE, tmp_path / "x" / "run" / MANIFEST_FILE),
            ]
        )
    ]
    size = sum(len(b.frame) for b in ALL)
    assert told == [[f"batches.frames: bytes {size} to {size + 4} are not a frame"]] * 3


def test_a_merged_runs_tears_are_told_on_until_what_they_took_is_found(tmp_path: Path) -> None:
    log = write_log(tmp_path / "run", [ALL[0], spoiled(ALL[1]), *ALL[2:]], manifest(*COUNTS))
    first = merged(tmp_path / "first", log).manifest
    assert len(first.torn) == 1
    shutil.rmtree(log)
    assert merged(tmp_path / "second", tmp_path / "first").manifest.torn == first.torn
    found = write_log(tmp_path / "found", [ALL[1]], beginning(*COUNTS))
    assert merged(tmp_path / "third", tmp_path / "second", found).manifest == manifest(*COUNTS)


def write_other(folder: Path) -> Path:
    """A worker's spool of another run, torn too."""
    known = replace(beginning(1), id="another")
    spool = write_spool(folder, batches(1, run="another"), known, [facts(0, 9)])
    (spool / "w0" / "00000001.frame").write_bytes(b"LLB1 and so on")
    return spool


def test_several_runs_are_told_and_one_is_chosen(tmp_path: Path) -> None:
    write_log(tmp_path / "run", batches(2), manifest(2, workers=[facts(0, 2, lost=True)]))
    write_other(tmp_path / "other")
    with pytest.raises(StoreError, match=f"several runs: {RUN}, another; choose one with --run ID"):
        merge([tmp_path], tmp_path / "out")
    with pytest.raises(StoreError, match=rf"nothing of run 'third'; there are: {RUN}, another"):
        merge([tmp_path], tmp_path / "out", "third")
    done = merge([tmp_path], tmp_path / "out", RUN)
    assert done.manifest == manifest(2, workers=[facts(0, 2, lost=True)])
    assert merge([tmp_path / "other"], tmp_path / "o2").manifest.torn == [
        "w0/00000001.frame: bytes 0 to 14 are not a frame"
    ]
    assert merge([tmp_path], tmp_path / "o3", "another").manifest.workers[0].announced == 18


def test_sources_of_which_no_run_can_be_made_are_said(tmp_path: Path) -> None:
    def refused(*sources: Path, run: str | None = None) -> str:
        with pytest.raises(StoreError) as error:
            merge(sources, tmp_path / "out", run)
        assert "\n" not in str(error.value)
        assert not (tmp_path / "out").exists()
        return str(error.value)

    empty = tmp_path / "empty"
    empty.mkdir()
    assert "there are no batches of a run (0 files)" in refused(empty)
    assert "there are: none" in refused(empty, run="x")
    assert "'nowhere' does not exist: name run directories" in refused(Path("nowhere"))
    (empty / "notes.txt").touch()
    assert "notes.txt' is not a file of a run" in refused(empty / "notes.txt")
    (empty / "00000003.frame").write_bytes(b"LLB1")
    assert "there are no batches of a run (1 torn pieces, 1 files)" in refused(empty)
    assert "no manifest of it" in refused(write_log(tmp_path / "bare", batches(1)))
    (tmp_path / "bare" / MANIFEST_FILE).write_text("{")
    assert "manifest.json' is not a manifest" in refused(tmp_path / "bare")
    assert f"no batches of run {RUN}, only its manifest" in refused(
        write_log(tmp_path / "none", [], beginning(1))
    )


@pytest.mark.parametrize("name", [MANIFEST_FILE, REQUESTS_FILE, FRAMES_FILE])
def test_a_directory_that_holds_a_run_is_not_written_over(tmp_path: Path, name: str) -> None:
    log = write_log(tmp_path / "run", batches(1), manifest(1))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_bytes(b"precious")
    with pytest.raises(StoreError, match="out' holds a run already: name a new directory"):
        merge([log], tmp_path / "out")
    assert (tmp_path / "out" / name).read_bytes() == b"precious"


def test_files_that_cannot_be_read_are_told_and_others_used_instead(tmp_path: Path) -> None:
    log = write_log(tmp_path / "run", batches(2), manifest(2, workers=[facts(0, 2, lost=True)]))
    spool = write_spool(tmp_path / "spool", [], None, [facts(0, 2)])
    (spool / "w0" / MANIFEST_FILE).write_text("{")
    (spool / "w0" / WORKER_FILE).write_text('{"id": "w0"')
    (spool / "w0" / REQUESTS_FILE).touch()
    done = merged(tmp_path / "out", log, spool)
    assert [line.split("/")[-1] for line in done.unreadable] == [
        "manifest.json' is not a manifest: Input data was truncated",
        "worker.json' is not a worker's last word: Input data was truncated",
        "requests.parquet' is left out: only its manifest could say which batches it has",
    ]
    assert done.manifest.workers[0].lost


def test_finished_runs_that_share_a_part_are_refused(tmp_path: Path) -> None:
    for name, seqs, count in (("a", "0-1", 2), ("b", "1-2", 2)):
        known = manifest(3, workers=[facts(0, 3, received=4, received_seqs=seqs)])
        finished(tmp_path / name, batches(count), known)
    with pytest.raises(StoreError, match="leave one of them out, or merge the frames"):
        merge([tmp_path], tmp_path / "out")


@pytest.mark.parametrize(
    ("seqs", "why"),
    [("", "does not list the batches of worker w0"), ("0-x", "'0-x' in '0-x' is not a range")],
)
def test_a_finished_run_that_does_not_say_what_it_has_is_refused(tmp_path: Path, seqs: str, why: str) -> None:
    finished(tmp_path / "a", batches(2), manifest(2, workers=[facts(0, 2, received_seqs=seqs)]))
    with pytest.raises(StoreError, match=why):
        merge([tmp_path], tmp_path / "out")


def test_a_frame_without_a_batch_is_left_out_named_and_missing(tmp_path: Path) -> None:
    bad = encode_frame(FrameHeader(RUN, "w0", 2, 2), b"no batch")
    log = write_log(tmp_path / "run", [*batches(2), Batch("w0", 2, bad)], manifest(3))
    done = merge([log], tmp_path / "out")
    assert (done.rows, done.manifest.records_lost, done.manifest.complete) == (4, 2, False)
    (line,) = done.manifest.torn
    assert line.endswith("hold no batch that can be read, number 2 of worker w0 with 2 records")
    (said,) = done.unreadable
    assert said.startswith("batch 2 of worker w0 in '")


def test_a_merge_that_fails_leaves_no_half_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object) -> None:
        raise OSError("No space left on device")

    log = write_log(tmp_path / "other", batches(2), manifest(2))
    monkeypatch.setattr(sys.modules[merge.__module__], "write_manifest", full_disk)
    with pytest.raises(OSError, match="No space left"):
        merge([log], tmp_path / "out")
    assert not (tmp_path / "out" / REQUESTS_FILE).exists()


GROUP = 65_536


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run of two row groups."""
    path = create_run_dir(tmp_path / "run")
    many = RecordBatch.from_records([record(n) for n in range(GROUP // 64)], "w1")
    write_requests(path / REQUESTS_FILE, [many] * 65)
    rows = len(open_requests(path))
    facts = WorkerFacts(id="w1", index=0, announced=rows, received=rows, received_seqs="0-64")
    write_manifest(path, Manifest(id="run", name="x", started_ns=1, ended_ns=9, workers=[facts]))
    return path


def damage(run: Path, group: int) -> int:
    """Overwrite a column of a row group; gives how many records are in the group."""
    path = run / REQUESTS_FILE
    found = pq.read_metadata(path).row_group(group)
    chunk = found.column(17)
    at = chunk.dictionary_page_offset or chunk.data_page_offset
    data = bytearray(path.read_bytes())
    data[at : at + 64] = b"\xff" * 64
    path.write_bytes(bytes(data))
    return int(found.num_rows)


def test_row_groups_that_cannot_be_read_are_left_out_named_and_missing(run: Path, tmp_path: Path) -> None:
    rows = len(open_requests(run))
    assert not is_damaged(run)
    lost = damage(run, 1)
    assert is_damaged(run)
    manifest = salvage(run, tmp_path / "out")
    assert len(read_requests(tmp_path / "out")) == manifest.records_received == rows - lost
    assert (manifest.records_lost, manifest.complete) == (lost, False)
    (line,) = manifest.torn
    assert line.startswith(f"requests.parquet: row group 1 of {lost} records cannot be read (")


def test_what_was_dropped_stays_dropped_and_is_not_missing_beside_what_cannot_be_read(
    run: Path, tmp_path: Path
) -> None:
    newest = FrameHeader("run", "w1", 66, 5)
    gone = Expired(
        run="run", base=0, size=9, sha256="", to="there", first_ns=1, until_ns=2, totals=b"",
        workers={"w1": ExpiredBatches(rows=5, seqs="65-66", newest=newest)},
    )  # fmt: skip
    write_expired(run, gone)
    rows, lost = len(open_requests(run)), damage(run, 1)
    manifest = salvage(run, tmp_path / "out")
    assert [w.received for w in manifest.workers] == [rows - lost + 5]
    assert read_expired(tmp_path / "out") == [gone]


def test_a_report_skips_what_is_bad_only_where_it_is_asked_to(run: Path) -> None:
    rows = len(open_requests(run))
    lost = damage(run, 0)
    with open_source([run], skip_bad=True) as source:
        assert len(source.requests) == rows - lost
        assert source.manifest.records_lost == lost
    with pytest.raises(StoreError, match="cannot be read as requests"), open_source([run]) as source:
        list(source.requests.parts())


def test_a_file_without_its_index_is_refused(run: Path, tmp_path: Path) -> None:
    path = run / REQUESTS_FILE
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(StoreError, match="cannot be read as requests"):
        salvage(run, tmp_path / "out")


def test_a_sound_run_is_reported_on_as_it_is(run: Path) -> None:
    with open_source([run], skip_bad=True) as source:
        assert source.runs[0].path == run
        assert source.manifest == replace(source.manifest, torn=[])
