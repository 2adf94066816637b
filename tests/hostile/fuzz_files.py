"""Fuzzers of the files that a person gives: scenarios and traces."""

import csv
import gzip
import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from fuzz_target import FOLDER, Target, chance_of, check_line

from llm_locust.core.record import MAX_TOKENS
from llm_locust.options.table import GRAMMAR, stop_rules
from llm_locust.scenario.document import Scenario, load_scenario
from llm_locust.scenario.request_kind import kinds_of
from llm_locust.scenario.tree import ScenarioError
from llm_locust.workload.answers import ValidatorError, checks_of
from llm_locust.workload.draws import parse_lengths
from llm_locust.workload.plan import WorkloadSpec
from llm_locust.workload.prompts import Prompt
from llm_locust.workload.trace_formats import TraceEntry, TraceError
from llm_locust.workload.traces import FORMATS, UNITS, Trace, TraceAsked, how_read, open_trace

# -- scenarios -----------------------------------------------------------------------------


def _is_option(value: object) -> bool:
    """What argparse would hold."""
    if isinstance(value, list):
        return all(isinstance(item, str) for item in value)
    return isinstance(value, str | int | float) and not (isinstance(value, float) and math.isnan(value))


def check_scenario(data: bytes, path: Path) -> None:
    """A file is a scenario that reaches workers whole and can be run, or an error that names its place."""
    path.write_bytes(data)
    try:
        found = load_scenario(path, GRAMMAR)
    except ScenarioError as e:
        check_line(e, str(path))
        return
    check_usable(found)
    assert Scenario.from_text(found.text_for_workers(), GRAMMAR) == found
    json.dumps(found.public_document, allow_nan=False).encode()


def check_usable(found: Scenario) -> None:
    """What a run makes of a scenario can be made, or is refused in one line."""
    assert all(map(_is_option, found.options.values()))
    assert found.classes
    stop_rules(found.stop)
    run = WorkloadSpec(input_tokens=parse_lengths("8"), output_tokens=parse_lengths("8"))
    try:
        kinds = kinds_of(found.classes, run)
    except ValueError as e:
        check_line(e)
        return
    for kind in kinds:
        prompt = Prompt(text="a", asked_output_tokens=8)
        json.loads(kind.spec.body_template("m").encode(prompt))
        assert kind.weight is None or 0 <= kind.weight < math.inf
    named = [v for kind in kinds for v in kind.validators if getattr(v, "kind", "function") != "function"]
    try:
        checks = checks_of(named)
    except ValidatorError as e:
        check_line(e)
        return
    for check in checks:
        check.why_not('{"a": 1}', None)


def check_text_for_workers(data: bytes) -> None:
    """What a worker gets in place of the file is a scenario, or an error."""
    try:
        found = Scenario.from_text(data.decode(errors="surrogateescape"), GRAMMAR)
    except ScenarioError as e:
        check_line(e)
        return
    check_usable(found)


def _scenario(case: bytes) -> None:
    check_scenario(case, FOLDER / "s.yaml")
    if chance_of(case).random() < 0.2:
        check_text_for_workers(case)


(FOLDER / "d.jsonl").write_text('{"prompt": "a", "expected": "b"}\n{"prompt": "c", "max_tokens": 5}\n')
(FOLDER / "questions.jsonl").write_text('{"prompt": "a"}\n')
(FOLDER / "l.csv").write_text("input,output\n5,6\n7,8\n")
(FOLDER / "t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,5,6\n")

