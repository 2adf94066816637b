"""A real model small enough for a test: a random two-layer Llama and its byte-level BPE tokenizer.

Run by the servers' environment, not by the tests': ``python tiny_model.py DIRECTORY``. Needs no network;
the same seed gives the same weights. What it says is noise, and as byte-level noise it is full of pieces
that are no UTF-8 of their own: a server then holds tokens back or sends U+FFFD, so that its stream has
fewer events than tokens. It never ends an answer by itself, so that ``max_tokens`` is the exact length.
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEED = 20261121
START, END = "<|start|>", "<|end|>"
CORPUS = ["The quick brown fox asks a question. Why? Ωμέγα, naïve café, 漢字, かな, 🦗🦗🦗."] * 2
TEMPLATE = (
    "{% for m in messages %}" + START + "{{ m.role }}\n{{ m.content }}" + END + "{% endfor %}"
    "{% if add_generation_prompt %}" + START + "assistant\n{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """Every byte is a token, and so are a few merges of ASCII and of multi-byte text."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=[START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=START, eos_token=END, pad_token=END, chat_template=TEMPLATE
    )


def model(vocab_size: int, start: int, end: int) -> LlamaForCausalLM:
    """Random weights. Samples from the whole vocabulary, and no token ends the answer."""
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=start,
        eos_token_id=None,
        pad_token_id=end,
    )
    llama = LlamaForCausalLM(config)
    llama.generation_config = GenerationConfig(do_sample=True, top_k=0, eos_token_id=None, pad_token_id=end)
    return llama


def build(directory: Path) -> None:
    """Writes model and tokenizer in the form that ``from_pretrained`` reads."""
    words = tokenizer()
    start, end = words.convert_tokens_to_ids([START, END])
    model(len(words), start, end).save_pretrained(directory)
    words.save_pretrained(directory)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
