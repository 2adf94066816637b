"""Scheduling of an engine's next step: continuous batching, chunked prefill, KV cache blocks, preemption."""

from collections import deque
from dataclasses import dataclass, field

from llm_locust.sim.engine.kv_cache import Block, KvCache
from llm_locust.sim.engine.sequence import EngineCounters, EngineProfile, Sequence

#: A sequence, and how many tokens of its prompt, or of what a preemption took from it, are computed.
Chunk = tuple[Sequence, int]


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Work of one step: the next token of ``decodes``, and ``chunks``."""

    decodes: list[Sequence] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)


class Scheduler:
    """A waiting queue and the running sequences. Forms batches, without regard to their duration."""

    def __init__(self, profile: EngineProfile) -> None:
        """
        Raises:
            ValueError: the KV cache is smaller than one block.
        """
        self.counters = EngineCounters()
        self._profile = profile
        self._cache = KvCache(profile.kv_blocks, profile.kv_block_tokens)
        self._waiting: deque[Sequence] = deque()
        # Dictionaries as ordered sets, both in the order of admission, removal in O(1). Prompts are finished
        # in that order too, so that every decoding sequence was admitted before any other.
        self._prefilling: dict[Sequence, None] = {}
        self._decoding: dict[Sequence, None] = {}

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._prefilling) + len(self._decoding)

    @property
    def kv_cache_usage(self) -> float:
        """Share of the KV cache's blocks that sequences hold, 0 to 1."""
        return self._cache.used / self._cache.blocks

    @property
    def next_ready_ns(self) -> int | None:
        """When the head of the queue may be admitted; None if the queue is empty."""
        return self._waiting[0].ready_ns if self._waiting else None

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence that fits into the KV cache, behind those that are ready before it."""
        place = len(self._waiting)
        while place and self._waiting[place - 1].ready_ns > sequence.ready_ns:
            place -= 1
        self._waiting.insert(place, sequence)

    def cancel(self, sequence: Sequence) -> None:
        """Free the sequence wherever it is; one that has ended is ignored."""
        if sequence in self._prefilling or sequence in self._decoding:
            self._release(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)

    def forget_prefixes(self) -> None:
        """Empty the prefix cache. Running sequences keep their blocks."""
        self._cache.forget()

    def schedule(self, now_ns: int) -> StepBatch:
        """Batch of a step that starts now."""
        preemptions = self.counters.preemptions
        decodes = self._take_decodes()
        budget = self._profile.max_num_batched_tokens - len(decodes)
        chunks = self._take_chunks(budget)
        if self.counters.preemptions == preemptions:  # otherwise free blocks are for running sequences
            chunks += self._admit(budget - sum(tokens for _, tokens in chunks), now_ns)
        return StepBatch(decodes, chunks)

    def complete(self, batch: StepBatch) -> list[Sequence]:
        """End a batch; return the sequences that have one more token, in order of admission."""
        emitted = []
        for sequence in batch.decodes:
            sequence.turns += 1
            if sequence in self._decoding and sequence.turns % sequence.pace == 0:
                sequence.computed += 1
                emitted.append(sequence)
        for sequence, tokens in batch.chunks:
            if sequence in self._prefilling:
                self._computed(sequence, tokens)
                if sequence.computed == sequence.tokens:
                    del self._prefilling[sequence]
                    self._decoding[sequence] = None
                    emitted.append(sequence)
        for sequence in emitted:
            sequence.generated += 1
            if sequence.generated == sequence.output_tokens:
                self._release(sequence)
        return emitted

    def _take_decodes(self) -> list[Sequence]:
        decodes = []
        for sequence in tuple(self._decoding):
            # There is no room if the next token starts a block, or if the sequence has just been preempted.
            if sequence.computed == sequence.held.tokens and not self._make_room(sequence, sequence.tokens):
                break  # later ones were admitted later, and were preempted first
            decodes.append(sequence)
        return decodes

    def _take_chunks(self, budget: int) -> list[Chunk]:
        """Next chunks of prompts in progress."""
        chunks = []
        for sequence in tuple(self._prefilling):
            tokens = min(budget, sequence.tokens - sequence.computed)
            if tokens <= 0 or not self._make_room(sequence, sequence.computed + tokens):
                break
            chunks.append((sequence, tokens))
            budget -= tokens
        return chunks

    def _admit(self, budget: int, now_ns: int) -> list[Chunk]:
        """Start the prompts at the head of the queue, as far as tokens, places and blocks suffice."""
        chunks: list[Chunk] = []
        while budget > 0 and self._waiting and self.num_running < self._profile.max_num_seqs:
            sequence = self._waiting[0]
            if sequence.ready_ns > now_ns or not self._cache.free:
                break
            found = self._find(sequence)
            cached = len(found) * self._cache.block_tokens
            computed = max(cached, sequence.received)
            tokens = min(budget, sequence.tokens - computed)
            if not self._cache.take(sequence.held, computed + tokens, found):
                break
            self._waiting.popleft()
            self._prefilling[sequence] = None
            sequence.computed = computed
            if sequence.scheduled_ns is None:
                self._note_schedule(sequence, cached, now_ns)
            chunks.append((sequence, tokens))
            budget -= tokens
        return chunks

    def _find(self, sequence: Sequence) -> list[Block]:
        if not self._profile.prefix_cache or sequence.received:
            return []
        # Without the block of the last token, whose output is needed to sample the next one.
        most = (sequence.tokens - 1) // self._cache.block_tokens
        return self._cache.find(sequence.block_hashes[:most])

    def _note_schedule(self, sequence: Sequence, cached: int, now_ns: int) -> None:
        sequence.scheduled_ns = now_ns
        if self._profile.prefix_cache and not sequence.received:
            sequence.cached_tokens = cached
            self.counters.prefix_queries += sequence.prompt_tokens
            self.counters.prefix_hits += cached

    def _computed(self, sequence: Sequence, tokens: int) -> None:
        before = sequence.computed
        sequence.computed += tokens
        if self._profile.prefix_cache:
            full = slice(before // self._cache.block_tokens, sequence.computed // self._cache.block_tokens)
            self._cache.publish(sequence.held, sequence.block_hashes[full])

    def _make_room(self, sequence: Sequence, tokens: int) -> bool:
        """Make room for that many tokens of a running sequence, if necessary by preempting those admitted
        later.

        Returns:
            False if it no longer runs: it was preempted before, or is now.
        """
        while sequence.held.blocks:
            if self._cache.take(sequence.held, tokens):
                return True
            self._preempt(next(reversed(self._prefilling or self._decoding)))
        return False

    def _preempt(self, sequence: Sequence) -> None:
        self._release(sequence)
        sequence.computed = sequence.received = 0
        sequence.preemptions += 1
        self.counters.preemptions += 1
        self._waiting.appendleft(sequence)

    def _release(self, sequence: Sequence) -> None:
        self._prefilling.pop(sequence, None)
        self._decoding.pop(sequence, None)
        self._cache.release(sequence.held)
