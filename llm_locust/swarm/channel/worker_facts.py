"""A worker's last word as the facts that a spool keeps of it."""

from llm_locust.core.manifest import WorkerFacts
from llm_locust.swarm.channel.messages import CountsMessage


def worker_facts(worker: str, index: int, counts: CountsMessage) -> WorkerFacts:
    """What a worker says of itself when its part of a run is over."""
    return WorkerFacts(
        id=worker,
        index=index,
        announced=counts.finished,
        received=counts.finished - counts.dropped,
        dropped=counts.dropped,
        in_flight=counts.in_flight,
        held_back=counts.load.held_back,
        longest_held_ns=counts.load.longest_held_ns,
        unsent=counts.load.unsent,
        unsent_warmup=counts.load.unsent_warmup,
        unsent_by_class=counts.load.unsent_by_class,
        cut=counts.load.cut,
        clock=counts.clock,
        health=counts.health,
    )
