"""Conversion of a request's body to the simulated model's work: counts, lengths, text."""

import math
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

import msgspec

from llm_locust.sim.answers.prompt import PromptMessage, PromptPart, RequestError, content_tokens
from llm_locust.sim.answers.results import DIMENSIONS, MAX_DIMENSIONS, ResultsAsked, embedded
from llm_locust.sim.answers.text import TokenText, block_hashes, split_tokens
from llm_locust.wire.dialects.chat import CHAT, COMPLETIONS
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.dialects.embeddings import EMBEDDINGS
from llm_locust.wire.dialects.messages import MESSAGES
from llm_locust.wire.dialects.rerank import RERANK
from llm_locust.wire.dialects.responses import RESPONSES
from llm_locust.wire.results import MAX_INPUTS

_Positive = Annotated[int, msgspec.Meta(ge=1)]
_OneChoice = Annotated[int, msgspec.Meta(ge=1, le=1)]
_COMPLETION_DEFAULT_TOKENS = 16
_KV_BLOCK_TOKENS = 16


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class _Body(msgspec.Struct, kw_only=True):
    model: str | None = None
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    ignore_eos: bool | None = False
    min_tokens: int | None = 0
    n: _OneChoice | None = 1


_AnyBody = TypeVar("_AnyBody", bound=_Body)


class _ChatBody(_Body, kw_only=True):
    messages: Annotated[list[PromptMessage], msgspec.Meta(min_length=1)]
    max_tokens: _Positive | None = None
    max_completion_tokens: _Positive | None = None


class _CompletionBody(_Body, kw_only=True):
    prompt: str | list[str | int]
    max_tokens: _Positive | None = _COMPLETION_DEFAULT_TOKENS


class _ResponsesBody(_Body, kw_only=True):
    input: str | list[PromptMessage]
    instructions: str | None = None
    max_output_tokens: _Positive | None = None


class _EmbeddingsBody(_Body, kw_only=True):
    input: str | Annotated[list[str | int | list[int]], msgspec.Meta(min_length=1, max_length=MAX_INPUTS)]
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=MAX_DIMENSIONS)] | None = None
    encoding_format: Literal["float", "base64"] | None = None


class _RerankBody(_Body, kw_only=True):
    query: str
    documents: Annotated[list[str], msgspec.Meta(min_length=1, max_length=MAX_INPUTS)]
    top_n: _Positive | None = None


