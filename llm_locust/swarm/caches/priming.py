"""Flush of a replica's prefix cache, with a proof that it worked, and the shared prefixes sent to it.

A server may answer a flush by 200 and do nothing: vLLM does, while requests are in flight. So one prompt is
sent before the flush and after it. What the second answer says was cached, beyond the first, is what the
flush has left. The third says whether the server reports hits at all.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from llm_locust.core.prefix import PrefixShare, ReplicaCache
from llm_locust.workload.text.prompts import Prompt


class ReplicaError(Exception):
    """A replica that did not do what was asked of it; one line that says what."""


class CachingReplica(Protocol):
    """A replica whose cache is prepared."""

    @property
    def url(self) -> str: ...

    def flush(self) -> None:
        """Empty the prefix cache (raises ReplicaError)."""
        ...

    def cached(self, prompt: Prompt) -> int | None:
        """Send a prompt; return how many of its tokens were cached, None if the answer does not say.

        Raises:
            ReplicaError: it was not answered.
        """
        ...


#: A prompt of a stage's length for one replica: with the shared prefix of a number, or None: without.
Primer = Callable[[int | None], Prompt]


def prepare(replica: CachingReplica, prefix: PrefixShare, primer: Primer) -> ReplicaCache:
    """Flush the cache, look whether it is empty, and send each shared prefix once."""
    found = ReplicaCache(target=replica.url)
    probe = primer(None)
    try:
        found = replace(found, before=replica.cached(probe))
        replica.flush()
        found = replace(found, after=replica.cached(probe))
        if (found.after or 0) > (found.before or 0):
            raise ReplicaError(
                f"{replica.url}: the flush did nothing: {found.after:,} tokens of a prompt that was sent "
                "before it were cached after it; other requests may have been in flight"
            )
        found = replace(found, again=replica.cached(probe))
        for number in range(prefix.prefixes if prefix.tokens else 0):
            replica.cached(primer(number))
            found = replace(found, primed=number + 1)
    except ReplicaError as e:
        return replace(found, fault=str(e))
    return found
