"""Text of exactly an asked number of tokens, by the tokenizer that counts it.

The tokens of parts do not add up to the tokens of their sum, and decoding is not the inverse of encoding. So
a text is made from the cost of each word in the middle of a text, encoded whole as it will be sent, and
lengthened or shortened by the difference, until it is right. With the byte-level and SentencePiece tokenizers
in use the first or second text is right.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.workload.text.prompts import SLICE_WORDS, Corpus, PromptError
from llm_locust.workload.text.tokenizer import PromptTokenizer
from llm_locust.workload.text.words import WORDS

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
            raise PromptError(f"no prompt has {asked} tokens: the shortest has {self.least}, {around}")
        raise PromptError(f"no prompt of {asked} tokens was found: the nearest has {counted}")

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
