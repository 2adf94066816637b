"""ShareGPT's form: ``{"id": ..., "conversations": [{"from": "human", "value": ...}, ...]}``.

The speakers ``human``, ``user`` and ``prompter`` ask; ``gpt``, ``assistant``, ``model``, ``chatgpt``,
``bing`` and ``bard`` answer; ``system`` and ``developer`` are the system message. Calls of tools and their
results (``function_call``, ``observation``, ``tool``, ...), answers before the first question and items
without text are left out; the published files have all of these. Items may have ``role`` and ``content``
instead, and the list may be called ``conversation`` or ``turns``. Of ``turns``, texts are questions without
answers (MT-bench).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from llm_locust.workload.text.prompts import Prompt

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


def conversation_of(value: Any) -> ShareGptConversation | None:
    """Parse a conversation in ShareGPT's form; None without a question.

    Raises:
        ValueError: it is not of that form, or a speaker is unknown.
    """
    if not isinstance(value, dict):
        raise ValueError(f"Expected `object`, got {_named(value)}")
    key = next((key for key in CONVERSATION_KEYS if value.get(key) is not None), None)
    if key is None:
        raise ValueError(f"no {', '.join(CONVERSATION_KEYS)}")
    system: list[str] = []
    turns: list[ShareGptTurn] = []
    for role, text in _said(value[key], f"$.{key}"):
        if role == "user":
            turns.append(ShareGptTurn(text))
        elif role == "system":
            system.append(text)
        elif turns:
            before = turns[-1].answer
            answer = text if before is None else f"{before}\n\n{text}"
            turns[-1] = ShareGptTurn(turns[-1].text, answer)
    if not turns:
        return None
    number = value.get("id")
    if not isinstance(number, str | int | float | None):
        raise ValueError(f"Expected `str | int`, got {_named(number)} - at `$.id`")
    return ShareGptConversation(
        tuple(turns), "\n\n".join(system) or None, None if number is None else str(number)
    )


def _said(items: Any, where: str) -> Iterator[tuple[str, str]]:
    """Role and text of each item that has a text and counts."""
    if not isinstance(items, list):
        raise ValueError(f"Expected `array`, got {_named(items)} - at `{where}`")
    for i, item in enumerate(items):
        if isinstance(item, str):
            role: str | None = "user"
            value: Any = item
        elif isinstance(item, dict):
            role, value = _role(item, f"{where}[{i}]"), item.get("value", item.get("content", _MISSING))
        else:
            raise ValueError(f"Expected `object`, got {_named(item)} - at `{where}[{i}]`")
        if value is _MISSING:
            raise ValueError(f"missing required field `value` - at `{where}[{i}]`")
        text = _text(value, f"{where}[{i}].value")
        if role is not None and text.strip():
            yield role, text


_MISSING = object()


def _role(item: Mapping[str, Any], where: str) -> str | None:
    """The role of a speaker; None of one that does not count."""
    speaker = item.get("from", item.get("role", _MISSING))
    if speaker is _MISSING:
        raise ValueError(f"missing required field `from` - at `{where}`")
    if not isinstance(speaker, str) or speaker.lower() not in _SPEAKERS:
        known = ", ".join(_SPEAKERS)
        raise ValueError(f"speaker {str(speaker)[:40]!r} - at `{where}.from`; known are {known}")
    return _SPEAKERS[speaker.lower()]


def _text(value: Any, where: str) -> str:
    """The text of an item: empty of null, of a list the texts of its parts."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(part, dict) for part in value):
        return "\n\n".join(part["text"] for part in value if isinstance(part.get("text"), str))
    raise ValueError(f"Expected `str | null`, got {_named(value)} - at `{where}`")


def _named(value: Any) -> str:
    return f"`{type(value).__name__}`"


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
