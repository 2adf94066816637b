"""Small tokenizers of every kind in use, trained on the vocabulary of synthetic prompts."""

import json
from functools import cache
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from llm_locust.workload.prompts import WORDS

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

#: Its marks are no special tokens: they can merge with what stands beside them.
PLAIN_MARKS = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'].upper() }}: {{ m['content'] | trim }} {% endfor %}"
    "ASSISTANT:"
)

SPECIAL = ("<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>")

KINDS = ("byte_level", "metaspace", "word_piece", "unigram", "letters", "unsplit")


def _sentences() -> list[str]:
    rng = np.random.default_rng(5)
    return [" ".join(WORDS[i] for i in rng.integers(len(WORDS), size=40)) for _ in range(150)]


@cache
def small_tokenizer(kind: str) -> str:
    """A tokenizer.json's text.

    ``letters`` has no word of one token; ``unsplit`` merges across spaces, so that the tokens of
    words never add up.
    """
    alphabet = sorted(set(pre_tokenizers.ByteLevel.alphabet()))
    size, model = 900, models.BPE(unk_token="<unk>")
    tokenizer = Tokenizer(model)
    if kind == "byte_level":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif kind in ("metaspace", "unigram"):
        tokenizer = Tokenizer(models.Unigram()) if kind == "unigram" else tokenizer
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
    elif kind == "word_piece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))  # type: ignore[no-untyped-call,unused-ignore]
        tokenizer.normalizer = normalizers.Lowercase()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    elif kind == "letters":
        size = 0
    special = list(SPECIAL)
    trainer = {
        "word_piece": trainers.WordPieceTrainer(vocab_size=size, special_tokens=special, show_progress=False),
        "unigram": trainers.UnigramTrainer(
            vocab_size=size, special_tokens=special, unk_token="<unk>", show_progress=False
        ),
    }.get(
        kind,
        trainers.BpeTrainer(
            vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        ),
    )
    tokenizer.train_from_iterator(_sentences(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return str(tokenizer.to_str())


def write_folder(folder: Path, kind: str = "byte_level", template: str | None = CHATML) -> Path:
    """A Hugging Face folder with that tokenizer, and a chat template where one is given."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(small_tokenizer(kind))
    config: dict[str, object] = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