class _MessagesBody(_Body, kw_only=True):
    messages: Annotated[list[PromptMessage], msgspec.Meta(min_length=1)]
    max_tokens: _Positive
    system: str | list[PromptPart] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """Served models, and the greatest length of their sequences.

    The first of ``models`` is the base model, the others are its adapters: they share the engine and its KV
    cache, and each has blocks of its own in the prefix cache.

    ``eos``: an answer that ends by itself has one more token, which is counted and has no text.
    """

    models: tuple[str, ...] = ("sim",)
    max_model_len: int = 32_768
    mean_output_tokens: float = 200.0  # of an answer that ends by itself, without its end token
    eos: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One resolved request: everything that its answer's bytes depend on.

    ``eos``: the last of ``output_tokens`` is the end token and has no text. ``block_hashes`` are the prefix
    cache's keys of the prompt's full blocks. They cover its texts in order, without the roles and the marks
    that a chat template would add.
    """

    endpoint: Dialect
    request_id: str
    model: str
    created_s: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    prompt_tokens: int
    output_tokens: int
    finish_reason: str  # stop: ended by itself; length: stopped by max_tokens
    text: TokenText
    block_hashes: tuple[int, ...] = ()
    eos: bool = False
    results: ResultsAsked | None = None

    @property
    def text_tokens(self) -> int:
        """Number of output tokens with text."""
        return self.output_tokens - self.eos


def resolve(
    endpoint: Dialect,
    body: bytes,
    request_id: str,
    limits: ModelLimits,
    source: random.Random,
    block_tokens: int = _KV_BLOCK_TOKENS,
) -> Job:
    """Resolve the request in a body to a job.

    One that asks for results is a prompt of all its texts together: its answer takes as long as the first
    token of such a prompt.

    Args:
        source: this request's own random generator.
        block_tokens: size of the engines' KV blocks.

    Raises:
        RequestError: 400 for a body that the API does not accept, 404 for an unknown model.
    """
    asked, tokens, max_tokens = READERS[endpoint](body)
    prompt_tokens = max(1, len(tokens))
    if asked.model is not None and asked.model not in limits.models:
        served = ", ".join(limits.models)
        message = f"The model `{asked.model}` does not exist. Models served: {served}."
        raise RequestError(404, "NotFoundError", message)
    room = limits.max_model_len - prompt_tokens
    if room < (max_tokens or 1):
        raise RequestError(
            400,
            "BadRequestError",
            f"This model's maximum context length is {limits.max_model_len} tokens. However, you requested "
            f"{max_tokens or 1} output tokens and your prompt contains {prompt_tokens} tokens.",
        )
    results = _results_of(asked)
    bound = 1 if results else max_tokens or room
    natural = bound
    ends = limits.eos and not asked.ignore_eos and results is None
    if not asked.ignore_eos and results is None:
        natural = max(asked.min_tokens or 0, _geometric(limits.mean_output_tokens, source)) + ends
    eos = ends and natural <= bound
    options = asked.stream_options or _StreamOptions()
    base, model = limits.models[0], asked.model or limits.models[0]
    return Job(
        endpoint=endpoint,
        request_id=request_id,
        model=model,
        created_s=int(time.time()),
        stream=bool(asked.stream) and results is None,
        include_usage=bool(options.include_usage or options.continuous_usage_stats),
        continuous_usage=bool(options.continuous_usage_stats),
        prompt_tokens=prompt_tokens,
        output_tokens=min(natural, bound),
        finish_reason="stop" if natural < bound or eos else "length",
        text=TokenText.drawn(source),
        block_hashes=block_hashes(tokens, block_tokens, "" if model == base else model),
        eos=eos,
        results=results,
    )


def _geometric(mean: float, source: random.Random) -> int:
    """At least 1; each token is the last with probability 1 / mean."""
    if mean <= 1:
        return 1
    return 1 + int(math.log(1.0 - source.random()) / math.log1p(-1.0 / mean))


def _decode(body: bytes, kind: type[_AnyBody]) -> _AnyBody:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as e:
        raise RequestError(400, "BadRequestError", f"The body is not valid for this endpoint: {e}") from e
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise RequestError(400, "BadRequestError", f"The body is not JSON: {e}") from e


#: The request, the prompt's tokens, and the limit of the answer's tokens.
_Read = tuple[_Body, list[str], int | None]


def _read_chat(body: bytes) -> _Read:
    asked = _decode(body, _ChatBody)
    return (
        asked,
        content_tokens(asked.messages),
        asked.max_completion_tokens or asked.max_tokens,
    )


def _read_completion(body: bytes) -> _Read:
    asked = _decode(body, _CompletionBody)
    if isinstance(asked.prompt, str):
        return asked, split_tokens(asked.prompt), asked.max_tokens
    texts = [part for part in asked.prompt if isinstance(part, str)]
    if not texts:
        return asked, list(map(str, asked.prompt)), asked.max_tokens  # token ids
    if len(asked.prompt) > 1:
        raise RequestError(400, "BadRequestError", "One prompt a request: several are not simulated.")
    return asked, _tokens(texts), asked.max_tokens


def _read_responses(body: bytes) -> _Read:
    asked = _decode(body, _ResponsesBody)
    said = [PromptMessage(asked.input)] if isinstance(asked.input, str) else asked.input
    return asked, content_tokens([PromptMessage(asked.instructions), *said]), asked.max_output_tokens


def _read_messages(body: bytes) -> _Read:
    asked = _decode(body, _MessagesBody)
    tokens = content_tokens([PromptMessage(asked.system), *asked.messages])
    return asked, tokens, asked.max_tokens


def _read_embeddings(body: bytes) -> _Read:
    asked = _decode(body, _EmbeddingsBody)
    return asked, _tokens(embedded(asked.input)), 1


def _read_rerank(body: bytes) -> _Read:
    """Each document is read together with the query."""
    asked = _decode(body, _RerankBody)
    query = split_tokens(asked.query)
    return asked, [token for text in asked.documents for token in (*query, *split_tokens(text))], 1


def _results_of(asked: _Body) -> ResultsAsked | None:
    if isinstance(asked, _RerankBody):
        return ResultsAsked(texts=asked.documents, query=asked.query, top_n=asked.top_n)
    if not isinstance(asked, _EmbeddingsBody):
        return None
    return ResultsAsked(
        texts=embedded(asked.input),
        dimensions=asked.dimensions or DIMENSIONS,
        in_base64=asked.encoding_format == "base64",
    )


READERS = {
    CHAT: _read_chat,
    COMPLETIONS: _read_completion,
    RESPONSES: _read_responses,
    MESSAGES: _read_messages,
    EMBEDDINGS: _read_embeddings,
    RERANK: _read_rerank,
}


def _tokens(texts: Iterable[str]) -> list[str]:
    return [token for text in texts for token in split_tokens(text)]
