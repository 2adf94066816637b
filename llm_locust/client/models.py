"""List of a server's models."""

from dataclasses import dataclass

import msgspec

from llm_locust.client.http.pool import Pool
from llm_locust.client.request import Plain, ask
from llm_locust.wire.payload import DECODE_ERRORS, excess

#: Answers that refuse access.
REFUSALS = (401, 403)


@dataclass(frozen=True, slots=True)
class Listing:
    """Answer to ``GET /models``.

    Attributes:
        base: path of the API under which it was given; the target's own if no path gave a list.
        names: ids of the models, as the server gives them; None if it has no list.
        answer: the answer that gave the list, or refused access; else the last one.
    """

    base: str
    names: list[str] | None
    answer: Plain

    @property
    def is_refused(self) -> bool:
        """Whether the server refuses access."""
        return self.answer.status in REFUSALS


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def list_models(pool: Pool, headers: dict[str, str], timeout_s: float) -> Listing:
    """List the models of the pool's target.

    If the server has no ``/v1`` below a prefix, that path answers 404: then the path is tried as it was
    given.

    Args:
        timeout_s: for each of the two paths.

    Raises:
        ClientError: no complete answer.
    """
    own = pool.target.base
    for base in dict.fromkeys([own, own.removesuffix("/v1") or own]):
        answer = ask(pool, "GET", pool.target.with_base(base).path("/models"), headers, timeout_s)
        if answer.status in REFUSALS:
            break
        if answer.status == 200 and (names := _names(answer.body)) is not None:
            return Listing(base, names, answer)
    return Listing(own, None, answer)


def _names(body: bytes) -> list[str] | None:
    if excess(body) is not None:
        return None
    try:
        return [model.id for model in msgspec.json.decode(body, type=_Models).data]
    except DECODE_ERRORS:
        return None