_EVERYTHING = """\
model: m
users: 5
spawn_rate: 2.5
run_time: 1h30m
seed: 0
slo: {ttft: 500ms, tpot: 50ms}
gate: [rps>1, error_rate<1%]
warm_up: {duration: 10s, prompts: own}
stop: {error_rate: ">20% over 30s", oversaturation: true}
timeouts: {first: 60s, gap: 30s, total: 60m}
header: [X-A=b]
metrics_url: http://h/metrics
body: {temperature: 0, stop: ["a", null], n: 1}
classes:
  - &chat
    name: chat
    weight: 6
    dataset: {file: d.jsonl, order: shuffled, format: jsonl}
    output_tokens: 200
    expected: {match: exact, field: expected}
    validators: [{max_repetition: 0.5}, {regex: "a+|(b)"}, {contains: [a, b]}]
  - <<: *chat
    name: talk
    headers: {X-S: "{session}", Authorization: Bearer k}
    conversation: {turns: "uniform:1,5", think_time: "lognormal:2s,0.5", patience: 10s, history: full}
  - {name: schema, input_tokens: "file:l.csv", validators: {json_schema: {type: object, required: [a]}}}
  - {name: shared, preset: code, shared_prefix: {groups: 10, tokens: 100}, endpoint: responses}
"""

_RATES = """\
classes:
  a: {rate: "ramp:1..10,60s", input_tokens: "normal:500,50", unique_head: false, stream: false}
  b: {rate: 5, endpoint: messages, request_name: "x y"}
arrival: trace:t.csv
trace_scale: 2
"""

SCENARIO = Target(
    "scenario",
    _scenario,
    (
        *(
            b"\n",
            b"\n  ",
            b"\n- ",
            b"\n  - ",
            b": ",
            b", ",
            b"{",
            b"}",
            b"[",
            b"]",
            b'"',
            b"'",
            b"# ",
            b"|\n ",
            b">\n ",
        ),
        *(
            b"&a ",
            b"*a",
            b"<<: *a",
            b"<<: [*a, *a]",
            b"!!python/object:os.system",
            b"!!binary ",
            b"!!int ",
            b"!x ",
        ),
        *(
            b"--- ",
            b"...\n",
            b"%YAML 1.1\n",
            b"%TAG ! x\n",
            b"? ",
            b"\t",
            b"\\ud800",
            b"\\U99999999",
            b'"\\x',
        ),
        *(
            b"1e999",
            b"9" * 40,
            b"-9223372036854775809",
            b".nan",
            b".inf",
            b"0x10",
            b"1_0",
            b"2026-01-31",
            b"-0.0",
        ),
        *(
            b"null",
            b"true",
            b"~",
            b"classes: ",
            b"name: ",
            b"weight: ",
            b"rate: ",
            b"slo: ",
            b"body: ",
            b"dataset: ",
        ),
        *(
            b"validators: ",
            b"regex: ",
            b"json_schema: ",
            b"conversation: ",
            b"turns: ",
            b"think_time: ",
            b"headers: ",
        ),
        *(
            b"shared_prefix: ",
            b"preset: chat",
            b"stop: ",
            b"gate: ",
            b"timeouts: ",
            b"input_tokens: ",
            b"arrival: ",
        ),
        *(
            b"request_rate: ",
            b"trace_slice: ",
            b"header: ",
            b"file:l.csv",
            b"trace:t.csv",
            b"d.jsonl",
            b"file: ",
        ),
        *(
            b"uniform:1,5",
            b"lognormal:5,0.5",
            b"normal:",
            b"zipf:",
            b"ramp:1..10,60s",
            b"5s",
            b"1e5h",
            b"500ms",
        ),
        *(
            b"goodput>=95%",
            b"p99_ttft<800ms",
            b"(a+)+$",
            b"(?i)",
            b"[[:a",
            b"{1000}",
            b"$ref: ",
            b"#/a",
            b"\xe2\x80\xa8",
        ),
        *(b"pattern: ", b"properties: ", b"type: ", b"{session}", b"{x}", b"\x85", b"*a, *a, *a, *a, *a, *a"),
    ),
    (
        _EVERYTHING.encode(),
        _RATES.encode(),
        *(path.read_bytes() for path in sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))),
        b'{"path": "s.yaml", "scenario": {"model": "m", "classes": {"a": {"rate": 1, "body": {"x": NaN}}}}}',
        b"a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]\n",
    ),
)

# -- traces --------------------------------------------------------------------------------


