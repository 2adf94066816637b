"""A report in the formats of other programs."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema_rs
import numpy as np
import pytest
import yaml
from metrics_cases import batch, failed, manifest, ns, request, stage
from msgspec import structs
from report_cases import lost_records, summary, write_run
from summaries import typed

from llm_locust.cli.main import main
from llm_locust.core.record import Outcome, RequestRecord
from llm_locust.core.stages import with_stages
from llm_locust.metrics.question import Prices, Question
from llm_locust.report.analysis import Analysis, analyse
from llm_locust.report.benchmark_formats import dynamo, dynamo_files, vllm_json
from llm_locust.report.formats import FORMAT, junit as junit_of
from llm_locust.report.inputs import Source, StoredRun, open_source


def analysis(run: Path, **question: Any) -> Analysis:
    with open_source([run]) as source:
        return analyse(source, Question(**question))


def junit(*made: Any, **facts: Any) -> str:
    """The file of a summary of :mod:`report_cases`."""
    return junit_of(typed(summary(*made, **facts)))


def cases(text: str) -> dict[str, ElementTree.Element]:
    """Test cases by their names."""
    (suite,) = ElementTree.fromstring(text)
    assert suite.get("tests") == str(len(suite.findall("testcase")))
    assert suite.get("failures") == str(len(suite.findall("testcase/failure")))
    return {str(case.get("name")): case for case in suite.findall("testcase")}


def test_junit_has_a_case_for_the_verdict_each_gate_completeness_and_the_client() -> None:
    found = cases(junit(gates="rps>1 p99_ttft<100ms"))
    assert list(found) == ["verdict", "complete", "client", "rps>1", "p99_ttft<100ms"]
    assert [name for name, case in found.items() if case.find("failure") is not None] == [
        "verdict",
        "p99_ttft<100ms",
    ]


def test_a_broken_gate_says_its_value_and_its_limit() -> None:
    failure = cases(junit(gates="p50_ttft<10ms"))["p50_ttft<10ms"].find("failure")
    assert failure is not None
    assert failure.get("message") == "99.5 ms is not < 10 ms"
    assert failure.text == "p50_ttft<10ms: measured 99.5"


def test_a_gate_without_samples_fails_and_says_so() -> None:
    failure = cases(junit([], gates="p99_ttft<100ms"))["p99_ttft<100ms"].find("failure")
    assert failure is not None
    assert failure.get("message") == "no samples: the run has no value for p99_ttft"


def test_missing_records_and_an_invalid_client_are_failures() -> None:
    made = [request(i / 10, kernel_stamps=False, client_lag_ns=30_000_000) for i in range(50)]
    found = cases(junit(made, workers=lost_records(50, 3)))
    lost, client = found["complete"].find("failure"), found["client"].find("failure")
    assert lost is not None
    assert client is not None
    assert lost.get("message") == "3 requests without a record, 1 of 1 worker seen"
    assert "w1: 3 missing" in (lost.text or "")
    assert "the client read 30 ms late" in str(client.get("message"))


def test_a_suspect_client_passes_with_its_reasons() -> None:
    made = [request(i / 10, end_lag_ns=30_000_000) for i in range(50)]
    case = cases(junit(made))["client"]
    assert case.find("failure") is None
    assert (case.findtext("system-out") or "").startswith("suspect: the load was late: users waited")


def test_junit_is_xml_whatever_the_texts_are() -> None:
    found = typed(summary())
    odd = structs.replace(
        found.run, name='<a & "b">\x00\x1b[31m\ufffe\ud800', model="]]>", host="http://x/\u202e"
    )
    text = junit_of(structs.replace(found, run=odd))
    (suite,) = ElementTree.fromstring(text)
    assert suite.get("name") == 'llm-locust <a & "b">'


MADE: list[RequestRecord] = [
    request(0.0, (0.1, 0.2, 0.4), output_tokens=3, input_tokens=10),
    request(0.5, (0.2, 0.3), late=0.1, output_tokens=5, input_tokens=20),
    request(2.0, (0.3,), output_tokens=1, input_tokens=30),
    failed(3.0),
    request(4.0, (0.1,), outcome=Outcome.CANCELLED),
    request(0.2, (), streamed=False, ended=0.9, output_tokens=4, input_tokens=40),
]


def vllm(run: Path, percentiles: dict[str, float] | None = None, *, detailed: bool = False) -> Any:
    return json.loads(vllm_json(analysis(run), percentiles, detailed=detailed))


def test_the_result_of_vllm_is_by_its_formulas(tmp_path: Path) -> None:
    result = vllm(write_run(tmp_path, MADE, slo="ttft=250ms tpot=100ms"))
    duration = 3.001  # first sent at 0, the failure ended last
    ttfts, tpots, e2els = [100, 200, 300], [150, 25], [400, 300, 300, 700]
    expected = {
        "num_prompts": 5,
        "completed": 4,
        "failed": 1,
        "duration": duration,
        "total_input_tokens": 100,
        "total_output_tokens": 13,
        "request_throughput": 4 / duration,
        "request_goodput": 1 / duration,
        "output_throughput": 13 / duration,
        "total_token_throughput": 113 / duration,
        "max_output_tokens_per_s": 5,
        "max_concurrent_requests": 2,
        "mean_ttft_ms": np.mean(ttfts),
        "median_ttft_ms": np.median(ttfts),
        "std_ttft_ms": np.std(ttfts),
        "p99_ttft_ms": np.percentile(ttfts, 99),
        "mean_tpot_ms": np.mean(tpots),
        "p99_tpot_ms": np.percentile(tpots, 99),
        "mean_itl_ms": np.mean([100, 200, 100]),
        "p99_itl_ms": np.percentile([100, 200, 100], 99),
        "mean_e2el_ms": np.mean(e2els),
        "p99_e2el_ms": np.percentile(e2els, 99),
    }
    assert {key: result[key] for key in expected} == pytest.approx(expected)


def test_the_result_of_vllm_has_its_keys(tmp_path: Path) -> None:
    statistics = ("mean", "median", "std", "p50", "p99.9")
    traffic = ("request_rate", "burstiness", "max_concurrency")
    assert list(vllm(write_run(tmp_path, MADE), {"p50": 50.0, "p99_9": 99.9})) == [
        *("date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts"),
        *traffic,
        *("duration", "completed", "failed", "total_input_tokens", "total_output_tokens"),
        *("request_throughput", "request_goodput", "output_throughput", "total_token_throughput"),
        *("max_output_tokens_per_s", "max_concurrent_requests"),
        *(f"{statistic}_{m}_ms" for m in ("ttft", "tpot", "itl", "e2el") for statistic in statistics),
    ]


def test_the_load_is_told_in_the_words_of_vllm(tmp_path: Path) -> None:
    def told(name: str, **facts: Any) -> list[Any]:
        result = vllm(write_run(tmp_path / name, MADE, **facts))
        return [result[key] for key in ("backend", "request_rate", "burstiness", "max_concurrency")]

    rate = {"request_rate": "12.5", "max_in_flight": 8}
    assert told("closed", options={"num_users": 4}) == ["openai-chat", "inf", 1.0, 4]
    assert told("poisson", open_loop=True, options=rate) == ["openai-chat", 12.5, 1.0, 8]
    assert told("gamma", open_loop=True, options={**rate, "arrival": "gamma:2"})[2] == 0.25
    assert told("constant", open_loop=True, options={**rate, "arrival": "constant"})[2] == "inf"
    profile = {"request_rate": "ramp:1..9,60s", "arrival": "trace:x.jsonl"}
    assert told("trace", open_loop=True, options=profile)[1:] == [None, None, None]


def test_the_details_have_an_entry_a_request(tmp_path: Path) -> None:
    result = vllm(write_run(tmp_path, MADE), detailed=True)
    assert result["input_lens"] == [10, 20, 30, None, 40]
    assert result["output_lens"] == [3, 5, 1, 0, 4]
    assert result["ttfts"] == [*map(pytest.approx, (0.1, 0.2, 0.3)), None, None]
    assert result["itls"] == [[pytest.approx(0.1), pytest.approx(0.2)], [pytest.approx(0.1)], [], [], []]
    assert result["start_times"] == pytest.approx([0, 0.6, 2, 3, 0.2])
    assert result["errors"] == ["", "", "", "no room", ""]
    assert result["generated_texts"] == [""] * 5


def test_a_run_without_a_success_has_no_figures_rather_than_zeros(tmp_path: Path) -> None:
    result = vllm(write_run(tmp_path / "failed", [failed(1.0)]), detailed=True)
    assert (result["completed"], result["failed"], result["request_throughput"]) == (0, 1, 0.0)
    assert result["mean_ttft_ms"] is result["p99_itl_ms"] is result["max_output_tokens_per_s"] is None
    nothing = vllm(write_run(tmp_path / "empty", []), detailed=True)
    assert nothing["duration"] is nothing["request_throughput"] is None
    assert nothing["ttfts"] == []


def test_the_numbers_of_a_part_are_of_that_part(tmp_path: Path) -> None:
    found = analysis(write_run(tmp_path, MADE), where="input_tokens>=30")
    assert json.loads(vllm_json(found))["total_input_tokens"] == 70


FIELD = Path(__file__).parents[3] / "shared" / "field"


def exported(name: str, run: Path) -> Any:
    text = FORMAT[name].text(analysis(run))
    return yaml.safe_load(text) if name == "llmd" else json.loads(text)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path, MADE, options={"num_users": 3, "gpus": 2, "input_tokens": "10"})


GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", ["vllm", "llmd", "inferencex", "mlperf", "genai-perf"])
def test_a_file_is_the_golden_one(run: Path, name: str) -> None:
    found = yaml.safe_load(FORMAT[name].text(analysis(run)))
    assert same(found, yaml.safe_load((GOLDEN / str(FORMAT[name].file)).read_text()))


def same(found: Any, golden: Any) -> bool:
    """Equal, in the order of keys too, but for the last digits of numbers."""
    if isinstance(golden, dict):
        return list(found) == list(golden) and all(same(found[key], golden[key]) for key in golden)
    if isinstance(golden, list):
        return len(found) == len(golden) and all(map(same, found, golden))
    return bool(found == (pytest.approx(golden) if isinstance(golden, float) else golden))


def test_the_report_of_llmd_is_valid_by_its_schema_and_counts_every_request(run: Path) -> None:
    report = exported("llmd", run)
    if (FIELD / "br_v0_2_1_json_schema.json").is_file():  # another project's file: not kept here
        schema = json.loads((FIELD / "br_v0_2_1_json_schema.json").read_text())
        assert list(jsonschema_rs.validator_for(schema).iter_errors(report)) == []
    found = report["results"]["request_performance"]["aggregate"]
    assert {key: found["requests"][key] for key in ("total", "failures", "incomplete")} == {
        "total": 6,
        "failures": 1,
        "incomplete": 1,
    }
    ttft = found["latency"]["time_to_first_token"]
    assert (ttft["units"], ttft["mean"], ttft["p50"]) == ("ms", pytest.approx(200), pytest.approx(200))
    assert ttft["p99p9"] == pytest.approx(np.percentile([100, 200, 300], 99.9))
    lengths = report["scenario"]["load"]["standardized"]["output_seq_len"]
    assert (lengths["value"], lengths["min"], lengths["max"]) == (pytest.approx(3.25), 1, 5)
    assert found["throughput"]["output_token_rate"]["mean"] == pytest.approx(13 / 3.001)


def test_inferencex_has_seconds_interactivity_and_shares_of_a_gpu(run: Path) -> None:
    found, of_vllm = exported("inferencex", run), vllm(run)
    assert (found["conc"], found["isl"], found["framework"]) == (3.0, 10.0, None)
    assert found["mean_ttft"] == pytest.approx(of_vllm["mean_ttft_ms"] / 1e3)
    assert found["median_intvty"] == pytest.approx(1e3 / of_vllm["median_tpot_ms"])
    assert found["tput_per_gpu"] == pytest.approx(of_vllm["total_token_throughput"] / 2)
    assert found["input_tput_per_gpu"] + found["output_tput_per_gpu"] == pytest.approx(found["tput_per_gpu"])


def test_mlperf_has_nanoseconds_and_bounds_where_there_are_enough_samples(tmp_path: Path) -> None:
    made = [request(i / 10, (0.001 * (i + 1), 0.5), input_tokens=3, output_tokens=2) for i in range(100)]
    found = exported("mlperf", write_run(tmp_path, made))
    assert (found["n_samples_issued"], found["n_samples_completed"], found["n_samples_failed"]) == (
        100,
        100,
        0,
    )
    ttft = found["ttft"]
    assert (ttft["min"], ttft["max"]) == (pytest.approx(1e6), pytest.approx(100e6))
    assert ttft["total"] == pytest.approx(5050e6)
    # Of 100 samples the third highest bounds p90, and none bounds p99.
    assert ttft["early_stopping_percentiles"]["90.0"] == pytest.approx(98e6)
    assert ttft["early_stopping_percentiles"]["99.0"] is None
    assert sum(ttft["histogram"]["counts"]) == 100
    assert found["output_sequence_lengths"]["avg"] == 2.0


def test_genai_perf_has_units_and_figures_of_completed_requests(run: Path) -> None:
    found = exported("genai-perf", run)
    assert found["request_count"] == {"unit": "requests", "avg": 4.0}
    assert found["error_request_count"]["avg"] == 1.0
    assert (found["time_to_first_token"]["unit"], found["time_to_first_token"]["avg"]) == (
        "ms",
        pytest.approx(200),
    )
    assert found["request_throughput"]["avg"] == pytest.approx(4 / 3.001)
    assert found["input_sequence_length"]["max"] == 40.0


def of_stage(kind: str, *asked: float) -> Analysis:
    """The second of two stages; its sweep began with the load of the first."""
    stages = [stage(at, 1 + 4 * at, 4 + 4 * at, kind=kind, asked=each) for at, each in enumerate(asked)]
    options = {"num_users": "1"} if kind == "users" else {"request_rate": "2"}
    facts = manifest(9.0, stages=stages, options=options, open_loop=kind == "rate")
    rows = with_stages(batch(*(request(at) for at in range(1, 8))), stages, facts.open_loop)
    source = Source((StoredRun(facts, rows),), facts, rows, merged=False, unreadable=())
    return analyse(source, Question(where="stage==1", prices=Prices(gpus=8)))


def test_the_file_of_a_stage_has_its_own_load_and_the_gpus_that_the_report_was_told() -> None:
    found = of_stage("users", 1, 16)
    aggregate = json.loads(FORMAT["inferencex"].text(found))
    assert (aggregate["conc"], aggregate["num_gpus"]) == (16, 8)
    assert aggregate["output_tput_per_gpu"] is not None
    load = yaml.safe_load(FORMAT["llmd"].text(found))["scenario"]["load"]["standardized"]
    assert (load["stage"], load["concurrency"]) == (1, 16)
    assert json.loads(vllm_json(found))["max_concurrency"] == 16
    assert json.loads(FORMAT["mlperf"].text(found))["run_config"]["num_users"] == "16"
    of_rate = of_stage("rate", 2, 7.5)
    assert json.loads(vllm_json(of_rate))["request_rate"] == 7.5
    assert yaml.safe_load(FORMAT["llmd"].text(of_rate))["scenario"]["load"]["standardized"]["rate_qps"] == 7.5


@pytest.mark.parametrize("name", [name for name in FORMAT if FORMAT[name].scope == "one load"])
def test_a_run_without_answers_gives_a_file_without_figures(tmp_path: Path, name: str) -> None:
    run = write_run(tmp_path, [failed(0.0), failed(1.0)])
    if name == "vllm":
        assert vllm(run)["completed"] == 0
        return
    text = json.dumps(exported(name, run))
    assert "NaN" not in text
    assert "Infinity" not in text


def test_inputs_that_no_server_counted_give_no_rate_of_them(tmp_path: Path) -> None:
    made = [request(i / 10, (0.1, 0.2), input_tokens=None, output_tokens=2) for i in range(5)]
    run = write_run(tmp_path, made)
    assert exported("genai-perf", run)["total_token_throughput"] is None
    assert exported("genai-perf", run)["input_sequence_length"] is None
    assert exported("mlperf", run)["input_sequence_lengths"] is None
    report = exported("llmd", run)
    throughput = report["results"]["request_performance"]["aggregate"]["throughput"]
    assert list(throughput) == ["output_token_rate", "request_rate"]
    assert report["scenario"] == {}


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


def profiled_analysis(records: list[RequestRecord] | None = None, gpus: float | None = 4.0) -> Analysis:
    facts = manifest(36.0, stages=STAGES, options={"sweep": "users=1,2"})
    rows = with_stages(batch(*(made() if records is None else records)), STAGES, open_loop=False)
    run = StoredRun(facts, rows)
    source = Source((run,), facts, rows, merged=False, unreadable=())
    return analyse(source, Question(prices=Prices(gpus=gpus) if gpus else None))


def arrays(found: Analysis, max_kv_tokens: float = 10_000.0) -> dict[str, dict[str, Any]]:
    """What a reader of the files has, by folder."""
    files = dynamo_files(dynamo(found, max_kv_tokens))
    opened = {path.split("_")[1]: np.load(io.BytesIO(content)) for path, content in files.items()}
    return {part: {name: file[name].tolist() for name in file.files} for part, file in opened.items()}


def test_prefill_is_of_requests_that_were_alone_by_the_length_of_their_prompt() -> None:
    found = arrays(profiled_analysis())["prefill"]
    assert found["prefill_isl"] == [100, 200, 400, 800]
    assert found["prefill_ttft"] == pytest.approx([25, 50, 100, 200])
    assert found["prefill_thpt_per_gpu"] == pytest.approx([1000.0] * 4)


def test_decode_has_a_point_for_each_stage_that_is_a_result() -> None:
    found = arrays(profiled_analysis())["decode"]
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
    assert len(arrays(profiled_analysis(), 2_000.0)["decode"]["z_itl"]) == 2


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
        dynamo(profiled_analysis(records), 10_000.0)


def test_gpus_and_the_size_of_the_cache_have_to_be_given() -> None:
    with pytest.raises(ValueError, match="needs --gpus N"):
        dynamo(profiled_analysis(gpus=None), 10_000.0)
    with pytest.raises(ValueError, match="needs --max-kv-tokens N"):
        dynamo(profiled_analysis())


def test_the_file_is_the_golden_one() -> None:
    found = json.loads(dynamo(profiled_analysis(), 10_000.0))
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
