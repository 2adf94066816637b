"""Processes of a Python module that start in milliseconds: forks of one that has imported it.

A whole run has up to nine processes. Each would import Locust, Arrow and this package, which takes more CPU
time than a short run itself. From the command line on, a warm start is a cold one; that a cold one works is
shown by the runs of ``make test``, which ask for it.

Processes that a warm one starts itself, such as that of its report, are warm as well: what they take for
Python is ``warm_start.py``, which stays until the fork has ended and passes signals on.

``python warm_process.py FOLDER`` keeps all kinds, for every run of the tests that ``LLM_LOCUST_TEST_WARM``
tells the folder.
"""

import atexit
import gc
import io
import marshal
import os
import random
import resource
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NoReturn
from weakref import WeakSet

#: What is imported before the first process of a kind starts.
PRELOADED = {
    "locust": (
        *("locust.main", "llm_locust.swarm.plugin", "llm_locust.swarm.users.users"),
        *("llm_locust.swarm.users.openai_user", "llm_locust.swarm.roles.master"),
        *("llm_locust.swarm.roles.worker", "llm_locust.swarm.display", "llm_locust.live.counting"),
        *("llm_locust.swarm.roles.local", "llm_locust.swarm.live", "llm_locust.swarm.display"),
        *("gevent.resolver.thread", "numpy.ma", "rich.live"),
    ),
    "llm_locust": (
        *("llm_locust.cli.report", "llm_locust.cli.compare"),
        *("llm_locust.cli.run", "llm_locust.sim.command", "llm_locust.sim.gateway"),
    ),
    "llm_locust.sim": ("llm_locust.sim.command", "llm_locust.sim.gateway"),
    "report": (
        *("llm_locust.report.commands", "llm_locust.report.finish", "llm_locust.report.so_far"),
        "llm_locust.report.dropping",
        *("llm_locust.cli.main", "llm_locust.store.upload", "llm_locust.deployment.scraper"),
        *("numpy.ma", "numpy.random", "numpy.fft"),
    ),
}

#: What a module drew for its process as it was imported, and how a fork draws its own.
_OWN = (
    ("llm_locust.swarm.process.exits", "_PARENT", os.getpid),
    ("llm_locust.swarm.channel.channel", "_FAMILY_SECRET", lambda: secrets.token_bytes(32)),
    ("llm_locust.core.files", "_STARTED_S", time.time),
)

_LENGTH = 4

#: As they are before gevent is imported, whose own wait for its event loop.
_FORK, _WAITPID, _CLOSE, _POLL, _SOCKET = os.fork, os.waitpid, os.close, select.poll, socket.socket
_GETPPID = os.getppid

#: A run that the tests have left has this long to end by SIGTERM.
_LEAVING_MS = 10_000

#: Longest time for imports, on a machine that is busy.
_IMPORTING_S = 300

#: Longest time for which the last messages of a process are sent.
_LAST_WORDS_MS = 500

#: Under these names Python and this package's commands are looked for.
_STAND_INS = ("python", "llm-locust", "locust", "locust-code")


class WarmProcess:
    """A forked process with the part of ``subprocess.Popen`` that the tests use; its stderr is a pipe."""

    def __init__(
        self,
        module: str,
        words: Sequence[str],
        cwd: Path,
        environ: Mapping[str, str],
        stdout: IO[bytes],
        limits: Mapping[int, tuple[int, int]],
    ) -> None:
        asked = {
            "module": module,
            "words": [*words],
            "safe": False,
            "cwd": str(cwd),
            "environ": dict(environ),
            "leaving_ms": _LEAVING_MS,
            "limits": dict(limits),
        }
        self._news = _connected(module)
        read, write = os.pipe()
        told = marshal.dumps(asked)
        with open(os.devnull) as nothing:
            descriptors = [nothing.fileno(), stdout.fileno(), write]
            socket.send_fds(self._news, [len(told).to_bytes(_LENGTH)], descriptors)
        os.close(write)
        self.stderr = os.fdopen(read, errors="replace")
        self._news.sendall(told)
        heard = self._news.recv(_LENGTH)
        if not heard:  # a process 0 would be all of the tests' own group
            raise ChildProcessError(f"the process that has imported {module} could not start another one")
        self.pid = int.from_bytes(heard)
        self._code: int | None = None
        self._reading = threading.Lock()

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout_s: float) -> int:
        with self._reading:
            if self._code is None:
                self._news.settimeout(max(timeout_s, 1e-3))
                try:
                    came = self._news.recv(_LENGTH)
                except TimeoutError:
                    raise subprocess.TimeoutExpired(str(self.pid), timeout_s) from None
                if not came:
                    raise ChildProcessError(f"who waits for process {self.pid} was killed")
                self._code = int.from_bytes(came, signed=True)
                self._news.close()
        return self._code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


