"""Disaggregated prefill: another replica computes a request's prompt before its own one decodes."""

import asyncio
from dataclasses import dataclass

from llm_locust.sim.answers.jobs import Job
from llm_locust.sim.engine.engine import Sequence
from llm_locust.sim.gateway.replica import Transfer
from llm_locust.sim.gateway.upstream import Upstream


@dataclass(slots=True)
class Prefill:
    """Prompt of a request at its prefill replica, and the transfer of its KV cache that follows.

    The prefill replica generates one token, which is thrown away, as vLLM's is asked to.
    """

    upstream: Upstream
    transfer: Transfer
    is_under_way: bool = True

    async def compute(self, job: Job) -> Sequence:
        """Have the prompt computed; when this returns, the transfer may begin."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def first_token() -> None:
            if not done.done():
                done.set_result(None)

        replica = self.upstream.replica
        sequence = replica.submit(
            job.prompt_tokens, 1, 1, "length", first_token, block_hashes=job.block_hashes
        )
        self.upstream.in_flight += 1
        try:
            await done
        finally:
            self.is_under_way = False
            self.upstream.in_flight -= 1
            replica.cancel(sequence)
        return sequence
