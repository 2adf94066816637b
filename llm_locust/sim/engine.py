"""Simulator of one inference engine with continuous batching. No model, no GPU, no IO and no clock.

Time is virtual and absolute: a step starts when the last one ended, or when the first waiting sequence is
ready. With n sequences in its batch, of which d decode, p tokens to prefill and c tokens of context that the
decoding ones attend to, it lasts

    (base + per_sequence · n + prefill_per_token · p + context_per_token · c) · noise · slow_factor

or, with ``overlap`` (a roofline: memory traffic and arithmetic in parallel, the longer one counts),

    (per_sequence · n + max(base + context_per_token · c, prefill_per_token · (p + d))) · noise · slow_factor

Each step decodes one token of every running sequence; the rest of its token budget goes to the prompts of
others, first come first served (chunked prefill). A sequence whose prompt is done emits its first token at
the end of that step. So on an idle engine without overlap

    TTFT = ttft_base + base + per_sequence + prefill_per_token · prompt tokens

Memory works as in vLLM's V1 engine: a sequence gets blocks of the KV cache as it gets tokens. If none is free
for a running one, the sequence admitted last is preempted: it loses its blocks, goes to the head of the
queue, and its prompt and the tokens that it has are prefilled again. With ``prefix_cache`` a prompt shares
the blocks of an earlier one as far as both have the same prefix; at least one token is computed. Of a prompt
that another engine has computed (disaggregated prefill) the last token is computed again, which emits the
answer's first one; a preemption loses what was received.

Simplifications: a step's time is linear (no quadratic attention in a prefill, no steps between sizes of
captured graphs); the scheduler and the sampling take no time beyond ``base``; the prefix cache contains only
prompts, not generated text; the GPUs of one engine act as one; there is no swapping to the host's memory, no
priority, no speculative decoding.
"""

import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

# --------------------
# KV cache of one engine: how many of its blocks are used, and which prompt prefixes it has.
#
# Blocks are counted, and hold no tensors. Sequences take them as they get tokens and return them together.
# A full block of a prompt may be published under a key that identifies the prompt up to the block's end:
# another sequence with the same prefix then shares it. A published block that no sequence holds is free,
# and is still found until its space is needed; the least recently used one goes first.
# --------------------


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


# --- Basic types of an engine: its profile, its sequences, its counters


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """Speed and capacity of one replica."""

    ttft_base_ns: int = 20_000_000  # from arrival until ready for the scheduler
    prefill_per_token_ns: float = 30_000
    step_base_ns: int = 15_000_000
    step_per_sequence_ns: int = 100_000
    context_per_token_ns: float = 0.0  # reading the keys and values of one token
    overlap: bool = False  # memory traffic and arithmetic run in parallel
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2_048
    kv_cache_tokens: int = 500_000  # total; a partial block is not used
    kv_block_tokens: int = 16
    prefix_cache: bool = False
    noise: float = 0.02  # sigma of the log-normal factor, with mean 1, on a step's duration

    @property
    def kv_blocks(self) -> int:
        return self.kv_cache_tokens // self.kv_block_tokens

    @property
    def longest_sequence_tokens(self) -> int:
        """Prompt and output of the longest sequence that the KV cache can hold."""
        return self.kv_blocks * self.kv_block_tokens


@dataclass(slots=True, eq=False)
class EngineSequence:
    """One request inside an engine.

    ``ready_ns`` is the virtual time from which it may be admitted; ``pace`` is the number of steps per token;
    ``block_hashes`` are the prefix cache's keys of its prompt's full blocks. ``received`` is how much of its
    prompt was computed by another engine, whose keys and values are there when it is ready: at most all but
    the last token. ``scheduled_ns`` is the virtual start of the first step with a part of its prompt,
    ``cached_tokens`` how much of that was in the prefix cache then: None before, and without such a cache.
    """

    prompt_tokens: int
    output_tokens: int
    ready_ns: int
    pace: int = 1
    block_hashes: Sequence[int] = ()
    received: int = 0
    computed: int = 0  # tokens whose keys and values are in the KV cache
    generated: int = 0
    turns: int = 0  # decode steps that included it
    preemptions: int = 0
    scheduled_ns: int | None = None
    cached_tokens: int | None = None
    held: Held = field(default_factory=Held)

    @property
    def tokens(self) -> int:
        """Prompt and output so far."""
        return self.prompt_tokens + self.generated


@dataclass(slots=True)
class EngineCounters:
    """Totals since the start. Lookups count prompt tokens once per sequence, despite preemption."""

    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0


