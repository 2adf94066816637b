"""Conversations: in ShareGPT's form, as scripts of a user's messages, and as requests with their history.

A turn's request is its new message, after as much of the earlier turns as the history policy carries: the
user's messages as they were sent, the assistant's as the server answered them. Everything is drawn from
generators of (seed, worker, user, conversation): users are independent of each other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from re import fullmatch
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from llm_locust.wire.dialects.dialect import Message
from llm_locust.workload.draws import Lengths, TimeDistribution, generator, parse_lengths, parse_times
from llm_locust.workload.prompts import Prompt, head_tag, with_head

# --- ShareGPT's form: ``{"id": ..., "conversations": [{"from": "human", "value": ...}, ...]}``
#
# The speakers ``human``, ``user`` and ``prompter`` ask; ``gpt``, ``assistant``, ``model``, ``chatgpt``,
# ``bing`` and ``bard`` answer; ``system`` and ``developer`` are the system message. Calls of tools and their
# results (``function_call``, ``observation``, ``tool``, ...), answers before the first question and items
# without text are left out; the published files have all of these. Items may have ``role`` and ``content``
# instead, and the list may be called ``conversation`` or ``turns``. Of ``turns``, texts are questions without
# answers (MT-bench).


#: Keys of the list; the first one that is there is the conversation.
CONVERSATION_KEYS = ("conversations", "conversation", "turns")

_SPEAKERS = {
    **dict.fromkeys(("human", "user", "prompter"), "user"),
    **dict.fromkeys(("gpt", "assistant", "model", "chatgpt", "bing", "bard"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(
        ("function_call", "observation", "tool", "tool_call", "function", "function_response"), None
    ),
}


@dataclass(frozen=True, slots=True)
class ShareGptTurn:
    """A user message, and the answer; None without one."""

    text: str
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class ShareGptConversation:
    """A user's turns in order, at least one, and the system message before them."""

    turns: tuple[ShareGptTurn, ...]
    system: str | None = None
    id: str | None = None


class _Item(msgspec.Struct, rename={"speaker": "from"}):
    """What somebody says; ``from`` may be called ``role``, and ``value`` ``content``. Others are ignored."""

    speaker: str | UnsetType = UNSET
    role: str | UnsetType = UNSET
    value: str | list[dict[str, Any]] | UnsetType | None = UNSET
    content: str | list[dict[str, Any]] | UnsetType | None = UNSET


class _Conversation(msgspec.Struct):
    """One of :data:`CONVERSATION_KEYS`, under its own name for the places in errors."""

    conversations: list[str | _Item] = []
    conversation: list[str | _Item] = []
    turns: list[str | _Item] = []
    id: str | int | float | None = None


def conversation_of(value: Any) -> ShareGptConversation | None:
    """Parse a conversation in ShareGPT's form; None without a question.

    Raises:
        ValueError: it is not of that form, or a speaker is unknown.
    """
    if not isinstance(value, dict):
        raise ValueError(f"Expected `object`, got `{type(value).__name__}`")
    key = next((key for key in CONVERSATION_KEYS if value.get(key) is not None), None)
    if key is None:
        raise ValueError(f"no {', '.join(CONVERSATION_KEYS)}")
    conversation = msgspec.convert({key: value[key], "id": value.get("id")}, _Conversation)
    system: list[str] = []
    turns: list[ShareGptTurn] = []
    for place, item in enumerate(getattr(conversation, key)):
        role, text = _role_and_text(item, f"$.{key}[{place}]")
        if not text.strip():
            continue
        if role == "user":
            turns.append(ShareGptTurn(text))
        elif role == "system":
            system.append(text)
        elif role == "assistant" and turns:
            before = turns[-1].answer
            answer = text if before is None else f"{before}\n\n{text}"
            turns[-1] = ShareGptTurn(turns[-1].text, answer)
    if not turns:
        return None
    id_ = None if conversation.id is None else str(conversation.id)
    return ShareGptConversation(tuple(turns), "\n\n".join(system) or None, id_)


