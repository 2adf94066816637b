"""What all fuzzers share: a target, cases made of its tokens and seeds, and the rule of bounded cost."""

import atexit
import os
import random
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from zlib import crc32

_MEMORY = Path("/dev/shm")

#: For the files of cases, in memory where the machine has such a folder.
FOLDER = Path(tempfile.mkdtemp(dir=_MEMORY if _MEMORY.is_dir() else None))


@atexit.register
def _remove_folder(owner: int = os.getpid()) -> None:
    """A forked child has the folder too, and must leave it."""
    if os.getpid() == owner:
        shutil.rmtree(FOLDER, ignore_errors=True)


SEEDS = Path(__file__).with_name("seeds")

#: What one case may take; all of them are small.
MOST_CPU_S = 5.0
MOST_GROWTH_KIB = 100 << 10

_EDGES = (
    b"\x00",
    b"\xff",
    b"\n",
    b"\r",
    b" ",
    b"9" * 20,
    b"-1",
    b"\xef\xbb\xbf",
    b"\xc3\xa9",
    b"\xed\xa0\x80",
)


@dataclass(frozen=True, slots=True)
class Target:
    """One reader of hostile bytes.

    Attributes:
        check: reads a case and raises, AssertionError for instance, where a rule is broken. What the case
            does not say itself (where a stream is split) is drawn from :func:`chance_of` the case.
        tokens: the bytes that mean something in the format.
        examples: valid inputs, which cases are mutations of.
        most_bytes: cases are not made longer.
    """

    name: str
    check: Callable[[bytes], object]
    tokens: tuple[bytes, ...]
    examples: tuple[bytes, ...]
    most_bytes: int = 4096

    @property
    def seeds(self) -> list[Path]:
        """The files of cases that once failed, or stand for one that did."""
        return sorted((SEEDS / self.name).glob("*"))

    def checked(self, case: bytes) -> None:
        """:attr:`check`, within bounds of time and memory."""
        began_s, most_kib = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self.check(case)
        took_s = time.process_time() - began_s
        assert took_s < MOST_CPU_S, f"{took_s:.1f} s for {len(case)} bytes"
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most_kib
        assert grown_kib < MOST_GROWTH_KIB, f"{grown_kib >> 10} MiB for {len(case)} bytes"

    def cases(self, chance: random.Random) -> Iterator[bytes]:
        """Cases without end: random tokens, and examples and seeds with random changes."""
        known = [*self.examples, *(path.read_bytes() for path in self.seeds)]
        tokens = (*self.tokens, *_EDGES)
        while True:
            if chance.random() < 0.4:
                made = b"".join(chance.choices(tokens, k=chance.randrange(1, 40)))
            else:
                made = chance.choice(known)
            for _ in range(chance.choice((0, 1, 1, 2, 3, 8))):
                made = _changed(made, chance, tokens, known)
            yield made[: self.most_bytes]


def _changed(case: bytes, chance: random.Random, tokens: tuple[bytes, ...], known: list[bytes]) -> bytes:
    begin, end = sorted((chance.randint(0, len(case)), chance.randint(0, len(case))))
    near = min(end, begin + chance.randrange(8))
    match chance.randrange(9):
        case 0:
            return case[:begin] + case[end:]
        case 1:
            return case[:begin] + case[begin:end] * chance.choice((2, 2, 3, 9)) + case[end:]
        case 2:
            return case[:begin] + chance.choice(tokens) + case[near:]
        case 3:
            return case[:begin] + chance.randbytes(near - begin) + case[near:]
        case 4 if case:
            at = chance.randrange(len(case))
            return case[:at] + bytes([case[at] ^ 1 << chance.randrange(8)]) + case[at + 1 :]
        case 5:
            other = chance.choice(known)
            return case[:begin] + other[chance.randint(0, len(other)) :]
        case 6:
            return case[:begin] + chance.choice(tokens) * chance.choice((2, 9, 60)) + case[near:]
        case 7:  # in place, which moves nothing behind it
            token, begin = chance.choice(tokens), begin - begin % chance.choice((1, 8))
            return case[:begin] + token + case[begin + len(token) :]
    return case[:begin] + chance.choice(tokens) + case[begin:]


def chance_of(case: bytes) -> random.Random:
    """Chance that is the same for the same case."""
    return random.Random(crc32(case))


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The data in pieces; ``places`` are taken modulo its length."""
    edges = [0, *sorted({place % (len(data) + 1) for place in places} - {0, len(data)}), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def places_of(case: bytes) -> list[int]:
    """Where a case is cut: a few places anywhere, or a few in a row."""
    chance = chance_of(case)
    first = chance.randint(0, len(case))
    if chance.random() < 0.5:
        return [first + n for n in range(chance.randrange(1, 6))]
    return [chance.randint(0, len(case)) for _ in range(chance.randrange(8))]


def check_line(error: Exception, *begins: str) -> None:
    """An error is one printable line of bounded length, which begins with one of these texts."""
    line = str(error)
    assert line.isprintable(), ascii(line)
    assert len(line) < 4_000
    assert not begins or line.startswith(begins)
