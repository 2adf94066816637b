"""Prompts of which only the hashes of their blocks are known, as texts.

Equal hashes give equal blocks of words, and different ones begin differently, so that two prompts have in
common what their lists of hashes have: the hits that a prefix cache can have are those of the recording. A
word counts as a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b

from llm_locust.wire.dialects.dialect import Message
from llm_locust.workload.text.prompts import SLICE_WORDS, Corpus
from llm_locust.workload.text.words import WORDS

#: Largest block, in tokens.
MOST_BLOCK = SLICE_WORDS

#: Words of a block that are its own, 60 bits of its hash; its other words are of a text that all share.
_OWN_WORDS = 6

#: Blocks that are kept as text: with 64 tokens each, 30 MB.
_KEPT = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedPrompt:
    """A prompt of ``tokens`` tokens: the first ``kept`` blocks of ``before``, and the blocks ``new``.

    A history that turns repeat is held once. Tokens beyond the blocks are a text that follows no other
    blocks; a last block that is longer than what is left of ``tokens`` is cut.

    Attributes:
        scope: hashes are equal only within it: the file, or the trace.
        system: number of blocks of the beginning that are the system prompt.
    """

    scope: str
    block: int
    tokens: int
    new: tuple[int, ...]
    before: "HashedPrompt | None" = None
    kept: int = 0
    system: int = 0

    def hashes(self) -> list[int]:
        """All of its hashes."""
        parts, wanted, at = [], self.kept + len(self.new), self
        while True:
            parts.append(at.new[: max(0, wanted - at.kept)])
            wanted = min(wanted, at.kept)
            if at.before is None or not wanted:
                break
            at = at.before
        return [number for part in reversed(parts) for number in part]

    def messages(self) -> tuple[Message, ...]:
        """The system prompt, if there is one, and a message of the user with all else."""
        hashes = self.hashes()
        texts = [_text(self.scope, number, self.block) for number in hashes]
        missing = self.tokens - len(hashes) * self.block
        if missing > 0:
            texts.append(_rest(f"{self.scope}/{len(hashes)}/{hashes[-1:]}", missing))
        elif missing < 0:
            texts[-1] = " ".join(texts[-1].split(" ")[:missing])
        system = min(self.system, len(texts) - 1)  # a request without a user's message is refused
        user: Message = {"role": "user", "content": " ".join(texts[system:])}
        return ({"role": "system", "content": " ".join(texts[:system])}, user) if system > 0 else (user,)


@dataclass(slots=True)
class Chain:
    """Prompts of an agent in their order, each of which may begin as the one before.

    ``scope`` and ``block`` are those of the prompts; ``prompt`` is the last one, with these ``hashes``.
    """

    scope: str
    block: int
    prompt: HashedPrompt | None = None
    hashes: tuple[int, ...] = ()

    def forked(self) -> "Chain":
        """A chain of another agent whose first prompt may begin as this one's last."""
        return replace(self)

    def following(self, hashes: Sequence[int], tokens: int, system: int = 0) -> HashedPrompt:
        """The next prompt: as many of these hashes as ``tokens`` has blocks.

        Args:
            system: blocks of the system prompt; 0: those of the prompt before, if it begins with all of them.
        """
        hashes = tuple(hashes[: -(-tokens // self.block)])
        kept = min(len(self.hashes), len(hashes))
        if hashes[:kept] != self.hashes[:kept]:
            kept = next(i for i, (a, b) in enumerate(zip(self.hashes, hashes, strict=False)) if a != b)
        if not system and self.prompt is not None and kept >= self.prompt.system:
            system = self.prompt.system
        self.hashes = hashes
        self.prompt = HashedPrompt(
            scope=self.scope,
            block=self.block,
            tokens=tokens,
            new=hashes[kept:],
            before=self.prompt if kept else None,
            kept=kept,
            system=system,
        )
        return self.prompt


@lru_cache(maxsize=1)
def _corpus() -> Corpus:
    return Corpus.of(0)


@lru_cache(maxsize=_KEPT)
def _text(scope: str, number: int, words: int) -> str:
    """The block with this hash."""
    return _words(f"{scope}/{number}", words)


def _rest(key: str, words: int) -> str:
    return " ".join(_words(f"{key}/{at}", min(MOST_BLOCK, words - at)) for at in range(0, words, MOST_BLOCK))


def _words(key: str, words: int) -> str:
    digest = blake2b(key.encode(), digest_size=16).digest()
    number = int.from_bytes(digest[:8])
    own = []
    for _ in range(min(words, _OWN_WORDS)):
        number, word = divmod(number, len(WORDS))
        own.append(WORDS[word])
    if words == len(own):
        return " ".join(own)
    corpus, others = _corpus(), words - len(own)
    first = int.from_bytes(digest[8:]) % (len(corpus.words) - others)
    return f"{' '.join(own)} {corpus.cut(first, others)}"
