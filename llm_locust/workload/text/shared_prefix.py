"""Prefixes shared by many prompts, for tests of a server's prefix cache."""

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from llm_locust.core.record import MAX_TOKENS
from llm_locust.workload.draws import BLOCK, PREFIX, swarm_generator
from llm_locust.workload.text.prompts import head_words
from llm_locust.workload.text.synthetic import Writer

Choice = Literal["uniform", "zipf"]

_MOST_GROUPS = 1_000_000
_ALLOWED = "groups=N tokens=N choice=uniform|zipf run_unique=yes|no"
_EXAMPLE = "such as 'groups=10 tokens=1000'"

#: Most texts that are cached; with 512 tokens each, 14 MB.
_KEPT = 4096


class SharedPrefixError(ValueError):
    """Invalid settings of a shared prefix; has the value and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """Every prompt starts with one of ``groups`` texts of ``tokens`` tokens.

    They are the same on all workers, and prompts of one group have nothing else in common. ``zipf`` chooses
    the k-th group with a probability proportional to 1/k. Other runs have other texts, so that their cache
    does not help, unless ``run_unique`` is false.

    Raises:
        SharedPrefixError: a number out of range, or an unknown choice.
    """

    groups: int = 10
    tokens: int = 1000
    choice: Choice = "uniform"
    run_unique: bool = True

    def __post_init__(self) -> None:
        for name, value, most in (("groups", self.groups, _MOST_GROUPS), ("tokens", self.tokens, MAX_TOKENS)):
            if not 1 <= value <= most:
                raise SharedPrefixError(f"shared prefix: {name} {value} is not in 1 .. {most:,}")
        if self.choice not in get_args(Choice):
            raise SharedPrefixError(
                f"shared prefix: no choice {self.choice!r}; there are {', '.join(get_args(Choice))}"
            )

    def draw(self, rng: np.random.Generator) -> int:
        """Draw a group, from 0."""
        if self.choice == "uniform":
            return int(rng.integers(self.groups))
        return int(np.searchsorted(_zipf(self.groups), rng.random(), side="right"))


@lru_cache(maxsize=4)
def _zipf(groups: int) -> NDArray[np.float64]:
    total: NDArray[np.float64] = np.cumsum(1.0 / np.arange(1, groups + 1))
    total /= total[-1]
    return total


def parse_shared_prefix(text: str) -> SharedPrefix:
    """Parse ``groups=10 tokens=1000 choice=zipf run_unique=no``; missing words have their defaults.

    Raises:
        SharedPrefixError: an unknown word, or a value out of range.
    """
    names = {field.name for field in fields(SharedPrefix)}
    found: dict[str, int | str | bool] = {}
    for word in text.replace(",", " ").split():
        name, equals, value = word.partition("=")
        if not equals or name not in names:
            raise SharedPrefixError(f"shared prefix {text!r}: {word!r} is not one of {_ALLOWED}, {_EXAMPLE}")
        if name in ("groups", "tokens"):
            if not (value.isascii() and value.isdigit()):
                raise SharedPrefixError(
                    f"shared prefix {text!r}: {value!r} is not a whole number, {_EXAMPLE}"
                )
            found[name] = int(value[:18])
        elif name == "run_unique":
            if value not in ("yes", "no"):
                raise SharedPrefixError(
                    f"shared prefix {text!r}: run_unique must be yes or no, got {value!r}"
                )
            found[name] = value == "yes"
        else:
            found[name] = value
    if not found:
        raise SharedPrefixError(f"shared prefix {text!r} is empty; allowed is {_ALLOWED}, {_EXAMPLE}")
    return SharedPrefix(**found)  # type: ignore[arg-type]  # each value is of its name's type by now


class SharedTexts:
    """Texts of prefix groups and of trace blocks: the same on every worker of a run.

    Args:
        salt: a text unique to the run, or empty for texts that depend only on the seed.
    """

    def __init__(self, writer: Writer, seed: int, salt: str) -> None:
        self._writer = writer
        self._seed = seed
        self._salt = salt
        self._text = lru_cache(maxsize=_KEPT)(self._write)

    def prefix(self, group: int, tokens: int) -> str:
        """Prefix of a group, ``tokens`` tokens."""
        return self._text(PREFIX, group, tokens)

    def prefix_of_blocks(self, hash_ids: tuple[int, ...], block_tokens: int) -> str:
        """A text in which each id stands for a block of ``block_tokens`` tokens.

        If two lists start with the same ids, their texts start with the same blocks, and differ from there
        on. The writer cuts a prompt that is shorter than its blocks together.
        """
        return " ".join(self._text(BLOCK, number, block_tokens) for number in hash_ids)

    def _write(self, purpose: int, number: int, tokens: int) -> str:
        head = head_words(self._salt, purpose, number) if self._salt else ""
        return self._writer.passage(tokens, swarm_generator(self._seed, purpose, number), head)
