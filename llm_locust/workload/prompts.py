"""Content of one request: synthetic text of about an asked length in tokens, and images of noise.

Synthetic text is words of :data:`llm_locust.workload.prompts.WORDS`, one token each, drawn independently
and uniformly: ten bits a word, so that nothing can compress a prompt below a fifth of its size (zlib: a
half). A word has 6.5 characters with its space. A message counts as its words plus the dialect's
``template_tokens``. The remaining error against a server's own count is its chat template: BOS and role marks
are 3 tokens for some models and 10 for others, and a template with a default system prompt adds that too (20
to 40 tokens).
"""

import re
import zlib
from array import array
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llm_locust.core.texts import named_values, plain_number
from llm_locust.wire.chat_form import InlineImage, Size
from llm_locust.wire.dialects.dialect import Message
from llm_locust.workload.draws import LengthError, Lengths, digest, parse_lengths

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


# --- PNG files of noise, each different from all others
#
# A pixel has 4 random bits a channel: 1.5 bytes of file, as a photograph's PNG has, and nothing that
# compresses further. Making one takes about 100 ms a megapixel, longer than an event loop may wait. So
# there is one file a size, made before the load begins, and each image replaces its last pixels:
# :data:`OWN_BYTES` of the last row, which lie uncompressed at the file's end, with the checksums behind
# them. A server that hashes files or pixels finds no two alike, and a request costs a join of bytes.


#: Bytes of an image that no other one has: its last 8 pixels.
OWN_BYTES = 24

#: Sides of an image in pixels. The own pixels are in the last row.
LEAST_SIDE, MOST_SIDE = OWN_BYTES // 3, 8192

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_END = b"\x00\x00\x00\x00IEND\xaeB`\x82"
_BLOCK_ROWS = 64


@dataclass(frozen=True, slots=True, eq=False)
class _Noise:
    """The file of one size up to its own bytes, and the checksums so far.

    ``head`` is in base64, a multiple of 3 bytes; ``rest`` are the up to 2 bytes behind it.
    """

    head: bytes
    rest: bytes
    crc: int
    adler: int


def prepare(size: Size) -> None:
    """Make the file of a size, which takes about 100 ms a megapixel."""
    _noise(size)


def noise_image(size: Size, own: bytes) -> InlineImage:
    """An image of noise that ends with ``own``, :data:`OWN_BYTES` long: equal for equal arguments."""
    base = _noise(size)
    tail = own + zlib.adler32(own, base.adler).to_bytes(4, "big")
    checked = tail + zlib.crc32(tail, base.crc).to_bytes(4, "big")
    return InlineImage("image/png", size, base.head, b64encode(base.rest + checked + _END))


@cache  # none may be made anew while streams are open; what is asked for bounds their pixels
def _noise(size: Size) -> _Noise:
    header = _chunk(b"IHDR", size.width.to_bytes(4, "big") + size.height.to_bytes(4, "big") + _RGB_8_BIT)
    pixels, adler = _compressed(size)
    content = b"IDAT" + pixels
    # What follows in this chunk: the own bytes and the checksum of the pixels.
    length = len(pixels) + OWN_BYTES + 4
    file = _SIGNATURE + header + length.to_bytes(4, "big") + content
    whole = len(file) // 3 * 3
    return _Noise(b64encode(file[:whole]), file[whole:], zlib.crc32(content), adler)


_RGB_8_BIT = bytes((8, 2, 0, 0, 0))


def _chunk(kind: bytes, content: bytes) -> bytes:
    """A chunk of a PNG file."""
    checked = kind + content
    return len(content).to_bytes(4, "big") + checked + zlib.crc32(checked).to_bytes(4, "big")


