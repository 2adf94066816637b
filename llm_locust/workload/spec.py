"""Checked settings of a workload: the same on every worker."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from llm_locust.core.manifest import PrefixShare
from llm_locust.core.record import LengthPair
from llm_locust.wire.dialects.chat import CHAT
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.workload.body import BodyTemplate, body_template
from llm_locust.workload.datasets.load import Dataset
from llm_locust.workload.datasets.row import DatasetError
from llm_locust.workload.draws import ORDERS, Order
from llm_locust.workload.images import ImagesAsked
from llm_locust.workload.lengths import Lengths, parse_lengths
from llm_locust.workload.parts import ModelSplit, WorkloadError, check_inputs, has_query
from llm_locust.workload.text.prompts import Prompt, PromptError, as_text, with_images
from llm_locust.workload.text.synthetic import SharedPrefix, prompt_count
from llm_locust.workload.text.tokenizer import PromptTokenizer, TokenizerError

#: Inputs of a request that take longer to make than an event loop should wait.
_MANY_INPUTS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """What is sent, the same on every worker.

    Attributes:
        tokenizer: counts prompts, so that they have exactly the asked lengths. Without it a word
            is taken for a token, and with ``calibrate`` that is corrected by the server's own counts.
        calibrate: see :class:`~llm_locust.workload.text.synthetic.Calibration`; false, and two runs of one
            seed send the same texts without a tokenizer too.
        order: of a dataset's lines, see :mod:`llm_locust.workload.draws`.
        unique_head: put a run-unique start before every prompt: six words that count before
            synthetic text, a tag like ``[1f0c9a3be2d4]`` before a dataset's first message.
        inputs: texts of an embeddings request, or documents of a rerank request; default: one, or ten.
        models: that requests ask for; None: for the run's.
        images: of every prompt, behind its text.
        shared_prefix: what groups of prompts begin with; its tokens are asked for beside the input length.

    Raises:
        DatasetError: a line cannot go to the endpoint, or no line has a weight for the weighted order.
        WorkloadError: both input lengths and a dataset, lengths that no prompt can have, or no
            such order.
    """

    endpoint: Dialect = CHAT
    stream: bool = True
    input_tokens: Lengths | None = None
    output_tokens: Lengths | None = None
    dataset: Dataset | None = None
    order: Order = "sequential"
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    ignore_eos: bool = False
    unique_head: bool = True
    shared_prefix: SharedPrefix | None = None
    tokenizer: PromptTokenizer | None = None
    calibrate: bool = True
    limit_field: str | None = None
    inputs: Lengths | None = None
    models: ModelSplit | None = None
    images: ImagesAsked | None = None

    def __post_init__(self) -> None:
        if self.models is not None and "model" in self.extra_body:
            raise WorkloadError("the body's field 'model' beside models: leave out one of them")
        if self.order not in ORDERS:
            raise WorkloadError(f"no order {self.order!r} of a dataset; there are {', '.join(ORDERS)}")
        if self.inputs is not None:
            check_inputs(self.inputs, self.endpoint)
        if self.images is not None and (self.endpoint.text_only or not self.endpoint.generates):
            raise WorkloadError(
                f"images for the {self.endpoint.name} endpoint, which takes text only; they are for chat, "
                "responses and messages"
            )
        if self.dataset is not None:
            self._check_dataset(self.dataset)
        elif self.order != "sequential":
            raise WorkloadError(f"order {self.order!r} without a dataset: only its lines have an order")
        if self.tokenizer is not None:
            self._check_lengths(self.tokenizer)

    def _check_dataset(self, dataset: Dataset) -> None:
        if self.input_tokens is not None:
            raise WorkloadError(
                f"input lengths {self.input_tokens.text!r} with dataset {dataset.path!r}: "
                "a dataset has its own; give one of the two"
            )
        if self.order == "weighted":
            dataset.checked_weights()
        if self.endpoint.text_only or not self.endpoint.generates:
            _check_text(dataset, self.endpoint.name)
        if has_query(self.endpoint):
            _check_documents(dataset)

    def _check_lengths(self, tokenizer: PromptTokenizer) -> None:
        try:
            least = prompt_count(tokenizer, self.endpoint)("a")
        except TokenizerError as e:
            raise WorkloadError(str(e)) from e
        if self.input_tokens is not None and self.input_tokens.most < least:
            raise WorkloadError(
                f"input lengths {self.input_tokens.text!r}: the shortest prompt has {least} tokens by "
                f"{tokenizer.path!r}, with the text added around it; ask for more"
            )

    def of_lengths(self, lengths: LengthPair) -> "WorkloadSpec":
        """The same with all prompts and answers of two lengths (raises WorkloadError)."""
        input_tokens, output_tokens = (
            parse_lengths(str(tokens)) for tokens in (lengths.input_tokens, lengths.output_tokens)
        )
        return replace(self, input_tokens=input_tokens, output_tokens=output_tokens)

    def of_prefix(self, prefix: PrefixShare) -> "WorkloadSpec":
        """The same with prompts of one length, of which a part is shared (raises WorkloadError)."""
        own = parse_lengths(str(prefix.input_tokens - prefix.tokens))
        shared = SharedPrefix(groups=prefix.prefixes, tokens=prefix.tokens) if prefix.tokens else None
        return replace(self, input_tokens=own, shared_prefix=shared)

    @property
    def is_slow_to_make(self) -> bool:
        """Whether a prompt may take too long for an event loop: it is counted, or has many texts."""
        return self.tokenizer is not None or (self.inputs is not None and self.inputs.most > _MANY_INPUTS)

    def illustrated(self, prompt: Prompt, rng: np.random.Generator, salt: str) -> Prompt:
        """The prompt with the images that are asked for; unlike those of other runs if its head is."""
        if self.images is None:
            return prompt
        return with_images(prompt, self.images.draw(rng, salt if self.unique_head else ""))

    def body_template(self, model: str) -> BodyTemplate:
        """Template into which :meth:`BodyTemplate.encode` puts this workload's prompts."""
        return body_template(
            self.endpoint,
            model,
            stream=self.stream,
            ignore_eos=self.ignore_eos,
            extra_body=self.extra_body,
            limit_field=self.limit_field,
        )


def _check_documents(dataset: Dataset) -> None:
    for prompt, line in zip(dataset.prompts, dataset.lines, strict=True):
        if prompt.messages is not None and len(prompt.messages) < 2:
            raise DatasetError(f"{dataset.path}:{line}: one message is the query, and there is no document")


def _check_text(dataset: Dataset, endpoint: str) -> None:
    for prompt, line in zip(dataset.prompts, dataset.lines, strict=True):
        try:
            as_text(prompt)
        except PromptError as e:
            raise DatasetError(f"{dataset.path}:{line}: {e}; the {endpoint} endpoint takes text only") from e
