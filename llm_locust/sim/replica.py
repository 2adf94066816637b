"""An engine on asyncio's clock: each step's end is awaited as an absolute time."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from llm_locust.sim.engine import Engine, Sequence
from llm_locust.sim.gpu_page import GpuReading
from llm_locust.sim.stats import ReplicaReading, ReplicaStats

#: Called once for each token of a sequence, when it is due.
TokenSink = Callable[[], None]


@dataclass(slots=True)
class _Running:
    sink: TokenSink
    submitted_ns: int
    finish_reason: str
    first_token_ns: int = 0


class Replica:
    """One simulated server. Its engine's virtual time is this host's CLOCK_MONOTONIC.

    A step that asyncio wakes up late for does not move the next one: lateness shows in the
    time of a token, never in the rate of tokens.
    """

    def __init__(self, index: int, engine: Engine) -> None:
        self.name = f"replica-{index}"
        self._label = str(index)
        self._engine = engine
        self._stats = ReplicaStats()
        self._sequences: dict[Sequence, _Running] = {}
        self._next_step: asyncio.TimerHandle | None = None
        self._began_ns = time.monotonic_ns()

    @property
    def in_flight(self) -> int:
        return len(self._sequences)

    def submit(
        self, prompt_tokens: int, output_tokens: int, pace: int, finish_reason: str, sink: TokenSink
    ) -> Sequence:
        """Queue a request now. ``sink`` is called ``output_tokens`` times unless it is cancelled."""
        now_ns = time.monotonic_ns()
        ready_ns = now_ns + self._engine.profile.ttft_base_ns
        sequence = Sequence(prompt_tokens, output_tokens, ready_ns, pace)
        self._engine.submit(sequence)
        self._sequences[sequence] = _Running(sink, now_ns, finish_reason)
        if self._next_step is None:
            self._await_step()
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """Free what the sequence holds; nothing happens where it is over already."""
        if self._sequences.pop(sequence, None) is not None:
            self._engine.cancel(sequence)

    def reading(self) -> ReplicaReading:
        engine = self._engine
        return ReplicaReading(
            self._label, engine.num_running, engine.num_waiting, engine.kv_cache_usage, self._stats
        )

    def gpu(self) -> GpuReading:
        """What a device that does nothing but this engine's steps would tell of itself."""
        now_ns = time.monotonic_ns()
        # A step counts as a whole from its start: one that is under way is not over yet.
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
                if sequence.generated == 1:
                    self._first_token(sequence, running)
                if sequence.generated == sequence.output_tokens:
                    del self._sequences[sequence]
                    self._finished(sequence, running)
                running.sink()
        finally:
            self._await_step()

    def _first_token(self, sequence: Sequence, running: _Running) -> None:
        running.first_token_ns = time.monotonic_ns()
        self._stats.prompt_tokens += sequence.prompt_tokens
        self._stats.ttft_s.observe((running.first_token_ns - running.submitted_ns) * 1e-9)

    def _finished(self, sequence: Sequence, running: _Running) -> None:
        now_ns = time.monotonic_ns()
        self._stats.finished[running.finish_reason] += 1
        self._stats.e2el_s.observe((now_ns - running.submitted_ns) * 1e-9)
        if sequence.generated > 1:
            self._stats.tpot_s.observe((now_ns - running.first_token_ns) / (sequence.generated - 1) * 1e-9)
