"""What is sent: prompts of each user of each worker, in several inputs, for several models, all reproducible.

Every (seed, worker, user) has its own lengths, and its prompt k its own random generator: no two users draw
the same, and none depends on when another one acts, nor on when or in which thread a prompt is made. A
dataset belongs to the worker: its users take the next line in the order of their requests, and line k has the
same lengths whichever user takes it. Two runs with one seed and worker count send the same, except for the
run-unique starts that prevent prefix cache hits, and for what is learned from the server's counts
(:class:`~llm_locust.workload.synthetic.Calibration`).
"""

import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, Literal

import numpy as np

from llm_locust.core.manifest import PrefixShare
from llm_locust.core.record import LengthPair
from llm_locust.core.texts import plain_number
from llm_locust.wire.dialects.chat import CHAT
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.dialects.results import RERANK
from llm_locust.wire.payload import MAX_INPUTS
from llm_locust.workload.body import BodyTemplate, body_template, output_limit
from llm_locust.workload.conversations import FOLLOW_UPS, ConversationId
from llm_locust.workload.datasets import Dataset, DatasetError
from llm_locust.workload.draws import (
    IMAGES,
    INPUTS,
    LINE,
    MODELS,
    ORDERS,
    OWN_OUTPUTS,
    PRIMER,
    REPLAY,
    TEXT,
    Lengths,
    Order,
    digest,
    generator,
    parse_lengths,
    seed_of,
    swarm_generator,
)
from llm_locust.workload.prompts import (
    Corpus,
    ImagesAsked,
    Prompt,
    PromptError,
    as_text,
    head_tag,
    head_words,
    texts_of,
    with_head,
    with_images,
)
from llm_locust.workload.synthetic import (
    AboutWriter,
    Ahead,
    Calibration,
    ExactWriter,
    PromptJob,
    SharedPrefix,
    SharedTexts,
    Writer,
    prompt_count,
)
from llm_locust.workload.tokenizer import PromptTokenizer, TokenizerError

# --- Requests with several inputs: texts to embed, a query and the documents that are ranked by it


#: Length of a synthetic query.
QUERY_TOKENS = 32

_DOCUMENTS = parse_lengths("10")
_ONE = parse_lengths("1")
#: Lengths, or models, that are drawn at a time: one takes as long as a hundred.
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


def input_counts(inputs: Lengths | None, endpoint: Dialect, rng: np.random.Generator) -> Iterator[int]:
    """The numbers of inputs of one request after another, without end."""
    lengths = inputs or (_DOCUMENTS if has_query(endpoint) else _ONE)
    while True:
        yield from lengths.rows(rng, _BLOCK)[:, 0].tolist()


def grouped_lines(lines: Iterator[Prompt], counts: Iterator[int], endpoint: Dialect) -> Iterator[Prompt]:
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
            yield prompt_of_texts(texts, line)
            texts, wanted = [], next(counts) + has_query(endpoint)


def prompt_of_texts(texts: Sequence[str], like: Prompt | None = None) -> Prompt:
    """A prompt of several texts; of one text a plain one."""
    if len(texts) == 1:
        return like or Prompt(text=texts[0])
    messages = tuple({"role": "user", "content": text} for text in texts)
    if like is None:
        return Prompt(messages=messages)
    return replace(like, text=None, messages=messages, asked_input_tokens=None)


def with_heads(prompt: Prompt, head: str) -> Prompt:
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


def synthetic_inputs(
    writer: Writer, lengths: Sequence[int], leads: Sequence[str], rng: np.random.Generator
) -> Prompt:
    """A request of synthetic texts of these lengths, each after its lead (of words)."""
    made = [writer.prompt(asked, rng, lead) for asked, lead in zip(lengths, leads, strict=True)]
    counts = [counted for _, counted in made if counted is not None]
    return replace(
        prompt_of_texts([text for text, _ in made]),
        asked_input_tokens=sum(lengths),
        counted_input_tokens=sum(counts) if len(counts) == len(made) else None,
    )


# --- Several models, LoRA adapters among them, that one load asks for, and which of them is next


#: Most models of one split: records tell 1,000 apart.
MOST_MODELS = 500

#: Most sessions whose model a process remembers, and most models that a name lists.
MOST_SESSIONS, _SHOWN_MODELS = 100_000, 8

_CHOICE = re.compile(r"(?:(?P<word>random|round_robin)|zipf:(?P<exponent>\S*))\s+(?P<rest>.*)", re.DOTALL)
_MODEL_FORMS = (
    "such as base=1,lora-a=2,lora-b=2, or zipf:1.1 base,lora-a,lora-b, or round_robin lora-a,lora-b"
)


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
            raise ModelSplitError(f"models {text[:60]!r}: {item[:40]!r} is no model; write {_MODEL_FORMS}")
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
    more = len(names) - _SHOWN_MODELS
    return ", ".join(names[:_SHOWN_MODELS]) + (f" and {more} more" if more > 0 else "")


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


