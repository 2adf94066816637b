"""The parts that a class of requests is made of, as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llm_locust.metrics.requests.slo import Slo
from llm_locust.workload.lengths.tokens import Lengths
from llm_locust.workload.ordering import Order
from llm_locust.workload.text.shared_prefix import SharedPrefix

#: The forms a dataset may have, where its name does not tell.
FORMATS = ("jsonl", "sharegpt", "csv", "text")

#: How an answer is held against the one that the dataset expects.
EXPECTATIONS = ("exact", "choice", "number", "regex")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSource:
    """A file of prompts, not opened yet. ``format`` None: as the file's name tells."""

    file: str
    order: Order = "sequential"
    format: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Requests that follow each other. ``turns`` is how many a session has; ``think_time`` (between an
    answer and the next turn) and ``patience`` (for a first token) are texts, or None: no pause, no end."""

    turns: Lengths
    think_time: str | None = None
    patience: str | None = None
    history: str = "full"


@dataclass(frozen=True, slots=True)
class Validator:
    """What an answer must hold; one that does not is ``rejected``.

    ``kind`` and the type of ``argument``: ``regex`` a pattern that is found in it, ``contains`` a tuple
    of texts that are all in it, ``json_schema`` a dict, ``max_repetition`` the largest share 0 .. 1 of it
    that may be repetition, ``function`` the text ``module:function``.
    """

    kind: str
    argument: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Each line of the dataset has under ``field`` the answer that is right by ``match``."""

    match: str
    field: str = "expected"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficClass:
    """One kind of requests.

    Either ``weight`` (its part of the run's load is weight / sum of all weights) or ``rate`` (a rate
    of its own, as ``--request-rate`` takes it) is not None. ``None`` elsewhere: the run's option holds.
    ``body`` is put over the run's ``--body``, key by key. The values of ``headers`` are templates
    (see :mod:`llm_locust.wire.headers`); they may be secrets.
    """

    name: str
    request_name: str
    weight: float | None = 1.0
    rate: str | None = None
    preset: str | None = None
    endpoint: str = "chat"
    stream: bool = True
    input_tokens: Lengths | None = None
    output_tokens: Lengths | None = None
    dataset: DatasetSource | None = None
    shared_prefix: SharedPrefix | None = None
    unique_head: bool = True
    body: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    slo: Slo | None = None
    conversation: Conversation | None = None
    validators: tuple[Validator, ...] = ()
    expected: Expected | None = None
