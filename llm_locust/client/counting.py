"""Token counts of answers by the run's tokenizer, if the server has not counted them."""

from collections.abc import Callable

import gevent

from llm_locust.wire.reply import Reply

#: Returns the number of tokens of a text.
CountTokens = Callable[[str], int]

#: Most characters counted in the event loop: takes some 10 ms.
MAX_LOOP_CHARS = 8192

#: Most characters counted at all: takes some 1 s, in a thread.
MAX_COUNTED_CHARS = 1 << 20


def server_counted(reply: Reply) -> bool:
    """Whether the server has counted the output tokens, and its number can be true."""
    return reply.count.tokens is not None


def count_here(reply: Reply, count: CountTokens | None) -> int | None:
    """Count the tokens of a short answer that the server has not counted; None for any other."""
    if count is None or server_counted(reply) or not 0 < reply.output_chars <= MAX_LOOP_CHARS:
        return None
    return count(_text(reply))


def count_in_thread(reply: Reply, count: CountTokens) -> int | None:
    """Count the tokens of a long answer that the server has not counted, in a thread; None for others."""
    if server_counted(reply) or not MAX_LOOP_CHARS < reply.output_chars <= MAX_COUNTED_CHARS:
        return None
    tokens: int = gevent.get_hub().threadpool.apply(count, (_text(reply),))
    return tokens


def _text(reply: Reply) -> str:
    calls = (f"{call.name}{call.arguments}" for call in reply.tool_calls)
    return "".join((reply.reasoning, reply.text, reply.refusal, *calls))
