"""What has run out is said in words."""

import errno

import pytest

from llm_locust.host import exhausted


@pytest.mark.parametrize(
    ("error", "begins"),
    [
        (MemoryError(), "memory has run out: raise `ulimit -v`"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory has run out"),
        (
            RuntimeError("can't start new thread"),
            "no more threads or processes can be started: raise `ulimit -u`",
        ),
        (OSError(errno.EAGAIN, "Resource temporarily unavailable"), "no more threads or processes"),
    ],
)
def test_what_has_run_out_is_named_with_what_to_do(error: Exception, begins: str) -> None:
    assert str(exhausted(error)).startswith(begins)


@pytest.mark.parametrize(
    "error", [RuntimeError("x"), OSError(errno.ENOSPC, "No space left"), ValueError("x")]
)
def test_other_errors_are_said_in_their_own_words(error: Exception) -> None:
    assert exhausted(error) is None
