"""Judge mutants in forks of one process that has imported and collected the tests of an area.

Each test is run once under coverage: a mutant is asked of those that run its line, the quick ones first.
"""

import gc
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from os import fork, waitpid  # as they are before Locust has gevent replace them
from pathlib import Path
from types import CodeType, FunctionType

import pytest
from operators import Mutant
from swapping import changes, functions

UNNOTICED, NOTICED, STUCK = "survived", "killed", "timed out"
#: A mutant that no test noticed in so many seconds is not asked further.
PATIENCE_S = 120.0
#: A test that takes more CPU time than this under coverage is not asked at all.
LONGEST_S = 5.0
_CRASHED = 70
Changes = list[tuple[FunctionType, CodeType]]


@dataclass(frozen=True, slots=True)
class Place:
    """A mutant in its module, and the lines of the statement that it changes."""

    module: str
    source: str
    mutant: Mutant
    lines: range

    @property
    def changed(self) -> str:
        return self.mutant.applied(self.source)


@dataclass(slots=True)
class Known:
    """What one run of every test showed: what each took, which cannot be asked, and which lines it ran."""

    seconds: list[float] = field(default_factory=list)
    useless: list[int] = field(default_factory=list)
    ran: dict[str, dict[str, list[int]]] = field(default_factory=dict)

    def tests(self, place: Place) -> set[int]:
        lines = self.ran.get(place.module, {})
        return {test for line in place.lines for test in lines.get(str(line), ())} - {*self.useless}

    def of_module(self, module: str) -> set[int]:
        return {test for tests in self.ran.get(module, {}).values() for test in tests} - {*self.useless}


