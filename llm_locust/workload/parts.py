"""Parts of a class of requests, as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llm_locust.metrics.requests.slo import Slo
from llm_locust.workload.images.asked import ImagesAsked
from llm_locust.workload.lengths.tokens import Lengths
from llm_locust.workload.models import ModelSplit
from llm_locust.workload.ordering import Order
from llm_locust.workload.text.shared_prefix import SharedPrefix

#: Formats of a dataset, for names that do not show it.
FORMATS = ("jsonl", "sharegpt", "csv", "parquet", "text")

#: Comparisons of an answer with the expected one.
EXPECTATIONS = ("exact", "choice", "number", "regex")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSource:
    """A file of prompts, not opened yet. ``format`` None: by the file's name."""

    file: str
    order: Order = "sequential"
    format: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Consecutive requests of a session. ``turns`` is their number; ``think_time`` (between an answer and the
    next turn) and ``patience`` (for a first token) are texts, or None: no pause, no limit."""

    turns: Lengths
    think_time: str | None = None
    patience: str | None = None
    history: str = "full"


@dataclass(frozen=True, slots=True)
class Validator:
    """A requirement on an answer; one that does not meet it is ``rejected``.

    ``kind`` and the type of ``argument``: ``regex`` a pattern that must be found in it, ``contains`` a tuple
    of texts that must all be in it, ``json_schema`` a dict, ``max_repetition`` the largest share 0 .. 1 of it
    that may be repetition, ``function`` the text ``module:function``.
    """

    kind: str
    argument: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Key ``field`` of the dataset's lines with the right answer, and its comparison ``match``."""

    match: str
    field: str = "expected"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficClass:
    """One kind of request.

    Either ``weight`` (its part of the run's load is weight / sum of all weights) or ``rate`` (a rate of its
    own, in the grammar of ``--request-rate``) is not None. ``None`` elsewhere: the run's option applies.
    ``body`` overrides the run's ``--body``, key by key. ``inherited`` are the keys that the top level of the
    scenario gave to it. The values of ``headers`` are templates (see
    :mod:`llm_locust.wire.headers`); they may be secrets.
    """

    name: str
    request_name: str
    weight: float | None = 1.0
    rate: str | None = None
    preset: str | None = None
    endpoint: str = "chat"
    inputs: Lengths | None = None
    stream: bool = True
    input_tokens: Lengths | None = None
    output_tokens: Lengths | None = None
    dataset: DatasetSource | None = None
    images: ImagesAsked | None = None
    shared_prefix: SharedPrefix | None = None
    unique_head: bool | None = None
    models: ModelSplit | None = None
    body: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    slo: Slo | None = None
    conversation: Conversation | None = None
    validators: tuple[Validator, ...] = ()
    expected: Expected | None = None
    inherited: frozenset[str] = field(default=frozenset(), compare=False)
