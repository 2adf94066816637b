"""Arms of an interleaved comparison, as the manifest of a run has them."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmFacts:
    """A target of an interleaved comparison.

    Attributes:
        share: of all requests that it was to get.
        model: that it was asked for.
        differs_in: in what its requests differ from those of the run, in words without secrets.
    """

    name: str
    url: str
    share: Annotated[float, Meta(ge=0, le=1)]
    model: str = ""
    differs_in: tuple[str, ...] = ()
