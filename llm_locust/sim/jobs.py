"""Requests as the simulated model's work: prompts, texts, counts and results."""

import math
import random
import re
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Annotated, Any, Literal

import msgspec

from llm_locust.wire.chat_form import Size, size_in, url_of
from llm_locust.wire.dialects.chat import CHAT, COMPLETIONS
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.dialects.messages import MESSAGES
from llm_locust.wire.dialects.responses import RESPONSES
from llm_locust.wire.dialects.results import EMBEDDINGS, RERANK
from llm_locust.wire.payload import MAX_INPUTS

# --- Text of a simulated model, one vocabulary entry per token, and tokens of a prompt


# A prime number of entries, so that every stride walks through all of them. Letters of several bytes, a
# quote, a line end and U+2028 are included to test a client's decoder.
# fmt: off
_VOCABULARY = (
    " the", " of", " and", " to", " in", " is", " that", " for", " as", " with", " was", " on", " are",
    " by", " this", " be", " from", " or", " have", " an", " they", " which", " one", " you", " were",
    " all", " her", " she", " there", " would", " their", " we", " him", " been", " has", " when",
    " who", " will", " no", " more", " if", " out", " so", " up", " said", " what", " its", " about",
    " than", " into", " them", " can", " only", " other", " time", " new", " some", " could", " these",
    " two", " may", " first", " then", " café", " naïve", " 東京", " привет", " ½", " 🙂", ",", ".", ";",
    "\n", ' "quoted"', " \\", " {", "}", "\u2028", " data:",
)
# fmt: on
_PIECE = re.compile(r"[A-Za-z]{1,12}|[0-9]{1,3}|[^\sA-Za-z0-9]")
_ESCAPED = tuple(msgspec.json.encode(entry)[1:-1] for entry in _VOCABULARY)
_SIZE = len(_VOCABULARY)


@dataclass(frozen=True, slots=True)
class TokenText:
    """An endless walk through the vocabulary."""

    start: int
    stride: int

    @classmethod
    def drawn(cls, source: random.Random) -> "TokenText":
        return cls(source.randrange(_SIZE), source.randrange(1, _SIZE))

    def escaped(self, index: int) -> bytes:
        """Token ``index`` as in a JSON string without its quotes, UTF-8."""
        return _ESCAPED[(self.start + self.stride * index) % _SIZE]

    def whole(self, tokens: int) -> str:
        """The first ``tokens`` tokens, joined."""
        return "".join(_VOCABULARY[(self.start + self.stride * i) % _SIZE] for i in range(tokens))


def split_tokens(text: str) -> list[str]:
    """Split a prompt into tokens by a rule of thumb, similar to byte-pair tokenizers on English text.

    There is a token for each word of up to 12 Latin letters, each further 12, each 3 digits, and each other
    character except spaces.
    """
    return _PIECE.findall(text)


def count_tokens(text: str) -> int:
    """The number of :func:`split_tokens`."""
    return len(split_tokens(text))


def block_hashes(tokens: Sequence[str], block_tokens: int, adapter: str = "") -> tuple[int, ...]:
    """Key for each full block of a prompt; it identifies the prompt from its start to that block's end.

    The same in every process: 64 bits of BLAKE2b over the tokens so far. Prompts for different adapters have
    no key in common.
    """
    so_far = blake2b(f"{adapter}\0".encode("utf-8", "surrogatepass") if adapter else b"", digest_size=8)
    keys = []
    for end in range(block_tokens, len(tokens) + 1, block_tokens):
        block = "\0".join((*tokens[end - block_tokens : end], ""))
        so_far.update(block.encode("utf-8", "surrogatepass"))
        keys.append(int.from_bytes(so_far.digest(), "big"))
    return tuple(keys)


# --- Messages of a prompt, and their texts and images as tokens of the simulated model


#: Side of the square of pixels that is one token: patches of 16, 2 by 2 of them merged.
TOKEN_SIDE = 32

#: A smaller image is read as if enlarged, a larger one as if scaled down.
LEAST_TOKENS, MOST_TOKENS = 64, 16_384