def check_trace(data: bytes, path: Path, format: str | None) -> None:
    """A file is a trace whose every request can be replayed, or an error that names the line."""
    path.write_bytes(data)
    try:
        trace = open_trace(path, format=format)
        entries = list(trace)
    except TraceError as e:
        check_line(e, str(path), f"trace {str(path)!r}")
        return
    check_entries(entries)
    assert sum(e.input_tokens for e in entries) == trace.facts().input_tokens
    shares = [list(trace.share(worker, 3)) for worker in range(3)]
    assert sorted((e for share in shares for e in share), key=lambda e: e.k) == entries
    _check_sessions(shares)
    rows = _rows_by_hand(data, trace.format)
    assert rows is None or len(entries) == len(rows)
    if trace.format in ("mooncake", "sessions") and rows is not None:
        names = (
            ("input_length", "output_length")
            if trace.format == "mooncake"
            else ("input_tokens", "output_tokens")
        )
        expected = [sorted(int(row[name]) for row in rows) for name in names]
        assert [sorted(e.input_tokens for e in entries), sorted(e.output_tokens for e in entries)] == expected
    if entries[-1].at_s < 1e6:  # what a float of seconds tells to the nanosecond
        _check_slice(trace, entries)


def check_entries(entries: Sequence[TraceEntry]) -> None:
    """Numbered in order of time from 0, within bounds, each after what it depends on."""
    assert [e.k for e in entries] == list(range(len(entries)))
    assert entries[0].at_s == 0
    assert all(a.at_s <= b.at_s < math.inf for a, b in pairwise(entries))
    names = set[str]()
    for entry in entries:
        assert 0 <= entry.input_tokens <= MAX_TOKENS
        assert 0 <= entry.output_tokens <= MAX_TOKENS
        assert 0 <= entry.gap_s < math.inf
        assert names.issuperset(entry.after)
        assert math.isfinite(entry.due_s([1.0]))
        assert entry.session is None or entry.session.encode()
        names |= {entry.id} if entry.id is not None else set()


def _check_sessions(shares: Sequence[Sequence[TraceEntry]]) -> None:
    """A session is whole on one worker."""
    seen = [{e.session for e in share} - {None} for share in shares]
    assert sum(map(len, seen)) == len(set().union(*seen))


