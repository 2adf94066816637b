"""Pages of many servers under the same names, and the samples that are kept of them."""

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st
from metrics_cases import WINDOW, columns, ns, request

from llm_locust.deployment.server_metrics import (
    KNOWN,
    MOST_LINE_CHARS,
    SCHEMA,
    CheckedSamples,
    ExpositionError,
    MappingError,
    Reading,
    Rule,
    SamplesError,
    SampleWriter,
    ServerSample,
    compact_samples,
    parse_mapping,
    read_samples,
    readings,
)
from llm_locust.figures.servers import servers
from llm_locust.metrics.server_series import read_server_series

# --- Pages of many servers under the same names


def values(text: str) -> dict[str, float]:
    return {reading.name: reading.value for reading in readings(text)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'vllm:num_requests_running{engine="0"} 3.0\nvllm:num_requests_waiting 2\n'
            "# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_total 10.0\n"
            "vllm:num_preemptions_total 1\nvllm:kv_cache_usage_perc 0.25\n"
            "vllm:prefix_cache_queries_total 8\nvllm:prefix_cache_hits_total 6\n"
            "vllm:spec_decode_num_drafts_total 10\nvllm:spec_decode_num_draft_tokens_total 30\n"
            "vllm:spec_decode_num_accepted_tokens_total 12\n"
            'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 7\n',
            {
                "running": 3,
                "waiting": 2,
                "prompt_tokens": 10,
                "preemptions": 1,
                "kv_cache_usage": 0.25,
                "prefix_cache_queries": 8,
                "prefix_cache_hits": 6,
                "spec_drafts": 10,
                "spec_draft_tokens": 30,
                "spec_accepted_tokens": 12,
            },
        ),
        (
            "sglang:num_running_reqs 4\nsglang:num_queue_reqs 1\nsglang:token_usage 0.5\n"
            "sglang:cache_hit_rate 0.1\nsglang:spec_accept_length 2.5\nsglang:spec_accept_rate 0.5\n",
            {
                "running": 4,
                "waiting": 1,
                "kv_cache_usage": 0.5,
                "prefix_cache_hit_rate": 0.1,
                "spec_accept_length": 2.5,
                "spec_accept_rate": 0.5,
            },
        ),
        (
            "# TYPE vllm:nixl_xfer_time_seconds histogram\n"
            'vllm:nixl_xfer_time_seconds_bucket{engine="0",le="0.005"} 2\n'
            'vllm:nixl_xfer_time_seconds_sum{engine="0"} 0.03\n'
            'vllm:nixl_xfer_time_seconds_count{engine="0"} 3\n'
            "# TYPE vllm:nixl_bytes_transferred histogram\n"
            "vllm:nixl_bytes_transferred_sum 6291456\nvllm:nixl_bytes_transferred_count 3\n"
            "# TYPE vllm:nixl_num_failed_transfers counter\nvllm:nixl_num_failed_transfers_total 1\n",
            {
                "kv_transfer_s_bucket": 2,
                "kv_transfer_s_sum": 0.03,
                "kv_transfer_s_count": 3,
                "kv_transfer_bytes_sum": 6_291_456,
                "kv_transfer_bytes_count": 3,
                "kv_transfers_failed": 1,
            },
        ),
        (
            "# TYPE sglang:kv_transfer_latency_ms histogram\n"
            "sglang:kv_transfer_latency_ms_sum 30\nsglang:kv_transfer_latency_ms_count 3\n"
            "# TYPE sglang:kv_transfer_total_mb histogram\n"
            "sglang:kv_transfer_total_mb_sum 6\nsglang:kv_transfer_total_mb_count 3\n"
            "sglang:num_transfer_failed_reqs_total 1\n",
            {
                "kv_transfer_s_sum": 0.03,
                "kv_transfer_s_count": 3,
                "kv_transfer_bytes_sum": 6_291_456,
                "kv_transfer_bytes_count": 3,
                "kv_transfers_failed": 1,
            },
        ),
        (
            "tgi_queue_size 2\ntgi_batch_current_size 7\n# TYPE tgi_request_input_length histogram\n"
            "tgi_request_input_length_sum 99\ntgi_request_input_length_count 3\n"
            "# TYPE tgi_request_success counter\ntgi_request_success 3\n",
            {"waiting": 2, "running": 7, "prompt_tokens": 99, "finished": 3},
        ),
        (
            'nv_trt_llm_request_metrics{request_type="waiting"} 1\n'
            'nv_trt_llm_request_metrics{request_type="scheduled"} 2\n'
            'nv_trt_llm_request_metrics{request_type="max"} 512\n'
            'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"} 0.3\n'
            'nv_energy_consumption{gpu_uuid="GPU-1"} 1234.5\ntrtllm_num_requests_running 9\n',
            {"waiting": 1, "running": 9, "kv_cache_usage": 0.3, "energy_j": 1234.5},
        ),
        (
            "llamacpp:requests_processing 1\nllamacpp:requests_deferred 5\n"
            "# TYPE llamacpp:tokens_predicted_total counter\nllamacpp:tokens_predicted_total 70\n",
            {"running": 1, "waiting": 5, "generation_tokens": 70},
        ),
        (
            "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter\n"
            'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0"} 2500\n'
            "DCGM_FI_DEV_GPU_UTIL 80\nDCGM_FI_DEV_POWER_USAGE 301.5\nDCGM_FI_DEV_FB_USED 2\n",
            {"energy_j": 2.5, "gpu_utilisation": 0.8, "power_w": 301.5, "gpu_memory_used_bytes": 2 * 1024**2},
        ),
    ],
    ids=["vllm", "sglang", "vllm-nixl", "sglang-pd", "tgi", "triton", "llama.cpp", "dcgm"],
)
def test_each_server_speaks_in_our_names_and_units(text: str, expected: dict[str, float]) -> None:
    assert values(text) == pytest.approx(expected)


