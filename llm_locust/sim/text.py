"""Text that a simulated model writes, one vocabulary entry a token."""

import random
import re
from dataclasses import dataclass

import msgspec

# A prime number of entries, so that every stride walks through all of them. Letters of several
# bytes, a quote, a line end and U+2028 are there because a client's decoder must stand them.
# fmt: off
_VOCABULARY = (
    " the", " of", " and", " to", " in", " is", " that", " for", " as", " with", " was", " on", " are",
    " by", " this", " be", " from", " or", " have", " an", " they", " which", " one", " you", " were",
    " all", " her", " she", " there", " would", " their", " we", " him", " been", " has", " when",
    " who", " will", " no", " more", " if", " out", " so", " up", " said", " what", " its", " about",
    " than", " into", " them", " can", " only", " other", " time", " new", " some", " could", " these",
    " two", " may", " first", " then", " café", " naïve", " 東京", " привет", " ½", " 🙂", ",", ".", ";",
    "\n", ' "quoted"', " \\", " {", "}", "\u2028", " data:",
)
# fmt: on
_PIECE = re.compile(r"[A-Za-z]{1,12}|[0-9]{1,3}|[^\sA-Za-z0-9]")
_ESCAPED = tuple(msgspec.json.encode(entry)[1:-1] for entry in _VOCABULARY)
_SIZE = len(_VOCABULARY)


@dataclass(frozen=True, slots=True)
class TokenText:
    """An endless walk through the vocabulary."""

    start: int
    stride: int

    @classmethod
    def drawn(cls, source: random.Random) -> "TokenText":
        return cls(source.randrange(_SIZE), source.randrange(1, _SIZE))

    def escaped(self, index: int) -> bytes:
        """Token ``index`` as it stands between the quotes of a JSON string, UTF-8."""
        return _ESCAPED[(self.start + self.stride * index) % _SIZE]

    def whole(self, tokens: int) -> str:
        """The first ``tokens`` tokens, joined."""
        return "".join(_VOCABULARY[(self.start + self.stride * i) % _SIZE] for i in range(tokens))


def count_tokens(text: str) -> int:
    """A prompt's size by rule of thumb, as byte-pair tokenizers cut English.

    A token for each word of up to 12 Latin letters, each further 12, each 3 digits, and each other
    character that is no space.
    """
    return len(_PIECE.findall(text))
