"""Synthetic text of an asked length: exact, by a tokenizer, or approximate, by words."""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from llm_locust.core.record import MAX_TOKENS
from llm_locust.figures.text import plural
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.workload.draws import BLOCK, PREFIX, swarm_generator
from llm_locust.workload.prompts import (
    SLICE_WORDS,
    WORDS,
    Corpus,
    Prompt,
    PromptError,
    head_words,
    synthetic_text,
)
from llm_locust.workload.tokenizer import PromptTokenizer

# --- Number of words for an asked number of tokens, learned from the server's own counts
#
# Without the model's tokenizer a prompt's length is a guess: a word counts as a token, and the chat
# template as the dialect's ``template_tokens``. The server's usage of the first prompts corrects both:
# counted = tokens_per_word · words + overhead. Prompts of one length cannot tell the two apart, so that a
# line learned at 128 tokens may be 10 % off at 8,192: counts of lengths that are new teach again.


#: Numbers of counts after which a line is fitted. The first fit brings prompts near the asked lengths, where
#: later counts are more useful; the last one stays for the rest of the run.
STAGES = (8, 32, 128)

#: The same of lengths beyond those that the line was fitted to: with both the first count tells the slope.
STAGES_OF_NEW = (1, 2, 4, *STAGES)

#: Lengths are new beyond this many times the longest counted, or below that part of the shortest.
NEW_FACTOR = 2.0

#: Counts of earlier lengths that a line is fitted to, beside those of the new ones.
_KEPT = 64

#: Most tokens attributed to a chat template, if a count can be explained by longer words too.
_MOST_OVERHEAD = 64

#: Plausible tokens per word: beyond these, the counts are of something else.
_LEAST_PER_WORD, _MOST_PER_WORD = 0.25, 16.0


@dataclass(frozen=True, slots=True)
class Fit:
    """counted = tokens_per_word · words + overhead."""

    tokens_per_word: float
    overhead: float

    def words(self, asked: float) -> int:
        """Number of words of a prompt of ``asked`` tokens, >= 1."""
        return max(1, round((asked - self.overhead) / self.tokens_per_word))


class Calibration:
    """A :class:`Fit` that is replaced by the counts of the first prompts, at each of :data:`STAGES`.

    Prompts of new lengths begin another round, with :data:`STAGES_OF_NEW`. Each round doubles the range of
    lengths or more, so there are few.

    The asked lengths of a run depend only on its seed. The texts of a calibrated run are longer or shorter,
    from a prompt on that depends on when answers arrived. So two runs with one seed ask for the same lengths,
    and send the same texts only if ``enabled`` is false, or with a tokenizer.

    Args:
        overhead: tokens around the text of a prompt, as far as known beforehand.
        enabled: learn at all.
    """

    def __init__(self, overhead: float, *, enabled: bool = True) -> None:
        self.fit = Fit(1.0, overhead)
        self._before = self.fit  # the line where counts cannot be those of prompts
        self._enabled = enabled
        self._stages: tuple[int, ...] = STAGES
        self._kept: list[tuple[float, float]] = []  # of earlier rounds
        self._counts: list[tuple[float, float]] = []  # of this one
        self._shortest, self._longest = math.inf, 0.0

    def wants(self, asked: float) -> bool:
        """Whether the count of a prompt of about ``asked`` tokens would teach something."""
        return self._enabled and (len(self._counts) < STAGES[-1] or self._is_new(self.fit.words(asked)))

    def learn(self, words: float, counted: float) -> None:
        """Learn that the server counted ``counted`` tokens for a prompt of this many words.

        Of a request of several texts that are counted one by one, both are the means.
        """
        is_new = self._is_new(words)
        if not self._enabled or (len(self._counts) >= STAGES[-1] and not is_new):
            return
        if is_new:
            self._kept = [*self._kept, *self._counts][-_KEPT:]
            self._counts, self._stages, self._before = [], STAGES_OF_NEW, self.fit
        self._counts.append((words, counted))
        self._shortest, self._longest = min(self._shortest, words), max(self._longest, words)
        if len(self._counts) in self._stages:
            samples, counts = np.array([*self._kept, *self._counts], dtype=np.float64).T
            self.fit = fitted(samples, counts, self._before)

    def _is_new(self, words: float) -> bool:
        """Whether the line was fitted, and only to lengths that are far from this one."""
        is_fitted = len(self._counts) >= self._stages[0]
        return is_fitted and not self._shortest / NEW_FACTOR <= words <= self._longest * NEW_FACTOR