#: A sequence, and how many tokens of its prompt, or of what a preemption took from it, are computed.
Chunk = tuple[EngineSequence, int]


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Work of one step: the next token of ``decodes``, and ``chunks``."""

    decodes: list[EngineSequence] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)


class Scheduler:
    """A waiting queue and the running sequences. Forms batches, without regard to their duration."""

    def __init__(self, profile: EngineProfile) -> None:
        """
        Raises:
            ValueError: the KV cache is smaller than one block.
        """
        self.counters = EngineCounters()
        self.profile = profile
        self._cache = KvCache(profile.kv_blocks, profile.kv_block_tokens)
        self._waiting: deque[EngineSequence] = deque()
        # Dictionaries as ordered sets, both in the order of admission, removal in O(1). Prompts are finished
        # in that order too, so that every decoding sequence was admitted before any other.
        self._prefilling: dict[EngineSequence, None] = {}
        self._decoding: dict[EngineSequence, None] = {}

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

    def submit(self, sequence: EngineSequence) -> None:
        """Queue a sequence behind those that are ready before it.

        Raises:
            ValueError: it is longer than the whole KV cache, and could never be finished.
        """
        length = sequence.prompt_tokens + sequence.output_tokens
        longest = self.profile.longest_sequence_tokens
        if length > longest:
            raise ValueError(f"a sequence of {length} tokens does not fit into a KV cache of {longest}")
        place = len(self._waiting)
        while place and self._waiting[place - 1].ready_ns > sequence.ready_ns:
            place -= 1
        self._waiting.insert(place, sequence)

    def cancel(self, sequence: EngineSequence) -> None:
        """Free the sequence wherever it is; one that has ended is ignored."""
        if sequence in self._prefilling or sequence in self._decoding:
            self._release(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)

    def reset_prefix_cache(self) -> None:
        """Forget all prompts seen so far. Running sequences keep their blocks."""
        self._cache.forget()

    def schedule(self, now_ns: int) -> StepBatch:
        """Batch of a step that starts now."""
        preemptions = self.counters.preemptions
        decodes = self._take_decodes()
        budget = self.profile.max_num_batched_tokens - len(decodes)
        chunks = self._take_chunks(budget)
        if self.counters.preemptions == preemptions:  # otherwise free blocks are for running sequences
            chunks += self._admit(budget - sum(tokens for _, tokens in chunks), now_ns)
        return StepBatch(decodes, chunks)

    def complete(self, batch: StepBatch) -> list[EngineSequence]:
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

    def _take_decodes(self) -> list[EngineSequence]:
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
        while budget > 0 and self._waiting and self.num_running < self.profile.max_num_seqs:
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

    def _find(self, sequence: EngineSequence) -> list[Block]:
        if not self.profile.prefix_cache or sequence.received:
            return []
        # Without the block of the last token, whose output is needed to sample the next one.
        most = (sequence.tokens - 1) // self._cache.block_tokens
        return self._cache.find(sequence.block_hashes[:most])

    def _note_schedule(self, sequence: EngineSequence, cached: int, now_ns: int) -> None:
        sequence.scheduled_ns = now_ns
        if self.profile.prefix_cache and not sequence.received:
            sequence.cached_tokens = cached
            self.counters.prefix_queries += sequence.prompt_tokens
            self.counters.prefix_hits += cached

    def _computed(self, sequence: EngineSequence, tokens: int) -> None:
        before = sequence.computed
        sequence.computed += tokens
        if self.profile.prefix_cache:
            full = slice(before // self._cache.block_tokens, sequence.computed // self._cache.block_tokens)
            self._cache.publish(sequence.held, sequence.block_hashes[full])

    def _make_room(self, sequence: EngineSequence, tokens: int) -> bool:
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

    def _preempt(self, sequence: EngineSequence) -> None:
        self._release(sequence)
        sequence.computed = sequence.received = 0
        sequence.preemptions += 1
        self.counters.preemptions += 1
        self._waiting.appendleft(sequence)

    def _release(self, sequence: EngineSequence) -> None:
        self._prefilling.pop(sequence, None)
        self._decoding.pop(sequence, None)
        self._cache.release(sequence.held)


class Engine(Scheduler):
    """A scheduler, and the duration of its steps.

    Raises:
        ValueError: the KV cache is smaller than one block.
    """

    def __init__(self, profile: EngineProfile, seed: int | str) -> None:
        super().__init__(profile)
        self.slow_factor = 1.0  # factor on the duration of every step that starts from now on
        self.busy_ns = 0  # virtual time in steps, with the whole of the current one
        self._random = random.Random(seed)
        self._batch = StepBatch()  # batch of the current step
        self._began_ns = 0  # start of that step, or of the last one
        self._now_ns = 0  # its end

    def clear(self, at_ns: int) -> None:
        """Lose everything, as a process killed at that virtual time: sequences, cache, counters."""
        # The current step ends here.
        self.busy_ns -= max(0, self._now_ns - max(at_ns, self._began_ns))
        self._now_ns = min(self._now_ns, at_ns)
        self._batch = StepBatch()
        super().__init__(self.profile)

    def start_step(self) -> int | None:
        """Form the next batch. Return the virtual time at which its step ends, None without work."""
        if not self.num_running:
            ready_ns = self.next_ready_ns
            if ready_ns is None:
                return None
            self._now_ns = max(self._now_ns, ready_ns)
        self._began_ns = self._now_ns
        self._batch = self.schedule(self._now_ns)
        sigma = self.profile.noise
        noise = self._random.lognormvariate(-sigma * sigma / 2, sigma) if sigma else 1.0
        duration_ns = round(step_ns(self.profile, self._batch) * noise * self.slow_factor)
        self._now_ns += duration_ns
        self.busy_ns += duration_ns
        return self._now_ns

    def finish_step(self) -> list[EngineSequence]:
        """End the step; return the sequences that have one more token, in order of admission."""
        batch, self._batch = self._batch, StepBatch()
        return self.complete(batch)


def step_ns(profile: EngineProfile, batch: StepBatch) -> float:
    """Duration of a step by the formulas of this module, without noise and slow factor."""
    decodes, prompt_tokens = len(batch.decodes), sum(tokens for _, tokens in batch.chunks)
    memory_ns: float = profile.step_base_ns
    if profile.context_per_token_ns:
        context_tokens = sum(s.prompt_tokens + s.generated for s in batch.decodes)
        memory_ns += profile.context_per_token_ns * context_tokens
    sequences_ns = profile.step_per_sequence_ns * (decodes + len(batch.chunks))
    if profile.overlap:
        return sequences_ns + max(memory_ns, profile.prefill_per_token_ns * (prompt_tokens + decodes))
    return sequences_ns + memory_ns + profile.prefill_per_token_ns * prompt_tokens
