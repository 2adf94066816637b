"""Limits that this process has for a while."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """No file of this process may grow over ``size`` bytes, as on a disk that is full."""
    with _limited(resource.RLIMIT_FSIZE, size):
        yield


@contextmanager
def little_memory(growth: int) -> Iterator[None]:
    """Refuse this process more than so much further memory."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    with _limited(resource.RLIMIT_AS, size + growth):
        yield


@contextmanager
def _limited(kind: int, most: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))