def fitted(words: NDArray[np.float64], counted: NDArray[np.float64], first: Fit) -> Fit:
    """Line through (words, counted): medians throughout, so that outliers do not bend it.

    The slope is the median over pairs that are far apart, the overhead that of the later half, whose lengths
    are more like those to come. If all lengths are about equal, slope and overhead cannot be separated: up to
    64 tokens more than words count as overhead, anything else as words of another length.

    Returns:
        ``first`` if the counts cannot be those of prompts of these lengths.
    """
    spread = float(np.ptp(words))
    if spread < max(16.0, 0.1 * float(np.median(words))):
        return _of_one_length(float(np.median(words)), float(np.median(counted)), first)
    i, j = np.triu_indices(len(words), 1)
    far = np.abs(words[i] - words[j]) >= spread / 4
    slope = float(np.median((counted[j] - counted[i])[far] / (words[j] - words[i])[far]))
    later = len(words) // 2
    return _sound(Fit(slope, float(np.median((counted - slope * words)[later:]))), first)


def _of_one_length(words: float, counted: float, first: Fit) -> Fit:
    if 0 <= counted - words <= _MOST_OVERHEAD:
        return Fit(1.0, counted - words)
    return _sound(Fit((counted - first.overhead) / words, first.overhead), first)


def _sound(fit: Fit, first: Fit) -> Fit:
    return fit if _LEAST_PER_WORD <= fit.tokens_per_word <= _MOST_PER_WORD else first


# --- Text of exactly an asked number of tokens, by the tokenizer that counts it
#
# The tokens of parts do not add up to the tokens of their sum, and decoding is not the inverse of encoding.
# So a text is made from the cost of each word in the middle of a text, encoded whole as it will be sent,
# and lengthened or shortened by the difference, until it is right. With the byte-level and SentencePiece
# tokenizers in use the first or second text is right.


#: ``text`` to the tokens that the server counts for it as a prompt.
Count = Callable[[str], int]

_TRIES = 8

#: Endings that lengthen a text by one or few tokens if no word does, mildest first.
_ENDINGS = (" a", "a", " the", ".", ",", " 1", "1", "x", " x", "!", "?", "\n", ";")
_END_TRIES = 32


@dataclass(frozen=True, slots=True, eq=False)
class WordCosts:
    """Cost of the vocabulary's words in one tokenizer, and passages measured by it.

    Attributes:
        tokens: of each word, in the middle of others.
        units: words of one token.
        total: of the corpus' first i words together, for each i.
    """

    corpus: Corpus
    tokens: dict[str, int]
    units: tuple[str, ...]
    total: NDArray[np.int64]

    @classmethod
    def of(cls, tokenizer: PromptTokenizer, corpus: Corpus) -> "WordCosts":
        """Measure every word. Takes about 10 ms."""
        around = WORDS[0]
        alone, *counts = tokenizer.count_all(
            [f"{around} {around}", *(f"{around} {word} {around}" for word in WORDS)]
        )
        costs = np.maximum(np.array(counts, dtype=np.int64) - alone, 1)
        tokens = dict(zip(WORDS, costs.tolist(), strict=True))
        units = tuple(word for word, cost in tokens.items() if cost == 1)
        total = np.concatenate([[0], np.cumsum(costs[corpus.words])])
        return cls(corpus, tokens, units, total)

    def of_text(self, text: str) -> int:
        """Approximate tokens of ``text``: the sum over its words, one for each unknown word."""
        return sum(self.tokens.get(word, 1) for word in text.split(" ")) if text else 0

    def passage(self, rng: np.random.Generator, tokens: int) -> tuple[str, int]:
        """Words that cost at most ``tokens``, and less than one word's cost below it; and their cost."""
        pieces: list[str] = []
        left = tokens
        while left > 0:
            first = int(rng.integers(len(self.total) - SLICE_WORDS))
            reach = self.total[first : first + SLICE_WORDS + 1]
            taken = int(np.searchsorted(reach, reach[0] + left, side="right")) - 1
            if taken:
                pieces.append(self.corpus.cut(first, taken))
            left -= int(reach[taken] - reach[0])
            if taken < SLICE_WORDS:
                break
        return " ".join(pieces), tokens - left


