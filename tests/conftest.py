"""Fixtures that many tests stand on."""

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from scripted import ScriptedServer, TlsFiles, make_tls_files, scripted_server

from llm_locust.client.http.clock import ANCILLARY_BYTES, hold_stamping

# A time limit per example finds nothing but a busy machine.
settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")

# A shell's background jobs ignore Ctrl-C, and so would every process that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


#: Whole runs, and the client's clock: what another test process takes from them changes what they see.
_ALONE = (
    *("test_swarm_", "test_client_", "test_scripted_", "test_arrival_process_", "test_prometheus_"),
    "test_hostile_servers",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name.startswith(_ALONE):
            item.add_marker("alone")


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
