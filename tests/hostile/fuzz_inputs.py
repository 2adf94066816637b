"""Fuzzers of other inputs: metrics pages of servers, datasets, model shapes and what the simulator reads."""

import gzip
import io
import json
import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from fuzz_target import FOLDER, Target, chance_of, check_line

from llm_locust.deployment.server_metrics import KNOWN, ExpositionError, readings
from llm_locust.roofline import read_model
from llm_locust.sim.faults import parse_fault_plan, parse_plan
from llm_locust.sim.settings import read_profile
from llm_locust.wire.dialects import DIALECTS
from llm_locust.workload.body import body_template
from llm_locust.workload.datasets import Dataset, DatasetError, load_conversations, load_dataset
from llm_locust.workload.draws import LengthError, read_lengths
from llm_locust.workload.prompts import PromptError

EXAMPLES = Path(__file__).parents[2] / "examples"

# -- metrics pages -------------------------------------------------------------------------


def _pages(case: bytes) -> None:
    """A page is readings that are numbers, or an error."""
    try:
        found = readings(case.decode(errors="replace"))
    except ExpositionError as e:
        check_line(e)
        return
    assert all(math.isfinite(reading.value) for reading in found)


PAGES = Target(
    "pages",
    _pages,
    (
        *(
            b"\n",
            b"{",
            b"}",
            b'"',
            b",",
            b"=",
            b" ",
            b"# TYPE ",
            b"# HELP ",
            b"histogram\n",
            b"counter\n",
            b"gauge\n",
        ),
        *(
            b"_bucket",
            b"_sum",
            b"_count",
            b"_total",
            b'le="',
            b"+Inf",
            b"NaN",
            b"1e308",
            b"-1e999",
            b"\\",
            b"\\n",
        ),
        *(b"# EOF", b"# {", b"1 2 3", b'le="x"', b"\x85", b"\x1b[2J", *(rule.raw.encode() for rule in KNOWN)),
    ),
    (
        b"# HELP vllm:num_requests_running x\n# TYPE vllm:num_requests_running gauge\n"
        b'vllm:num_requests_running{model_name="m"} 3.0\n'
        b"# TYPE vllm:time_to_first_token_seconds histogram\n"
        b'vllm:time_to_first_token_seconds_bucket{le="0.1"} 3\n'
        b'vllm:time_to_first_token_seconds_bucket{le="+Inf"} 4\n'
        b"vllm:time_to_first_token_seconds_sum 1\nvllm:time_to_first_token_seconds_count 4\n",
        b'nv_inference_first_response_histogram_ms_bucket{le="100"} 3\nDCGM_FI_DEV_FB_USED{gpu="0"} 1000\n',
    ),
)

# -- datasets ------------------------------------------------------------------------------


def check_dataset(found: Dataset) -> None:
    """Every prompt can be sent to every endpoint, or is refused in one line."""
    assert all(0 <= weight < math.inf for weight in found.weights)
    if found.weights:
        next(found.stream(0, 1, "weighted", 1))
    for endpoint in DIALECTS.values():
        template = body_template(endpoint, "m")
        for prompt in found.prompts:
            try:
                json.loads(template.encode(prompt))
            except PromptError as e:
                check_line(e)


def _datasets(case: bytes) -> None:
    chance = chance_of(case)
    path = FOLDER / f"d{chance.choice(('.jsonl', '.json', '.csv', '.tsv', '.txt', '.parquet', ''))}"
    path.write_bytes(gzip.compress(case) if chance.random() < 0.1 else case)
    try:
        format = chance.choice((None, "jsonl", "sharegpt", "csv", "parquet", "text"))
        sent = chance.choice((frozenset[str](), frozenset({"id", "x"}), None))
        check_dataset(load_dataset(path, format, sent=sent, most_skipped=chance.choice((0, 2))))
        load_conversations(path)
    except DatasetError as e:
        check_line(e, str(path), f"dataset {str(path)!r}")
    try:
        assert read_lengths(path).min() >= 1
    except LengthError as e:
        check_line(e)


