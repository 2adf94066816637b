"""What an engine is made of and works on: its profile, its sequences, its counters."""

from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field

from llm_locust.sim.engine.kv_cache import Held


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """How fast one replica is, and how much it can hold."""

    ttft_base_ns: int = 20_000_000  # between arrival and being ready for the scheduler
    prefill_per_token_ns: float = 30_000
    step_base_ns: int = 15_000_000
    step_per_sequence_ns: int = 100_000
    context_per_token_ns: float = 0.0  # to read the keys and values of one token
    overlap: bool = False  # memory traffic and arithmetic take place side by side
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2_048
    kv_cache_tokens: int = 500_000  # all of it; what is no whole block is not used
    kv_block_tokens: int = 16
    prefix_cache: bool = False
    noise: float = 0.02  # sigma of the log-normal factor on a step's duration, whose mean is 1

    @property
    def kv_blocks(self) -> int:
        return self.kv_cache_tokens // self.kv_block_tokens

    @property
    def longest_sequence_tokens(self) -> int:
        """Prompt and output of the longest sequence that the KV cache can hold."""
        return self.kv_blocks * self.kv_block_tokens


@dataclass(slots=True, eq=False)
class Sequence:
    """One request inside an engine.

    ``ready_ns`` is the virtual time from which it may be admitted; ``pace`` is the number of
    steps that one of its tokens takes; ``block_hashes`` are the prefix cache's keys of its prompt's full
    blocks. ``scheduled_ns`` is the virtual start of the first step that worked on its prompt,
    ``cached_tokens`` how much of that the prefix cache had then: None before, and without such a cache.
    """

    prompt_tokens: int
    output_tokens: int
    ready_ns: int
    pace: int = 1
    block_hashes: Ordered[int] = ()
    computed: int = 0  # tokens whose keys and values are in the KV cache
    generated: int = 0
    turns: int = 0  # decode steps it has been part of
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
    """Since the start. Lookups are of prompt tokens, once a sequence: not again after a preemption."""

    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
