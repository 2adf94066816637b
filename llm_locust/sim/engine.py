"""A discrete model of one inference engine with continuous batching. No IO and no clock.

Time is virtual and absolute: a step starts where the last one ended, or when the first waiting
sequence is ready, and lasts

    (step_base + step_per_sequence · sequences + prefill_per_token · prompt tokens) · noise

Each step decodes one token of every running sequence; what is left of its token budget goes to
the prompts of others, first come first served (chunked prefill). A sequence whose prompt is
done emits its first token at the end of that step. So on an idle engine

    TTFT = ttft_base + step_base + step_per_sequence + prefill_per_token · prompt tokens
"""

import random
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """How fast one replica is, and how much it can hold."""

    ttft_base_ns: int = 20_000_000  # between arrival and being ready for the scheduler
    prefill_per_token_ns: int = 30_000
    step_base_ns: int = 15_000_000
    step_per_sequence_ns: int = 100_000
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2_048
    kv_cache_tokens: int = 500_000
    noise: float = 0.02  # sigma of the log-normal factor on a step's duration, whose mean is 1


@dataclass(slots=True, eq=False)
class Sequence:
    """One request inside an engine.

    ``ready_ns`` is the virtual time from which it may be admitted; ``pace`` is the number of
    steps that one of its tokens takes.
    """

    prompt_tokens: int
    output_tokens: int
    ready_ns: int
    pace: int = 1
    prefilled: int = 0
    generated: int = 0
    turns: int = 0  # decode steps it has been part of


class Engine:
    """A waiting queue, the running sequences and the steps between them."""

    def __init__(self, profile: EngineProfile, seed: int | str) -> None:
        self.profile = profile
        self._random = random.Random(seed)
        self._waiting: deque[Sequence] = deque()
        # Dictionaries as ordered sets: admission order, removal in O(1).
        self._prefilling: dict[Sequence, None] = {}
        self._decoding: dict[Sequence, None] = {}
        self._chunks: list[tuple[Sequence, int]] = []  # of the step under way
        self._decodes: list[Sequence] = []  # of the step under way
        self._reserved_tokens = 0
        self._now_ns = 0
        self.busy_ns = 0  # virtual time in steps, the one under way as a whole

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._prefilling) + len(self._decoding)

    @property
    def kv_cache_usage(self) -> float:
        """Share of the KV cache that holds tokens, 0 to 1."""
        held = sum(s.prefilled + s.generated for part in (self._prefilling, self._decoding) for s in part)
        return held / self.profile.kv_cache_tokens

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence. Sequences must come in the order of their ``ready_ns``.

        Raises:
            ValueError: it could never be admitted, for it is longer than the whole KV cache.
        """
        if _footprint(sequence) > self.profile.kv_cache_tokens:
            raise ValueError(f"a sequence of {_footprint(sequence)} tokens does not fit into the KV cache")
        self._waiting.append(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """Free the sequence wherever it is; one that is over is left alone."""
        if sequence in self._prefilling or sequence in self._decoding:
            self._release(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)

    def start_step(self) -> int | None:
        """Form the next batch. Gives the virtual time at which its step ends, None with nothing to do."""
        if not self.num_running:
            if not self._waiting:
                return None
            self._now_ns = max(self._now_ns, self._waiting[0].ready_ns)
        self._decodes = list(self._decoding)
        budget = self.profile.max_num_batched_tokens - len(self._decodes)
        self._chunks = self._take_chunks(budget)
        batch = len(self._decodes) + len(self._chunks)
        duration_ns = (
            self.profile.step_base_ns
            + self.profile.step_per_sequence_ns * batch
            + self.profile.prefill_per_token_ns * sum(tokens for _, tokens in self._chunks)
        )
        duration_ns = round(duration_ns * self._noise())
        self._now_ns += duration_ns
        self.busy_ns += duration_ns
        return self._now_ns

    def finish_step(self) -> list[Sequence]:
        """End the step: the sequences that have one more token now, in order of admission."""
        emitted = []
        for sequence in self._decodes:
            sequence.turns += 1
            if sequence in self._decoding and sequence.turns % sequence.pace == 0:
                emitted.append(sequence)
        for sequence, tokens in self._chunks:
            sequence.prefilled += tokens
            if sequence.prefilled == sequence.prompt_tokens and sequence in self._prefilling:
                del self._prefilling[sequence]
                self._decoding[sequence] = None
                emitted.append(sequence)
        self._chunks, self._decodes = [], []
        for sequence in emitted:
            sequence.generated += 1
            if sequence.generated == sequence.output_tokens:
                self._release(sequence)
        return emitted

    def _take_chunks(self, budget: int) -> list[tuple[Sequence, int]]:
        chunks = []
        for sequence in self._prefilling:
            if budget <= 0:
                break
            tokens = min(budget, sequence.prompt_tokens - sequence.prefilled)
            chunks.append((sequence, tokens))
            budget -= tokens
        while budget > 0 and self._waiting and self._admissible(self._waiting[0]):
            sequence = self._waiting.popleft()
            self._prefilling[sequence] = None
            self._reserved_tokens += _footprint(sequence)
            tokens = min(budget, sequence.prompt_tokens)
            chunks.append((sequence, tokens))
            budget -= tokens
        return chunks

    def _admissible(self, sequence: Sequence) -> bool:
        # Its whole length is reserved, so that a running sequence is never preempted.
        return (
            sequence.ready_ns <= self._now_ns
            and self.num_running < self.profile.max_num_seqs
            and self._reserved_tokens + _footprint(sequence) <= self.profile.kv_cache_tokens
        )

    def _release(self, sequence: Sequence) -> None:
        self._prefilling.pop(sequence, None)
        self._decoding.pop(sequence, None)
        self._reserved_tokens -= _footprint(sequence)

    def _noise(self) -> float:
        sigma = self.profile.noise
        return self._random.lognormvariate(-sigma * sigma / 2, sigma) if sigma else 1.0


def _footprint(sequence: Sequence) -> int:
    return sequence.prompt_tokens + sequence.output_tokens