def _compressed(size: Size) -> tuple[bytes, int]:
    """A zlib stream of all rows but the own bytes, which its last block, open here, has uncompressed.

    Returns:
        the stream, and the Adler-32 of the rows in it.
    """
    rng = np.random.default_rng(np.random.SeedSequence(0, spawn_key=tuple(size)))
    packer = zlib.compressobj(level=1, strategy=zlib.Z_HUFFMAN_ONLY)
    pieces, adler = [], 1
    for first in range(0, size.height, _BLOCK_ROWS):
        rows = min(_BLOCK_ROWS, size.height - first)
        noise = rng.integers(0, 16, (rows, 1 + 3 * size.width), np.uint8) * np.uint8(17)
        noise[:, 0] = 0  # no filter
        data = noise.tobytes()
        if first + rows == size.height:
            data = data[:-OWN_BYTES]
        adler = zlib.adler32(data, adler)
        pieces.append(packer.compress(data))
    pieces.append(packer.flush(zlib.Z_FULL_FLUSH))
    last_block = b"\x01" + OWN_BYTES.to_bytes(2, "little") + (0xFFFF ^ OWN_BYTES).to_bytes(2, "little")
    return b"".join((*pieces, last_block)), adler


# --- Images that prompts are asked to have: ``count=2 size=1024x768``


IMAGE_FORMS = "count=N (or lengths such as uniform:1,3) size=WxH (or 0.7*512x512+0.3*1280x720) distinct=N"
_IMAGE_EXAMPLE = "such as 'count=2 size=1024x768'"

#: Most images of a request, and most pixels of a request and of all sizes: 16 MP are 34 MB of a body.
MOST_IMAGES = 64
MOST_PIXELS = 1 << 24

_MOST_DISTINCT = 1_000_000_000
_SIZE = re.compile(r"(?:([0-9.]{1,12})\s*\*\s*)?([0-9]{1,6})[xX]([0-9]{1,6})")

#: The shares of sizes may differ from 1 in sum by their rounding.
_ROUNDING = 0.005


class ImagesError(ValueError):
    """Invalid settings of images; has the value and what is allowed."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of images, each with its share of all images. Equal when their texts are equal."""

    text: str
    shares: tuple[tuple[Size, float], ...]

    def draw(self, rng: np.random.Generator) -> Size:
        """One of the sizes."""
        if len(self.shares) == 1:
            return self.shares[0][0]
        edges = list(accumulate(share for _, share in self.shares))
        return self.shares[int(np.searchsorted(edges, rng.random() * edges[-1], side="right"))][0]

    @property
    def most_pixels(self) -> int:
        return max(size.pixels for size, _ in self.shares)