# --- What is sent, and one worker's part of it


#: Inputs of a request that take longer to make than an event loop should wait.
_MANY_INPUTS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """What is sent, the same on every worker.

    Attributes:
        tokenizer: counts prompts, so that they have exactly the asked lengths. Without it a word
            is taken for a token, and with ``calibrate`` that is corrected by the server's own counts.
        calibrate: see :class:`~llm_locust.workload.synthetic.Calibration`; false, and two runs of one
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


#: Input length if neither lengths nor a dataset are given.
DEFAULT_INPUT_TOKENS = parse_lengths("512")

#: Output length if nobody says one, and there is no dataset.
DEFAULT_OUTPUT_TOKENS = parse_lengths("128")

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
            :mod:`llm_locust.workload.synthetic`. Prompts are the same without it.
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
        number = counted_alone(prompt, endpoint)
        if self.calibration.wants(asked / number):
            self.calibration.learn(words_alone(prompt, endpoint), input_tokens / number)

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

    def follow_ups(self, place: ConversationId) -> Iterator[Prompt]:
        """Synthetic turns after the first, without end, each with a length from ``--input-tokens``.

        They have no shared prefix, which only starts a conversation. Only a file of pairs gives output
        lengths.
        """
        inputs, paired = self._input_lengths()
        rng = place.generator(FOLLOW_UPS)
        for turn in count(1):
            row = inputs.rows(rng, 1)[0].tolist()
            number = int.from_bytes(digest(*place.key, turn))  # that no other turn of the run has
            yield self.replayed(number, row[0], row[1] if paired else None)

    def _make_writer(self, corpus: Corpus, calibration: Calibration) -> Writer:
        if self.spec.tokenizer is None:
            return AboutWriter(corpus, calibration)
        return ExactWriter(corpus, self.spec.tokenizer, self.spec.endpoint)

    def _made(self, orders: Iterator[PromptJob], depth: int) -> Iterator[Prompt]:
        if self._executor is None:
            return (order() for order in orders)
        return Ahead(orders, self._executor, depth)

    def _synthetic(self, user: int) -> Iterator[PromptJob]:
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
        return input_counts(self.spec.inputs, self.spec.endpoint, self._generator(user, INPUTS))

    def _inputs(self, user: int, k: int, lengths: list[int]) -> Prompt:
        """A request of several texts, each with a head and a prefix of its own.

        The query of a rerank is read with each document, and so is asked for with each.
        """
        rng, shared = self._generator(user, TEXT, k), self.spec.shared_prefix
        if shared is not None:
            lengths = [length + shared.tokens for length in lengths]
        asked = sum(lengths)
        if queried := has_query(self.spec.endpoint):
            asked += len(lengths) * QUERY_TOKENS
            # What a server puts around the two is in the document's length already.
            lengths = [QUERY_TOKENS + round(self.calibration.fit.overhead), *lengths]
        leads = []
        for number in range(len(lengths)):
            head = head_words(self._salt, *self._key, user, k, number) if self.spec.unique_head else ""
            prefix = "" if queried and not number else self._prefix(rng)
            leads.append(" ".join(filter(None, (prefix, head))))
        made = synthetic_inputs(self._writer, lengths, leads, rng)
        if not queried:
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

    def _lines_of(self, dataset: Dataset, worker_count: int) -> Iterator[PromptJob]:
        seed, worker = self._key
        outputs = self._outputs(self._generator())
        lines = dataset.stream(worker, worker_count, self.spec.order, seed)
        if not self.spec.endpoint.generates:
            lines = grouped_lines(lines, self._sizes(0), self.spec.endpoint)
        for k, line in enumerate(lines):
            yield partial(self._line_prompt, line, k, next(outputs))

    def _line_prompt(self, line: Prompt, k: int, output: int | None) -> Prompt:
        prompt = self._bound_to(line, output)
        if self.spec.unique_head:
            tag = head_tag(self._salt, *self._key, k)
            prompt = with_head(prompt, tag) if self.spec.endpoint.generates else with_heads(prompt, tag)
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

    def _input_lengths(self) -> tuple[Lengths, bool]:
        """Input lengths, and whether each comes with its output length."""
        inputs, outputs = self.spec.input_tokens or DEFAULT_INPUT_TOKENS, self.spec.output_tokens
        return inputs, inputs.joint and (outputs is None or outputs == inputs)

    def _lengths(self, rng: np.random.Generator) -> Iterator[tuple[int, int | None]]:
        """Asked input and output lengths. A file of pairs keeps them together."""
        inputs, paired = self._input_lengths()
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
