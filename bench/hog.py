"""A program that wants all of one processor, at the usual priority: ``python hog.py PROCESSOR SECONDS``."""

import os
import sys
import time


def main() -> None:
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.sched_setaffinity(0, [int(sys.argv[1])])
    end_s = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end_s:
        pass


if __name__ == "__main__":
    main()