_LINE = {
    "messages": [
        {"role": "system", "content": "s"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,aa"}},
            ],
        },
        {
            "role": "assistant",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "r"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    "temperature": 0,
    "max_tokens": 5,
    "weight": 2,
}


def _parquet() -> bytes:
    rows = [
        {"messages": [{"role": "user", "content": "a"}], "id": 1.0, "x": None},
        {"prompt": "a", "id": 2.0, "x": "b"},
    ]
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file.getvalue()


DATASETS = Target(
    "datasets",
    _datasets,
    (
        *(
            b"\n",
            b"\r",
            b'"',
            b",",
            b"\t",
            b"{",
            b"}",
            b"[",
            b"]",
            b":",
            b"null",
            b"NaN",
            b"1e308",
            b"-1",
            b"\0",
        ),
        *(
            b'"prompt": "a"',
            b'"messages": [{"role": "user", "content": "a"}]',
            b'"weight": ',
            b'"id": ',
            b'"name": ',
        ),
        *(b'"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]', b'"class": '),
        *(
            b'"input_tokens": ',
            b'"output_tokens": ',
            b'"tools": ',
            b'"\\ud800"',
            b'"stream": true',
            b'"max_tokens": ',
        ),
        *(
            b'"content": [{"type": "text", "text": "a"}]',
            b'"image_url": {"url": "data:x"}',
            b'"role": "tool"',
        ),
        *(b'"tool_calls": [{"function": {"name": "f", "arguments": "{"}}]', b'"role": "system"', b"PAR1"),
        *(b'"turns": ["a"]', b'"body": {"prompt": "a"}', b'"input": ', b'"text": ', b'"system": "s"'),
        *(b'"from": "observation"', b'"value": null', b'[{"role": "user", "content": "a"}]', b"5.0"),
        *(b'"role": "assistant"', b"prompt,weight\n", b"input,output\n", b"\xe2\x80\xa8", b"9" * 30),
    ),
    (
        json.dumps(_LINE).encode() + b"\n"
        b'{"prompt": "x", "id": "1", "name": "n", "class": "c", "expected": 5}\n',
        b'[{"id": "a", "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}]',
        b'{"custom_id": "r", "method": "POST", "url": "/v1", "body": {"messages": [{"role": "user", '
        b'"content": "a"}], "max_tokens": 5.0}}\n{"turns": ["a", "b"], "reference": ["r"], "system": "s"}\n',
        b'[{"role": "user", "content": "a"}]\n[{"role": "user", "content": "b"}]\n',
        b'{"conversation": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "x"}]}\n'
        b'{"instruction": "a", "input": "b", "output": "c"}\n{"input": ["a", "b"], "x": null}\n',
        _parquet(),
        b'prompt,weight,id,output_tokens\nhello,1.5,a,5\n"a\nb",2,b,6\n',
        b"input,output\n5,6\n7,8\n",
        b'"text"\n"more"\n',
    ),
)

# -- small YAML files ----------------------------------------------------------------------


def _models(case: bytes) -> None:
    path = FOLDER / "model.yaml"
    path.write_bytes(case)
    for read in (
        read_model,
        read_profile,
        lambda at: parse_plan(str(at)),
        lambda at: parse_fault_plan(str(at)),
    ):
        try:
            read(path)
        except ValueError as e:
            check_line(e)


_FILES = [path.read_bytes() for path in sorted(EXAMPLES.glob("*/*.yaml"))]
_KEYS = {
    line.partition(b":")[0].strip() + b": " for file in _FILES for line in file.splitlines() if b":" in line
}

MODELS = Target(
    "models",
    _models,
    (
        *(
            b"\n",
            b": ",
            b"- ",
            b"{",
            b"}",
            b"[",
            b"]",
            b"1e308",
            b"-1",
            b"0",
            b".nan",
            b".inf",
            b"null",
            b"true",
        ),
        *(
            b"fp8",
            b"5ms",
            b"&a ",
            b"*a",
            b"\\U99999999",
            b'"',
            b"!!python/object:x ",
            b"<<: *a",
            b"? ",
            b"1_0",
        ),
        *(
            b"at: 1s",
            b"action: kill",
            b"replica: 0",
            b"factor: 3x",
            b"reset: 1%",
            b"refused: 5s..9s",
            b"9" * 40,
        ),
        *sorted(_KEYS),
    ),
    (
        *_FILES,
        b"- {at: 10s, action: kill, replica: 2}\n- {at: 30s, action: slow, replica: 1, factor: 3x}\n",
        b"reset: 1%\nstall: 0.5%\n",
    ),
)
