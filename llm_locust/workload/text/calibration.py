"""Number of words for an asked number of tokens, learned from the server's own counts.

Without the model's tokenizer a prompt's length is a guess: a word counts as a token, and the chat template as
the dialect's ``template_tokens``. The server's usage of the first prompts corrects both: counted =
tokens_per_word · words + overhead. Prompts of one length cannot tell the two apart, so that a line learned at
128 tokens may be 10 % off at 8,192: counts of lengths that are new teach again.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
