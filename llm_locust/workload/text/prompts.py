"""Content of one request, and synthetic text of about an asked length in tokens.

Synthetic text is words of :data:`llm_locust.workload.text.words.WORDS`, one token each, drawn independently
and uniformly: ten bits a word, so that nothing can compress a prompt below a fifth of its size (zlib: a
half). A word has 6.5 characters with its space. A message counts as its words plus the dialect's
``template_tokens``. The remaining error against a server's own count is its chat template: BOS and role marks
are 3 tokens for some models and 10 for others, and a template with a default system prompt adds that too (20
to 40 tokens).
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_locust.wire.dialects.dialect import Message
from llm_locust.wire.images import InlineImage
from llm_locust.workload.text.words import WORDS

#: Words, and so tokens, of a synthetic prompt's run-unique head.
HEAD_WORDS = 6

#: Longer passages consist of several slices, so that none repeats itself.
SLICE_WORDS = 1 << 12

_CORPUS_WORDS = 1 << 16


class PromptError(ValueError):
    """A prompt that cannot be sent to the endpoint; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Content of one request: either ``text`` or ``messages``.

    ``messages`` are in OpenAI's chat form and are sent unchanged. ``extra`` holds further fields of the
    request body (tools, temperature, ...). The asked lengths are those of the workload, ``None`` if it has
    none; they are never measured counts. ``counted_input_tokens`` is the count by the tokenizer, if there is
    one: different from the asked length only if no text has that length. ``answer`` is a dataset's own
    answer, ``expected`` the right one in the form of the dataset's line: see
    :mod:`llm_locust.workload.answers.expected`.
    """

    text: str | None = None
    messages: tuple[Message, ...] | None = None
    asked_input_tokens: int | None = None
    asked_output_tokens: int | None = None
    counted_input_tokens: int | None = None
    answer: str | None = None
    expected: Any = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None
    name: str | None = None
    slo_class: str | None = None

    def __post_init__(self) -> None:
        if (self.text is None) == (self.messages is None):
            raise PromptError("a prompt has either a text or messages")


def as_text(prompt: Prompt) -> str:
    """The prompt as one text: the messages' contents, separated by a blank line.

    Raises:
        PromptError: a part of a message is not text (an image, audio).
    """
    if prompt.text is not None:
        return prompt.text
    return "\n\n".join(text for message in prompt.messages or () for text in _texts(message.get("content")))


def texts_of(prompt: Prompt) -> list[str]:
    """The text of each message, its parts separated by a blank line (raises PromptError as as_text)."""
    if prompt.text is not None:
        return [prompt.text]
    return ["\n\n".join(_texts(message.get("content"))) for message in prompt.messages or ()]


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    parts = content or []
    for part in parts:
        if not isinstance(part.get("text"), str):
            raise PromptError(f"a message part of type {part.get('type')!r} is not text")
    return [part["text"] for part in parts]


def with_head(prompt: Prompt, head: str) -> Prompt:
    """The prompt with ``head`` and a space before all its text."""
    if prompt.text is not None:
        return replace(prompt, text=f"{head} {prompt.text}")
    first, *others = prompt.messages or ()
    content = first.get("content")
    if isinstance(content, str):
        headed: Any = f"{head} {content}"
    else:
        headed = [{"type": "text", "text": head}, *(content or [])]
    return replace(prompt, messages=({**first, "content": headed}, *others))


def with_images(prompt: Prompt, images: Sequence[InlineImage]) -> Prompt:
    """The prompt with images behind the content of its user's last message, or else of its last.

    Its length is not known any more: a server counts tokens of an image, each model by a rule of its own.
    """
    messages = [*(prompt.messages or ({"role": "user", "content": prompt.text},))]
    place = max((i for i, each in enumerate(messages) if each.get("role") == "user"), default=-1)
    content = messages[place].get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    shown = [{"type": "image_url", "image_url": {"url": image}} for image in images]
    messages[place] = {**messages[place], "content": [*parts, *shown]}
    return replace(
        prompt,
        text=None,
        messages=tuple(messages),
        asked_input_tokens=None,
        counted_input_tokens=None,
    )


def with_words(prompt: Prompt, words: str) -> Prompt:
    """The prompt with further words before all its text, a token each; nobody has counted the result."""
    asked = prompt.asked_input_tokens
    return replace(
        with_head(prompt, words),
        asked_input_tokens=None if asked is None else asked + len(words.split()),
        counted_input_tokens=None,
    )


def head_words(*key: object) -> str:
    """:data:`HEAD_WORDS` words from a hash of ``key``: two keys give two heads (60 bits)."""
    rest = int.from_bytes(_digest(key))
    words = []
    for _ in range(HEAD_WORDS):
        rest, word = divmod(rest, len(WORDS))
        words.append(WORDS[word])
    return " ".join(words)


def head_tag(*key: object) -> str:
    """``[1f0c9a3be2d4]``: a head that looks like an identifier and leaves a question's meaning."""
    return f"[{_digest(key).hex()[:12]}]"


def _digest(key: tuple[object, ...]) -> bytes:
    return blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """A long seeded text from which passages are cut, at word boundaries."""

    text: str
    starts: "array[int]"  # of word i in text; one more at the end
    words: NDArray[np.int64]  # of word i, its index in WORDS

    @classmethod
    def of(cls, seed: int) -> "Corpus":
        """Make 65,536 words; equal for equal seeds. Takes 4 ms."""
        rng = np.random.default_rng(np.random.SeedSequence(seed))
        drawn = rng.integers(len(WORDS), size=_CORPUS_WORDS)
        sizes = np.array([len(word) + 1 for word in WORDS])[drawn]
        starts = array("L", bytes(8) + np.cumsum(sizes, dtype=np.uint64).tobytes())
        return cls(" ".join(np.array(WORDS, dtype=object)[drawn]), starts, drawn)

    def cut(self, first: int, words: int) -> str:
        """``words`` words from word ``first`` on."""
        return self.text[self.starts[first] : self.starts[first + words] - 1]

    def passage(self, rng: np.random.Generator, words: int) -> str:
        """``words`` words, from one random position or, if that is too long, from several."""
        pieces = []
        while words > 0:
            taken = min(words, SLICE_WORDS)
            first = int(rng.integers(len(self.words) - taken + 1))
            pieces.append(self.cut(first, taken))
            words -= taken
        return " ".join(pieces)


def synthetic_text(corpus: Corpus, rng: np.random.Generator, tokens: int, head: str = "") -> str:
    """A text of ``tokens`` tokens by the vocabulary's count, including ``head`` (of words).

    If the head alone is longer than asked, it is cut.
    """
    words = head.split()[:tokens]
    body = corpus.passage(rng, tokens - len(words))
    return " ".join([*words, body]) if body else " ".join(words)
