"""KV cache of one engine: how many of its blocks are used, and which prompt prefixes it has.

Blocks are counted, and hold no tensors. Sequences take them as they get tokens and return them together. A
full block of a prompt may be published under a key that identifies the prompt up to the block's end: another
sequence with the same prefix then shares it. A published block that no sequence holds is free, and is still
found until its space is needed; the least recently used one goes first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Block:
    """A published block. ``key`` is None once the cache has evicted it; ``refs`` counts its holders."""

    key: int | None
    refs: int = 1


@dataclass(slots=True, eq=False)
class Held:
    """Blocks of one sequence: ``blocks`` with room for ``tokens``, of which ``published`` have a key."""

    tokens: int = 0
    blocks: int = 0
    published: list[Block] = field(default_factory=list)


class KvCache:
    """``blocks`` of ``block_tokens`` tokens each. ``used`` counts those that sequences hold."""

    def __init__(self, blocks: int, block_tokens: int) -> None:
        """
        Raises:
            ValueError: there is not one block.
        """
        if blocks < 1:
            raise ValueError(f"a KV cache of {blocks} blocks holds nothing; give it {block_tokens} tokens")
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.used = 0
        self._known: dict[int, Block] = {}
        self._idle: dict[Block, None] = {}  # known ones without a holder, the least recently used first

    @property
    def free(self) -> int:
        """Blocks that can be taken, including known ones without a holder."""
        return self.blocks - self.used

    def find(self, keys: Iterable[int]) -> list[Block]:
        """Known blocks of the longest prefix of ``keys``. Valid until the next change."""
        found = []
        for key in keys:
            block = self._known.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def take(self, held: Held, tokens: int, found: Sequence[Block] = ()) -> bool:
        """Make ``held`` large enough for ``tokens`` tokens; ``found`` blocks are its first, if it has none.

        Returns:
            False, without any change, if too few blocks are free.
        """
        more = -(-tokens // self.block_tokens) - held.blocks
        if more <= 0:
            return True
        in_use = sum(1 for block in found if block.refs)
        if more - in_use > self.free:
            return False
        for block in found:
            if not block.refs:
                del self._idle[block]
            block.refs += 1
        held.published += found
        held.blocks += more
        held.tokens = held.blocks * self.block_tokens
        self.used += more - in_use
        self._evict()
        return True

    def publish(self, held: Held, keys: Iterable[int]) -> None:
        """Publish full blocks that only ``held`` has, each under its key."""
        for key in keys:
            other = self._known.get(key)
            if other is not None:
                if other.refs:
                    continue  # computed twice at the same time: this copy stays private
                del self._idle[other]
            self._known[key] = block = Block(key)
            held.published.append(block)

    def release(self, held: Held) -> None:
        """Return all blocks of ``held``."""
        self.used -= held.blocks - len(held.published)
        # Backwards, so that a prompt's end is evicted before its start, without which it is not found.
        for block in reversed(held.published):
            block.refs -= 1
            if not block.refs:
                self.used -= 1
                if block.key is not None:
                    self._idle[block] = None
        held.tokens = held.blocks = 0
        held.published.clear()

    def forget(self) -> None:
        """Forget all keys; held blocks stay held."""
        for block in self._known.values():
            block.key = None
        self._known.clear()
        self._idle.clear()

    def _evict(self) -> None:
        while len(self._idle) > self.free:
            block = next(iter(self._idle))
            del self._idle[block]
            assert block.key is not None
            del self._known[block.key]
