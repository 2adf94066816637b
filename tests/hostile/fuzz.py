"""Run one fuzzer for some time: ``python tests/hostile/fuzz.py TARGET --seconds 60``; ``make fuzz`` runs all.

All seeds come first. Then cases are random tokens and changed examples; with atheris installed three quarters
of the time go to cases that follow the coverage of the code, from those that it kept in ``--corpus``. A case
that breaks a rule is written to ``--found``; it becomes a file under ``tests/hostile/seeds/TARGET``.
"""

import argparse
import faulthandler
import importlib.util
import os
import random
import signal
import sys
import time
import traceback
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import fuzz_target

HERE = Path(__file__).parent

#: How much of its own time a case may take before it is taken for one without an end.
_HANG_CPU_S = 20.0

_SAY_EVERY_S = 30.0


class Fuzzing:
    """One target's cases, counted; of those that break a rule one is kept for each place in the code."""

    def __init__(self, target: fuzz_target.Target, found: Path, *, going_on: bool) -> None:
        self._target = target
        self._found = found
        self._going_on = going_on
        self._places = set[tuple[str, ...]]()
        self._began_s = self._said_s = time.monotonic()
        self._cases = self._cases_then = 0
        found.mkdir(parents=True, exist_ok=True)
        # What a crash of the process leaves behind.
        self._last = (found / f"{target.name}-last").open("w+b", buffering=0)
        signal.signal(signal.SIGVTALRM, self._on_cpu_time)
        signal.setitimer(signal.ITIMER_VIRTUAL, _HANG_CPU_S, _HANG_CPU_S)

    def case(self, data: bytes) -> None:
        self._cases += 1
        os.pwrite(self._last.fileno(), data, 0)
        os.ftruncate(self._last.fileno(), len(data))
        try:
            self._target.checked(data)
        except Exception as e:
            self._keep(data, e)
            if not self._going_on:
                raise
        if time.monotonic() - self._said_s > _SAY_EVERY_S:
            self.say()

    def say(self) -> None:
        self._said_s = time.monotonic()
        print(
            f"{self._target.name}: {self._cases:,} cases in {self._said_s - self._began_s:.0f} s, "
            f"{time.process_time():.0f} s of CPU time, {len(self._places)} places where a rule broke",
            flush=True,
        )

    @property
    def broken(self) -> bool:
        return bool(self._places)

    def _keep(self, data: bytes, error: Exception) -> None:
        frames = traceback.extract_tb(error.__traceback__)[-4:]
        place = (type(error).__name__, *(f"{frame.filename}:{frame.lineno}" for frame in frames))
        if place in self._places:
            return
        self._places.add(place)
        path = self._found / f"{self._target.name}-{sha256(data).hexdigest()[:12]}"
        path.write_bytes(data)
        traceback.print_exception(error)
        print(f"case of {len(data)} bytes kept in {path}: {data[:300]!r}", flush=True)

    def _on_cpu_time(self, *_: object) -> None:
        if self._cases == self._cases_then:
            raise AssertionError(f"a case takes more than {_HANG_CPU_S:g} s")
        self._cases_then = self._cases


def run_random(
    fuzzing: Fuzzing, target: fuzz_target.Target, seconds: float, seed: int, most_cases: int | None = None
) -> None:
    end_s = time.monotonic() + seconds
    for path in target.seeds:
        fuzzing.case(path.read_bytes())
    for case in islice(target.cases(random.Random(seed)), most_cases):
        if time.monotonic() > end_s:
            break
        fuzzing.case(case)
    fuzzing.say()


def run_by_coverage(
    atheris: Any, fuzzing: Fuzzing, target: fuzz_target.Target, seconds: float, corpus: Path
) -> None:
    """Does not return: libFuzzer ends the process."""
    corpus.mkdir(parents=True, exist_ok=True)
    for number, example in enumerate(target.examples):
        (corpus / f"example-{number}").write_bytes(example)
    words = corpus.with_suffix(".dict")
    words.write_text(
        "".join('"{}"\n'.format("".join(f"\\x{byte:02x}" for byte in t)) for t in target.tokens if t)
    )
    arguments = [sys.argv[0], str(corpus), f"-max_total_time={seconds:.0f}", f"-dict={words}"]
    arguments += [f"-max_len={target.most_bytes}", "-timeout=60", "-rss_limit_mb=4096", "-verbosity=0"]
    if (seeds := fuzz_target.SEEDS / target.name).is_dir():
        arguments.insert(2, str(seeds))
    atheris.Setup(arguments, fuzzing.case)
    atheris.Fuzz()


def main() -> int:
    given = arguments()
    faulthandler.enable()
    sys.path.insert(0, str(HERE.parent / "support"))
    atheris: Any = None
    if given.engine != "random" and importlib.util.find_spec("atheris") is not None:
        if len(given.targets) > 1:
            sys.exit("by coverage one TARGET has a process: give one, or --engine random")
        atheris = importlib.import_module("atheris")
        with atheris.instrument_imports(include=["llm_locust"]):
            targets = [*map(target_named, given.targets)]
    elif given.engine == "coverage":
        sys.exit("--engine coverage: atheris is not installed")
    else:
        targets = [*map(target_named, given.targets)]
    broken = [_is_broken(target, given, atheris) for target in targets]
    return int(any(broken))


def _is_broken(target: fuzz_target.Target, given: argparse.Namespace, atheris: Any) -> bool:
    fuzzing = Fuzzing(target, given.found, going_on=given.go_on)
    print(f"{target.name}: seed {given.seed}, {given.seconds:g} s", flush=True)
    random_s = given.seconds * (0.0 if given.engine == "coverage" else 1.0 if atheris is None else 0.25)
    run_random(fuzzing, target, random_s, given.seed, given.cases)
    if atheris is not None:
        run_by_coverage(atheris, fuzzing, target, given.seconds - random_s, given.corpus / target.name)
    return fuzzing.broken


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", choices=MODULES, nargs="+", metavar="TARGET", help=", ".join(MODULES))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--cases", type=int, help="at most so many random ones")
    parser.add_argument("--seed", type=int, default=time.time_ns() % (1 << 32), help="of random cases")
    parser.add_argument("--engine", choices=("coverage", "random"), help="default: both, with atheris")
    parser.add_argument("--corpus", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--found", type=Path, default=Path("build/fuzz/found"))
    parser.add_argument("--go-on", action="store_true", help="do not end at the first broken rule")
    return parser.parse_args()


#: The module of each target. What imports most comes last: memory that it has taken hides later growth.
MODULES = {
    **dict.fromkeys(("sse", "chunks"), "fuzz_streams"),
    **dict.fromkeys(("pages", "datasets", "models"), "fuzz_inputs"),
    **dict.fromkeys(("scenario", "traces"), "fuzz_files"),
    "frames": "fuzz_frames",
    "messages": "fuzz_messages",
    "run-dirs": "fuzz_run_dirs",
    "uploads": "fuzz_uploads",
}


def target_named(name: str) -> fuzz_target.Target:
    module = importlib.import_module(MODULES[name])
    return next(t for t in vars(module).values() if isinstance(t, fuzz_target.Target) and t.name == name)


if __name__ == "__main__":
    sys.exit(main())
