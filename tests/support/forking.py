"""``pytest --forks 2``: the tests of a file run in one of several forks of the process that collected all.

To collect takes as long as many tests; here it is done once. A fork takes the next file when it has done one,
and tells the reports of a file together.
"""

import atexit
import os
import random
import sys
import threading
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, cast

import pytest

_INDEX = 2


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, help="run tests in as many forks of this process")


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    option = session.config.option
    if not option.forks or option.collectonly or session.testsfailed or not session.items:
        return None
    files: dict[object, list[pytest.Item]] = {}
    for item in session.items:
        files.setdefault(item.path, []).append(item)
    _run(session, [*files.values()], option.forks)
    return True


@dataclass(slots=True)
class _Fork:
    """What is known of a fork: its last test so far, whether it told its end, reports not passed on yet."""

    pid: int
    last: str
    over: bool = False
    reports: list[pytest.TestReport] = field(default_factory=list)


def _run(session: pytest.Session, files: Sequence[Sequence[pytest.Item]], count: int) -> None:
    queue, fill = os.pipe()
    os.write(fill, b"".join(index.to_bytes(_INDEX) for index in range(len(files))))
    os.close(fill)
    forks = dict(_started(session, files, queue) for _ in range(count))
    waiting = dict.fromkeys(item.nodeid for file in files for item in file)
    killed = []
    try:
        while forks:
            for told in cast(list[Connection], wait([*forks])):
                if not _heard(session, told, fork := forks[told], waiting):
                    del forks[told]
                    if os.waitpid(fork.pid, 0)[1] or not fork.over:
                        killed.append(fork.last)
            if session.shouldfail or session.shouldstop:
                while os.read(queue, 1 << 16):
                    pass
    finally:
        os.close(queue)
        for told, fork in forks.items():
            told.close()
            os.waitpid(fork.pid, 0)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    # Killed after all tests, a fork was in what its last one shared with others.
    _pass_on(session, (_failed(nodeid, "its process ended before its end") for nodeid in waiting or killed))


def _heard(session: pytest.Session, told: Connection, fork: _Fork, waiting: dict[str, None]) -> bool:
    """Process one message of a fork; give whether it can tell more."""
    try:
        said = told.recv()
    except EOFError:
        _pass_on(session, fork.reports)
        return False
    if isinstance(said, str):  # its end, and what broke after its last test
        fork.over = True
        if said:
            fork.reports.append(_failed(fork.last, said))
    elif said is not None:
        report = session.config.hook.pytest_report_from_serializable(config=session.config, data=said)
        fork.reports.append(report)
        fork.last = report.nodeid
        if report.when == "teardown":
            waiting.pop(fork.last, None)
    else:
        _pass_on(session, fork.reports)
        fork.reports.clear()
    return True


def _pass_on(session: pytest.Session, reports: Iterable[pytest.TestReport]) -> None:
    for report in reports:
        session.config.hook.pytest_runtest_logreport(report=report)


def _failed(nodeid: str, why: str) -> pytest.TestReport:
    return pytest.TestReport(nodeid, (nodeid.split("::")[0], None, nodeid), {}, "failed", why, "teardown")


def _started(
    session: pytest.Session, files: Sequence[Sequence[pytest.Item]], queue: int
) -> tuple[Connection, _Fork]:
    heard, told = Pipe(duplex=False)
    pid = os.fork()
    if pid:
        told.close()
        return heard, _Fork(pid, session.items[-1].nodeid)
    code = 1
    try:
        heard.close()
        _work(session, files, queue, told)
        told.send("")
        code = 0
    except KeyboardInterrupt:
        pass
    except BaseException:
        told.send(traceback.format_exc())
        code = 0
    finally:
        told.close()
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stderr.flush()
        os._exit(code)


def _work(
    session: pytest.Session, files: Sequence[Sequence[pytest.Item]], queue: int, told: Connection
) -> None:
    atexit._clear()
    random.seed()
    _become_quiet(session.config, told)
    try:
        while index := os.read(queue, _INDEX):
            items = files[int.from_bytes(index)]
            # What a session shares is kept for the next file.
            for item, following in zip(items, [*items[1:], session], strict=True):
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.shouldfail or session.shouldstop:
                    return
            told.send(None)
    finally:
        session._setupstate.teardown_exact(None)


def _become_quiet(config: pytest.Config, told: Connection) -> None:
    """Tell reports instead of printing them; capture what tests print apart from the other forks."""
    plugins = config.pluginmanager
    capture = cast(Any, plugins.getplugin("capturemanager"))
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    plugins.unregister(plugins.getplugin("terminalreporter"))
    plugins.register(_Teller(config, told))


@dataclass(frozen=True, slots=True)
class _Teller:
    config: pytest.Config
    told: Connection

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.told.send(self.config.hook.pytest_report_to_serializable(config=self.config, report=report))
