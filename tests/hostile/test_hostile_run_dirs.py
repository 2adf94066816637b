"""A run directory of a stranger: its files are values, and nothing in them is opened or costs a traceback."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from live_cases import Run as LiveRun
from metrics_cases import request
from report_cases import write_run
from roofline_cases import MODELS

from llm_locust.cli.main import main
from llm_locust.deployment.samples import SERVER_METRICS_FILE
from llm_locust.live.store import live_end
from llm_locust.report.inputs import LIVE_FILE, write_live_end
from llm_locust.store import MANIFEST_FILE, REQUESTS_FILE, SUMMARY_FILE


def forge(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the content of a JSON file."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def forged_shape(run: Path, shape: object) -> Path:
    """A run on one GPU, whose manifest has this in place of the model's shape."""
    write_run(run)
    options = {"gpu_type": "h100", "gpus": "1", "model_shape": shape}
    forge(run / MANIFEST_FILE, lambda manifest: manifest["options"].update(options))
    forge(run / MANIFEST_FILE, lambda manifest: manifest["workers"][0].update(batches=1, received_seqs="0"))
    return run


@pytest.mark.parametrize("kind", ["file", "pipe", "list", "number"])
@pytest.mark.parametrize("command", ["report", "merge"])
def test_what_a_manifest_names_as_the_models_shape_is_not_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, command: str
) -> None:
    secret = tmp_path / "secret.yaml"
    secret.write_text("confidential: 1\n")
    os.mkfifo(tmp_path / "pipe")  # to open it would never return
    shapes: dict[str, object] = {
        "file": str(secret),
        "pipe": str(tmp_path / "pipe"),
        "list": [1],
        "number": 7,
    }
    run = forged_shape(tmp_path / "run", shapes[kind])
    more = [] if command == "report" else ["--out", str(tmp_path / "out")]
    code = main([command, str(run), "--allow-incomplete", *more])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert "confidential" not in out + err
    made = run if command == "report" else tmp_path / "out"
    found = json.loads((made / SUMMARY_FILE).read_text())["roofline"]
    assert "only the name of a file for the model's shape" in str(found)


def test_a_shape_that_is_given_now_is_taken_in_place_of_a_path(tmp_path: Path) -> None:
    run = forged_shape(tmp_path / "run", "/nowhere.yaml")
    shape = str(MODELS / "llama-3-8b.yaml")
    assert main(["report", str(run), "--model-shape", shape, "--out", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out" / SUMMARY_FILE).read_text())["roofline"]
    assert found["model"] == "Llama 3 8B"


@pytest.mark.parametrize("name", [MANIFEST_FILE, REQUESTS_FILE, LIVE_FILE, SERVER_METRICS_FILE])
@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize("command", ["report", "compare", "merge"])
def test_a_file_that_is_a_link_or_a_pipe_is_neither_followed_nor_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, kind: str, command: str
) -> None:
    other, run = write_run(tmp_path / "other", id="other"), write_run(tmp_path / "run")
    victim = tmp_path / "victim"
    victim.write_text("confidential")
    (run / name).unlink(missing_ok=True)
    if kind == "link":
        (run / name).symlink_to(victim)
    else:
        os.mkfifo(run / name)  # to open it would never return
    words = {"compare": [str(other), str(run)], "merge": [str(run), "--out", str(tmp_path / "out")]}
    code = main([command, *words.get(command, [str(run)])])
    out, err = capsys.readouterr()
    assert "confidential" not in out + err
    assert not any("confidential" in path.read_text("latin-1") for path in (tmp_path / "out").glob("*"))
    if name in (MANIFEST_FILE, REQUESTS_FILE) or (command, name) == ("report", LIVE_FILE):
        assert code == 2
        assert ("is a link" if kind == "link" else "regular file") in err or command == "merge"


@pytest.mark.parametrize(
    "change",
    [
        lambda live: live["latency_ms"]["ttft"].update(p50=None),
        lambda live: live["latency_ms"]["ttft"].pop("p99"),
        lambda live: live["latency_ms"]["itl"].update(n=-1),
        lambda live: live["latency_ms"]["itl"].update(n=0),
        lambda live: live["latency_ms"].update(e2el=None),
        lambda live: live["latency_ms"]["tpot"].update(p95=1e300),
        lambda live: live.update(relative_error=1e300),
        lambda live: live.update(ok=2**63),
    ],
)
def test_live_figures_that_are_none_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[dict[str, Any]], object]
) -> None:
    run = write_run(tmp_path / "run")
    live = LiveRun()
    live.ended([request(i * 0.1) for i in range(95)])
    live.report()
    write_live_end(run, replace(live_end(live.store), run="20261121-first"))
    assert main(["report", str(run)]) == 0
    capsys.readouterr()
    forge(run / LIVE_FILE, change)
    assert main(["report", str(run)]) == 2
    err = capsys.readouterr().err
    assert "holds no live figures; remove it" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("price", ["-", "a" * 100_000])
@pytest.mark.parametrize("command", ["report", "compare"])
def test_a_price_that_is_none_is_refused_in_a_short_line_or_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], price: str, command: str
) -> None:
    other, run = write_run(tmp_path / "other", id="other"), write_run(tmp_path / "run")
    forge(run / MANIFEST_FILE, lambda manifest: manifest["options"].update(gpu_hour_cost=price))
    code = main([command, *([str(other)] if command == "compare" else []), str(run)])
    err = capsys.readouterr().err
    assert len(err) < 4_000
    assert code == (2 if command == "report" else 0)
