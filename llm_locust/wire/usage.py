"""Token counts by the server: where an answer has them, how they add up, and whether they can be true.

:func:`gather` finds the counts of one event, under whatever name and at whatever place they stand. Counts of
several events are cumulative: of each the largest stands, and neither a zero, nor a null, nor an object
without it changes it. :func:`checked` holds the number of output tokens against the events and the text.
"""

import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from llm_locust.wire.payload import PayloadError, parse

#: No prompt and no answer has more tokens: a larger number is no count.
MAX_COUNT = 100_000_000

#: What stands in every event that may have counts, and is no list of tokens. Looking for it takes a tenth of
#: what reading takes.
_SPOKEN = re.compile(rb"oken(?:s|[_-]*[Cc]ount)|eval_count|predicted_n")

#: A longer document is not read for its usage alone.
_MAX_SPOKEN_BYTES = 1 << 20

#: Names of counts without case and underscores, in order of priority.
_INPUT = ("prompttokens", "inputtokens", "prompttokencount", "inputtokencount", "promptevalcount")
_OUTPUT = (
    *("completiontokens", "outputtokens", "generatedtokens", "completiontokencount", "outputtokencount"),
    *("candidatestokencount", "generatedtokencount", "evalcount", "predictedn"),
)
_TOTAL = ("totaltokens", "totaltokencount")
_CACHED = ("cachedtokens", "promptcachehittokens", "cachereadinputtokens", "cachedcontenttokencount")
_REASONING = ("reasoningtokens", "thinkingtokens", "thoughtstokencount")

#: An API that counts its cache apart has the rest of the prompt as ``input_tokens``.
_CACHE_APART = (
    *("cachereadinputtokens", "cachecreationinputtokens", "cachewriteinputtokens"),
    *("cachereadinputtokencount", "cachewriteinputtokencount"),
)
_KNOWN = frozenset((*_INPUT, *_OUTPUT, *_TOTAL, *_CACHED, *_REASONING, *_CACHE_APART))

#: What one object says of the whole prompt, and of its part that the cache had, where it counts that apart;
#: and the rest of the prompt in an object that says nothing of the cache. A later object may divide the
#: prompt anew.
_WHOLE_INPUT, _WHOLE_APART, _LONE_INPUT = "wholeinput", "wholeapart", "loneinput"

#: The counts of one object made its total: those of several objects do too.
_ADDS_UP = "addsup"

#: A count above :data:`MAX_COUNT` was sent.
_BEYOND = "beyond"

#: Objects of counts that are not called usage: of TGI, of llama.cpp, of Bedrock, of Cohere, of SGLang.
_OTHER_NAMES = frozenset(
    {
        *("details", "timings", "amazonbedrockinvocationmetrics", "tokens", "billedunits"),
        *("metainfo", "stats", "tokencount", "tokencounts"),
    }
)

#: What has texts, and no usage.
_SKIPPED = frozenset(
    {"content", "toolcalls", "functioncall", "logprobs", "promptlogprobs", "error", "output", "arguments"}
)
_MAX_DEPTH = 4
_MAX_VALUES = 256

_DIGITS = re.compile(r"([0-9]{1,9})(?:\.0+)?")


class CountFault(StrEnum):
    """What does not fit about a number of output tokens by the server."""

    FEWER = "fewer_than_events"  # each event with text has a token: not used
    BYTES = "more_than_bytes"  # a token has a byte: not used
    TEXT = "more_than_text"  # so many in each event, whose text has not so many: not used
    BEYOND = "beyond_any_length"  # more than any model can count: not used
    REASONING = "reasoning_left_out"  # added, where its number is known; else not used
    TOTAL = "other_total"  # prompt + output is not the total


#: A count as it was sent.
Sent = int | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts by the server, as it sent them. ``None`` where it did not say."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None  # of the input, out of the prefix cache
    reasoning_tokens: int | None = None  # of the output
    total_tokens: int | None = None


