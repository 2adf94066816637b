"""Arms of an interleaved comparison, as the manifest of a run has them."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmFacts:
    """A target of an interleaved comparison, and the share of all requests that it was to get."""

    name: str
    url: str
    share: Annotated[float, Meta(ge=0, le=1)]
