"""Files of a run can be read by several threads at once, also for the first time."""

import subprocess
import sys
from pathlib import Path

import pytest

RUNS = Path(__file__).parents[1] / "frozen"

# Threads take turns as often as they can: the first use of a type then overlaps in each try.
SCRIPT = """\
import sys
from pathlib import Path
from threading import Barrier, Thread

sys.setswitchinterval(1e-6)
{imported}
path, together = Path(sys.argv[1]), Barrier(6)

def read():
    together.wait()
    {read}

threads = [Thread(target=read) for _ in range(6)]
for each in threads:
    each.start()
for each in threads:
    each.join()
"""


@pytest.mark.parametrize(
    ("imported", "read", "path"),
    [
        (
            "from llm_locust.figures.summary import read_summary",
            "read_summary(path.read_bytes())",
            RUNS / "expected" / "clock-step" / "summary.json",
        ),
        (
            "from llm_locust.store.files import read_manifest",
            "read_manifest(path.parent)",
            RUNS / "runs" / "clock-step" / "manifest.json",
        ),
    ],
)
def test_threads_that_read_at_once_for_the_first_time_end_well(imported: str, read: str, path: Path) -> None:
    assert path.is_file()
    script = SCRIPT.format(imported=imported, read=read)
    assert subprocess.run([sys.executable, "-c", script, str(path)]).returncode == 0
