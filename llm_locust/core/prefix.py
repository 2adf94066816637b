"""Facts of a prefix-cache experiment: what a stage's prompts share, and the servers' caches before it."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from llm_locust.core.record import MAX_TOKENS, Tokens

#: Tokens of a block of a prefix cache, as vLLM has it: only whole blocks are found.
BLOCK_TOKENS = 16

#: Tokens at the end of each prompt that it has for itself, at least.
LEAST_OWN = 2 * BLOCK_TOKENS

#: Most shared prefixes: each is sent to every replica before each stage.
MOST_PREFIXES = 10_000

#: Most replicas whose caches are prepared.
MOST_REPLICAS = 10_000

#: Most tokens that a replica's counters may have grown by during a stage.
MOST_COUNTED = 1e15

_Count = Annotated[int, Meta(ge=0, le=2**53)]
_Tokens = Annotated[float, Meta(ge=0, le=MOST_COUNTED)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixShare:
    """A share of each prompt's ``input_tokens`` that is one of ``prefixes`` shared texts.

    ``asked`` is the share, ``tokens`` the length of such a text: whole blocks.
    """

    asked: Annotated[float, Meta(ge=0, lt=1)]
    tokens: Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
    input_tokens: Tokens
    prefixes: Annotated[int, Meta(ge=1, le=MOST_PREFIXES)]

    @classmethod
    def of(cls, asked: float, input_tokens: int, prefixes: int) -> "PrefixShare":
        """The share in the nearest number of whole blocks that leaves :data:`LEAST_OWN` tokens.

        Raises:
            ValueError: that is no block.
        """
        most = max(0, input_tokens - LEAST_OWN) // BLOCK_TOKENS
        blocks = min(most, round(asked * input_tokens / BLOCK_TOKENS))
        if asked and not blocks:
            raise ValueError(
                f"{asked:.4g} of {input_tokens} tokens is not one block of {BLOCK_TOKENS}, with {LEAST_OWN} "
                "tokens of each prompt's own: ask for longer prompts, or a larger share"
            )
        tokens = blocks * BLOCK_TOKENS
        return cls(asked=asked, tokens=tokens, input_tokens=input_tokens, prefixes=prefixes)

    def __str__(self) -> str:
        """As it is written in ``--sweep``: ``50%``."""
        return f"{self.asked * 100:.6g}%"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCache:
    """What was done with the prefix cache of a replica before a stage.

    One prompt was sent ``before`` its flush, ``after`` it, and ``again``: how many of its tokens the answer
    says were cached; None: it does not say. Then ``primed`` shared prefixes were sent. ``hits`` of
    ``queries`` tokens were found from then to the end of the stage, by the replica's own counters; None: it
    has none, or ``uncounted`` is why they do not say it. ``engines`` answer at its URL, as far as is known,
    each with a cache of its own. ``fault`` is why the stage is not a result, or empty.
    """

    target: str
    before: _Count | None = None
    after: _Count | None = None
    again: _Count | None = None
    primed: _Count = 0
    hits: _Tokens | None = None
    queries: _Tokens | None = None
    engines: _Count = 1
    uncounted: str = ""
    fault: str = ""

    @property
    def shows_flush(self) -> bool:
        """Whether answers show that the flush worked: a prompt that was sent twice after it had more hits.

        Without that a miss after the flush shows nothing: the server may never report hits.
        """
        return (self.again or 0) > (self.after or 0)
