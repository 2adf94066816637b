"""Parts of a class of requests: several inputs of one request, and the models that requests ask for."""

import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal

import numpy as np

from llm_locust.core.texts import plain_number
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.dialects.results import RERANK
from llm_locust.wire.payload import MAX_INPUTS
from llm_locust.workload.draws import MODELS, generator
from llm_locust.workload.lengths import Lengths, parse_lengths
from llm_locust.workload.prompts import Prompt, texts_of, with_head
from llm_locust.workload.synthetic import Writer

# --- Requests with several inputs: texts to embed, a query and the documents that are ranked by it


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


# --- Several models, LoRA adapters among them, that one load asks for, and which of them is next


#: Most models of one split: records tell 1,000 apart.
MOST_MODELS = 500

#: Most sessions whose model a process remembers, and most models that a name lists.
MOST_SESSIONS, _SHOWN = 100_000, 8

_CHOICE = re.compile(r"(?:(?P<word>random|round_robin)|zipf:(?P<exponent>\S*))\s+(?P<rest>.*)", re.DOTALL)
_ALLOWED = "such as base=1,lora-a=2,lora-b=2, or zipf:1.1 base,lora-a,lora-b, or round_robin lora-a,lora-b"


class ModelSplitError(ValueError):
    """A text that is no split of models; says what is wrong in it, and what is allowed."""


@dataclass(frozen=True, slots=True)
class ModelSplit:
    """Models and the shares of requests, or of sessions, that ask for each.

    Attributes:
        shares: of each model; they sum to 1.
        choice: ``random`` draws each request's model by the shares; ``round_robin`` takes them in turn, in
            each process.
    """

    names: tuple[str, ...]
    shares: tuple[float, ...]
    choice: Literal["random", "round_robin"] = "random"

    def drawn(self, seed: int, worker: int, user: int) -> Iterator[str]:
        """The models of a user's requests, without end; the same for one seed, worker and user."""
        edges = np.cumsum(self.shares)
        rng = generator(seed, worker, user, MODELS)
        while True:
            places = np.searchsorted(edges / edges[-1], rng.random(_BLOCK), side="right")
            yield from (self.names[place] for place in places.tolist())


def parse_models(text: str) -> ModelSplit:
    """Parse ``NAME=WEIGHT,NAME=WEIGHT``, with ``zipf:S`` or ``round_robin`` and a space before it.

    A weight that is not given is 1. With ``zipf:S`` the k-th model has a weight of 1 / k^S.

    Raises:
        ModelSplitError: no model, one that is there twice, or a weight that is not a number from 0.
    """
    match = _CHOICE.fullmatch(text.strip())
    rest, exponent = (text, None) if match is None else (match["rest"], match["exponent"])
    turns = match is not None and match["word"] == "round_robin"
    weights: dict[str, float] = {}
    given = False
    for item in rest.split(","):
        name, equals, weight = item.strip().rpartition("=")
        name, weight = (name.strip(), weight.strip()) if equals else (item.strip(), "1")
        if not name or not name.isprintable() or len(name) > 256 or _CHOICE.fullmatch(f"{name} "):
            raise ModelSplitError(f"models {text[:60]!r}: {item[:40]!r} is no model; write {_ALLOWED}")
        if name in weights:
            raise ModelSplitError(f"models: {name[:60]!r} is there twice")
        weights[name] = plain_number(weight)
        if not 0 <= weights[name] <= 1e9:
            raise ModelSplitError(
                f"models: the weight of {name[:60]!r} is {weight[:20]!r}; write a number from 0 to 1e9"
            )
        given |= bool(equals)
    if given and match is not None and match["word"] != "random":
        raise ModelSplitError(f"models {text[:60]!r}: {match[0].split()[0]} has no weights; leave them out")
    if exponent is not None:
        power = plain_number(exponent)
        if not 0 < power <= 10:
            raise ModelSplitError(
                f"models: zipf:{exponent[:20]}: write an exponent above 0 and at most 10, as zipf:1.1"
            )
        weights = {name: k**-power for k, name in enumerate(weights, start=1)}
    return _split(weights, "round_robin" if turns else "random")


def _split(weights: dict[str, float], choice: Literal["random", "round_robin"]) -> ModelSplit:
    total = sum(weights.values())
    if len(weights) > MOST_MODELS:
        raise ModelSplitError(f"models: {len(weights)} are named, at most {MOST_MODELS} are told apart")
    if not total:
        raise ModelSplitError("models: the weights of all models are 0: give one a weight above 0")
    return ModelSplit(tuple(weights), tuple(weight / total for weight in weights.values()), choice)


def models_text(names: tuple[str, ...]) -> str:
    """The models of a run as one name, such as ``base, lora-a and 7 more``."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


class ModelChooser:
    """The models of one kind's requests in one process. All requests of a session ask for one model.

    A session that was not used while :data:`MOST_SESSIONS` others began is forgotten.
    """

    def __init__(self, split: ModelSplit, seed: int, worker: int) -> None:
        self.split = split
        self._seed = seed
        self._worker = worker
        self._turns = count(worker)
        self._drawn: dict[int, Iterator[str]] = {}
        self._of_session: OrderedDict[str, str] = OrderedDict()

    def choose(self, user: int, session: str | None) -> str:
        """The model of a user's next request."""
        if session is None:
            return self._next(user)
        model = self._of_session.pop(session, None) or self._next(user)
        self.keep(session, model)
        return model

    def keep(self, session: str, model: str) -> None:
        """Let all requests of a session ask for a model."""
        self._of_session[session] = model
        if len(self._of_session) > MOST_SESSIONS:
            self._of_session.popitem(last=False)

    def _next(self, user: int) -> str:
        if self.split.choice == "round_robin":
            return self.split.names[next(self._turns) % len(self.split.names)]
        if user not in self._drawn:
            self._drawn[user] = self.split.drawn(self._seed, self._worker, user)
        return next(self._drawn[user])
