"""Requests with several inputs: texts to embed, a query and the documents that are ranked by it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.dialects.rerank import RERANK
from llm_locust.wire.results import MAX_INPUTS
from llm_locust.workload.lengths.tokens import Lengths, parse_lengths
from llm_locust.workload.text.prompts import Prompt, texts_of, with_head
from llm_locust.workload.text.synthetic import Writer

#: Length of a synthetic query.
QUERY_TOKENS = 32

_DOCUMENTS = parse_lengths("10")
_ONE = parse_lengths("1")
_BLOCK = 64


class WorkloadError(ValueError):
    """Settings of a workload that contradict each other, or an invalid worker index."""


def check_inputs(inputs: Lengths, endpoint: Dialect) -> None:
    """Check the number of inputs of a request.

    Raises:
        WorkloadError: the endpoint takes one prompt, or these are too many.
    """
    if endpoint.generates:
        raise WorkloadError(
            f"inputs {inputs.text!r} for the {endpoint.name} endpoint, which answers one prompt a request; "
            "they are for embeddings and rerank"
        )
    if inputs.most > MAX_INPUTS:
        raise WorkloadError(f"inputs {inputs.text!r}: a request has at most {MAX_INPUTS:,}")


def has_query(endpoint: Dialect) -> bool:
    """Whether the first text of a request is a query, and the others are what it is compared with."""
    return endpoint is RERANK


def sizes(inputs: Lengths | None, endpoint: Dialect, rng: np.random.Generator) -> Iterator[int]:
    """The numbers of inputs of one request after another, without end."""
    lengths = inputs or (_DOCUMENTS if has_query(endpoint) else _ONE)
    while True:
        yield from lengths.rows(rng, _BLOCK)[:, 0].tolist()


def grouped(lines: Iterator[Prompt], counts: Iterator[int], endpoint: Dialect) -> Iterator[Prompt]:
    """Requests of a dataset's lines: so many single texts each, a query before them; a line of messages, each
    of which is an input, is a request of its own."""
    texts: list[str] = []
    wanted = next(counts) + has_query(endpoint)
    for line in lines:
        if line.messages is not None:
            yield line
            continue
        texts.append(line.text or "")
        if len(texts) == wanted:
            yield of_texts(texts, line)
            texts, wanted = [], next(counts) + has_query(endpoint)


def of_texts(texts: Sequence[str], like: Prompt | None = None) -> Prompt:
    """A prompt of several texts; of one text a plain one."""
    if len(texts) == 1:
        return like or Prompt(text=texts[0])
    messages = tuple({"role": "user", "content": text} for text in texts)
    if like is None:
        return Prompt(messages=messages)
    return replace(like, text=None, messages=messages, asked_input_tokens=None)


def headed(prompt: Prompt, head: str) -> Prompt:
    """The prompt with ``head`` before each of its texts, and the number of the text in it."""
    if prompt.messages is None:
        return with_head(prompt, head)
    parts = [
        with_head(Prompt(messages=(message,)), f"{head}{number}").messages or ()
        for number, message in enumerate(prompt.messages)
    ]
    return replace(prompt, messages=tuple(message for part in parts for message in part))


def counted_alone(prompt: Prompt, endpoint: Dialect) -> int:
    """How many texts a server counts, each by itself: of a rerank each document with the query."""
    return 1 if prompt.messages is None else len(prompt.messages) - has_query(endpoint)


def words_alone(prompt: Prompt, endpoint: Dialect) -> float:
    """The mean number of words of what is counted by itself."""
    words = [text.count(" ") + 1 for text in texts_of(prompt)]
    query = words.pop(0) if has_query(endpoint) else 0
    return query + sum(words) / len(words)


def synthetic(
    writer: Writer, lengths: Sequence[int], leads: Sequence[str], rng: np.random.Generator
) -> Prompt:
    """A request of synthetic texts of these lengths, each after its lead (of words)."""
    made = [writer.prompt(asked, rng, lead) for asked, lead in zip(lengths, leads, strict=True)]
    counts = [counted for _, counted in made if counted is not None]
    return replace(
        of_texts([text for text, _ in made]),
        asked_input_tokens=sum(lengths),
        counted_input_tokens=sum(counts) if len(counts) == len(made) else None,
    )
