"""A real model small enough for a test: a random two-layer Llama and its byte-level BPE tokenizer.

Made in the servers' environment, not in the tests'. Needs no network; the same seed gives the same weights.
What it says is noise, and as byte-level noise it is full of pieces that are no UTF-8 of their own: a server
then holds tokens back or sends U+FFFD, so that its stream has fewer events than tokens. It never ends an
answer by itself, so that ``max_tokens`` is the exact length.

With a folder of recorded tasks the model is one for their histories of up to 160 kB, of which a processor
reads one in a second: one layer of one narrow head, and a tokenizer that knows these tasks' words.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

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


#: Sizes of the model, and of that for long histories.
TINY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
LONG: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "max_position_embeddings": 65_536,
}


def texts_of(tasks: Path) -> list[str]:
    """The texts of each task's last turn, which has all earlier ones."""
    last = [json.loads(path.read_text().splitlines()[-1]) for path in sorted(tasks.glob("*.jsonl"))]
    return [str(message.get("content")) for turn in last for message in turn["messages"]]


def tokenizer(corpus: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Every byte is a token, and so are merges that the corpus has: a few of ASCII and of multi-byte text."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(corpus, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=START, eos_token=END, pad_token=END, chat_template=TEMPLATE
    )


def model(vocab_size: int, start: int, end: int, sizes: dict[str, Any]) -> LlamaForCausalLM:
    """Random weights. Samples from the whole vocabulary, and no token ends the answer."""
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=vocab_size,
        bos_token_id=start,
        eos_token_id=None,
        pad_token_id=end,
        **sizes,
    )
    llama = LlamaForCausalLM(config)
    llama.generation_config = GenerationConfig(do_sample=True, top_k=0, eos_token_id=None, pad_token_id=end)
    return llama


def build(directory: Path, tasks: Path | None = None) -> None:
    """Writes model and tokenizer in the form that ``from_pretrained`` reads."""
    words = tokenizer(CORPUS, 320) if tasks is None else tokenizer(texts_of(tasks), 16_000)
    start, end = words.convert_tokens_to_ids([START, END])
    model(len(words), start, end, TINY if tasks is None else LONG).save_pretrained(directory)
    words.save_pretrained(directory)
