"""A process that goes on beside this one: heard line by line, ended in bounded time."""

import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

import gevent
import pytest

from llm_locust.swarm.process.children import Child

pytestmark = pytest.mark.alone

#: What the child does, by its first word.
MODULE = """
import os, signal, sys, time

def main():
    what = sys.argv[1]
    if what == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(f"begun {os.environ.get('TOKEN')} {os.environ.get('TOKEN_2')}", flush=True)
    print("trouble", file=sys.stderr, flush=True)
    if what == "brief":
        print("last words without an end", end="")
        return 3
    while True:
        time.sleep(0.02)
"""


@dataclass
class Heard:
    """A child, and what was heard of it."""

    lines: list[bytes] = field(default_factory=list)
    errors: list[bytes] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def start(self, word: str, **more: Any) -> Child:
        return Child(
            "child_of_a_test",
            [word],
            on_line=self.lines.append,
            on_error_line=self.errors.append,
            on_end=self.ends.append,
            **more,
        )

    def until_begun(self) -> None:
        with gevent.Timeout(120):
            while not (self.lines and self.errors):
                gevent.sleep(0.005)


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_watch_of_children: None) -> None:
    (tmp_path / "child_of_a_test.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_all_that_it_said_is_heard_before_its_end_is_known() -> None:
    heard = Heard()
    assert heard.start("brief").wait(120) == 3
    assert heard.lines == [b"begun None None", b"last words without an end"]
    assert heard.errors == [b"trouble"]
    gevent.sleep(0)
    assert heard.ends == [3]


def test_it_is_asked_to_end_and_its_lines_come_while_it_runs() -> None:
    heard = Heard()
    child = heard.start("patient")
    heard.until_begun()
    assert child.wait(0.01) is None
    assert child.end(within_s=20) == -SIGTERM
    assert child.end(within_s=20) == -SIGTERM, "one that has ended is left alone"
    assert heard.ends == [-SIGTERM]


def test_one_that_does_not_listen_is_killed_after_its_time() -> None:
    heard = Heard()
    child = heard.start("stubborn")
    heard.until_begun()
    began = time.monotonic()
    assert child.end(within_s=0.2) == -SIGKILL
    assert 0.2 <= time.monotonic() - began < 10


def test_only_the_variables_that_are_named_go_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "t")
    monkeypatch.setenv("TOKEN_2", "u")
    heard = Heard()
    heard.start("brief", variables=["TOKEN"]).wait(120)
    assert heard.lines[0] == b"begun t None"


def test_what_cannot_be_started_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(sys, "executable", "/nowhere")
    with pytest.raises(OSError, match="nowhere"):
        Heard().start("brief")
    assert len(os.listdir("/proc/self/fd")) <= len(before)
