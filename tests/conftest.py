"""Fixtures that many tests stand on."""

import asyncio
import gc
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from inspect import iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING

import gevent
import pytest
from hypothesis import settings
from scripted import ScriptedServer, TlsFiles, make_tls_files, scripted_server
from warm_process import be_warm, warm_python

from llm_locust.client.http.clock import ANCILLARY_BYTES, hold_stamping

if TYPE_CHECKING:
    from calls import Caller

pytest_plugins = ["forking"]

#: Of each property: they are drawn anew in every run. `make properties` tries many more.
_EXAMPLES = int(os.environ.get("LLM_LOCUST_TEST_EXAMPLES", "40"))

# A time limit per example finds nothing but a busy machine.
settings.register_profile("daily", deadline=None, max_examples=_EXAMPLES)
settings.load_profile("daily")

# A shell's background jobs ignore Ctrl-C, and so would every process that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


#: Who starts processes with these starts a whole run.
_STARTERS = ("locust", "simulation", "swarm")

#: The client against a server whose times are known: what another process takes from either changes them.
_TIMED = {"_server_process", "_tls_server_process", "kernel_stamping"}

#: What a file has in its text that has tests of a kind; of whole runs, those of every day judge times too.
_NAMED = {
    "run": re.compile(rb"\bswarm_process\b|\bmark\.run\b"),
    "alone": re.compile(
        rb"\bmark\.(alone|everyday)\b|\b(tls_)?server: ScriptedServer\b|\bask: Caller\b|\bkernel_stamping\b"
    ),
}

#: The files of whole runs that take longest, which come first: no fork is left with one at the end.
_LONG = (
    "test_docs_blocks",
    "test_swarm_search",
    "test_swarm_web_stages_run",
    "test_protocols_run",
    "test_swarm_chaos_workers",
    "test_swarm_web_browser",
    "test_swarm_soak",
)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import only files with tests of the kind that is asked for first: that takes a fifth of the time."""
    named = _NAMED.get(config.option.markexpr.lstrip("(").partition(" ")[0])
    if named is None or not collection_path.name.startswith("test_"):
        return None
    return None if named.search(collection_path.read_bytes()) else True


# Almost nothing that collecting tests makes is garbage.
gc.disable()


def pytest_collection_finish() -> None:
    """Spare every later collection of garbage the look at ten thousand tests."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Let forks share what is warm."""
    if session.config.option.forks and any(item.get_closest_marker("run") for item in session.items):
        be_warm()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is seen to start whole runs as ``run``, and what shares a timed server as ``alone``."""
    for item in items:
        assert isinstance(item, pytest.Function)
        named = (getattr(item.module, name, None) for name in _STARTERS)
        if any(getattr(each, "__module__", "") == "swarm_process" for each in named):
            item.add_marker("run")
        if _TIMED & {*item.fixturenames}:
            item.add_marker("alone")
        for kind, text in _NAMED.items():
            if item.get_closest_marker(kind):
                assert text.search(item.path.read_bytes()), f"{item.path} must name what makes it {kind}"
    items.sort(key=lambda item: item.path.stem not in _LONG)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine to its end, which comes within 10 s."""
    if not iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**given), 10))
    return True


@pytest.fixture(scope="session")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """An authority, a server certificate and a client certificate under it."""
    if shutil.which("openssl") is None:
        pytest.skip("certificates are made by the openssl program, which is not installed")
    folder: Path = tmp_path_factory.mktemp("tls")
    return make_tls_files(folder)


@pytest.fixture(scope="session")
def _server_process() -> Iterator[ScriptedServer]:
    with scripted_server() as server:
        yield server


@pytest.fixture(scope="session")
def _tls_server_process(tls_files: TlsFiles) -> Iterator[ScriptedServer]:
    with scripted_server(tls=tls_files) as server:
        yield server


@pytest.fixture
def server(_server_process: ScriptedServer) -> ScriptedServer:
    """A scripted server over plain TCP, its log empty. One process serves all tests."""
    _server_process.forget()
    return _server_process


@pytest.fixture
def tls_server(_tls_server_process: ScriptedServer) -> ScriptedServer:
    """The same over TLS, with the certificates of ``tls_files``."""
    _tls_server_process.forget()
    return _tls_server_process


@pytest.fixture
def ask(server: ScriptedServer) -> Iterator["Caller"]:
    """A client of that server, which has nothing in flight after its test."""
    from calls import caller

    with caller(server.url) as found:
        yield found
    assert found.client.in_flight == 0


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that this one starts are forks of one that has imported the package."""
    monkeypatch.setattr(sys, "executable", warm_python())


@pytest.fixture
def no_watch_of_children() -> Iterator[None]:
    """gevent's watch would take the exit codes of processes that other tests start."""
    yield
    gevent.get_hub().loop.reset_sigchld()  # type: ignore[attr-defined]  # its stubs leave it out


@pytest.fixture(scope="session")
def kernel_stamping() -> Iterator[None]:
    """While it lasts every received packet is stamped: the kernel begins some time after it is asked."""
    asker = hold_stamping()
    if asker is None:
        yield
        return
    with asker:
        asker.settimeout(5)
        asker.bind(("127.0.0.1", 0))
        stamped = False
        while not stamped:
            asker.sendto(b"x", asker.getsockname())
            stamped = bool(asker.recvmsg(1, ANCILLARY_BYTES)[1])
        yield


@pytest.fixture
def without_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports of runs have an empty page: making it takes half of the time, and says nothing of records."""
    monkeypatch.setattr("llm_locust.report.analysis.html_report", lambda *_: b"")


@pytest.fixture(autouse=True)
def _priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that lowers its priority must not lower that of all later tests in this process."""
    monkeypatch.setattr(os, "nice", lambda _increment: 0)
