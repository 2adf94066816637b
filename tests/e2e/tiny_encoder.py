"""Two real encoders small enough for a test: random weights of BERT that embed, and that score pairs.

Run by the server's environment: ``python tiny_encoder.py DIRECTORY`` writes ``embed`` and ``rank`` there.
Needs no network; the same seed gives the same weights.
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertForSequenceClassification, BertModel, PreTrainedTokenizerFast

SEED = 20261126
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CORPUS = ["the quick brown fox asks a question", "abcdefghijklmnopqrstuvwxyz 0123456789 .,:;?![]"]


def tokenizer() -> PreTrainedTokenizerFast:
    """Pieces of words down to letters, with the marks around texts and pairs that BERT has."""
    pieces = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    pieces.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordPieceTrainer(vocab_size=600, special_tokens=SPECIAL, show_progress=False)
    pieces.train_from_iterator(CORPUS, trainer)
    marks = [(mark, SPECIAL.index(mark)) for mark in ("[CLS]", "[SEP]")]
    pieces.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=marks
    )
    named = dict(zip(("pad", "unk", "cls", "sep", "mask"), SPECIAL, strict=True))
    tokens = {f"{name}_token": token for name, token in named.items()}
    return PreTrainedTokenizerFast(tokenizer_object=pieces, model_max_length=512, **tokens)


def build(directory: Path) -> None:
    """Write both in the form that ``from_pretrained`` reads."""
    torch.manual_seed(SEED)
    words = tokenizer()
    kinds = {"embed": (BertModel, {}), "rank": (BertForSequenceClassification, {"num_labels": 1})}
    for name, (kind, more) in kinds.items():
        config = BertConfig(
            vocab_size=len(words),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=512,
            **more,
        )
        kind(config).save_pretrained(directory / name)
        words.save_pretrained(directory / name)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
