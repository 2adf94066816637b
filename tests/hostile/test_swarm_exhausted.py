"""A process that runs out of files, disk, memory or threads, before, in and after its load: it says the true
reason, and each record is kept or counted as lost."""

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from chaos import NoSmallDiskError, merge, small_disk
from swarm_process import Result, in_parallel, locust, simulation

SUPPORT = Path(__file__).parents[1] / "support"

#: The error that the process met itself, and the words that name the cause and what to do.
SAID = {
    "EMFILE": ("Too many open files", r"Too many open files: raise `ulimit -n`"),
    "ENOSPC": ("No space left", r"No space left on device: free some of the disk"),
    # A thread's stack, too, is memory that is not there.
    "ENOMEM": ("MemoryError", r"memory has run out: raise `ulimit -v`|its memory limit and `ulimit -v`"),
    "EAGAIN": ("can't start new thread", r"no more threads or processes can be started: raise `ulimit -u`"),
}
BEFORE, DURING = ("start", "ready"), ("middle", "end")


@dataclass(frozen=True, slots=True)
class RanOut:
    code: int
    said: list[str]
    sent: int
    kept: int  # records that `merge` or the report has


def _run(what: str, point: str, folder: Path) -> RanOut | None:
    load = ["--headless", "-u", "3", "-r", "3", "--num-requests", "40", "--output-tokens", "10"]
    load += ["--flush-timeout", "1s"]
    try:
        with (
            small_disk(folder, kib=1024) if what == "ENOSPC" else nullcontext(folder) as disk,
            simulation(folder / "sim") as sim,
            locust(
                folder,
                *(*load, "--out", str(disk / "run"), "-H", sim.url),
                locustfile=SUPPORT / "runs_out.py",
                environ={
                    "RUNS_OUT": f"{what} {point}",
                    "SMALL_DISK": str(disk),
                    "PYTHONPATH": str(SUPPORT),
                },
            ) as process,
        ):
            code = process.exit_code()
            kept = _kept(disk / "run", folder) if point in DURING and what != "ENOSPC" else 0
            return RanOut(code, process.said, len(sim.entries()), kept)
    except NoSmallDiskError:
        return None


def _kept(run: Path, folder: Path) -> int:
    if (run / "requests.parquet").exists():
        return len(Result.read(run).requests)
    return len(merge(folder / "merged", run).rows)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RanOut | None]:
    scenarios: dict[str, Callable[[Path], RanOut | None]] = {
        f"{what} {point}": partial(_run, what, point) for what in SAID for point in (*BEFORE, *DURING)
    }
    return in_parallel(tmp_path_factory.mktemp("exhausted"), scenarios)


@pytest.fixture
def ran_out(runs: dict[str, RanOut | None], what: str, point: str) -> RanOut:
    run = runs[f"{what} {point}"]
    if run is None:
        pytest.skip("this machine has no small disk for it")
    assert any(line.startswith("ran out: ") and SAID[what][0] in line for line in run.said), run.said
    # Under load memory runs out at any line, of Python and of libraries too, which print what they met.
    if (what, point) != ("ENOMEM", "middle"):
        assert "Traceback" not in "\n".join(run.said)
    assert not [line for line in run.said if "told to end" in line]
    return run


@pytest.mark.parametrize("point", BEFORE)
@pytest.mark.parametrize("what", SAID)
def test_before_the_load_the_cause_is_said_and_nothing_is_sent(ran_out: RanOut, what: str) -> None:
    assert ran_out.code == 2
    assert re.search(SAID[what][1], "\n".join(ran_out.said)), ran_out.said
    assert ran_out.sent == 0


@pytest.mark.parametrize("point", DURING)
@pytest.mark.parametrize("what", SAID)
def test_in_the_load_the_cause_is_said_and_no_record_is_lost_silently(ran_out: RanOut, what: str) -> None:
    said = "\n".join(ran_out.said)
    if ran_out.code != 0 or what != "ENOMEM":  # what the process had was perhaps enough for the rest
        assert ran_out.code == 4
        assert re.search(SAID[what][1], said), said
    lost = [int(n) for n in re.findall(r"\((\d+) records\) of run \S+ are lost", said)]
    assert ran_out.sent >= 20
    # What was not acknowledged may have reached the disk all the same.
    assert ran_out.kept <= ran_out.sent <= ran_out.kept + sum(lost)