def test_a_histogram_keeps_its_parts_and_labels() -> None:
    text = (
        "# TYPE vllm:time_to_first_token_seconds histogram\n"
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="0.5"} 3\n'
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} 4\n'
        'vllm:time_to_first_token_seconds_sum{engine="0"} 1.5\n'
        'vllm:time_to_first_token_seconds_count{engine="0"} 4\n'
    )
    assert readings(text) == [
        Reading("ttft_s_bucket", {"engine": "0", "le": "0.5"}, 3),
        Reading("ttft_s_bucket", {"engine": "0", "le": "+Inf"}, 4),
        Reading("ttft_s_sum", {"engine": "0"}, 1.5),
        Reading("ttft_s_count", {"engine": "0"}, 4),
    ]


def test_a_histogram_in_milliseconds_has_its_edges_and_its_sum_in_seconds() -> None:
    text = (
        "# TYPE nv_inference_first_response_histogram_ms histogram\n"
        'nv_inference_first_response_histogram_ms_bucket{le="100"} 3\n'
        "nv_inference_first_response_histogram_ms_sum 250\nnv_inference_first_response_histogram_ms_count 3\n"
    )
    bucket, total, count = readings(text)
    assert (bucket.name, bucket.labels, bucket.value) == ("ttft_s_bucket", {"le": "0.1"}, 3)
    assert (total.value, count.value) == (0.25, 3)


def test_an_old_name_beside_the_new_one_does_not_count_twice() -> None:
    both = "vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.4\n"
    assert [reading.value for reading in readings(both)] == [0.4]
    assert [reading.value for reading in readings("vllm:gpu_cache_usage_perc 0.9\n")] == [0.9]


def test_two_engines_with_old_and_new_names_in_openmetrics_count_once_each() -> None:
    """As vLLM with two engines says it, to a scraper that asks for OpenMetrics."""
    text = (
        "# TYPE vllm:num_requests_running gauge\n"
        'vllm:num_requests_running{engine="0"} 5.0 1764345600.123\n'
        'vllm:num_requests_running{engine="1"} 3.0\n'
        'vllm:num_requests_waiting{engine="0"} NaN\nvllm:num_requests_waiting{engine="1"} 3\n'
        'vllm:gpu_cache_usage_perc{engine="0"} 0.5\nvllm:kv_cache_usage_perc{engine="0"} 0.6\n'
        'vllm:gpu_cache_usage_perc{engine="1"} 0.5\nvllm:kv_cache_usage_perc{engine="1"} 0.6\n'
        "# TYPE vllm:prefix_cache_hits counter\n"
        'vllm:prefix_cache_hits_total{engine="0"} 25.0 # {trace_id="a"} 1.0 1764345600.1\n'
        'vllm:prefix_cache_queries_total{engine="0"} 100.0\n'
        'vllm:gpu_prefix_cache_hits_total{engine="0"} 25.0\n'
        "# EOF\n"
    )
    found = [(each.name, each.labels.get("engine"), each.value) for each in readings(text)]
    assert sorted(found) == [
        ("kv_cache_usage", "0", 0.6),
        ("kv_cache_usage", "1", 0.6),
        ("prefix_cache_hits", "0", 25.0),
        ("prefix_cache_queries", "0", 100.0),
        ("running", "0", 5.0),
        ("running", "1", 3.0),
        ("waiting", "1", 3.0),
    ]


