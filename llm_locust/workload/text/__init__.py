"""Text of prompts: of an asked length, by a tokenizer or by words, with shared prefixes."""