#: At most, of a token in a list: a string of up to 12 letters or of one character, and its place.
_TOKEN_BYTES = 96

#: Of one more text in :class:`RecentTexts`, so that short ones are bounded too.
_ENTRY_BYTES = 384


class RequestError(ValueError):
    """A request that the server answers with ``status`` and an error object."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


class PromptPart(msgspec.Struct):
    """A part of any of the APIs: a text, or an image in one of three forms."""

    type: str | None = None
    text: str | None = None
    image_url: Any = None
    source: Any = None


class PromptMessage(msgspec.Struct):
    content: str | list[PromptPart] | None = None


class RecentTexts:
    """Tokens of the texts that came last: each turn of a conversation repeats all earlier ones.

    Args:
        most_bytes: bound of the memory of all texts that are kept and of their tokens.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._known: dict[str, list[str]] = {}  # the oldest first

    def tokens(self, text: str) -> list[str]:
        """:func:`split_tokens` of a text, not to be changed."""
        found = self._known.pop(text, None)
        if found is None:
            found = split_tokens(text)
            self._bytes += _kept_bytes(text, found)
        self._known[text] = found
        while self._bytes > self._most_bytes:
            oldest = next(iter(self._known))
            self._bytes -= _kept_bytes(oldest, self._known.pop(oldest))
        return found


def _kept_bytes(text: str, tokens: Sequence[str]) -> int:
    """Upper bound of the memory of a text and its tokens."""
    return _ENTRY_BYTES + len(text) * (1 if text.isascii() else 4) + len(tokens) * _TOKEN_BYTES


#: Some two million letters of English words. A text above the bound is not kept.
_RECENT = RecentTexts(most_bytes=40 << 20)


def content_tokens(messages: Iterable[PromptMessage]) -> list[str]:
    """Tokens of the messages' texts and images, in order."""
    found: list[str] = []
    for message in messages:
        if not isinstance(message.content, list):
            found += _RECENT.tokens(message.content or "")
            continue
        for part in message.content:
            if part.text:
                found += _RECENT.tokens(part.text)
            elif part.image_url is not None or part.source is not None:
                found += _image_tokens(part)
    return found


def _image_tokens(part: PromptPart) -> list[str]:
    url = url_of({"image_url": part.image_url, "source": part.source})
    size = size_in(url) if isinstance(url, str) else None
    if size is None:
        shown = url[:40] if isinstance(url, str) else type(url).__name__
        raise RequestError(
            400, "BadRequestError", f"An image must be a data: URL of a PNG or JPEG, got {shown!r}."
        )
    return image_tokens(url, size)


