"""Routing policies of common balancers and gateways, without IO.

A policy knows what a gateway knows: which replicas are in rotation, how many of the gateway's own requests
each of them has in flight, and the request. Replicas are identified by index.
"""

import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

#: Requests in flight by replica, for those in rotation; never empty.
Loads = Mapping[int, int]

#: How many requests more than the least loaded replica a replica with a matching prefix may have in flight.
PREFIX_IMBALANCE = 32
#: Block hashes remembered per replica: with 16 tokens each, a KV cache of 500,000 tokens.
PREFIX_MEMORY_BLOCKS = 31_250


@dataclass(frozen=True, slots=True)
class Routed:
    """Facts of a request known to a gateway.

    Args:
        session: the ``X-Session-Id`` header if there is one, else the connection.
        block_hashes: chained hashes of the prompt's full blocks, as in the engines' prefix caches.
        source: the request's own random generator.
    """

    session: str
    block_hashes: tuple[int, ...]
    source: random.Random


class Policy(Protocol):
    """Picks one of ``loads``' replicas, and keeps the state that it needs."""

    def pick(self, loads: Loads, request: Routed) -> int: ...


class RoundRobinRouting:
    """The next one in rotation by index, whatever it has in flight."""

    def __init__(self) -> None:
        self._last = -1

    def pick(self, loads: Loads, request: Routed) -> int:
        self._last = _next_after(self._last, loads)
        return self._last


class RandomRouting:
    """A random one, uniformly."""

    def pick(self, loads: Loads, request: Routed) -> int:
        return request.source.choice(sorted(loads))


class LeastInflightRouting:
    """The one with the fewest in flight; equal ones in turn (nginx' least_conn)."""

    def __init__(self) -> None:
        self._last = -1

    def pick(self, loads: Loads, request: Routed) -> int:
        least = min(loads.values())
        self._last = _next_after(self._last, [index for index, load in loads.items() if load == least])
        return self._last


class LeastRequest:
    """The one with fewer in flight of two drawn at random: Envoy's LEAST_REQUEST, power of two choices."""

    def pick(self, loads: Loads, request: Routed) -> int:
        drawn = request.source.sample(sorted(loads), min(2, len(loads)))
        return min(drawn, key=loads.__getitem__)


class StickyRouting:
    """The same one for the same session, by rendezvous hashing.

    Each pair of session and replica has a hash, and the highest one in rotation wins, so that a replica that
    leaves moves only its own sessions, and gets them back when it returns.
    """

    def pick(self, loads: Loads, request: Routed) -> int:
        return max(loads, key=lambda index: _rank(request.session, index))


class PrefixAware:
    """The one whose recently routed prompts share the longest prefix with this one.

    It estimates the replicas' prefix caches from the requests that it has routed and queries none of them,
    like the Kubernetes inference gateway's prefix plugin and SGLang's router. A replica with over
    ``imbalance`` more requests in flight than the least loaded one is not considered. If no considered one
    has the first block, the least loaded gets the request; equally long prefixes go to the less loaded. The
    prompts of a replica that leaves the rotation are forgotten, because its cache is unknown when it returns.
    """

    def __init__(self, imbalance: int = PREFIX_IMBALANCE, memory_blocks: int = PREFIX_MEMORY_BLOCKS) -> None:
        self._imbalance = imbalance
        self._memory_blocks = memory_blocks
        self._routed: dict[int, OrderedDict[int, None]] = {}
        self._fallback = LeastInflightRouting()

    def pick(self, loads: Loads, request: Routed) -> int:
        for gone in self._routed.keys() - loads.keys():
            del self._routed[gone]
        bound = min(loads.values()) + self._imbalance
        shared = {i: self._shared(i, request.block_hashes) for i, load in loads.items() if load <= bound}
        longest = max(shared.values())
        if longest:
            best = {index: loads[index] for index, blocks in shared.items() if blocks == longest}
        else:
            best = dict(loads)
        picked = self._fallback.pick(best, request)
        self._remember(picked, request.block_hashes)
        return picked

    def _shared(self, index: int, hashes: Iterable[int]) -> int:
        routed = self._routed.get(index, ())
        blocks = 0
        for block in hashes:
            if block not in routed:
                break
            blocks += 1
        return blocks

    def _remember(self, index: int, hashes: tuple[int, ...]) -> None:
        routed = self._routed.setdefault(index, OrderedDict())
        # From the last block to the first: a prefix is forgotten from its end.
        for block in reversed(hashes):
            routed[block] = None
            routed.move_to_end(block)
        while len(routed) > self._memory_blocks:
            routed.popitem(last=False)


#: Policies by name.
POLICIES: Mapping[str, Callable[[], Policy]] = {
    "round_robin": RoundRobinRouting,
    "random": RandomRouting,
    "least_inflight": LeastInflightRouting,
    "least_request": LeastRequest,
    "sticky": StickyRouting,
    "prefix": PrefixAware,
}


def make_policy(name: str, prefix_imbalance: int = PREFIX_IMBALANCE) -> Policy:
    """Create a policy by name, one of :data:`POLICIES`."""
    return PrefixAware(prefix_imbalance) if name == "prefix" else POLICIES[name]()


def _next_after(last: int, indices: Iterable[int]) -> int:
    ordered = sorted(indices)
    return next((index for index in ordered if index > last), ordered[0])


def _rank(session: str, index: int) -> bytes:
    return blake2b(f"{index}/{session}".encode("utf-8", "surrogateescape"), digest_size=8).digest()