class ExactText:
    """Makes texts that have an asked length according to ``count``.

    Args:
        costs: of the tokenizer that ``count`` uses.
        count: tokens of a text with everything added around it.
    """

    def __init__(self, costs: WordCosts, count: Count) -> None:
        self._costs = costs
        self._count = count
        self._shortest = min(("a", "i", "1", "go"), key=count)
        #: Tokens of the shortest prompt.
        self.least = count(self._shortest)
        self._around = count(WORDS[0]) - costs.tokens[WORDS[0]]

    def of(self, asked: int, rng: np.random.Generator, lead: str = "") -> str:
        """Make a text that counts ``asked`` tokens, starting with ``lead`` (of words).

        If the lead alone is longer than asked, it is cut.

        Raises:
            PromptError: no such text was found; the text says why.
        """
        text, counted = self.nearest(asked, rng, lead)
        if counted == asked:
            return text
        if asked < self.least:
            around = "with what is put around its text"
            raise PromptError(
                f"no prompt has {plural(asked, 'token')}: the shortest has {self.least}, {around}"
            )
        raise PromptError(f"no prompt of {plural(asked, 'token')} was found: the nearest has {counted}")

    def nearest(self, asked: int, rng: np.random.Generator, lead: str = "") -> tuple[str, int]:
        """As :meth:`of`, or the nearest text that was found; with its count."""
        if asked <= self.least:
            return self._shortest, self.least
        text = self._longer(lead, asked - self._around - self._costs.of_text(lead), rng)
        best, off = text, asked
        for _ in range(_TRIES):
            miss = asked - self._count(text)
            if miss == 0:
                return text, asked
            if abs(miss) < abs(off):
                best, off = text, miss
            before = text
            text = self._longer(text, miss, rng) if miss > 0 else _shorter(text, -miss, self._costs)
            if text == before:
                break
        return self._by_endings(best, asked)

    def _longer(self, text: str, tokens: int, rng: np.random.Generator) -> str:
        """The text with words that cost ``tokens``, or less if no word costs one token."""
        body, cost = self._costs.passage(rng, tokens)
        units, missing = self._costs.units, max(0, tokens - cost)
        fill = [units[i] for i in rng.integers(len(units), size=missing).tolist()] if units else []
        return " ".join(part for part in (text, body, *fill) if part) or self._shortest

    def _by_endings(self, text: str, asked: int) -> tuple[str, int]:
        """The text with endings that are not words, as near to ``asked`` as possible."""
        counted = self._count(text)
        while counted > asked and text != self._shortest:
            text = text.rpartition(" ")[0] or self._shortest
            counted = self._count(text)
        for _ in range(_END_TRIES):
            longer = ((text + ending, self._count(text + ending)) for ending in _ENDINGS)
            found = next((pair for pair in longer if counted < pair[1] <= asked), None)
            if counted == asked or found is None:
                break
            text, counted = found
        return text, counted


def _shorter(text: str, tokens: int, costs: WordCosts) -> str:
    """The text without its last words, which cost ``tokens`` or more."""
    kept, *last = text.rsplit(" ", tokens)
    freed = np.cumsum([costs.tokens.get(word, 1) for word in reversed(last)]).tolist()
    dropped = min(len(last), bisect_right(freed, tokens - 1) + 1)
    return " ".join([kept, *last[: len(last) - dropped]])


def prompt_count(tokenizer: PromptTokenizer, dialect: Dialect) -> Count:
    """Count of a prompt of one text, as by an endpoint's server.

    Without a chat template its tokens are estimated by the dialect's ``template_tokens``.
    """
    if dialect.text_only or not dialect.generates:
        return lambda text: tokenizer.count(text, special=True)
    if tokenizer.knows_chat:
        return lambda text: tokenizer.count_chat([{"role": "user", "content": text}])
    return lambda text: tokenizer.count(text) + dialect.template_tokens


