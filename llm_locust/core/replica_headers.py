"""Response headers that may name the replica: how many values each had in the answers to a worker.

A balancer that puts its own name into one header and the replica's into another leaves it open which of them
tells replicas apart. Their values say so.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

#: Most headers, and most different values of one, that are kept apart.
MOST_REPLICA_HEADERS, MOST_HEADER_VALUES = 16, 64

_Digest = Annotated[int, Meta(ge=0, lt=2**32)]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderFacts:
    """One header in ``answers`` answers.

    ``value`` is the first of its values, ``values`` the CRC-32 of each. With ``more`` there were more than
    those.
    """

    name: Annotated[str, Meta(max_length=200)]
    answers: Annotated[int, Meta(ge=0, le=2**53)]
    value: Annotated[str, Meta(max_length=200)] = ""
    values: Annotated[list[_Digest], Meta(max_length=MOST_HEADER_VALUES)]
    more: bool = False


def together(found: Iterable[HeaderFacts]) -> list[HeaderFacts]:
    """The headers of several workers as those of one, by name; each as early as in the first that had it."""
    places: dict[str, list[HeaderFacts]] = {}
    for each in found:
        places.setdefault(each.name, []).append(each)
    return [_merged(each) for each in list(places.values())[:MOST_REPLICA_HEADERS]]


def _merged(found: list[HeaderFacts]) -> HeaderFacts:
    values = sorted({value for each in found for value in each.values})
    return HeaderFacts(
        name=found[0].name,
        answers=sum(each.answers for each in found),
        value=found[0].value,
        values=values[:MOST_HEADER_VALUES],
        more=len(values) > MOST_HEADER_VALUES or any(each.more for each in found),
    )


def better_header(found: Iterable[HeaderFacts]) -> HeaderFacts | None:
    """The header that tells replicas apart where the one in use has one value in all answers.

    In use is the first of ``found`` that answers had. A better one has several values in at least half as
    many answers, each in two of them on average: a value that is new in each answer names no replica. Of
    several the one with the most values; None if there is no such header.
    """
    seen = [each for each in found if each.answers]
    if not seen or len(seen[0].values) != 1 or seen[0].more:
        return None
    apart = [
        each
        for each in seen[1:]
        if 1 < len(each.values) <= each.answers / 2 and 2 * each.answers >= seen[0].answers and not each.more
    ]
    return max(apart, key=lambda each: len(each.values), default=None)
