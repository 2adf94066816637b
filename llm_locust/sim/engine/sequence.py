"""Basic types of an engine: its profile, its sequences, its counters."""

from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field

from llm_locust.sim.engine.kv_cache import Held


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
class Sequence:
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
    block_hashes: Ordered[int] = ()
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
