"""How many words make an asked number of tokens, learned from the server's own counts.

Without the model's tokenizer a prompt's length is a guess: a word is taken for a token, and the
chat template for the dialect's ``template_tokens``. What the server's usage
says of the first prompts tells both better: counted = tokens_per_word · words + overhead.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: After so many counts a line is put through them. The first one brings prompts near the asked lengths,
#: where the counts of the next are worth more; the last one holds for the rest of the run.
STAGES = (8, 32, 128)

#: What a chat template may add at most, for a count that could be explained by words of more tokens too.
_MOST_OVERHEAD = 64

#: Tokens of a word: beyond these, the counts are of something else.
_LEAST_PER_WORD, _MOST_PER_WORD = 0.25, 16.0


@dataclass(frozen=True, slots=True)
class Fit:
    """counted = tokens_per_word · words + overhead."""

    tokens_per_word: float
    overhead: float

    def words(self, asked: int) -> int:
        """The words of a prompt of ``asked`` tokens, >= 1."""
        return max(1, round((asked - self.overhead) / self.tokens_per_word))


class Calibration:
    """A :class:`Fit` that the counts of the first prompts replace, at each of :data:`STAGES`.

    The asked lengths of a run stay those of its seed; the texts of a calibrated one are longer or
    shorter, from a prompt on that depends on when answers came. So two runs of one seed ask for the
    same, and send the same only where ``enabled`` is false, or a tokenizer makes this needless.

    Args:
        overhead: tokens around the text of a prompt, as far as is known beforehand.
        enabled: learn at all.
    """

    def __init__(self, overhead: float, *, enabled: bool = True) -> None:
        self.fit = Fit(1.0, overhead)
        self._first = self.fit
        self._enabled = enabled
        self._counts: list[tuple[int, int]] = []

    @property
    def learning(self) -> bool:
        """More counts are wanted."""
        return self._enabled and len(self._counts) < STAGES[-1]

    def learn(self, words: int, counted: int) -> None:
        """The server counted ``counted`` tokens for a prompt of so many words."""
        if not self.learning:
            return
        self._counts.append((words, counted))
        if len(self._counts) in STAGES:
            samples, counts = np.array(self._counts, dtype=np.float64).T
            self.fit = fitted(samples, counts, self._first)


def fitted(words: NDArray[np.float64], counted: NDArray[np.float64], first: Fit) -> Fit:
    """The line through (words, counted): medians throughout, so that odd counts do not bend it.

    The slope is the median over pairs that lie far apart, the overhead that of the later half, whose
    lengths are more like those to come. Where all lengths are about equal, slope and overhead cannot be
    told apart: up to 64 tokens more than words are taken for the overhead, anything else for words of
    another length.

    Returns:
        ``first`` where the counts are no prompts' of these lengths.
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