def test_what_is_not_asked_for_and_what_is_no_number_is_left_out() -> None:
    assert readings("process_cpu_seconds_total 5\nvllm:num_requests_running NaN\n") == []
    assert readings("") == []


def test_a_mapping_names_what_no_known_server_has() -> None:
    rules = (parse_mapping("my_queue=waiting"), parse_mapping("my_mj_total = energy_j * 0.001"), *KNOWN)
    text = "my_queue 3\n# TYPE my_mj_total counter\nmy_mj_total 1500\nvllm:num_requests_waiting 9\n"
    assert {r.name: r.value for r in readings(text, rules)} == {"waiting": 3, "energy_j": 1.5}
    assert parse_mapping("my_queue=depth") == Rule("my_queue", "depth")


@pytest.mark.parametrize("text", ["", "a", "a=", "=b", "a=b*x", "a=b*inf", "a b=c"])
def test_what_is_no_mapping_is_said_in_one_line(text: str) -> None:
    with pytest.raises(MappingError, match="write theirs=ours") as raised:
        parse_mapping(text)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "<html>no metrics here</html>",
        "vllm:num_requests_running{ 1",
        "{}",
        "x" * (MOST_LINE_CHARS + 1),
        "a{b='c'} 1",
    ],
)
def test_a_page_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ExpositionError):
        readings(text)


@pytest.mark.parametrize("name", ["a\x1b[2J", "a\x9b2J", "a\u2028b", "a\x07"], ids=ascii)
def test_why_a_page_is_none_is_one_line_that_no_terminal_obeys(name: str) -> None:
    with pytest.raises(ExpositionError) as caught:
        readings(f"{name} 1\n")
    assert str(caught.value).isprintable()


def test_a_value_that_is_none_in_our_unit_is_left_out() -> None:
    page = 'DCGM_FI_DEV_FB_USED{gpu="0"} 1e308\nDCGM_FI_DEV_GPU_UTIL{gpu="0"} 50\n'
    assert [reading.name for reading in readings(page)] == ["gpu_utilisation"]


@given(st.text(max_size=300) | st.text(alphabet='{}"\\=, \n#vlm:1', max_size=300))
def test_whatever_a_server_sends_gives_readings_or_that_error(text: str) -> None:
    with suppress(ExpositionError):
        assert all(reading.name for reading in readings(text))


@pytest.mark.parametrize("value", ["1.7e308", "-1e19", "NaN", "+Inf"])
def test_values_that_no_server_can_have_are_left_out(value: str) -> None:
    page = f'vllm:request_success_total{{a="1"}} {value}\nvllm:num_requests_running 3\n'
    assert values(page) == {"running": 3}
    assert values(f"sglang:kv_transfer_total_mb_sum {value}\nsglang:num_running_reqs 3\n") == {"running": 3}
    assert values("sglang:kv_transfer_total_mb_sum 1e15\n") == {}  # in bytes


@pytest.mark.parametrize("edge", ['le="foo"', 'le="nan"', 'le=""', 'other="1"'])
@pytest.mark.parametrize("name", ["vllm:time_to_first_token_seconds", "sglang:kv_transfer_latency_ms"])
def test_a_bucket_without_an_edge_is_left_out_and_the_rest_of_the_page_is_read(name: str, edge: str) -> None:
    page = f'{name}_bucket{{{edge}}} 3\n{name}_bucket{{le="+Inf"}} 4\n{name}_count 4\n'
    assert [(reading.labels.get("le"), reading.value) for reading in readings(page)] in (
        [("+Inf", 4), (None, 4)],
        [("inf", 4), (None, 4)],
    )