def _check_slice(trace: Trace, entries: Sequence[TraceEntry]) -> None:
    """A slice has the requests from its start on; stretched, all their times are."""
    begin_s = max(0.0, entries[len(entries) // 2].at_s - 1e-3)
    later = list(replace(trace, start_s=begin_s, scale=2.0))
    assert [e.line for e in later] == [e.line for e in entries if e.at_s >= begin_s]
    assert math.isclose(later[-1].at_s, 2 * (entries[-1].at_s - begin_s), rel_tol=1e-6, abs_tol=1e-6)


def _rows_by_hand(data: bytes, format: str) -> list[Any] | None:
    """The file's rows as Python's own readers have them; None where they do not read it."""
    text = data.removeprefix(b"\xef\xbb\xbf").decode(errors="replace")  # also in what is ignored
    if format in ("azure", "burstgpt"):
        cells = (row for row in csv.reader(_lines(text)) if any(map(str.strip, row)))
        return list(cells)[1:]
    try:
        return [json.loads(line) for line in _lines(text) if line.strip()]
    except (ValueError, RecursionError):
        return None


def _lines(text: str) -> Iterable[str]:
    return io.StringIO(text, newline="\n")


def _traces(case: bytes) -> None:
    chance = chance_of(case)
    path = FOLDER / "trace"
    check_trace(case, path, None)
    format = chance.choice(list(FORMATS))
    check_trace(case, path, format)
    check_units(path, chance.choice((None, *UNITS)), chance.choice((None, 4, 16, 65_536)))
    if chance.random() < 0.1:
        packed = gzip.compress(case)
        at = chance.randrange(len(packed))
        check_packed(packed, path, format)
        check_packed(packed[:at] + chance.randbytes(2) + packed[at + 2 :], path, format)
        check_packed(packed[:at], path, format)


def check_units(path: Path, unit: str | None, block_tokens: int | None) -> None:
    """How a file is read is said in one line, or it is refused in one."""
    try:
        trace = open_trace(path, asked=TraceAsked(unit=unit, block_tokens=block_tokens, most_skipped=2))
        assert how_read(trace).isprintable()
        for entry in trace:
            assert max(0, len(entry.hash_ids) - 1) * entry.block_tokens <= entry.input_tokens
    except TraceError as e:
        check_line(e, str(path), f"trace {str(path)!r}")


def check_packed(data: bytes, path: Path, format: str) -> None:
    """As :func:`check_trace`, of a gzip file that may be damaged."""
    path.write_bytes(data)
    try:
        check_entries(list(open_trace(path, format=format)))
    except TraceError as e:
        check_line(e, str(path), f"trace {str(path)!r}")


TRACES = Target(
    "traces",
    _traces,
    (
        *(
            b"\n",
            b"\r\n",
            b"\r",
            b",",
            b",,",
            b'"',
            b'""',
            b"{",
            b"}",
            b"[",
            b"]",
            b":",
            b"\x1f\x8b",
            b"\x0b",
            b"\x1c",
        ),
        *(
            b"TIMESTAMP,ContextTokens,GeneratedTokens\n",
            b"Timestamp,Request tokens,Response tokens,Session ID\n",
        ),
        *(
            b"2023-11-16 18:17:03.9799600",
            b"0001-01-01",
            b"9999-12-31T23:59:59+00:00",
            b"2023-11-16T18:17:03Z",
        ),
        *(
            b"-23:59",
            b"+24:00",
            b"0",
            b"1",
            b"-1",
            b"1.5",
            b"1e11",
            b"1e999",
            b"nan",
            b"-inf",
            b"1_0",
            b"9" * 30,
        ),
        *(
            b"10000000",
            b"10000001",
            b"512.0",
            b"\xd9\xa1",
            b"-0",
            b"1e-320",
            b"0x1",
            b"2023-W01-1",
            b"null",
            b"true",
        ),
        *(b'"chat_id": 1, ', b'"parent_chat_id": -1, ', b'"turn": 2, ', b"512.0"),
        *(b'{"timestamp": 1, "input_length": 5, "output_length": 6, "hash_ids": [1, 2]}\n', b'"hash_ids": '),
        *(
            b'{"id": "a", "at": 1, "input_tokens": 5, "output_tokens": 6}\n',
            b'"after": ["a"]',
            b'"session": "s"',
        ),
        *(
            b'"gap_s": ',
            b'"id": ',
            b'"at": ',
            b'"timestamp": ',
            b'"input_length": ',
            b'"\\ud800"',
            b"1e100",
            b"\xe2\x80\xa8",
        ),
    ),
    (
        b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"
        b"2023-11-16 18:17:04.0319600,3180,8\n2023-11-16 18:17:04,0,0\n",
        b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type,Session ID\n"
        b"5,ChatGPT,472,18,490,Conversation log,a\n45,ChatGPT,1087,230,1317,Conversation log,\n"
        b"118,GPT-4,417,0,417,API,a\n",
        b'{"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 40, "output_length": 5, '
        b'"turn": 1, "hash_ids": [1, 2, 3]}\n{"chat_id": 2, "parent_chat_id": 1, "timestamp": 1.5, '
        b'"input_length": 48.0, "output_length": 5, "turn": 2, "hash_ids": [1, 2, 4]}\n',
        b'{"timestamp": 0, "input_length": 6755, "output_length": 500, "hash_ids": [0, 1, 2]}\n'
        b'{"timestamp": 27482.5, "input_length": 6472, "output_length": 26, "hash_ids": [0, 14]}\n',
        b'{"id": "a1", "at": 0.0, "input_tokens": 900, "output_tokens": 60}\n'
        b'{"id": 2, "at": 4.5, "input_tokens": 1100, "output_tokens": 80, "after": ["a1"], "gap_s": 1.2}\n'
        b'{"id": "b", "at": 4.0, "input_tokens": 5, "output_tokens": 8, "session": "s", "hash_ids": [1]}\n',
    ),
)