#: Where others keep them, who end after this process.
_SHARED = os.environ.get("LLM_LOCUST_TEST_WARM")

_contexts: WeakSet[Any] = WeakSet()
_sources: dict[str, subprocess.Popen[bytes]] = {}
_starting = threading.Lock()
_place: list[Path] = []


def warm_place() -> Path:
    """Folder for the search path of programs: in it this package's commands are warm ones."""
    if _SHARED:
        return Path(_SHARED)
    with _starting:
        if not _place:
            _place.append(Path(tempfile.mkdtemp(prefix="warm-")))
            atexit.register(shutil.rmtree, _place[0], ignore_errors=True)
            _write_stand_ins(_place[0])
    return _place[0]


def _write_stand_ins(folder: Path) -> None:
    program = f"#!{sys.executable} -IS\n{Path(__file__).with_name('warm_start.py').read_text()}"
    for name in _STAND_INS:
        (folder / name).write_text(program)
        (folder / name).chmod(0o755)


def warm_python() -> str:
    """What stands for Python where reports and scrapers are to start warm, for ``sys.executable``."""
    _listening("report")
    return str(warm_place() / "python")


def keep_warm(*sources: str) -> None:
    """Start the processes that import; what is asked before they listen is imported by Python itself."""
    if _SHARED:
        return
    place = warm_place()
    with _starting:
        for source in set(sources) - _sources.keys():
            _sources[source] = _source(source, place)
            atexit.register(_sources[source].communicate)


def _source(source: str, place: Path) -> subprocess.Popen[bytes]:
    """It ends with its standard input; a Ctrl-C of the terminal is for the tests."""
    command = [sys.executable, __file__, source, str(place)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def _keep_all(place: Path) -> None:
    """Keep all kinds until this process is ended, or one of them ends."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in a shell's background ignores it
    _write_stand_ins(place)
    kept = [_source(source, place) for source in PRELOADED]
    os.wait()
    sys.exit(f"one of the warm processes of {len(kept)} kinds has ended")


def be_warm() -> None:
    """Wait until all listen: for this process, and its forks."""
    keep_warm(*PRELOADED)
    for source in PRELOADED:
        _listening(source)


def warm_code(code: str, *words: str, **options: Any) -> str:
    """What code prints in a process of its own that has imported Locust, which patches its process.

    ``options`` are those of ``subprocess.run``.
    """
    _listening("locust")
    command = [str(warm_place() / "locust-code"), code, *words]
    done = subprocess.run(command, stdout=-1, stderr=-1, text=True, timeout=120, check=False, **options)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def _listening(source: str, *beside: str) -> str:
    """Where the warm process can be asked, as soon as it can be; those beside it need not be ready."""
    keep_warm(source, *beside)
    path = warm_place() / f"{source}.sock"
    until_s = time.monotonic() + _IMPORTING_S
    while not path.exists():
        has_ended = not _SHARED and _sources[source].poll() is not None
        if has_ended or time.monotonic() > until_s:
            raise ChildProcessError(f"the process that imports {source} has ended, or takes too long")
        time.sleep(0.02)
    return str(path)


def _connected(source: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(_listening(source, "report"))
    return connection


def _serve(listener: socket.socket) -> dict[str, Any] | None:
    """Fork for each request; gives what is asked in the forked process, None at the end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    both = _POLL()
    both.register(listener, select.POLLIN)
    both.register(0, 0)
    while [(listener.fileno(), select.POLLIN)] == both.poll():
        descriptor, _ = listener._accept()  # type: ignore[attr-defined]  # accept() makes sockets of gevent
        connection = _SOCKET(fileno=descriptor)
        if _FORK() == 0:
            listener.close()
            return _started(connection)
        connection.close()
    return None


def _started(connection: socket.socket) -> dict[str, Any]:
    length, descriptors, _, _ = socket.recv_fds(connection, _LENGTH, 3)
    told = b""
    while len(told) < int.from_bytes(length):
        told += connection.recv(int.from_bytes(length) - len(told))
    asked: dict[str, Any] = marshal.loads(told)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # One process waits for the end of the other and tells it: only a parent can.
    pid = _FORK()
    if pid:
        for descriptor in (0, 1, 2, *descriptors):
            _CLOSE(descriptor)
        connection.sendall(pid.to_bytes(_LENGTH))
        _end_with_asker(pid, connection, asked["leaving_ms"])
        _, status = _WAITPID(pid, 0)
        with suppress(OSError):
            connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(_LENGTH, signed=True))
        os._exit(0)
    connection.close()
    _become(asked, descriptors)
    return asked