def count_image_tokens(size: Size) -> int:
    """Tokens of an image: ⌈width / 32⌉ · ⌈height / 32⌉, in 64 .. 16,384."""
    across, down = (-(-side // TOKEN_SIDE) for side in size)
    return min(max(across * down, LEAST_TOKENS), MOST_TOKENS)


def image_tokens(url: str, size: Size) -> list[str]:
    """An image as tokens of a prompt, equal only for equal images: so a prefix cache knows it again."""
    data = url.encode("utf-8", "surrogatepass")
    mark = f"image {zlib.crc32(data):08x} {zlib.adler32(data[-256:]):08x} {len(data)}"
    return [f"{mark} {number}" for number in range(count_image_tokens(size))]


# --- Requests for a result for each input: vectors and scores


#: Dimensions of a vector where the request does not say them, and the most that it may.
DIMENSIONS = 384
MAX_DIMENSIONS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsAsked:
    """What an answer is made of: ``texts``, with a ``query`` scores of them, without one their vectors."""

    texts: Sequence[str]
    query: str | None = None
    top_n: int | None = None
    dimensions: int = DIMENSIONS
    in_base64: bool = False


def embedded(given: str | list[str | int | list[int]]) -> list[str]:
    """The texts, token ids as words; a list of numbers is one text."""
    if isinstance(given, str):
        return [given]
    if all(isinstance(item, int) for item in given):
        return [" ".join(map(str, given))]
    return [" ".join(map(str, item)) if isinstance(item, list) else str(item) for item in given]


# --- Conversion of a request's body to the simulated model's work: counts, lengths, text


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

    def tokens(self) -> list[str]:
        """Tokens of the prompt."""
        raise NotImplementedError

    def limit(self) -> int | None:
        """Limit of the answer's tokens; None without one."""
        return 1  # of an answer with results

    def results(self) -> ResultsAsked | None:
        """What the answer is made of, unless it is a generated text."""
        return None


class _ChatBody(_Body, kw_only=True):
    messages: Annotated[list[PromptMessage], msgspec.Meta(min_length=1)]
    max_tokens: _Positive | None = None
    max_completion_tokens: _Positive | None = None

    def tokens(self) -> list[str]:
        return content_tokens(self.messages)

    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


class _CompletionBody(_Body, kw_only=True):
    prompt: str | list[str | int]
    max_tokens: _Positive | None = _COMPLETION_DEFAULT_TOKENS

    def tokens(self) -> list[str]:
        if isinstance(self.prompt, str):
            return split_tokens(self.prompt)
        texts = [part for part in self.prompt if isinstance(part, str)]
        if not texts:
            return list(map(str, self.prompt))  # token ids
        if len(self.prompt) > 1:
            raise RequestError(400, "BadRequestError", "One prompt a request: several are not simulated.")
        return split_tokens(texts[0])

    def limit(self) -> int | None:
        return self.max_tokens


class _ResponsesBody(_Body, kw_only=True):
    input: str | list[PromptMessage]
    instructions: str | None = None
    max_output_tokens: _Positive | None = None

    def tokens(self) -> list[str]:
        messages = [PromptMessage(self.input)] if isinstance(self.input, str) else self.input
        return content_tokens([PromptMessage(self.instructions), *messages])

    def limit(self) -> int | None:
        return self.max_output_tokens


class _MessagesBody(_Body, kw_only=True):
    messages: Annotated[list[PromptMessage], msgspec.Meta(min_length=1)]
    max_tokens: _Positive
    system: str | list[PromptPart] | None = None

    def tokens(self) -> list[str]:
        return content_tokens([PromptMessage(self.system), *self.messages])

    def limit(self) -> int | None:
        return self.max_tokens


class _EmbeddingsBody(_Body, kw_only=True):
    input: str | Annotated[list[str | int | list[int]], msgspec.Meta(min_length=1, max_length=MAX_INPUTS)]
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=MAX_DIMENSIONS)] | None = None
    encoding_format: Literal["float", "base64"] | None = None

    def tokens(self) -> list[str]:
        return [token for text in embedded(self.input) for token in split_tokens(text)]

    def results(self) -> ResultsAsked:
        in_base64 = self.encoding_format == "base64"
        dimensions = self.dimensions or DIMENSIONS
        return ResultsAsked(texts=embedded(self.input), dimensions=dimensions, in_base64=in_base64)


class _RerankBody(_Body, kw_only=True):
    query: str
    documents: Annotated[list[str], msgspec.Meta(min_length=1, max_length=MAX_INPUTS)]
    top_n: _Positive | None = None

    def tokens(self) -> list[str]:
        """Each document is read together with the query."""
        query = split_tokens(self.query)
        return [token for text in self.documents for token in (*query, *split_tokens(text))]

    def results(self) -> ResultsAsked:
        return ResultsAsked(texts=self.documents, query=self.query, top_n=self.top_n)


#: Bodies of the APIs that are simulated.
BODIES: Mapping[Dialect, type[_Body]] = {
    CHAT: _ChatBody,
    COMPLETIONS: _CompletionBody,
    RESPONSES: _ResponsesBody,
    MESSAGES: _MessagesBody,
    EMBEDDINGS: _EmbeddingsBody,
    RERANK: _RerankBody,
}


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
    try:
        asked = msgspec.json.decode(body, type=BODIES[endpoint])
    except msgspec.ValidationError as e:
        raise RequestError(400, "BadRequestError", f"The body is not valid for this endpoint: {e}") from e
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise RequestError(400, "BadRequestError", f"The body is not JSON: {e}") from e
    tokens, max_tokens, results = asked.tokens(), asked.limit(), asked.results()
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