class Writer(Protocol):
    """Makes texts. Equal generators and leads give equal texts."""

    def prompt(self, asked: int, rng: np.random.Generator, lead: str = "") -> tuple[str, int | None]:
        """A prompt's text that starts with ``lead`` (words), and its tokens if they are known.

        A lead that is longer than asked is cut. If no text has the asked length, the nearest one is returned.
        """
        ...

    def passage(self, tokens: int, rng: np.random.Generator, lead: str = "") -> str:
        """A part of a prompt, of ``tokens`` tokens, that never depends on learned counts."""
        ...


class AboutWriter:
    """Counts a word as a token, and learns from the server's counts if enabled."""

    def __init__(self, corpus: Corpus, calibration: Calibration) -> None:
        self._corpus = corpus
        self._calibration = calibration

    def prompt(self, asked: int, rng: np.random.Generator, lead: str = "") -> tuple[str, int | None]:
        return synthetic_text(self._corpus, rng, self._calibration.fit.words(asked), lead), None

    def passage(self, tokens: int, rng: np.random.Generator, lead: str = "") -> str:
        return synthetic_text(self._corpus, rng, tokens, lead)


class ExactWriter:
    """Counts every text by the model's tokenizer. Safe to use from several threads."""

    def __init__(self, corpus: Corpus, tokenizer: PromptTokenizer, dialect: Dialect) -> None:
        costs = WordCosts.of(tokenizer, corpus)
        self._prompts = ExactText(costs, prompt_count(tokenizer, dialect))
        self._passages = ExactText(costs, tokenizer.count)

    def prompt(self, asked: int, rng: np.random.Generator, lead: str = "") -> tuple[str, int | None]:
        return self._prompts.nearest(asked, rng, lead)

    def passage(self, tokens: int, rng: np.random.Generator, lead: str = "") -> str:
        return self._passages.nearest(tokens, rng, lead)[0]


# --- Prefixes shared by many prompts, for tests of a server's prefix cache


Choice = Literal["uniform", "zipf"]

_MOST_GROUPS = 1_000_000
_ALLOWED = "groups=N tokens=N choice=uniform|zipf run_unique=yes|no"
_EXAMPLE = "such as 'groups=10 tokens=1000'"

#: Most texts that are cached; with 512 tokens each, 14 MB.
_SHARED_PREFIX_KEPT = 4096


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
        self._text = lru_cache(maxsize=_SHARED_PREFIX_KEPT)(self._write)

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


# --- Prompts made ahead of their use, in another thread
#
# Making a prompt of 4,000 tokens with a tokenizer takes about 8 ms: too long for the thread in which an
# event loop reads streams. The tokenizer releases the GIL while it counts, so that a second thread can do
# it meanwhile. The remaining Python code there (joining words, the chat template) blocks the loop for less
# than a millisecond.
#
# Any executor works: ``concurrent.futures.ThreadPoolExecutor``, or under gevent
# ``gevent.threadpool.ThreadPoolExecutor``, whose threads are real ones even if ``threading`` is patched,
# and whose futures can be awaited without blocking the loop.


#: Makes one prompt, the same whenever and wherever it is called.
PromptJob = Callable[[], Prompt]


class Ahead(Iterator[Prompt]):
    """Prompts of ``orders``, in their order, up to ``depth`` of them made ahead.

    Orders are drawn here, in the caller's thread, and only carried out in the executor's: the result does not
    depend on the number of threads, on ``depth``, or on timing. A prompt that is not ready is waited for; an
    error in making one is raised at its turn.

    The first prompts are made when the first one is requested, so that a user that never asks costs nothing.
    Each iterator holds ``depth`` prompts.
    """

    def __init__(self, orders: Iterator[PromptJob], executor: Executor, depth: int = 1) -> None:
        if depth < 1:
            raise ValueError(f"depth {depth}: at least one prompt must be made ahead")
        self._orders = orders
        self._executor = executor
        self._depth = depth
        self._coming: deque[Future[Prompt]] = deque()

    def __next__(self) -> Prompt:
        # The one that is waited for, and those that are made during its request.
        while len(self._coming) <= self._depth and (order := next(self._orders, None)) is not None:
            self._coming.append(self._executor.submit(order))
        if not self._coming:
            raise StopIteration
        return self._coming.popleft().result()