def _end_with_asker(pid: int, connection: socket.socket, leaving_ms: int) -> None:
    """Wait for the end of a process; end it, and all of its group, if who asked for it is gone before."""
    ended = os.pidfd_open(pid)
    both = _POLL()
    both.register(ended, select.POLLIN)
    both.register(connection, select.POLLIN)  # readable only at its end: nothing is sent this way any more
    if any(descriptor == ended for descriptor, _ in both.poll()):
        return
    both.unregister(connection)
    for number in (signal.SIGTERM, signal.SIGKILL) if leaving_ms else (signal.SIGKILL,):
        with suppress(ProcessLookupError):
            os.killpg(pid, number)
        if both.poll(leaving_ms):
            break
    with suppress(ProcessLookupError):  # what the process itself has left
        os.killpg(pid, signal.SIGKILL)


def _become(asked: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    os.setsid()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        _CLOSE(descriptor)
    os.chdir(asked["cwd"])
    sys.path[:1] = [] if asked["safe"] else [asked["cwd"]]
    os.environ.clear()
    os.environ.update(asked["environ"])
    added = asked["environ"].get("PYTHONPATH")
    if added:
        at = 0 if asked["safe"] else 1
        sys.path[at:at] = [path for path in added.split(os.pathsep) if path not in sys.path]
    for number, limit in asked["limits"].items():
        resource.setrlimit(number, limit)
    random.seed()
    if "stand_in" in asked:  # a process may end with its parent, which is that of its stand-in
        os.getppid = partial(_parent, os.getpid(), asked["stand_in"])
    for module, name, draw in _OWN:
        if module in sys.modules:
            setattr(sys.modules[module], name, draw())
    if "gevent" in sys.modules:
        import_module("gevent").reinit()
    if "zmq" in sys.modules:
        _note_contexts(sys.modules["zmq"].Context)


def _note_contexts(kind: Any) -> None:
    """Note each that is made. To look for them among all objects at the end would copy all of these."""
    made = kind.__init__

    def noted(self: Any, *arguments: Any, **options: Any) -> None:
        made(self, *arguments, **options)
        _contexts.add(self)

    kind.__init__ = noted


def _end(run: Callable[[Mapping[str, Any]], None], asked: Mapping[str, Any]) -> NoReturn:
    """Run it and end the process as Python does, but for the objects: to free each would copy all of them."""
    code: object = 0
    try:
        run(asked)
    except SystemExit as e:
        code = e.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    for context in _contexts:  # what a worker said last is still to be sent
        context.destroy(_LAST_WORDS_MS)  # not for ever: a master may be gone
    os._exit(code or 0)


def _make_report() -> None:
    """Make a report of a small run, and print it: what the first one prepares is a quarter of its work."""
    run = import_module("report_cases").write_frames(Path(tempfile.mkdtemp(prefix="warm-run-")))
    made = import_module("llm_locust.report.finish").finish_run(run)
    import_module("llm_locust.report.console").print_report(made.summary, run, io.StringIO())
    shutil.rmtree(run)


def _parent(child: int, stand_in: int) -> int:
    if os.getpid() != child:  # forked by the child
        return _GETPPID()
    try:
        return int(Path(f"/proc/{stand_in}/stat").read_text().rpartition(")")[2].split()[1])
    except FileNotFoundError:
        return 1


def _run(asked: Mapping[str, Any]) -> None:
    """Run a module or a program as Python does at its start."""
    import runpy

    if "code" in asked:
        sys.argv = ["-c", *asked["words"]]
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(compile(asked["code"], "<string>", "exec"), vars(main))
        return
    sys.argv = ["", *asked["words"]]
    safe = ["-P"] if asked["safe"] else []
    sys.orig_argv = [sys.executable, *safe, "-m", asked["module"], *asked["words"]]
    runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        _keep_all(Path(sys.argv[1]))
    _kind, _folder = sys.argv[1:]
    _listener = socket.socket(socket.AF_UNIX)  # before gevent makes all others its own
    sys.executable = f"{_folder}/python"
    if _kind == "report":
        import_module("llm_locust.report.output").block_pandas_import()
    for _each in PRELOADED[_kind]:
        import_module(_each)
    if _kind == "locust":
        import_module("llm_locust.core.batch").RecordBatch.warm_up()
    if _kind in ("report", "llm_locust"):
        _make_report()
    gc.collect()
    gc.freeze()  # a collection would touch, and so copy, all that was imported
    _listener.bind(f"{_folder}/{_kind}.part")
    _listener.listen(16)
    os.rename(f"{_folder}/{_kind}.part", f"{_folder}/{_kind}.sock")
    _asked = _serve(_listener)
    if _asked is not None:
        _end(_run, _asked)
