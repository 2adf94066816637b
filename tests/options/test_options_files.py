"""Options that say how files are read reach every reader: of the run, and of each class of a scenario."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from parsed_settings import settings, settings_of

from llm_locust.options.settings import Settings, UsageError
from llm_locust.swarm.run.load_watch import checked_trace, tell_files
from llm_locust.workload.traces import trace as plausible
from llm_locust.workload.trajectories.trajectory import Turn

LINES = '{"prompt": "a", "domain": "x", "lora": 7}\n{\n{"prompt": "b", "domain": "y"}\n'


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.jsonl"
    path.write_text(LINES)
    return path


def extras(found: Settings) -> list[Any]:
    return [[p.extra for p in kind.spec.dataset.prompts] for kind in found.kinds if kind.spec.dataset]


@pytest.mark.parametrize("form", ["option", "scenario", "class"])
def test_bad_lines_are_skipped_and_keys_are_sent_wherever_a_dataset_is_named(lines: Path, form: str) -> None:
    def made(**given: Any) -> Settings:
        if form == "option":
            return settings(dataset=str(lines), **given)
        text = f"dataset: {{file: {lines}, format: jsonl}}"
        if form == "class":
            text = f"classes:\n  a: {{dataset: {lines}}}\n  b: {{dataset: {{file: {lines}}}}}"
        return settings_of(text, **given)

    with pytest.raises(UsageError, match=r"lines\.jsonl:2: "):
        made()
    number = 2 if form == "class" else 1
    assert extras(made(skip_bad_lines=1)) == [[{}, {}]] * number
    found = made(skip_bad_lines=1, dataset_keys="domain")
    assert extras(found) == [[{"domain": "x"}, {"domain": "y"}]] * number
    assert extras(made(skip_bad_lines=1, dataset_keys="all"))[0][0] == {"domain": "x", "lora": 7}


def test_how_files_were_read_is_said_once_for_each(lines: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    text = f"classes:\n  a: {{dataset: {lines}}}\n  b: {{dataset: {lines}}}\n  c: {{input_tokens: 5}}"
    found = settings_of(text, skip_bad_lines=3)
    caplog.clear()
    assert tell_files(found) == (None, {str(lines): 1})
    (said,) = caplog.messages
    assert said.startswith(f"dataset {str(lines)!r}: 2 prompts; 1 line skipped, the first: {lines}:2: ")
    assert said.endswith("keys that are not sent (--dataset-keys sends them): domain, lora")


def trace(folder: Path) -> Path:
    path = folder / "trace.jsonl"
    rows = [
        {"timestamp": i / 2, "input_length": 64, "output_length": 2, "hash_ids": [1, 2, 3, i]}
        for i in range(20)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_a_trace_is_checked_before_the_load_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arrival = f"trace:{trace(tmp_path)}"
    with pytest.raises(UsageError, match=r"--arrival: .* fit: add --trace-block 16 .*--trace-unit s"):
        checked_trace(settings(arrival=arrival).load)
    with pytest.raises(UsageError, match=r"--arrival: .* add --trace-unit s if they are seconds"):
        checked_trace(settings(arrival=arrival, trace_block="16").load)
    caplog.set_level(logging.INFO)
    opened, skipped = tell_files(settings(arrival=arrival, trace_block="16", trace_unit="s"))
    assert opened is not None
    assert not skipped
    assert [entry.at_s for entry in opened][-1] == 9.5
    assert "20 requests in 9.5 s (2/s): seconds, blocks of 16 tokens, which are 100%" in caplog.messages[-1]
    # A rate takes the place of the times, in whatever unit they are.
    assert checked_trace(settings(arrival=arrival, trace_block="16", request_rate="5").load) is not None


def test_the_skipped_lines_of_a_trace_are_counted_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plausible, "SAMPLE", 5)
    path = trace(tmp_path)
    path.write_text("".join(f"{text}\n{{bad\n" for text in path.read_text().splitlines()))
    given = {"arrival": f"trace:{path}", "trace_block": "16", "trace_unit": "s"}
    _, skipped = tell_files(settings(**given, skip_bad_lines=20))
    assert skipped == {str(path): 20}
    with pytest.raises(UsageError, match="19 lines before it were skipped, and no more may be"):
        tell_files(settings(**given, skip_bad_lines=19))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"trace_unit": "s"}, "--trace-unit without a trace"),
        ({"trace_block": "16"}, "--trace-block without a trace or trajectories"),
        ({"trace_block": "3"}, "--trace-block: block '3': a whole number of tokens from 4 to 65,536"),
        ({"skip_bad_lines": -1}, "--skip-bad-lines: -1 lines: a whole number from 0"),
        ({"dataset_keys": "a,"}, "--dataset-keys: keys 'a,': names with commas between"),
    ],
)
def test_options_of_files_that_are_not_there_are_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        settings(**given)


def test_the_size_of_a_block_is_that_of_trajectories_too(tmp_path: Path) -> None:
    path = tmp_path / "turns.jsonl"
    line = {"session_id": 1, "input_length": 64, "hash_ids": [1, 2, 3, 4]}
    path.write_text(f"{json.dumps(line)}\n" * 3)
    with pytest.raises(UsageError, match=r"--trajectories: .* add --trace-block 16 "):
        settings(trajectories=str(path))
    pool = settings(trajectories=str(path), trace_block="16").pool
    assert pool is not None
    turns: tuple[Turn, ...] = pool.trajectories[0].turns
    assert {turn.hashed.block for turn in turns if turn.hashed} == {16}
