"""Reproducible choice of the prompts of each user of each worker.

Every (seed, worker, user) has its own lengths, and its prompt k its own random generator: no two users draw
the same, and none depends on when another one acts, nor on when or in which thread a prompt is made. A
dataset belongs to the worker: its users take the next line in the order of their requests, and line k has the
same lengths whichever user takes it. Two runs with one seed and worker count send the same, except for the
run-unique starts that prevent prefix cache hits, and for what is learned from the server's counts
(:class:`~llm_locust.workload.text.synthetic.Calibration`).
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from copy import copy
from dataclasses import replace
from functools import partial

import numpy as np

from llm_locust.core.manifest import PrefixShare
from llm_locust.core.record import LengthPair
from llm_locust.workload import parts
from llm_locust.workload.body import output_limit
from llm_locust.workload.datasets.load import Dataset
from llm_locust.workload.draws import (
    IMAGES,
    INPUTS,
    LINE,
    OWN_OUTPUTS,
    PRIMER,
    REPLAY,
    TEXT,
    generator,
    seed_of,
    swarm_generator,
)
from llm_locust.workload.lengths import parse_lengths
from llm_locust.workload.parts import WorkloadError
from llm_locust.workload.spec import WorkloadSpec
from llm_locust.workload.text.prompts import Corpus, Prompt, head_tag, head_words, with_head
from llm_locust.workload.text.synthetic import (
    AboutWriter,
    Ahead,
    Calibration,
    ExactWriter,
    Order,
    SharedTexts,
    Writer,
)

__all__ = ["DEFAULT_INPUT_TOKENS", "Workload"]

#: Input length if neither lengths nor a dataset are given.
DEFAULT_INPUT_TOKENS = parse_lengths("512")

_BLOCK = 64  # lengths drawn at a time: one takes as long as a hundred

_LINES_AHEAD = 16  # a dataset's iterator serves all users of a worker


class Workload:
    """One worker's part of a workload.

    Args:
        spec: what is sent.
        seed: of all draws, >= 0.
        worker_index: this worker's index, from 0.
        worker_count: number of workers.
        salt: a text unique to the run; only the prompts' heads and shared prefixes depend on it.
        executor: makes prompts ahead in other threads if a tokenizer makes that slow; see
            :mod:`llm_locust.workload.text.synthetic`. Prompts are the same without it.
        calibration: of another workload for the same endpoint, which then learns for both.

    Raises:
        WorkloadError: a negative seed, or an index that is not below the count.
    """

    def __init__(
        self,
        spec: WorkloadSpec,
        seed: int,
        worker_index: int,
        worker_count: int,
        salt: str,
        executor: Executor | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        if seed < 0:
            raise WorkloadError(f"seed {seed} is negative; give a whole number from 0")
        if not 0 <= worker_index < worker_count:
            raise WorkloadError(
                f"worker {worker_index} of {worker_count}: its index must be in 0 .. count - 1"
            )
        self.spec = spec
        self._key = (seed, worker_index)
        self._others: dict[LengthPair | tuple[PrefixShare, int], Workload] = {}
        self._salt = salt
        self._executor = executor if spec.is_slow_to_make else None
        # --body overrides the drawn limit of the answer's length: the record must have what is sent.
        bounded = any(name in spec.extra_body for name in spec.endpoint.limit_fields)
        self._bounded = bounded or not spec.endpoint.generates
        self._bound = output_limit(spec.extra_body, spec.endpoint.limit_fields)
        known = Calibration(spec.endpoint.template_tokens, enabled=spec.calibrate)
        self.calibration = calibration or known
        self._corpus = Corpus.of(seed)
        self._writer = self._make_writer(self._corpus, self.calibration)
        prefix = spec.shared_prefix
        self._prefixes = SharedTexts(self._writer, seed, salt if prefix and prefix.run_unique else "")
        self._blocks = SharedTexts(self._writer, seed, salt if spec.unique_head else "")
        self._lines = (
            self._made(self._lines_of(spec.dataset, worker_count), _LINES_AHEAD) if spec.dataset else None
        )

    def prompts(self, user: int) -> Iterator[Prompt]:
        """Prompts of one user, without end. With a dataset all users share one iterator."""
        return self._lines or self._made(self._synthetic(user), 1)

    def of_lengths(self, lengths: LengthPair) -> "Workload":
        """The same with all prompts and answers of two lengths: one workload for each pair.

        Its texts have starts of their own, as those of other workloads, so that no cache has them. What is
        learned from the server's counts is common to all.
        """
        if lengths not in self._others:
            self._others[lengths] = found = copy(self)
            found.spec = self.spec.of_lengths(lengths)
            found._key = (seed_of(self._key[0], f"lengths/{lengths}"), self._key[1])
        return self._others[lengths]

    def of_prefix(self, prefix: PrefixShare, stage: int) -> "Workload":
        """The same with prompts of one length, a part of which is one of some texts of this stage.

        They are the same on all workers. Without a tokenizer a word counts as a token in both parts of a
        prompt, so that the share is right: nothing is learned from the server's counts.
        """
        key = (prefix, stage)
        if key not in self._others:
            self._others[key] = found = copy(self)
            found.spec = self.spec.of_prefix(prefix)
            found._key = (seed_of(self._key[0], f"prefix/{stage}"), self._key[1])
            found.calibration = Calibration(self.spec.endpoint.template_tokens, enabled=False)
            found._writer = self._make_writer(self._corpus, found.calibration)
            found._prefixes = SharedTexts(found._writer, found._key[0], self._salt)
        return self._others[key]

    def primer(self, place: str, number: int | None) -> Prompt:
        """A prompt as long as others and of this place only, with a shared prefix if it is numbered."""
        shared, lengths = self.spec.shared_prefix, self.spec.input_tokens or DEFAULT_INPUT_TOKENS
        tokens = 0 if shared is None else shared.tokens
        prefix = "" if number is None else self._prefixes.prefix(number, tokens)
        head = head_words(self._salt, "primer", *self._key, place, number)
        rng = swarm_generator(seed_of(self._key[0], place), PRIMER, 0 if number is None else number + 1)
        return self._written(lengths.most + tokens, 1, rng, " ".join(filter(None, (prefix, head))))

    def output_lengths(self, user: int) -> Iterator[int | None]:
        """Asked output lengths for a user's own prompts, drawn separately from :meth:`prompts`."""
        return self._outputs(self._generator(user, OWN_OUTPUTS))

    def learn(self, prompt: Prompt, input_tokens: int) -> None:
        """Learn that the server counted ``input_tokens`` for a prompt of this workload.

        Only synthetic prompts without a tokenizer are used, and only the first ones of about a length.
        """
        asked, endpoint = prompt.asked_input_tokens, self.spec.endpoint
        synthetic = self.spec.dataset is None and self.spec.tokenizer is None
        if not synthetic or asked is None or (prompt.text is None and endpoint.generates):
            return
        number = parts.counted_alone(prompt, endpoint)
        if self.calibration.wants(asked / number):
            self.calibration.learn(parts.words_alone(prompt, endpoint), input_tokens / number)

    def replayed(
        self,
        k: int,
        input_tokens: int,
        output_tokens: int | None,
        hash_ids: Sequence[int] = (),
        block_tokens: int = 512,
    ) -> Prompt:
        """Prompt for row k of a trace: the same on any worker, different from any other row's.

        Args:
            input_tokens: asked length, including all that is shared.
            hash_ids: blocks of ``block_tokens`` tokens that it starts with: equal leading ids give equal
                prefixes. Those beyond its length are left out.
        """
        rng = swarm_generator(self._key[0], REPLAY, k)
        if hash_ids:
            blocks = tuple(hash_ids[: -(-input_tokens // block_tokens)])
            lead = self._blocks.prefix_of_blocks(blocks, block_tokens)
        else:
            lead = head_words(self._salt, "row", k) if self.spec.unique_head else ""
        return self._written(input_tokens, self._bound if self._bounded else output_tokens, rng, lead)

    def _make_writer(self, corpus: Corpus, calibration: Calibration) -> Writer:
        if self.spec.tokenizer is None:
            return AboutWriter(corpus, calibration)
        return ExactWriter(corpus, self.spec.tokenizer, self.spec.endpoint)

    def _made(self, orders: Iterator[Order], depth: int) -> Iterator[Prompt]:
        if self._executor is None:
            return (order() for order in orders)
        return Ahead(orders, self._executor, depth)

    def _synthetic(self, user: int) -> Iterator[Order]:
        lengths = self._lengths(self._generator(user))
        if self.spec.endpoint.generates:
            for k, (asked, output) in enumerate(lengths):
                yield partial(self._synthetic_prompt, user, k, asked, output)
            return
        for k, number in enumerate(self._sizes(user)):
            yield partial(self._inputs, user, k, [next(lengths)[0] for _ in range(number)])

    def _synthetic_prompt(self, user: int, k: int, asked: int, output: int | None) -> Prompt:
        rng = self._generator(user, TEXT, k)
        prefix = self._prefix(rng)
        asked += 0 if self.spec.shared_prefix is None else self.spec.shared_prefix.tokens
        head = head_words(self._salt, *self._key, user, k) if self.spec.unique_head else ""
        return self._written(asked, output, rng, " ".join(filter(None, (prefix, head))))

    def _sizes(self, user: int) -> Iterator[int]:
        return parts.sizes(self.spec.inputs, self.spec.endpoint, self._generator(user, INPUTS))

    def _inputs(self, user: int, k: int, lengths: list[int]) -> Prompt:
        """A request of several texts, each with a head and a prefix of its own.

        The query of a rerank is read with each document, and so is asked for with each.
        """
        rng, shared = self._generator(user, TEXT, k), self.spec.shared_prefix
        if shared is not None:
            lengths = [length + shared.tokens for length in lengths]
        asked = sum(lengths)
        if has_query := parts.has_query(self.spec.endpoint):
            asked += len(lengths) * parts.QUERY_TOKENS
            # What a server puts around the two is in the document's length already.
            lengths = [parts.QUERY_TOKENS + round(self.calibration.fit.overhead), *lengths]
        leads = []
        for number in range(len(lengths)):
            head = head_words(self._salt, *self._key, user, k, number) if self.spec.unique_head else ""
            prefix = "" if has_query and not number else self._prefix(rng)
            leads.append(" ".join(filter(None, (prefix, head))))
        made = parts.synthetic(self._writer, lengths, leads, rng)
        if not has_query:
            return made
        return replace(made, asked_input_tokens=asked, counted_input_tokens=None)

    def _written(self, asked: int, output: int | None, rng: np.random.Generator, lead: str) -> Prompt:
        text, counted = self._writer.prompt(asked, rng, lead)
        made = Prompt(
            text=text, asked_input_tokens=asked, asked_output_tokens=output, counted_input_tokens=counted
        )
        return self.spec.illustrated(made, rng, self._salt)

    def _prefix(self, rng: np.random.Generator) -> str:
        shared = self.spec.shared_prefix
        return "" if shared is None else self._prefixes.prefix(shared.draw(rng), shared.tokens)

    def _lines_of(self, dataset: Dataset, worker_count: int) -> Iterator[Order]:
        seed, worker = self._key
        outputs = self._outputs(self._generator())
        lines = dataset.stream(worker, worker_count, self.spec.order, seed)
        if not self.spec.endpoint.generates:
            lines = parts.grouped(lines, self._sizes(0), self.spec.endpoint)
        for k, line in enumerate(lines):
            yield partial(self._line_prompt, line, k, next(outputs))

    def _line_prompt(self, line: Prompt, k: int, output: int | None) -> Prompt:
        prompt = self._bound_to(line, output)
        if self.spec.unique_head:
            tag = head_tag(self._salt, *self._key, k)
            prompt = with_head(prompt, tag) if self.spec.endpoint.generates else parts.headed(prompt, tag)
        prompt = self.spec.illustrated(prompt, self._generator(0, IMAGES, k), self._salt)
        shared = self.spec.shared_prefix
        if shared is None:
            return prompt
        asked = prompt.asked_input_tokens
        return replace(
            with_head(prompt, self._prefix(self._generator(0, LINE, k))),
            asked_input_tokens=None if asked is None else asked + shared.tokens,
        )

    def _generator(self, *user: int) -> np.random.Generator:
        seed, worker = self._key
        return generator(seed, worker, *user)

    def _lengths(self, rng: np.random.Generator) -> Iterator[tuple[int, int | None]]:
        """Asked input and output lengths. A file of pairs keeps them together."""
        inputs, outputs = self.spec.input_tokens or DEFAULT_INPUT_TOKENS, self.spec.output_tokens
        paired = inputs.joint and (outputs is None or outputs == inputs)
        drawn = self._outputs(rng)
        while True:
            for row in inputs.rows(rng, _BLOCK).tolist():
                yield row[0], (row[1] if paired and not self._bounded else next(drawn))

    def _outputs(self, rng: np.random.Generator) -> Iterator[int | None]:
        """Only asked output lengths: of pairs, the second."""
        lengths = self.spec.output_tokens
        while True:
            if self._bounded or lengths is None:
                yield self._bound
            else:
                yield from lengths.rows(rng, _BLOCK)[:, -1].tolist()

    def _bound_to(self, line: Prompt, output: int | None) -> Prompt:
        """The line with the asked limit, else its own, else the length of its answer in the dataset."""
        if output is None and not self._bounded:
            tokenizer = self.spec.tokenizer
            if line.asked_output_tokens is not None or line.answer is None or tokenizer is None:
                return line
            return replace(line, asked_output_tokens=max(1, tokenizer.count(line.answer)))
        limits = self.spec.endpoint.limit_fields
        extra = {name: value for name, value in line.extra.items() if name not in limits}
        return replace(line, asked_output_tokens=output, extra=extra)
