"""Final counts of a worker as the facts stored in its spool."""

from llm_locust.core.manifest import WorkerFacts
from llm_locust.swarm.channel.messages import CountsMessage


def worker_facts(worker: str, index: int, counts: CountsMessage) -> WorkerFacts:
    """Facts of a worker whose part in a run is over."""
    return WorkerFacts(
        id=worker,
        index=index,
        announced=counts.finished,
        received=counts.finished - counts.dropped,
        dropped=counts.dropped,
        in_flight=counts.in_flight,
        in_flight_ns=counts.in_flight_ns,
        held_back=counts.load.held_back,
        longest_held_ns=counts.load.longest_held_ns,
        backoff_waits=counts.load.backoff_waits,
        backoff_ns=counts.load.backoff_ns,
        unsent=counts.load.unsent,
        unsent_warmup=counts.load.unsent_warmup,
        unsent_by_class=counts.load.unsent_by_class,
        cut=counts.load.cut,
        clock=counts.clock,
        health=counts.health,
        stamps=counts.stamps,
        others=counts.others,
        replica_headers=counts.replica_headers,
    )