def _role_and_text(item: str | _Item, where: str) -> tuple[str | None, str]:
    """The role of an item, None where it does not count, and its text, of parts that are text."""
    if isinstance(item, str):
        return "user", item
    speaker = item.role if item.speaker is UNSET else item.speaker
    value = item.content if item.value is UNSET else item.value
    if isinstance(speaker, UnsetType) or isinstance(value, UnsetType):
        lacking = "from" if speaker is UNSET else "value"
        raise ValueError(f"missing required field `{lacking}` - at `{where}`")
    if speaker.lower() not in _SPEAKERS:
        known = ", ".join(_SPEAKERS)
        raise ValueError(f"speaker {speaker[:40]!r} - at `{where}.from`; known are {known}")
    if isinstance(value, list):
        value = "\n\n".join(part["text"] for part in value if isinstance(part.get("text"), str))
    return _SPEAKERS[speaker.lower()], value or ""


def prompt_of_conversation(value: Any) -> Prompt | None:
    """A conversation's first turn as a prompt (raises as :func:`conversation_of`)."""
    conversation = conversation_of(value)
    if conversation is None:
        return None
    first = conversation.turns[0]
    if conversation.system is None:
        return Prompt(text=first.text, answer=first.answer, id=conversation.id)
    messages = (
        {"role": "system", "content": conversation.system},
        {"role": "user", "content": first.text},
    )
    return Prompt(messages=messages, answer=first.answer, id=conversation.id)


# --- How users behave in conversations


#: Turns of a conversation if neither its plan nor a dataset gives a number.
DEFAULT_TURNS = 5

#: Third number of the keys of :func:`~llm_locust.workload.draws.generator`; their last is one of these.
CONVERSATION = 100
_TURNS, _PATIENCE, _THINKING, FOLLOW_UPS, _SCRIPT = range(5)

HISTORY_FORMS = "full, none, or last:N (N turns)"


class ConversationError(ValueError):
    """An invalid plan; has the value and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationPlan:
    """Behaviour of the users in conversations.

    Attributes:
        turns: number per conversation; None: that of the dataset, else :data:`DEFAULT_TURNS`.
        think_time: between an answer's end and the next turn; None: no pause.
        patience: longest wait for a first token, drawn once a conversation; None: unlimited.
        carried: number of earlier turns that are sent again, None for all of them.
    """

    turns: Lengths | None = None
    think_time: TimeDistribution | None = None
    patience: TimeDistribution | None = None
    carried: int | None = None


def parse_plan(
    *,
    turns: str | Lengths | None = None,
    think_time: str | None = None,
    patience: str | None = None,
    history: str = "full",
) -> ConversationPlan:
    """Parse the texts of a plan; the fields of a scenario's ``conversation`` fit too.

    Raises:
        LengthError, TimesError, ConversationError: with the invalid text.
    """
    return ConversationPlan(
        turns=parse_lengths(turns) if isinstance(turns, str) else turns,
        think_time=None if think_time is None else parse_times(think_time),
        patience=None if patience is None else parse_times(patience),
        carried=parse_history(history),
    )


def parse_history(text: str) -> int | None:
    """Number of turns that ``full`` (None), ``none`` (0) or ``last:N`` carry (raises ConversationError)."""
    if text == "full":
        return None
    if text == "none":
        return 0
    match = fullmatch(r"last:([1-9][0-9]{0,8})", text)
    if match is None:
        raise ConversationError(f"history {text!r}: allowed are {HISTORY_FORMS}")
    return int(match[1])


@dataclass(frozen=True, slots=True)
class ConversationId:
    """Identity of a conversation: the n-th of a user of a worker, in the run of a seed."""

    seed: int
    worker: int
    user: int
    number: int

    @property
    def key(self) -> tuple[str, int, int, int]:
        """No other conversation of the run has it."""
        return "conversation", self.worker, self.user, self.number

    def generator(self, purpose: int) -> np.random.Generator:
        return generator(self.seed, self.worker, self.user, CONVERSATION, self.number, purpose)


@dataclass(frozen=True, slots=True)
class Manner:
    """Behaviour of a user in one conversation. ``think_s`` yields the pauses between turns."""

    patience_s: float | None
    think_s: Iterator[float]


def manner(plan: ConversationPlan, place: ConversationId) -> Manner:
    patience = None if plan.patience is None else plan.patience.draw_s(place.generator(_PATIENCE))
    return Manner(patience, _thinking(plan.think_time, place))


def _thinking(think_time: TimeDistribution | None, place: ConversationId) -> Iterator[float]:
    rng = place.generator(_THINKING)
    while True:
        yield 0.0 if think_time is None else think_time.draw_s(rng)


# --- A user's messages, turn by turn


@dataclass(frozen=True, slots=True)
class Script:
    """A user's messages, turn by turn, whatever the answers; at least one turn.

    Each turn is a prompt with only its new message. ``lead`` (the system message) precedes all of them, and
    every history policy keeps it.
    """

    turns: tuple[Prompt, ...]
    lead: tuple[Message, ...] = ()


def script_of(prompt: Prompt) -> Script:
    """Script from a dataset's line: each user message starts a turn.

    Messages of an assistant or a tool are left out: the server's own answers replace them. A line with at
    most one user message is one turn with all its messages.
    """
    messages = prompt.messages or ()
    asked = [i for i, message in enumerate(messages) if message.get("role") == "user"]
    if len(asked) < 2:
        return Script((prompt,))
    lead = tuple(m for m in messages[: asked[0]] if m.get("role") in ("system", "developer"))
    # The line's lengths and its right answer apply to its last question, after all others.
    new = replace(prompt, asked_input_tokens=None, counted_input_tokens=None, answer=None, expected=None)
    turns = [replace(new, messages=(messages[i],)) for i in asked]
    return Script((*turns[:-1], replace(turns[-1], answer=prompt.answer, expected=prompt.expected)), lead)


def script_of_dialogue(dialogue: ShareGptConversation, head: str = "") -> Script:
    """Script from a dataset's conversation; ``head``, if given, starts all its requests."""
    turns = [Prompt(text=turn.text, id=dialogue.id) for turn in dialogue.turns]
    if dialogue.system is None:
        first = with_head(turns[0], head) if head else turns[0]
        return Script((first, *turns[1:]))
    system = f"{head} {dialogue.system}" if head else dialogue.system
    return Script(tuple(turns), ({"role": "system", "content": system},))


