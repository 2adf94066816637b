"""Errors that mean that this machine, or this process's share of it, has run out of something."""

import errno

#: As Python words it where the system refuses a thread.
NO_THREAD = "can't start new thread"


def exhausted(error: BaseException) -> str | None:
    """What has run out and what to do, in a sentence; None if the error means something else."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return "memory has run out: raise `ulimit -v` or the memory limit of the container"
    if isinstance(error, BlockingIOError) or (isinstance(error, RuntimeError) and NO_THREAD in str(error)):
        return (
            "no more threads or processes can be started: raise `ulimit -u`, the container's limit of "
            "processes (pids) or, for their stacks, its memory limit and `ulimit -v`"
        )
    return None