class Judging:
    """A pytest plugin: instead of running the tests, asks them about mutants."""

    def __init__(
        self, tree: Path, modules: Iterable[str], work: Callable[[Callable[[Place], tuple[str, str]]], None]
    ) -> None:
        self.tree, self.modules, self.work = tree, list(modules), work
        self.known, self.items = Known(), list[pytest.Item]()
        self.learning, self.passed = False, True

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """Few examples, the same each time, and no search for a smaller one that fails."""
        hypothesis = importlib.import_module("hypothesis")  # pytest wants to be the first that imports it
        hypothesis.settings.register_profile(
            "mutation",
            deadline=None,
            max_examples=15,
            phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
            suppress_health_check=[*hypothesis.HealthCheck],
            derandomize=True,
            database=None,
        )
        hypothesis.settings.load_profile("mutation")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.session, self.items = session, [i for i in session.items if not i.get_closest_marker("run")]
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        self.functions = functions(str(self.tree / "llm_locust"))
        gc.freeze()
        if self._forked(self._learn):
            sys.exit(f"the tests could not be run: see {self.tree / 'pytest.log'}")
        self.known = Known(**json.loads((self.tree / "known.json").read_text()))
        self.work(self.verdict)
        return True

    def _learn(self) -> int:
        """Run every test under coverage, and write down what it ran and took."""
        seen, package = Known(), self.tree / "llm_locust"
        coverage = importlib.import_module("coverage")  # for mypy that name is bench/coverage.py
        measure = coverage.Coverage(
            data_file=None, config_file=False, include=[f"{package}/*"], concurrency=["thread", "gevent"]
        )
        signal.signal(signal.SIGVTALRM, lambda *_: pytest.skip("takes too long"))
        self.learning = True
        measure.start()
        for number, item in enumerate(self.items):
            measure.switch_context(str(number))
            self.passed, began = True, time.monotonic()
            self._protocol(item, self.items[number + 1 : number + 2])
            seen.seconds.append(time.monotonic() - began)
            if not self.passed:
                seen.useless.append(number)
        measure.stop()
        for module in self.modules:
            lines = measure.get_data().contexts_by_lineno(str(package / module))
            seen.ran[module] = {str(line): [int(c) for c in found if c] for line, found in lines.items()}
        (self.tree / "known.json").write_text(json.dumps(asdict(seen)))
        return 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        if not self.learning:
            return (yield)
        signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_S)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.passed = self.passed and report.passed

    def verdict(self, place: Place) -> tuple[str, str]:
        """What the tests say of a mutant, and which of them noticed it."""
        mutant, name = place.mutant, "llm_locust." + place.module.removesuffix(".py").replace("/", ".")
        with self._written(place) as path:
            changed = changes(
                self.functions, str(path), place.source, place.changed, (mutant.start, mutant.end)
            )
            if not changed and name in sys.modules:
                return self._imported_again(place)
            asked = self._ordered(self.known.tests(place))
            while asked:
                status = self._forked(partial(self._ask, asked, changed))
                if status == 0:
                    break
                if status == -signal.SIGALRM and self._forked(partial(self._ask, asked, [])) == status:
                    return UNNOTICED, "the machine is too busy to say"
                if status in (-signal.SIGALRM, -signal.SIGVTALRM):
                    return STUCK, ""
                if status != 1:
                    return NOTICED, f"ended with {status}"
                at = int((self.tree / "noticed").read_text())
                if self._is_sure(at, changed):
                    return NOTICED, self.items[at].nodeid
                asked = asked[asked.index(at) + 1 :]
        return UNNOTICED, "" if self.known.tests(place) else "no test runs it"

    def _is_sure(self, test: int, changed: Changes) -> bool:
        """Whether it is the mutant, and not a busy machine, that a test which judges times noticed."""
        if not self.items[test].get_closest_marker("alone"):
            return True
        again = self._forked(lambda: self._ask([test], changed))
        return again != 0 and self._forked(lambda: self._ask([test], [])) == 0

    def _ordered(self, tests: set[int]) -> list[int]:
        """The quick ones first; those that share a fixture of their file together."""

        def key(test: int) -> tuple[bool, bool, str, float]:
            item = self.items[test]
            alone, wide = item.get_closest_marker("alone") is not None, _shares(item)
            return alone, wide, item.nodeid.partition("::")[0] if wide else "", self.known.seconds[test]

        found, spent = list[int](), 0.0
        for test in sorted(tests, key=key):
            spent += self.known.seconds[test]
            if spent > PATIENCE_S:
                break
            found.append(test)
        return found

    def _ask(self, tests: list[int], changed: Changes) -> int:
        for function, code in changed:
            function.__code__ = code
        asked = [self.items[test] for test in tests]
        for number, item in enumerate(asked):
            usual_s = self.known.seconds[tests[number]]
            signal.setitimer(signal.ITIMER_VIRTUAL, 5 + 5 * usual_s)  # turns without end
            signal.setitimer(signal.ITIMER_REAL, 60 + 10 * usual_s)  # waits without end
            self._protocol(item, asked[number + 1 : number + 2])
            if self.session.testsfailed:
                (self.tree / "noticed").write_text(str(tests[number]))
                return 1
        return 0

    def _imported_again(self, place: Place) -> tuple[str, str]:
        """The same in a new process: a constant, a default or a class has been read already in this one."""
        tests = self._ordered(self.known.of_module(place.module)) or self._ordered({*range(len(self.items))})
        limit_s = 120 + 10 * sum(self.known.seconds[test] for test in tests)
        asked = [*dict.fromkeys(self.items[test].nodeid for test in tests)]
        path = self.tree / "llm_locust" / place.module
        while asked:
            status, failed = self._anew(asked, limit_s)
            if status is None:
                return STUCK, ""
            if status == 0:
                break
            path.write_text(place.source)
            if self._anew(failed or asked, limit_s)[0] == 0:
                return NOTICED, f"imported again: {' '.join(failed)}"
            path.write_text(place.changed)  # they fail in a new process anyway
            at = max((asked.index(name) for name in failed if name in asked), default=len(asked))
            asked = asked[at + 1 :]
        return UNNOTICED, ""

    def _anew(self, names: Iterable[str], limit_s: float) -> tuple[int | None, list[str]]:
        """How pytest ends in a new process, or None if it does not, and what failed first."""
        cache = self.tree / "again"
        shutil.rmtree(cache, ignore_errors=True)
        command = [sys.executable, "-m", "pytest", "-qx", "--tb=line", "-o", f"cache_dir={cache}"]
        command += ["--basetemp", str(self.tree / "tmp"), *names]
        with (
            (self.tree / "again.log").open("wb") as log,
            subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True) as process,
        ):
            try:
                status = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                return None, []
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        failed = cache / "v" / "cache" / "lastfailed"
        return status, [*json.loads(failed.read_text())] if failed.exists() else []

    def _protocol(self, item: pytest.Item, following: list[pytest.Item]) -> None:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following[0] if following else None)

    def _forked(self, work: Callable[[], int]) -> int:
        pid = fork()
        if pid == 0:
            os.setsid()
            try:
                if "gevent" in sys.modules:
                    sys.modules["gevent"].reinit()
                code = work()
            except BaseException:
                traceback.print_exc()
                code = _CRASHED
            os._exit(code)
        status = os.waitstatus_to_exitcode(waitpid(pid, 0)[1])
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        return status

    @contextmanager
    def _written(self, place: Place) -> Iterator[Path]:
        """The mutant on disk as well, for the processes that tests start."""
        path = self.tree / "llm_locust" / place.module
        was = path.stat()
        path.write_text(place.changed)
        try:
            yield path
        finally:
            path.write_text(place.source)
            os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


def _shares(item: pytest.Item) -> bool:
    """Whether a test stands on a fixture that is made once for its file."""
    found = getattr(item, "_fixtureinfo", None)
    defined = found.name2fixturedefs.values() if found else ()
    return any(
        each.scope in ("module", "package", "class") for definitions in defined for each in definitions
    )