def drawn_script(
    dialogues: Sequence[ShareGptConversation], place: ConversationId, salt: str | None
) -> Script:
    """A random one of ``dialogues``, uniformly. ``salt``, unique to the run, makes its start unique."""
    chosen = int(place.generator(_SCRIPT).integers(len(dialogues)))
    head = "" if salt is None else head_tag(salt, *place.key)
    return script_of_dialogue(dialogues[chosen], head)


def turn_count(plan: ConversationPlan, place: ConversationId, own: int, most: int | None = None) -> int:
    """Number of turns of a conversation: the plan's, up to ``most``; ``own`` if the plan has none."""
    if plan.turns is None:
        return own
    drawn = plan.turns.sample(place.generator(_TURNS))
    return drawn if most is None else min(drawn, most)


# --- Earlier turns in a request


@dataclass(frozen=True, slots=True)
class AnsweredTurn:
    """One answered turn: its messages, and their tokens as far as they are known."""

    messages: tuple[Message, ...]
    tokens: int | None


def exchange(said: Prompt, answer: str, answer_tokens: int | None) -> AnsweredTurn:
    """New messages of a turn, and its answer.

    Args:
        answer_tokens: of ``answer`` alone, without the reasoning before it.
    """
    new = _tokens_of(said)
    tokens = None if new is None or answer_tokens is None else new + answer_tokens
    return AnsweredTurn((*_messages_of(said), {"role": "assistant", "content": answer}), tokens)


def carry_on(
    past: Sequence[AnsweredTurn], last: AnsweredTurn, carried: int | None
) -> tuple[AnsweredTurn, ...]:
    """Turns that the next request starts with."""
    turns = (*past, last)
    return turns if carried is None else turns[max(0, len(turns) - carried) :]


def with_history(said: Prompt, past: Sequence[AnsweredTurn], lead: Sequence[Message] = ()) -> Prompt:
    """Request of a turn: ``lead``, the turns ``past``, and the new message.

    Its asked input length is the new one and all that is carried; None if a part is unknown.
    """
    if not past and not lead:
        return said
    tokens = [_tokens_of(said), *(e.tokens for e in past)]
    return replace(
        said,
        text=None,
        messages=(*lead, *chain.from_iterable(e.messages for e in past), *_messages_of(said)),
        asked_input_tokens=None if lead or None in tokens else sum(t for t in tokens if t is not None),
        counted_input_tokens=None,
    )


def _messages_of(prompt: Prompt) -> tuple[Message, ...]:
    if prompt.messages is not None:
        return prompt.messages
    return ({"role": "user", "content": prompt.text},)


def _tokens_of(said: Prompt) -> int | None:
    return said.asked_input_tokens if said.counted_input_tokens is None else said.counted_input_tokens