# --- Samples that no server can have told are left out of what a report reads, and named


GOOD = {"at_ns": ns(1.0), "target": "a:8000", "name": "running", "labels": "{}", "value": 1.0}


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.table({field.name: [row[field.name] for row in rows] for field in SCHEMA}).cast(SCHEMA)


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ({"value": 1e308}, "the value is not within ±1e+18"),
        ({"value": -math.inf}, "the value is not within ±1e+18"),
        ({"value": math.nan}, "the value is not within ±1e+18"),
        ({"at_ns": -1}, "the time is not between 1970 and 2116"),
        ({"at_ns": 2**63 - 1}, "the time is not between 1970 and 2116"),
        ({"labels": "le"}, "the labels are no JSON object of texts"),
        ({"labels": '{"gpu": 0}'}, "the labels are no JSON object of texts"),
        ({"labels": "[" * 10_000}, "the labels are no JSON object of texts"),
        ({"name": "ttft_s_bucket", "labels": '{"le": "foo"}'}, "a bucket's 'le' is no number"),
        ({"name": "ttft_s_bucket", "labels": '{"le": "nan"}'}, "a bucket's 'le' is no number"),
        ({"name": "ttft_s_bucket"}, "a bucket's 'le' is no number"),
    ],
)
def test_an_odd_sample_is_left_out_and_named_and_the_others_stay(odd: dict[str, Any], why: str) -> None:
    samples = CheckedSamples([table(GOOD, GOOD | odd), table(GOOD)])
    assert [kept.to_pylist() for kept in samples] == [[GOOD], [GOOD]]
    name = odd.get("name", "running")
    assert samples.failure == f"1 samples cannot be right and were left out: 1 of {name!r} ({why})"


def test_a_name_that_is_a_null_of_its_dictionary_is_left_out() -> None:
    made = table(GOOD, GOOD)
    names = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["running", None]))
    samples = CheckedSamples([made.set_column(2, SCHEMA.field("name"), names)])
    assert [kept.to_pylist() for kept in samples] == [[GOOD]]
    assert samples.failure.endswith("1 of 'None' (target or name is missing)")


def test_what_a_scrape_writes_stays_as_it_is() -> None:
    edges = [
        GOOD | {"name": "ttft_s_bucket", "labels": f'{{"le": "{edge}"}}', "value": 3.0}
        for edge in ("0.5", "+Inf", "1e-3")
    ]
    samples = CheckedSamples([table(GOOD, *edges)])
    assert [kept.to_pylist() for kept in samples] == [[GOOD, *edges]]
    assert samples.failure == ""


def test_of_many_kinds_the_most_frequent_are_named_on_one_line() -> None:
    rows = [GOOD | {"name": f"n{i}\nx", "value": math.nan} for i in range(6) for _ in range(i + 1)]
    samples = CheckedSamples([table(*rows)])
    assert [len(kept) for kept in samples] == [0]
    assert samples.failure.startswith("21 samples cannot be right and were left out: 6 of ")
    assert samples.failure.endswith(" and 3 other kinds")
    assert "\n" not in samples.failure


_NAMES = ["up", "running", "ttft_s_bucket", "ttft_s_count", "ttft_s_sum", "generation_tokens", "role"]
_LABELS = [
    "{}",
    '{"le": "0.1"}',
    '{"le": "+Inf"}',
    '{"le": "foo"}',
    '{"le": 1}',
    "[]",
    "null",
    '{"role": "x"}',
]
ANY = st.fixed_dictionaries(
    {
        "at_ns": st.floats(-5, 15).map(ns) | st.integers(-(2**63), 2**63 - 1),
        "target": st.sampled_from(["a", "b\n", ""]),
        "name": st.sampled_from(_NAMES) | st.text(max_size=4),
        "labels": st.sampled_from(_LABELS) | st.text(max_size=4),
        "value": st.floats() | st.floats(0, 100),
    }
)


@given(st.lists(ANY, max_size=8))
def test_no_file_keeps_the_servers_figures_from_being_made(rows: list[dict[str, Any]]) -> None:
    samples = CheckedSamples([table(*rows)])
    found = read_server_series(samples, WINDOW)
    servers(found, columns(request()), WINDOW)


# --- Samples survive whoever writes them


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