def parse_sizes(text: str) -> Sizes:
    """``1024x768``, or a mixture such as ``0.7*512x512 + 0.3*1280x720`` (raises ImagesError)."""
    shares = []
    words = [word.strip() for word in text.split("+")]
    for word in words:
        found = _SIZE.fullmatch(word)
        if found is None or (len(words) > 1) != (found[1] is not None):
            raise ImagesError(
                f"images: size {text!r}: {word!r} is not WxH, or in a mixture SHARE*WxH; "
                f"allowed is {IMAGE_FORMS}"
            )
        size = Size(int(found[2]), int(found[3]))
        if not all(LEAST_SIDE <= side <= MOST_SIDE for side in size):
            raise ImagesError(f"images: size {word!r}: sides are from {LEAST_SIDE} to {MOST_SIDE:,} pixels")
        share = 1.0 if found[1] is None else plain_number(found[1])
        if not 0 < share <= 1:
            raise ImagesError(f"images: size {text!r}: {found[1]!r} is not a share, as 0.7")
        shares.append((size, share))
    if abs(sum(share for _, share in shares) - 1) > _ROUNDING:
        raise ImagesError(
            f"images: size {text!r}: the shares are {sum(s for _, s in shares):g} in sum, not 1"
        )
    if sum(size.pixels for size, _ in shares) > MOST_PIXELS:
        raise ImagesError(f"images: size {text!r}: all sizes together have at most {MOST_PIXELS:,} pixels")
    return Sizes(text, tuple(shares))


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagesAsked:
    """Images of every prompt: their number, their sizes, and how many different ones there are.

    ``distinct`` None: no two are alike. A number: each is one of so many, the same on all workers, which a
    cache of encoded images may have.

    Raises:
        ImagesError: too many images, or too many pixels.
    """

    count: Lengths
    size: Sizes
    distinct: int | None = None

    def __post_init__(self) -> None:
        if self.count.most > MOST_IMAGES:
            raise ImagesError(f"images: count {self.count.text!r}: a request has at most {MOST_IMAGES}")
        pixels = self.count.most * self.size.most_pixels
        if pixels > MOST_PIXELS:
            raise ImagesError(
                f"images: {self.count.most} of {self.size.text} are {pixels:,} pixels in a request; "
                f"at most {MOST_PIXELS:,}"
            )
        if self.distinct is not None and not 1 <= self.distinct <= _MOST_DISTINCT:
            raise ImagesError(f"images: distinct {self.distinct} is not in 1 .. {_MOST_DISTINCT:,}")

    def prepare(self) -> None:
        """Make what all images of a size have in common, before any request waits for it."""
        for size, _ in self.size.shares:
            prepare(size)

    def draw(self, rng: np.random.Generator, salt: str) -> tuple[InlineImage, ...]:
        """The images of one prompt. ``salt`` is unique to the run, or empty."""
        return tuple(self._image(rng, salt) for _ in range(self.count.sample(rng)))

    def _image(self, rng: np.random.Generator, salt: str) -> InlineImage:
        if self.distinct is None:
            return noise_image(self.size.draw(rng), digest(salt, rng.bytes(16).hex(), size=OWN_BYTES))
        number = int(rng.integers(self.distinct))
        size = self.size.draw(np.random.default_rng(number))  # of an image, whoever sends it
        return noise_image(size, digest(salt, number, size=OWN_BYTES))


def parse_images(text: str) -> ImagesAsked:
    """Parse ``count=2 size=1024x768 distinct=100``; count and distinct have defaults (1, all).

    Raises:
        ImagesError: an unknown word, or a value out of range.
    """
    try:
        # A mixture may have blanks around its plus.
        named, others = named_values(re.sub(r"\s*([+*])\s*", r"\1", text).split())
    except ValueError as e:
        raise ImagesError(f"images {text!r}: {e}; allowed is {IMAGE_FORMS}") from e
    unknown = [*others, *(name for name in named if name not in ("count", "size", "distinct"))]
    if unknown:
        raise ImagesError(f"images {text!r}: {unknown[0]!r} is not one of {IMAGE_FORMS}, {_IMAGE_EXAMPLE}")
    return images_asked(text, named.get("count"), named.get("size"), named.get("distinct"))


def images_asked(where: str, count: str | None, size: str | None, distinct: str | None) -> ImagesAsked:
    """Images of the texts of their settings (raises ImagesError)."""
    if size is None:
        raise ImagesError(f"images {where!r}: there is no size; allowed is {IMAGE_FORMS}, {_IMAGE_EXAMPLE}")
    if distinct is not None and not (distinct.isascii() and distinct.isdecimal() and len(distinct) < 18):
        raise ImagesError(f"images {where!r}: distinct {distinct!r} is not a whole number; {_IMAGE_EXAMPLE}")
    count = count or "1"
    try:
        # A mixture as its grammar has it, with blanks around each plus.
        counts = parse_lengths(count.replace("+", " + ") if "*" in count else count)
    except LengthError as e:
        raise ImagesError(f"images {where!r}: count: {e}") from e
    if counts.joint:
        raise ImagesError(f"images {where!r}: count {count!r} is a file with two columns; it has one")
    return ImagesAsked(
        count=counts, size=parse_sizes(size), distinct=None if distinct is None else int(distinct)
    )
