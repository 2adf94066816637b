"""Answers of APIs that give a result for each input (a vector, a score) and generate no token."""

from dataclasses import dataclass

#: Most inputs of one request, as in OpenAI's API.
MAX_INPUTS = 2048


@dataclass(frozen=True, slots=True)
class AskedResults:
    """What a request asks for.

    Attributes:
        inputs: its texts, documents.
        results: the number of results that its answer must have.
        dimensions: of each vector, where the request says so.
    """

    inputs: int
    results: int
    dimensions: int | None = None


@dataclass(frozen=True, slots=True)
class Results:
    """What an answer has: ``count`` results, the largest index among them, and the vectors' dimensions."""

    count: int
    last: int
    dimensions: int | None = None


def mismatch(asked: AskedResults, got: Results) -> str | None:
    """How an answer differs from what was asked for; None where it does not."""
    if got.count != asked.results:
        return f"the answer has {got.count:,} results, {asked.results:,} were asked for"
    if got.last >= asked.inputs:
        return f"a result has index {got.last}, the request has {asked.inputs:,} inputs"
    if asked.dimensions is not None and got.dimensions != asked.dimensions:
        return f"vectors of {got.dimensions:,} dimensions, {asked.dimensions:,} were asked for"
    return None
