"""An engine on asyncio's clock: each step's end is awaited as an absolute time."""

import asyncio
import math
import time
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from llm_locust.sim.engine.engine import Engine, Sequence
from llm_locust.sim.engine.gpu_page import GpuReading
from llm_locust.sim.engine.stats import ReplicaReading, ReplicaStats

#: Called once for each token of a sequence, when it is due.
TokenSink = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Transfer:
    """KV cache of a prompt that another replica has computed, on its way for ``duration_ns``. If the transfer
    ``fails``, it does so after that time, and the prompt is computed again."""

    duration_ns: int
    fails: bool = False


@dataclass(slots=True)
class _Running:
    sink: TokenSink
    submitted_ns: int
    finish_reason: str
    transfer: Transfer | None
    first_token_ns: int = 0
    last_token_ns: int = 0


class Replica:
    """One simulated server. Its engine's virtual time is this host's CLOCK_MONOTONIC.

    A late wake-up of asyncio does not move the next step: lateness affects the time of a token, never the
    rate of tokens.
    """

    def __init__(self, index: int, engine: Engine, role: str = "replica") -> None:
        self.name = f"{role}-{index}"
        self._label = str(index)
        self._engine = engine
        self._stats = ReplicaStats()
        self._sequences: dict[Sequence, _Running] = {}
        self._next_step: asyncio.TimerHandle | None = None
        self._began_ns = time.monotonic_ns()

    @property
    def in_flight(self) -> int:
        """Sequences with tokens still to be generated."""
        return len(self._sequences)

    @property
    def slow_factor(self) -> float:
        """Factor on the duration of each step that starts from now on."""
        return self._engine.slow_factor

    @slow_factor.setter
    def slow_factor(self, factor: float) -> None:
        if not 0 < factor < math.inf:
            raise ValueError(f"a step cannot last {factor} times as long; give a factor above 0")
        self._engine.slow_factor = factor

    def submit(
        self,
        prompt_tokens: int,
        output_tokens: int,
        pace: int,
        finish_reason: str,
        sink: TokenSink,
        *,
        block_hashes: Ordered[int] = (),
        transfer: Transfer | None = None,
    ) -> Sequence:
        """Queue a request now; it is ready when its KV ``transfer`` has ended.

        Args:
            pace: number of steps per token.
            sink: called ``output_tokens`` times, unless the request is cancelled or the replica killed.
            block_hashes: the prefix cache's keys of the prompt's full blocks.

        Raises:
            ValueError: the request is longer than the whole KV cache.
        """
        now_ns = time.monotonic_ns()
        ready_ns = now_ns + self._engine.profile.ttft_base_ns + (transfer.duration_ns if transfer else 0)
        received = 0 if transfer is None or transfer.fails else max(0, prompt_tokens - 1)
        sequence = Sequence(prompt_tokens, output_tokens, ready_ns, pace, block_hashes, received)
        self._engine.submit(sequence)
        self._sequences[sequence] = _Running(sink, now_ns, finish_reason, transfer)
        if self._next_step is None:
            self._await_step()
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """Free what the sequence holds; one that has ended is ignored."""
        if self._sequences.pop(sequence, None) is not None:
            self._engine.cancel(sequence)

    def kill(self) -> None:
        """Lose everything, as a killed process: requests, caches, counters. It can serve again.

        No sink is called afterwards: the caller must end the answers that wait for tokens.
        """
        if self._next_step is not None:
            self._next_step.cancel()
            self._next_step = None
        self._engine.clear(time.monotonic_ns())
        self._stats = ReplicaStats()
        self._sequences.clear()

    def reset_prefix_cache(self) -> None:
        """Forget all prompts seen so far. Running sequences go on."""
        self._engine.reset_prefix_cache()

    def reading(self) -> ReplicaReading:
        engine = self._engine
        return ReplicaReading(
            self._label,
            engine.num_running,
            engine.num_waiting,
            engine.kv_cache_usage,
            self._stats,
            engine.counters,
        )

    def gpu(self) -> GpuReading:
        """Reading of a device that does nothing but this engine's steps."""
        now_ns = time.monotonic_ns()
        # A step counts as a whole from its start, so that the current one must be cut off at now.
        busy_ns = min(self._engine.busy_ns, now_ns - self._began_ns)
        in_step = self._next_step is not None
        return GpuReading(self._label, now_ns - self._began_ns, busy_ns, in_step, self._engine.kv_cache_usage)

    def _await_step(self) -> None:
        end_ns = self._engine.start_step()
        self._next_step = None
        if end_ns is not None:
            self._next_step = asyncio.get_running_loop().call_at(end_ns * 1e-9, self._step)

    def _step(self) -> None:
        try:
            emitted = self._engine.finish_step()
            self._stats.generation_tokens += len(emitted)
            for sequence in emitted:
                running = self._sequences[sequence]
                self._count(sequence, running)
                running.sink()
        finally:
            self._await_step()

    def _count(self, sequence: Sequence, running: _Running) -> None:
        """Observe the token that the sequence has just got."""
        now_ns = time.monotonic_ns()
        stats = self._stats
        if sequence.generated == 1:
            running.first_token_ns = now_ns
            self._count_prompt(sequence, running.transfer)
            stats.ttft_s.observe((now_ns - running.submitted_ns) * 1e-9)
        else:
            stats.itl_s.observe((now_ns - running.last_token_ns) * 1e-9)
        running.last_token_ns = now_ns
        if sequence.generated == sequence.output_tokens:
            del self._sequences[sequence]
            self._observe_whole(sequence, running)

    def _count_prompt(self, sequence: Sequence, transfer: Transfer | None) -> None:
        tokens, received = sequence.prompt_tokens, sequence.received
        cached = 0 if received else sequence.cached_tokens or 0
        self._stats.count_prompt(tokens, cached=cached, received=received)
        if transfer is not None:
            self._stats.count_transfer(transfer.duration_ns * 1e-9, 0 if transfer.fails else tokens)

    def _observe_whole(self, sequence: Sequence, running: _Running) -> None:
        stats, first_ns, end_ns = self._stats, running.first_token_ns, running.last_token_ns
        assert sequence.scheduled_ns is not None
        stats.finished[running.finish_reason] += 1
        stats.e2el_s.observe((end_ns - running.submitted_ns) * 1e-9)
        stats.queue_s.observe((sequence.scheduled_ns - sequence.ready_ns) * 1e-9)
        stats.prefill_s.observe((first_ns - sequence.scheduled_ns) * 1e-9)
        if sequence.generated > 1:
            stats.tpot_s.observe((end_ns - first_ns) / (sequence.generated - 1) * 1e-9)
