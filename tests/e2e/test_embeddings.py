"""Embeddings and rerank against infinity, a server of others, by ``make test-embeddings``.

Its environment has another torch's gigabyte beside that of ``transformers serve``, so that CI does without.
"""

import http.client
import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from e2e.servers import HOST, READY_WITHIN_S, Server, free_port, running
from e2e.swarm import ROOT, Run, load

pytestmark = pytest.mark.e2e

VENV = ROOT / ".venv-infinity"
if not (VENV / "bin/infinity_emb").exists():
    pytest.skip(f"{VENV.name} has no infinity_emb: make test-embeddings", allow_module_level=True)

SCENARIO = """
classes:
  floats: {endpoint: embeddings, models: {embed: 1}, inputs: 4, input_tokens: 30}
  base64:
    {endpoint: embeddings, models: {embed: 1}, inputs: 3, input_tokens: 30, body: {encoding_format: base64}}
  rank: {endpoint: rerank, models: {rank: 1}, inputs: 5, input_tokens: 30, body: {top_n: 2}}
"""
INPUTS = {"floats": 4, "base64": 3, "rank": 5}


@pytest.fixture(scope="module")
def infinity(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder, port = tmp_path_factory.mktemp("infinity"), free_port()
    offline = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
    encoder = Path(__file__).with_name("tiny_encoder.py")
    subprocess.run([VENV / "bin/python", encoder, folder], check=True, timeout=READY_WITHIN_S)
    command = [
        str(VENV / "bin/infinity_emb"),
        "v2",
        "--host",
        HOST,
        "--port",
        str(port),
        "--url-prefix",
        "/v1",
    ]
    for name in ("embed", "rank"):
        command += ["--model-id", str(folder / name), "--served-model-name", name]
    command += ["--device", "cpu", "--engine", "torch", "--no-bettertransformer", "--no-model-warmup"]
    with running(command, port, folder / "infinity.log", offline, health="/v1/models") as server:
        yield server


@pytest.fixture(scope="module")
def run(infinity: Server, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("embeddings")
    (folder / "s.yaml").write_text(SCENARIO)
    arguments = ["-u", "2", "-r", "2", "-t", "8s", "--scenario", str(folder / "s.yaml")]
    return load(infinity.url, folder / "run", ROOT / "locustfiles/scenario.py", arguments)


def test_every_request_of_each_kind_is_answered_with_all_that_it_asked_for(run: Run) -> None:
    assert run.exit_code in (0, 3), run.output
    assert {row["outcome"] for row in run.rows} <= {"ok", "cancelled"}, Counter(r["error"] for r in run.rows)
    assert {row["class"] for row in run.ok} == set(INPUTS)
    assert {(row["class"], row["inputs"]) for row in run.ok} == set(INPUTS.items())


def test_requests_have_tokens_and_inputs_per_second_are_those_of_the_records(run: Run) -> None:
    assert all(row["input_tokens"] > row["inputs"] for row in run.ok)
    window_s = run.summary["window"]["seconds"]
    inputs = sum(row["inputs"] for row in run.ok)
    assert run.summary["inputs"]["inputs_per_s"] == pytest.approx(inputs / window_s, rel=0.1)


def test_the_server_is_what_the_standard_library_finds_it_to_be(infinity: Server) -> None:
    body: dict[str, Any] = {"model": "embed", "input": ["a fox", "the quick brown fox"]}
    with closing(http.client.HTTPConnection(HOST, infinity.port, timeout=60)) as connection:
        connection.request("POST", "/v1/embeddings", json.dumps(body), {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
    assert [len(each["embedding"]) for each in answer["data"]] == [32, 32]
    assert answer["usage"]["prompt_tokens"] > 0
