"""The reader in C under the compiler's sanitizers: its contract tests and its races.

Whole calls are not among them: greenlets that switch while an exception is under way break the sanitizers'
own checks of the stack, with or without the reader.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "llm_locust" / "client" / "_reader.c"
COMPILER = shutil.which("cc")

TESTS = ["tests/client/http/test_client_reader.py", "tests/client/http/test_client_exchange.py"]

pytestmark = [
    pytest.mark.run,
    pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="needs a C compiler on Linux"),
]


def library(name: str) -> str:
    """The sanitizer's library, which has to be there before Python's own."""
    assert COMPILER is not None
    said = subprocess.check_output([COMPILER, f"-print-file-name=lib{name}.so"], text=True)
    path = os.path.realpath(said.strip())
    if not os.path.isfile(path):
        pytest.skip(f"the compiler has no lib{name}")
    return path


@pytest.mark.parametrize(
    ("sanitizers", "runtime", "option"),
    [
        ("address,undefined", "asan", ("ASAN_OPTIONS", "detect_leaks=0")),
        ("thread", "tsan", ("TSAN_OPTIONS", "halt_on_error=1:report_signal_unsafe=0")),
    ],
    ids=["address and undefined behaviour", "threads"],
)
def test_no_sanitizer_finds_anything(
    sanitizers: str, runtime: str, option: tuple[str, str], tmp_path: Path
) -> None:
    assert COMPILER is not None
    built = tmp_path / "_reader.so"
    flags = ["-std=c11", "-O1", "-g", "-fno-sanitize-recover=all", "-shared", "-fPIC", "-pthread"]
    include = f"-I{sysconfig.get_path('include')}"
    subprocess.run(
        [COMPILER, *flags, f"-fsanitize={sanitizers}", include, str(SOURCE), "-o", str(built)], check=True
    )
    name, value = option
    environ = os.environ | {
        name: value,
        "LD_PRELOAD": library(runtime),
        "READER_BUILD": str(built),
        "PYTHONPATH": str(ROOT / "tests" / "support"),
        "LLM_LOCUST_TEST_EXAMPLES": "20",
        "PYTHONMALLOC": "malloc",
    }
    # A child process would have to be without the library. The reader in Python has nothing to be sanitized.
    options = ["-q", "-x", "-p", "sanitized_reader", "-p", "no:cacheprovider", "-k"]
    found = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "not child_process and not python", *TESTS],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-4000:] + found.stderr[-4000:]
