"""Which prompts each user of each worker sends, reproducibly.

Every (seed, worker, user) has a random generator of its own, so no two users draw alike
and none depends on when another one acts. A dataset is the worker's: its users take the next
line as they come, and line k has the same lengths whoever takes it. Two runs of one seed and
worker count send the same, but for the run-unique head that keeps prefix caches from hitting.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from llm_locust.workload.body import LIMIT_FIELDS, BodyTemplate, body_template, check_endpoint, output_limit
from llm_locust.workload.dataset import Dataset, DatasetError
from llm_locust.workload.lengths import Lengths, parse_lengths
from llm_locust.workload.prompts import (
    TEMPLATE_TOKENS,
    Corpus,
    Prompt,
    PromptError,
    as_text,
    head_tag,
    head_words,
    synthetic_text,
    with_head,
)

#: Input length where neither lengths nor a dataset are given.
DEFAULT_INPUT_TOKENS = parse_lengths("512")

_BLOCK = 64  # lengths drawn at a time: a draw of one costs as much as a draw of a hundred


class WorkloadError(ValueError):
    """Settings of a workload that contradict each other, or its place in the swarm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """What is sent, the same on every worker.

    ``unique_head`` puts a run-unique start before every prompt: six words of its own count
    before synthetic text, a tag like ``[1f0c9a3be2d4]`` before a dataset's first message.

    Raises:
        BodyError: there is no such endpoint.
        DatasetError: a line cannot go to the endpoint.
        WorkloadError: both input lengths and a dataset.
    """

    endpoint: str = "chat"
    stream: bool = True
    input_tokens: Lengths | None = None
    output_tokens: Lengths | None = None
    dataset: Dataset | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    ignore_eos: bool = False
    unique_head: bool = True
    limit_field: str | None = None

    def __post_init__(self) -> None:
        check_endpoint(self.endpoint)
        if self.dataset is None:
            return
        if self.input_tokens is not None:
            raise WorkloadError(
                f"input lengths {self.input_tokens.text!r} beside dataset {self.dataset.path!r}: "
                "a dataset has its own; give one of the two"
            )
        if self.endpoint == "completions":
            _check_text(self.dataset)

    def body_template(self, model: str) -> BodyTemplate:
        """The template that :meth:`BodyTemplate.encode` puts this workload's prompts into."""
        return body_template(
            self.endpoint,
            model,
            stream=self.stream,
            ignore_eos=self.ignore_eos,
            extra_body=self.extra_body,
            limit_field=self.limit_field,
        )


def _check_text(dataset: Dataset) -> None:
    for prompt, line in zip(dataset.prompts, dataset.lines, strict=True):
        try:
            as_text(prompt)
        except PromptError as e:
            raise DatasetError(f"{dataset.path}:{line}: {e}; the completions endpoint takes text only") from e


class Workload:
    """One worker's part of a workload.

    Args:
        spec: what is sent.
        seed: of all draws, >= 0.
        worker_index: this worker's place, from 0.
        worker_count: how many workers there are.
        salt: a text that no other run has; only the prompts' heads depend on it.

    Raises:
        WorkloadError: a negative seed, or an index that is not below the count.
    """

    def __init__(
        self, spec: WorkloadSpec, seed: int, worker_index: int, worker_count: int, salt: str
    ) -> None:
        if seed < 0:
            raise WorkloadError(f"seed {seed} is negative; give a whole number from 0")
        if not 0 <= worker_index < worker_count:
            raise WorkloadError(
                f"worker {worker_index} of {worker_count}: its index must be in 0 .. count - 1"
            )
        self.spec = spec
        self._key = (seed, worker_index)
        self._salt = salt
        # --body wins over the drawn bound of the answer's length: what is recorded is what is sent.
        self._bounded = any(name in spec.extra_body for name in LIMIT_FIELDS)
        self._bound = output_limit(spec.extra_body)
        self._corpus = Corpus.of(seed) if spec.dataset is None else None
        self._lines = self._from_dataset(spec.dataset, worker_count) if spec.dataset else None

    def prompts(self, user: int) -> Iterator[Prompt]:
        """The prompts of one user, without end. With a dataset all users share one iterator."""
        if self._lines is not None:
            return self._lines
        return self._synthetic(user)

    def output_lengths(self, user: int) -> Iterator[int | None]:
        """Asked output lengths for prompts that a user brings itself, drawn apart from :meth:`prompts`."""
        return self._outputs(self._generator(user, 1))

    def _synthetic(self, user: int) -> Iterator[Prompt]:
        assert self._corpus is not None
        rng = self._generator(user)
        overhead = TEMPLATE_TOKENS[self.spec.endpoint]
        for k, (asked, output) in enumerate(self._lengths(rng)):
            head = head_words(self._salt, *self._key, user, k) if self.spec.unique_head else ""
            yield Prompt(
                text=synthetic_text(self._corpus, rng, max(1, asked - overhead), head),
                asked_input_tokens=asked,
                asked_output_tokens=output,
            )

    def _from_dataset(self, dataset: Dataset, worker_count: int) -> Iterator[Prompt]:
        outputs = self._outputs(self._generator())
        for k, line in enumerate(dataset.stream(self._key[1], worker_count)):
            prompt = self._bound_to(line, next(outputs))
            yield with_head(prompt, head_tag(self._salt, *self._key, k)) if self.spec.unique_head else prompt

    def _generator(self, *user: int) -> np.random.Generator:
        seed, worker = self._key
        return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(worker, *user)))

    def _lengths(self, rng: np.random.Generator) -> Iterator[tuple[int, int | None]]:
        """Asked input and output lengths. A file of pairs keeps them together."""
        inputs, outputs = self.spec.input_tokens or DEFAULT_INPUT_TOKENS, self.spec.output_tokens
        paired = inputs.joint and (outputs is None or outputs == inputs)
        drawn = self._outputs(rng)
        while True:
            for row in inputs.rows(rng, _BLOCK).tolist():
                yield row[0], (row[1] if paired and not self._bounded else next(drawn))

    def _outputs(self, rng: np.random.Generator) -> Iterator[int | None]:
        """Asked output lengths alone: of pairs, their second."""
        lengths = self.spec.output_tokens
        while True:
            if self._bounded or lengths is None:
                yield self._bound
            else:
                yield from lengths.rows(rng, _BLOCK)[:, -1].tolist()

    def _bound_to(self, line: Prompt, output: int | None) -> Prompt:
        if output is None and not self._bounded:
            return line
        extra = {name: value for name, value in line.extra.items() if name not in LIMIT_FIELDS}
        return replace(line, asked_output_tokens=output, extra=extra)