def may_have_counts(data: bytes) -> bool:
    """Whether an event or an answer may have counts at an unexpected place: a look at its bytes."""
    return len(data) <= _MAX_SPOKEN_BYTES and _SPOKEN.search(data) is not None


def lacks_counts(data: bytes) -> bool:
    """Whether an event has none for sure: it is short, and no word of them is in its bytes."""
    return len(data) <= _MAX_SPOKEN_BYTES and _SPOKEN.search(data) is None


def gather(counts: dict[str, int], payload: Any, *, begun: bool = False) -> None:
    """Add the counts of an event to those of the events before it.

    Args:
        counts: those so far, changed in place.
        payload: the event, of any form.
        begun: the answer has just begun, and its number of output tokens means nothing.
    """
    for sent in _objects(payload):
        add_counts(counts, sent, begun=begun)


def add_counts(counts: dict[str, int], sent: Mapping[str, Any], *, begun: bool = False) -> None:
    """The same of one object that has the counts itself."""
    own = _count(sent.get("input_tokens", sent.get("inputTokens")))
    if own is not None and own <= MAX_COUNT:
        _add_whole(counts, own, sent)
    news: dict[str, int] = {}
    for key, value in islice(sent.items(), _MAX_VALUES):
        name = _bare(key)
        if isinstance(value, dict):
            if name.endswith("details") or name in _OTHER_NAMES:
                add_counts(counts, value, begun=begun)
        elif name in _KNOWN and not (begun and name in _OUTPUT) and (count := _count(value)) is not None:
            if count > MAX_COUNT:
                counts[_BEYOND] = 1
            else:
                news[name] = max(count, news.get(name, 0))
    if (total := _first(news, _TOTAL)) is not None:
        news[_ADDS_UP] = int(total == (_first(news, _INPUT) or 0) + (_first(news, _OUTPUT) or 0))
    merge(counts, news)


def _add_whole(counts: dict[str, int], own: int, sent: Mapping[str, Any]) -> None:
    found = [_count(sent[key]) for key in islice(sent, _MAX_VALUES) if _bare(key) in _CACHE_APART]
    apart = [count for count in found if count is not None and count <= MAX_COUNT]
    news = {_WHOLE_INPUT: own + sum(apart), _WHOLE_APART: sum(apart)} if apart else {_LONE_INPUT: own}
    merge(counts, news)


def merge(counts: dict[str, int], news: Mapping[str, int]) -> None:
    """Add counts of later events: of each the larger stands."""
    for name, count in news.items():
        counts[name] = max(count, counts.get(name, 0))


def usage_of(counts: Mapping[str, int]) -> Usage | None:
    """What was gathered, under one name each; None where that is nothing."""
    if not counts:
        return None
    given = _first(counts, _INPUT)
    if "prompttokens" not in counts and _WHOLE_INPUT in counts:
        given = max(counts[_WHOLE_INPUT], counts.get(_LONE_INPUT, 0) + counts[_WHOLE_APART])
    elif "prompttokens" not in counts and "inputtokens" in counts:
        given = counts["inputtokens"] + sum(counts.get(name, 0) for name in _CACHE_APART)
    output, total = _first(counts, _OUTPUT), _first(counts, _TOTAL)
    if total is not None and counts.get(_ADDS_UP):
        total = max(total, (given or 0) + (output or 0))
    return Usage(
        input_tokens=given,
        output_tokens=output,
        cached_tokens=_first(counts, _CACHED),
        reasoning_tokens=_first(counts, _REASONING),
        total_tokens=total,
    )


def output_of(counts: Mapping[str, int]) -> int | None:
    """The output tokens among them."""
    return _first(counts, _OUTPUT)


