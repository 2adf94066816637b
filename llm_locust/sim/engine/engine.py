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

from llm_locust.sim.engine.scheduler import (
    EngineCounters,
    EngineProfile,
    EngineSequence,
    Scheduler,
    StepBatch,
)

__all__ = ["Engine", "step_ns"]


class Engine:
    """A scheduler, and the duration of its steps."""

    def __init__(self, profile: EngineProfile, seed: int | str) -> None:
        """
        Raises:
            ValueError: the KV cache is smaller than one block.
        """
        self.profile = profile
        self.slow_factor = 1.0  # factor on the duration of every step that starts from now on
        self.busy_ns = 0  # virtual time in steps, with the whole of the current one
        self._random = random.Random(seed)
        self._scheduler = Scheduler(profile)
        self._batch = StepBatch()  # batch of the current step
        self._began_ns = 0  # start of that step, or of the last one
        self._now_ns = 0  # its end

    @property
    def num_waiting(self) -> int:
        return self._scheduler.num_waiting

    @property
    def num_running(self) -> int:
        return self._scheduler.num_running

    @property
    def kv_cache_usage(self) -> float:
        """Share of the KV cache's blocks that sequences hold, 0 to 1."""
        return self._scheduler.kv_cache_usage

    @property
    def counters(self) -> EngineCounters:
        return self._scheduler.counters

    def submit(self, sequence: EngineSequence) -> None:
        """Queue a sequence, in the order of ``ready_ns``.

        Raises:
            ValueError: it is longer than the whole KV cache, and could never be finished.
        """
        length, longest = (
            sequence.prompt_tokens + sequence.output_tokens,
            self.profile.longest_sequence_tokens,
        )
        if length > longest:
            raise ValueError(f"a sequence of {length} tokens does not fit into a KV cache of {longest}")
        self._scheduler.submit(sequence)

    def cancel(self, sequence: EngineSequence) -> None:
        """Free the sequence wherever it is; one that has ended is ignored."""
        self._scheduler.cancel(sequence)

    def clear(self, at_ns: int) -> None:
        """Lose everything, as a process killed at that virtual time: sequences, cache, counters."""
        # The current step ends here.
        self.busy_ns -= max(0, self._now_ns - max(at_ns, self._began_ns))
        self._now_ns = min(self._now_ns, at_ns)
        self._scheduler, self._batch = Scheduler(self.profile), StepBatch()

    def reset_prefix_cache(self) -> None:
        """Forget all prompts seen so far. Running sequences keep their blocks."""
        self._scheduler.forget_prefixes()

    def start_step(self) -> int | None:
        """Form the next batch. Return the virtual time at which its step ends, None without work."""
        if not self._scheduler.num_running:
            ready_ns = self._scheduler.next_ready_ns
            if ready_ns is None:
                return None
            self._now_ns = max(self._now_ns, ready_ns)
        self._began_ns = self._now_ns
        self._batch = self._scheduler.schedule(self._now_ns)
        duration_ns = round(step_ns(self.profile, self._batch) * self._noise() * self.slow_factor)
        self._now_ns += duration_ns
        self.busy_ns += duration_ns
        return self._now_ns

    def finish_step(self) -> list[EngineSequence]:
        """End the step; return the sequences that have one more token, in order of admission."""
        batch, self._batch = self._batch, StepBatch()
        return self._scheduler.complete(batch)

    def _noise(self) -> float:
        sigma = self.profile.noise
        return self._random.lognormvariate(-sigma * sigma / 2, sigma) if sigma else 1.0


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
