"""What others say never writes anything but text to a terminal: in the log, in error lines.

Locust patches the process that imports it: what needs it runs in a process of its own.
"""

import json
import subprocess
import sys

import psutil
import pytest

from llm_locust.options.settings import UsageError
from llm_locust.report.output import one_line
from llm_locust.swarm.process.leaving import leave

#: The title of a terminal's window, colours, a line that is written over, text from right to left.
ODD = "\x1b]0;owned\x07\x1b[31m\x9b32mmodel\r\u202ex\n2nd line"

LOG = """
import json, logging, sys
from llm_locust.swarm.process.hush import Hush

odd = json.loads(sys.argv[1])
line = logging.LogRecord("locust", logging.INFO, "", 1, "a table\\n\\tof %s", (odd,), None)
try:
    raise ValueError(odd)
except ValueError as e:
    trace = logging.LogRecord("x", logging.ERROR, "", 1, "odd", (), (type(e), e, e.__traceback__))
assert Hush().filter(line) and Hush().filter(trace)
print(json.dumps([line.getMessage(), trace.exc_text]))
"""


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
    done = subprocess.run(
        [sys.executable, "-c", LOG, json.dumps(ODD)], capture_output=True, text=True, timeout=60, check=True
    )
    line, trace = json.loads(done.stdout)
    assert line.startswith("a table\n\tof \ufffd]0;owned")
    assert line.endswith("\n2nd line")
    assert trace.startswith("Traceback")
    for text in (line, trace):
        assert all(part.replace("\t", "").isprintable() for part in text.split("\n"))
