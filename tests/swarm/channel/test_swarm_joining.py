"""Worker and master find each other in whatever order they start, and however often."""

from pathlib import Path

from warm_process import warm_code

#: Locust patches the process that imports it: what is about its channel has a process of its own.
PATCHED = """
import contextlib, sys
import pytest
with contextlib.redirect_stdout(sys.stderr):
    sys.exit(pytest.main(["-q", "-x", "--noconftest", "-p", "no:cacheprovider", "-Wignore", *sys.argv[1:]]))
"""


def test_worker_and_master_join_in_any_order() -> None:
    warm_code(PATCHED, str(Path(__file__).parent / "joining_cases.py"))