def _objects(payload: Any) -> Iterator[Mapping[str, Any]]:
    """Objects in an event that have counts: those called usage, or as some servers call them."""
    left: list[tuple[str, Any, int]] = [("", payload, 0)] if isinstance(payload, dict) else []
    for _ in range(_MAX_VALUES):
        if not left:
            return
        name, value, depth = left.pop()
        if isinstance(value, list):
            left += [(name, item, depth) for item in value[:16] if isinstance(item, dict)]
            continue
        is_one = not depth and any(_bare(key) in _OUTPUT for key in islice(value, _MAX_VALUES))
        if is_one or "usage" in name or name in _OTHER_NAMES:
            yield value
        if depth < _MAX_DEPTH and "usage" not in name:
            for key, item in value.items():
                if isinstance(item, str) and item.startswith("{") and "usage" in _bare(key):
                    with suppress(PayloadError):  # written as a text
                        left.append((_bare(key), parse(item.encode("utf-8", "replace")), depth + 1))
                if isinstance(item, (dict, list)) and (bare := _bare(key)) not in _SKIPPED:
                    left.append((bare, item, depth + 1))


def _bare(key: Any) -> str:
    return _bare_name(str(key)[:40])


@lru_cache(maxsize=1024)
def _bare_name(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _count(value: Any) -> int | None:
    """A whole number from 0 on, also where it was sent as a text."""
    if type(value) is int:
        return min(value, MAX_COUNT + 1) if value >= 0 else None
    if isinstance(value, str):
        digits = _DIGITS.fullmatch(value)
        return int(digits[1]) if digits else None
    if not isinstance(value, float) or not value >= 0:
        return None
    if value > MAX_COUNT:
        return MAX_COUNT + 1
    return int(value) if value == int(value) else None


def _first(counts: Mapping[str, int], names: tuple[str, ...]) -> int | None:
    """The first that is not 0, else 0 where one is."""
    found = [counts[name] for name in names if name in counts]
    return next((count for count in found if count), 0 if found else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Came:
    """What came of an answer, for its count to be held against.

    ``reasoning_events`` are those of the ``events`` that had reasoning only. ``text`` is all that came, with
    reasoning and tool calls; ``unread_events`` had text in fields that are not read, of ``unread_bytes``.
    ``hides_reasoning``: no reasoning came, or a summary of it. ``withholds``: the server says that it keeps
    some back, of which usage may have no number.
    """

    streamed: bool
    events: int
    reasoning_events: int
    text: str
    reasoning: str
    unread_events: int
    unread_bytes: int
    tool_calls: int
    hides_reasoning: bool
    withholds: bool

    def counted_events(self, reasoning: int) -> int:
        """The events that usage counts: those of a summary stand for ``reasoning`` tokens."""
        return self.events - (self.reasoning_events if reasoning and self.hides_reasoning else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputCount:
    """The number of an answer's output tokens by its server, as far as it can be true.

    Attributes:
        tokens: None where the server has not counted, or what it says cannot be.
        hidden: those of them that came in no token event: reasoning that was not sent, text that is not read.
        opening: by counts that came in each event, those that had come with the event in which the pace of
            the answer begins, without hidden ones; None where events have no counts.
        came: by the same, those that had come with the last token event.
        fault: what does not fit.
    """

    tokens: int | None = None
    hidden: int = 0
    opening: int | None = None
    came: int | None = None
    fault: CountFault | None = None


NOT_COUNTED = OutputCount()

#: Tokens without a text: the end, the marks around reasoning, around channels, and of a tool call. An answer
#: may have so many more than its text allows.
_WITHOUT_TEXT, _AROUND_REASONING, _OF_TOOL_CALL = 4, 10, 16

#: A count is doubted where it is so much larger than both the number of events and what the text may have.
_DOUBTED = 1.3

#: A word of so many letters is one token, a longer one may have a token for every two. That is more than five
#: tokenizers of 2020 to 2025 make of texts in nine languages, code, names and DNA, and within
#: :data:`_DOUBTED` of what they make of base64 and random letters.
_LETTERS_OF_ONE = 4

#: Characters of a text that are looked at: 1 ms.
_SAMPLE_CHARS = 1 << 16


def checked(usage: Usage | None, counts: Mapping[str, int], came: Came, *, by_event: bool) -> OutputCount:
    """The server's number of output tokens, held against what came.

    - Each event with text has a token at least.
    - A token has a byte of the text at least, but for a few that have none, and for hidden reasoning.
    - Without counts in each event, a number that needs several tokens an event must be one that the text may
      have: :func:`most_tokens`.
    - Where prompt and output do not make the total, reasoning may have been left out; else the total gives
      another number of output tokens. The smaller of the two that can be true is taken.

    Args:
        counts: what ``usage`` was made of.
        by_event: each event had a count of its own, and they grew as events came.
    """
    if usage is None:
        return OutputCount(fault=CountFault.BEYOND if _BEYOND in counts else None)
    reasoning, other = usage.reasoning_tokens or 0, None
    if usage.input_tokens and usage.total_tokens:
        other = usage.total_tokens - usage.input_tokens
    if came.streamed and not by_event and _is_summary(came, reasoning):
        came = replace(came, hides_reasoning=True)
    n = usage.output_tokens or other or usage.output_tokens
    if n is None or (n <= 0 and came.events):
        return OutputCount(fault=CountFault.BEYOND if _BEYOND in counts else None)
    faults = {count: _fault_of(count, reasoning, came, by_event=by_event) for count in (n, other) if count}
    with_reasoning = n + reasoning
    left_out = other == with_reasoning or (other in (None, n) and n < came.counted_events(reasoning))
    if reasoning and left_out and _fault_of(with_reasoning, reasoning, came, by_event=by_event) is None:
        return _counted(with_reasoning, reasoning, came, CountFault.REASONING)
    can_be = [count for count, fault in faults.items() if fault is None and count > 0] or [n] * (not n)
    if not can_be:
        return OutputCount(fault=faults[n])
    odd = None if other in (None, n) else CountFault.TOTAL
    return _counted(min(can_be), reasoning, came, faults.get(n) or odd)


def _counted(n: int, reasoning: int, came: Came, fault: CountFault | None) -> OutputCount:
    return OutputCount(tokens=n, hidden=_hidden(n, reasoning, came), fault=fault)


def _hidden(n: int, reasoning: int, came: Came) -> int:
    """Tokens that came in no token event, as far as the events leave room for them: reasoning that was not
    sent, all of them where its number is not known; or one for each event whose text is not read."""
    most = n - came.counted_events(reasoning) if came.events else 0
    if came.withholds and came.streamed and not reasoning:
        return max(0, most)
    unsent = reasoning if came.hides_reasoning and reasoning <= most else 0
    return max(unsent, min(came.unread_events, most))


def _is_summary(came: Came, reasoning: int) -> bool:
    """Whether the reasoning that came has too few events, and too little text, for its number of tokens."""
    beyond = reasoning > _DOUBTED * came.reasoning_events + _AROUND_REASONING
    return beyond and reasoning > _DOUBTED * most_tokens(came.reasoning) + _AROUND_REASONING


def _fault_of(n: int, reasoning: int, came: Came, *, by_event: bool) -> CountFault | None:
    """Why an answer cannot have so many output tokens; None where it can."""
    if n < came.counted_events(reasoning):
        left_out = came.reasoning_events and n >= came.events - came.reasoning_events
        return CountFault.REASONING if left_out else CountFault.FEWER
    visible = n - _hidden(n, reasoning, came)
    spare = _WITHOUT_TEXT + _OF_TOOL_CALL * came.tool_calls + _AROUND_REASONING * bool(came.reasoning_events)
    if visible > len(came.text) + spare:  # else there are bytes enough in any case
        size = len(came.text.encode("utf-8", "replace")) + came.unread_bytes
        if visible > size + spare:
            return CountFault.BYTES
    needs_several = came.streamed and visible > _DOUBTED * came.events + spare
    doubted = needs_several and not by_event and not came.unread_bytes
    if doubted and visible > _DOUBTED * most_tokens(came.text) + spare:
        return CountFault.TEXT
    return None


def most_tokens(text: str) -> float:
    """Most tokens that a text has by today's tokenizers.

    A word of up to four ASCII letters, with the blank before it, is one; a longer one may have a token for
    every two letters. Of all else, each byte of UTF-8 may be one: digits, punctuation, and letters that a
    tokenizer does not know.
    """
    sample = text[:_SAMPLE_CHARS]
    raw = np.frombuffer(b" " + sample.encode("utf-8", "replace") + b" ", np.uint8)
    letter = ((raw | 32) >= ord("a")) & ((raw | 32) <= ord("z"))
    edges = np.flatnonzero(letter[1:] != letter[:-1])
    words = edges[1::2] - edges[::2]
    blanks = np.count_nonzero((raw[1:-1] == ord(" ")) & letter[2:])
    others = len(raw) - 2 - int(words.sum()) - blanks
    most = int(np.where(words <= _LETTERS_OF_ONE, 1, -(-words // 2)).sum()) + others
    return most * len(text) / max(1, len(sample))


class Running(msgspec.Struct, gc=False):
    """Usage of an event with text: the tokens so far. All else of it comes in other events too."""

    completion_tokens: Sent = None
    prompt_tokens: Sent = None
    total_tokens: Sent = None

    @property
    def tokens(self) -> int:
        """0 where that is no count."""
        found = _count(self.completion_tokens) or 0
        return found if found <= MAX_COUNT else 0

    def follows(self, last: "Running | None") -> bool:
        """Whether it says all that the ``last`` said, and no count is smaller or impossible."""
        return (
            last is not None
            and self.prompt_tokens == last.prompt_tokens
            and _goes_on(last.completion_tokens, self.completion_tokens)
            and _goes_on(last.total_tokens, self.total_tokens)
        )


def _goes_on(last: Sent, now: Sent) -> bool:
    return now == last or (type(now) is int and last is not None and last <= now <= MAX_COUNT)


@dataclass(frozen=True, slots=True)
class EventCount:
    """The output tokens so far by an event that ends at ``end``, and whether they are more than before."""

    end: int
    tokens: int
    grew: bool


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Token events of an answer whose events have counts, and the output tokens that had come with some."""

    ends: "array[int]"
    first_answer: int | None
    first: int  # tokens that had come with the first event
    answer: int  # with the first of the answer
    last: int  # with the last


def deliveries(
    token_ends: "array[int]",
    first_answer: int | None,
    event_counts: Sequence[EventCount],
    held_ends: "array[int]",
    *,
    done: bool,
) -> Deliveries | None:
    """Which tokens the events brought, where the server counts in each event; None where it does not.

    An event without text whose count has grown brought tokens whose text is held back: it is a token event.
    It is none if it precedes the first text, and that counts no further token: then this text is of these.

    The counts are taken if they grew by one an event at least, on average.

    Args:
        token_ends: of events with text.
        event_counts: of all events without text, of the first with text, of the first of the answer, and of
            the last that has a count.
        held_ends: of events that have neither text nor a finish reason.
        done: nothing follows. Of an answer that is complete without any text no event brought a token.
    """
    if len(event_counts) < 2 or (done and not token_ends):
        return None
    by_end = {each.end: each.tokens for each in event_counts}
    empty, last_text = set(held_ends), token_ends[-1] if token_ends else None
    held = [each for each in event_counts if each.grew and each.end in empty]
    if last_text is not None:
        first_text = by_end.get(token_ends[0], 0)
        held = [h for h in held if h.end < last_text and (h.end > token_ends[0] or h.tokens < first_text)]
    ends = array("q", sorted([*token_ends, *(each.end for each in held)])) if held else token_ends
    if not ends:
        return None
    first = by_end.get(ends[0], 0)
    last = by_end.get(ends[-1], 0)
    if not first or last - first < len(ends) - 1:
        return None
    before = 0 if first_answer is None else sum(each.end < token_ends[first_answer] for each in held)
    answer = first if first_answer is None else by_end.get(token_ends[first_answer], first)
    moved = None if first_answer is None else first_answer + before
    return Deliveries(ends, moved, first, answer, last)
