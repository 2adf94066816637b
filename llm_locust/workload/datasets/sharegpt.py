"""ShareGPT's form: ``{"id": ..., "conversations": [{"from": "human", "value": ...}, ...]}``.

The speakers ``human`` and ``user`` ask; ``gpt``, ``assistant``, ``model``, ``chatgpt``, ``bing`` and ``bard``
answer; ``system`` is the system message. Answers before the first question and items without text are left
out; the published files have both.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from llm_locust.workload.text.prompts import Prompt

_SPEAKERS = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "model", "chatgpt", "bing", "bard"), "assistant"),
    "system": "system",
}


class _Said(msgspec.Struct, rename={"speaker": "from"}):
    speaker: str
    value: str


class _Shared(msgspec.Struct):
    conversations: list[_Said]
    id: str | int | None = None


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


def conversation_of(value: Any) -> ShareGptConversation | None:
    """Parse a conversation in ShareGPT's form; None without a question.

    Raises:
        ValueError: it is not of that form, or a speaker is unknown.
    """
    shared = msgspec.convert(value, _Shared)
    system: list[str] = []
    turns: list[ShareGptTurn] = []
    for i, said in enumerate(shared.conversations):
        role = _SPEAKERS.get(said.speaker.lower())
        if role is None:
            known = ", ".join(_SPEAKERS)
            raise ValueError(
                f"speaker {said.speaker[:40]!r} - at `$.conversations[{i}].from`; known are {known}"
            )
        if not said.value.strip():
            continue
        if role == "user":
            turns.append(ShareGptTurn(said.value))
        elif role == "system":
            system.append(said.value)
        elif turns:
            before = turns[-1].answer
            answer = said.value if before is None else f"{before}\n\n{said.value}"
            turns[-1] = ShareGptTurn(turns[-1].text, answer)
    if not turns:
        return None
    number = None if shared.id is None else str(shared.id)
    return ShareGptConversation(tuple(turns), "\n\n".join(system) or None, number)


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
