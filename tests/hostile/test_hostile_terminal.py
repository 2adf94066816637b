"""What others say never writes anything but text to a terminal: in the log, in error lines.

Locust patches the process that imports it: what needs it runs in a process of its own.
"""

import json
import sys
from pathlib import Path

import psutil
import pytest
from report_cases import write_run
from warm_process import warm_code

from llm_locust.cli.main import main
from llm_locust.options.settings import UsageError
from llm_locust.report.output import one_line
from llm_locust.swarm.process.leaving import leave

#: The title of a terminal's window, colours, a line that is written over, text from right to left.
ODD = "\x1b]0;owned\x07\x1b[31m\x9b32mmodel\r\u202ex\n2nd line"

LOG = """
import json, logging, sys
from llm_locust.swarm.process.hush import (Hush)

odd = json.loads(sys.argv[1])
line = logging.LogRecord("locust", logging.INFO, "", 1, "a table\\n\\tof %s", (odd,), None)
try:
    raise ValueError(odd)
except ValueError as e:
    trace = logging.LogRecord("x", logging.ERROR, "", 1, "odd", (), (type(e), e, e.__traceback__))
assert Hush().filter(line) and Hush().filter(trace)
print(json.dumps([line.getMessage(), trace.exc_text]))
"""

GREENLET = """
import gevent, json, sys
sys.stderr = sys.stdout
from llm_locust.swarm.process.hush import (attach_hush, hush)
from locust.env import Environment
from locust.log import setup_logging

def fail(text):
    raise ValueError(text)

setup_logging("INFO")
environment = Environment()
attach_hush(environment)
hush(environment, ["sk-secret-of-the-run"])
text = json.loads(sys.argv[1]) + " sk-secret-of-the-run"
gevent.spawn(fail, text).join()
gevent.get_hub().threadpool.spawn(fail, text).wait()
gevent.get_hub().loop.run_callback(fail, text)
gevent.sleep(0.05)
"""


def test_what_is_said_of_a_greenlet_that_failed_is_clean_and_without_secrets() -> None:
    said = warm_code(GREENLET, json.dumps(ODD))
    assert said.count("/ERROR/llm_locust.swarm.process.hush: ") == 3
    assert said.count("ValueError: \ufffd]0;owned") == 3
    assert "sk-secret-of-the-run" not in said
    assert all(line.replace("\t", "").isprintable() for line in said.split("\n"))


def test_a_command_that_refuses_says_so_in_one_clean_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f"#!{sys.executable}\nimport sys\nsys.exit({ODD!r})\n")
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(
        "host: http://10.0.0.1:8000\nrun_time: 1m\n"
        "classes:\n  - {name: a, input_tokens: 10, output_tokens: 5}\n"
    )
    run = write_run(tmp_path / "run")
    for command in (
        ["k8s", "render", "--scenario", str(scenario), "--workers", "1"],
        ["upload", str(run), f"file://{ODD}"],
        ["sim", "--faults", ODD],
    ):
        assert main(command) == 2
        said = capfd.readouterr().err
        assert said.startswith(f"llm-locust {command[0]}")
        assert "owned" in said or "2nd line" in said
        assert said[:-1].isprintable(), said


def test_an_error_line_is_one_line_without_control_characters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil.Process, "children", lambda _: [])
    with pytest.raises(SystemExit):
        leave(UsageError(f"models: {ODD}"))
    printed = capsys.readouterr().err
    assert printed.endswith("2nd line\n")
    assert printed[:-1].isprintable()
    assert one_line(ODD).isprintable()


def test_lines_of_the_log_have_no_control_characters_and_tables_keep_their_lines() -> None:
    line, trace = json.loads(warm_code(LOG, json.dumps(ODD)))
    assert line.startswith("a table\n\tof \ufffd]0;owned")
    assert line.endswith("\n2nd line")
    assert trace.startswith("Traceback")
    for text in (line, trace):
        assert all(part.replace("\t", "").isprintable() for part in text.split("\n"))
