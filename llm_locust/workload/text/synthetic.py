"""Synthetic text of an asked length: exact, by a tokenizer, or approximate, by words."""

from typing import Protocol

import numpy as np

from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.workload.text.calibration import Calibration
from llm_locust.workload.text.exact import ExactText, WordCosts, prompt_count
from llm_locust.workload.text.prompts import Corpus, synthetic_text
from llm_locust.workload.text.tokenizer import PromptTokenizer


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
