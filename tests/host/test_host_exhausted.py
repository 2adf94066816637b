"""What has run out is said in words."""

import errno

import pytest

from llm_locust.host import exhausted, reason_of


@pytest.mark.parametrize(
    ("error", "begins"),
    [
        (MemoryError(), "memory has run out: raise `ulimit -v`"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory has run out"),
        (
            RuntimeError("can't start new thread"),
            "no more threads or processes can be started: raise `ulimit -u`",
        ),
        (OSError(errno.EMFILE, "x"), "Too many open files: raise `ulimit -n`"),
        (OSError(errno.ENFILE, "x"), "Too many open files in system: the whole machine"),
        (OSError(errno.ENOSPC, "x"), "No space left on device: free some of the disk"),
        (OSError(errno.EAGAIN, "Resource temporarily unavailable"), "no more threads or processes"),
    ],
)
def test_what_has_run_out_is_named_with_what_to_do(error: Exception, begins: str) -> None:
    assert str(exhausted(error)).startswith(begins)


@pytest.mark.parametrize(
    ("error", "words"),
    [(RuntimeError("x"), "x"), (OSError(errno.EACCES, "Permission denied"), "Permission denied")],
)
def test_other_errors_are_said_in_their_own_words(error: Exception, words: str) -> None:
    assert exhausted(error) is None
    assert reason_of(error) == words
