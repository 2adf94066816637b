"""The profile of an engine for Dynamo: its figures by hand, and what a run must know to have one."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from metrics_cases import batch, manifest, ns, request, stage
from report_cases import write_run

from llm_locust.cli.main import main
from llm_locust.core.record import RequestRecord
from llm_locust.core.stages import with_stages
from llm_locust.metrics.prices import Prices
from llm_locust.metrics.question import Question
from llm_locust.report.formats.dynamo import dynamo, dynamo_files
from llm_locust.report.inputs import Run, Source
from llm_locust.report.run.analysis import Analysis, analyse

#: One user, then two loads of two context lengths.
STAGES = [
    stage(0, 1.0, 11.0, asked=1.0),
    stage(1, 13.0, 23.0, asked=2.0),
    stage(2, 25.0, 35.0, asked=2.0),
]


def load(first: float, ttft: float, gap: float, users: int = 1, **fields: Any) -> list[RequestRecord]:
    """Nine requests of each user one after the other, of 11 tokens each."""
    arrivals = tuple(ttft + gap * token for token in range(11))
    return [
        request(first + at + user / 1000, arrivals, user=user, output_tokens=11, **fields)
        for at in range(9)
        for user in range(users)
    ]


def alone(lengths: Sequence[int] = (100, 200, 400, 800), **fields: Any) -> list[RequestRecord]:
    """One request after the other: 0.25 ms to the first token for each token of its prompt."""
    return [
        made
        for at, tokens in enumerate(lengths)
        for made in load(
            1.0 + at / len(lengths), tokens / 1000 / len(lengths), 0.001, 1, input_tokens=tokens, **fields
        )
    ]


def made(*parts: list[RequestRecord]) -> list[RequestRecord]:
    two = [load(13.0, 0.1, 0.05, 2, input_tokens=1000), load(25.0, 0.1, 0.06, 2, input_tokens=2000)]
    return [record for part in (parts or (alone(), *two)) for record in part]


def analysis(records: list[RequestRecord] | None = None, gpus: float | None = 4.0) -> Analysis:
    facts = manifest(36.0, stages=STAGES, options={"sweep": "users=1,2"})
    rows = with_stages(batch(*(made() if records is None else records)), STAGES, open_loop=False)
    run = Run(facts, rows)
    source = Source((run,), facts, rows, merged=False, unreadable=())
    return analyse(source, Question(prices=Prices(gpus=gpus) if gpus else None))


def arrays(found: Analysis, max_kv_tokens: float = 10_000.0) -> dict[str, dict[str, Any]]:
    """What a reader of the files has, by folder."""
    files = dynamo_files(dynamo(found, max_kv_tokens))
    opened = {path.split("_")[1]: np.load(io.BytesIO(content)) for path, content in files.items()}
    return {part: {name: file[name].tolist() for name in file.files} for part, file in opened.items()}


def test_prefill_is_of_requests_that_were_alone_by_the_length_of_their_prompt() -> None:
    found = arrays(analysis())["prefill"]
    assert found["prefill_isl"] == [100, 200, 400, 800]
    assert found["prefill_ttft"] == pytest.approx([25, 50, 100, 200])
    assert found["prefill_thpt_per_gpu"] == pytest.approx([1000.0] * 4)


def test_decode_has_a_point_for_each_stage_that_is_a_result() -> None:
    found = arrays(analysis())["decode"]
    contexts = [(100 + 200 + 400 + 800) / 4 + 5.5, 1005.5, 2005.5]
    assert found["y_context_length"] == pytest.approx(contexts)
    assert found["z_itl"] == pytest.approx([1, 50, 60])
    rates = [36 * 11 / 10, 18 * 11 / 10, 18 * 11 / 10]
    assert found["z_thpt_per_gpu"] == pytest.approx([rate / 4 for rate in rates], rel=0.01)
    in_flight = [(0.375 + 4 * 0.01) * 0.9, 2 * 0.6 * 0.9, 2 * 0.7 * 0.9]
    expected = [context * n / 10_000 for context, n in zip(contexts, in_flight, strict=True)]
    assert found["x_kv_usage"] == pytest.approx(expected, rel=0.01)
    assert found["max_kv_tokens"] == [10_000]


def test_a_stage_whose_requests_do_not_fit_into_the_cache_is_left_out() -> None:
    assert len(arrays(analysis(), 2_000.0)["decode"]["z_itl"]) == 2


@pytest.mark.parametrize(
    ("records", "said"),
    [
        (made()[36:], "no stage that is a result has such ones"),
        (made(alone(cached_tokens=16)), "with prompts that are not cached"),
        (
            made(alone((100, 101, 102, 400))),
            "needs 4 prompt lengths, and the requests that were alone have 101, 400",
        ),
        (made(alone()), "needs 2 context lengths"),
        (made(alone(replica="a"), alone(replica="b")), "of one engine, and 2 replicas answered"),
    ],
)
def test_what_the_run_does_not_know_is_an_error_that_says_so(records: list[RequestRecord], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        dynamo(analysis(records), 10_000.0)


def test_gpus_and_the_size_of_the_cache_have_to_be_given() -> None:
    with pytest.raises(ValueError, match="needs --gpus N"):
        dynamo(analysis(gpus=None), 10_000.0)
    with pytest.raises(ValueError, match="needs --max-kv-tokens N"):
        dynamo(analysis())


def test_the_file_is_the_golden_one() -> None:
    found = json.loads(dynamo(analysis(), 10_000.0))
    golden = json.loads((Path(__file__).parent / "golden" / "dynamo.json").read_text())
    assert {part: list(arrays) for part, arrays in found.items()} == {
        part: list(golden[part]) for part in golden
    }
    for part, columns in golden.items():
        for name, values in columns.items():
            assert found[part][name] == pytest.approx(values)


def test_the_command_writes_both_archives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    write_run(run, made(), stages=STAGES, options={"sweep": "users=1,2"}, stopped_ns=ns(36.0))
    asked = ["report", str(run), "--format", "dynamo", "--gpus", "4", "--out", str(out)]
    assert main(asked) == 2
    assert "needs --max-kv-tokens N" in capsys.readouterr().err
    assert main([*asked, "--max-kv-tokens", "10000"]) == 0
    with np.load(out / "selected_decode_interpolation" / "raw_data.npz") as file:
        assert file["max_kv_tokens"].tolist() == [10_000]
    with np.load(out / "selected_prefill_interpolation" / "raw_data.npz") as file:
        assert file["prefill_isl"].tolist() == [100, 200, 400, 800]
