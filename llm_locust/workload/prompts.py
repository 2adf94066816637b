"""Content of one request, and synthetic text of about an asked length in tokens.

Synthetic text is words of :data:`llm_locust.workload.prompts.WORDS`, one token each, drawn independently
and uniformly: ten bits a word, so that nothing can compress a prompt below a fifth of its size (zlib: a
half). A word has 6.5 characters with its space. A message counts as its words plus the dialect's
``template_tokens``. The remaining error against a server's own count is its chat template: BOS and role marks
are 3 tokens for some models and 10 for others, and a template with a default system prompt adds that too (20
to 40 tokens).
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_locust.wire.dialects.dialect import Message
from llm_locust.wire.images import InlineImage
from llm_locust.workload.draws import digest

# --- Vocabulary of synthetic prompts: 1,024 common English words
#
# Each is one token, with a space before it, for seven tokenizers in wide use (Qwen, cl100k, Mistral's
# SentencePiece of 32k and its Tekken, DeepSeek, Claude): n of them joined by spaces were n tokens to within
# 0.1 % at n = 504, and at most 2 tokens more at n = 16. Words that could trigger a model's safety training
# are left out.


_TEXT = """
ability able above accident add advantage adventure afraid again against agree agreement aim air algebra
allow almost along already also although always among amount ancient anger angry animal ant any anywhere
apart appear apple appointment area argument around arrive art artist ask attach attempt attention
audience aunt available average back background backward balance ball bank baseball basketball bat be
beach bear before begin beginning behind belt benefit between beyond big billion bird bitter blanket
blue board book boot both bottle bottom boundary box boy brain branch brand brave break breath breathe
bridge bright bring brother browser brush bucket budget build bus business butter button buy call calm
camera camp campaign candidate capital captain car card career careful carefully carry cash cat catch
cause cell center certain certainly chair challenge champion change channel chapter chart cheap check
cheese chemical choice circuit city civil claim class clear clearly climb close cloth club clue coach
coal coast coat code coffee coin cold collect college color colour column comb combine command committee
common community company component concept concern concert condition conference consider constant
container content context continue control cook cool copper corner cost cotton council count country
couple course court cousin cover cow craft create crowd cry cultural culture cup current curve custom
customer cycle damage dance dark date daughter deal debate debt decide decision deep defend degree delay
delivery demand democratic density deny depart depth desire detail develop device diagram diet
difference different difficult director dirty discussion divide do doctor door double doubt dozen draft
drawing dream drive drop drum dry duck during dust duty each early earth easily east easy economy edge
effort either election electric email emotion emperor empire employee employer empty energy enough enter
environment environmental error escape event every everywhere evidence exactly exchange exercise exit
expect expensive expert explain face fact factor family famous fate father fault feature feel feeling
fellow few fiction field film final find finger fire firm fish five flight floor fly follow food foot
force foreign forest forget forgive fork form formula forward four frame free freedom frequency fresh
friend from fruit full fund garden gas gate gather general gentle geometry get gift girl glass go gold
good governor grade grain grant grass great green group growth guard guest guide guitar habit hand
happen happy hard hardly hardware have head healthy hear heat height help helpful here hero hide high
hit hockey holiday home hope host hotel hour house how however hundred hungry ice idea if image
important in inch increase indeed industrial input insect instrument intention international internet
interview into involve island join joint joke journal journey judge judgment justice key keyboard kind
label labor lamp land lane language last laugh law lawyer layer lazy leader leadership learn leave
lecture legal lens letter level library life light likely limit lion list listen little live loan local
lock log long look loop lose lot low lunch lung machine magic mail main majority make man manager manner
many map mark mass master match mathematical matter maybe mayor mean measure meat medal medical meet
meeting memory mention merchant message metal middle milk million minute mirror mission mistake mix
modern moment money mood moon more morning mostly mother motor mountain mouse mouth move movie much
muscle museum music myth narrow national natural navy necessary neck need needle neither nest never nice
noise none normal north note novel now nurse object of off offer office often oil old on once one only
operation opportunity order organ otherwise outcome over owner pace pack package painter pair palace
panel parent parish park part particle partly partner party pass past patch path patient pause pen
pepper percent perfect person personal phase phone photo physical piano pig pile pilot pitch place plan
plant play player plot pocket poem point policy political popular port position possible post pot
potential pound powder practical practice president price pride prince print prize probably problem
processor produce product program property proposal protect protein proud prove provide public pull push
quality quantity quarter query question queue quickly quietly quite quote radio rail rain raise rarely
rate raw reach reaction reader ready realize really reason receive recent record reform refuse region
reject relation relax release relief remain repair reply report request require research resource
response responsibility rest restaurant result reward rhythm rights ring risk river road rock root rough
route row royal rule safe sail salad salt sample save say scale schedule scheme school science scope
score screen script search season seat second secret section sector seed seem segment sell send sense
sentence separate sequence serious serve server service session set seven shadow shake shape share sharp
sheep shelf shift shine ship shirt shock shoe shop short show shy sight sign signal signature silk
silver similar simple simply since sing single sister sit site situation six size sky sleep slide slope
slow slowly small smell smile smoke smooth snow soap social society soft software solution some
sometimes son song soon soul sound soup sour south space speak special speech spirit split sport spot
spring square stack staff stairs stand standard star start state status steel step stock stomach stone
stop store storm story strange strategy stream street strength stretch string strip structure studio
study stuff submit success such sugar suggest suit sum summer sun surface surprise sweet swim switch
symbol table tail take talent talk tank tape taste tax tea teach teacher team television tell
temperature ten tennis territory text thank that then theorem theoretical theory there therefore these
thick think third thirty this though thousand thread throat throw ticket time tip title tomorrow tone
too tool tooth top touch toward towel tower town track trade traditional train travel tree trend trick
trip triple trust truth tube turn twenty understand uniform union unit universe university unless until
up upward urban use usually vacation value variable various version vessel victory video view village
vision visit voice volume vote wage wait walk wall warning wash waste watch weakness weather weight west
wet what wheel when where which while whisper whose wide width wife win wind wing winter wish with
within without witness wolf woman wood work worker world write writer yard year yesterday young youth
zero
"""

#: In alphabetical order; a power of two, so that a word has ten bits.
WORDS: tuple[str, ...] = tuple(_TEXT.split())


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
    :mod:`llm_locust.workload.answers`.
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
    return " ".join(words_of(digest(*key), HEAD_WORDS))


def words_of(hashed: bytes, count: int) -> list[str]:
    """So many words of a hash, of whose bits each takes ten."""
    rest, words = int.from_bytes(hashed), []
    for _ in range(count):
        rest, word = divmod(rest, len(WORDS))
        words.append(WORDS[word])
    return words


def head_tag(*key: object) -> str:
    """``[1f0c9a3be2d4]``: a head that looks like an identifier and leaves a question's meaning."""
    return f"[{digest(*key).hex()[:12]}]"


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
