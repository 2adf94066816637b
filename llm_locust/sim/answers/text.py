"""Text of a simulated model, one vocabulary entry per token, and tokens of a prompt."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

# A prime number of entries, so that every stride walks through all of them. Letters of several bytes, a
# quote, a line end and U+2028 are included to test a client's decoder.
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
        """Token ``index`` as in a JSON string without its quotes, UTF-8."""
        return _ESCAPED[(self.start + self.stride * index) % _SIZE]

    def whole(self, tokens: int) -> str:
        """The first ``tokens`` tokens, joined."""
        return "".join(_VOCABULARY[(self.start + self.stride * i) % _SIZE] for i in range(tokens))


def split_tokens(text: str) -> list[str]:
    """Split a prompt into tokens by a rule of thumb, similar to byte-pair tokenizers on English text.

    There is a token for each word of up to 12 Latin letters, each further 12, each 3 digits, and each other
    character except spaces.
    """
    return _PIECE.findall(text)


def count_tokens(text: str) -> int:
    """The number of :func:`split_tokens`."""
    return len(split_tokens(text))


def block_hashes(tokens: Sequence[str], block_tokens: int, adapter: str = "") -> tuple[int, ...]:
    """Key for each full block of a prompt; it identifies the prompt from its start to that block's end.

    The same in every process: 64 bits of BLAKE2b over the tokens so far. Prompts for different adapters have
    no key in common.
    """
    so_far = blake2b(f"{adapter}\0".encode("utf-8", "surrogatepass") if adapter else b"", digest_size=8)
    keys = []
    for end in range(block_tokens, len(tokens) + 1, block_tokens):
        block = "\0".join((*tokens[end - block_tokens : end], ""))
        so_far.update(block.encode("utf-8", "surrogatepass"))
        keys.append(int.from_bytes(so_far.digest(), "big"))
    return tuple(keys)
