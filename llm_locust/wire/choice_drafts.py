"""Parts of an answer while its events are read: a choice's texts, a tool call, and what an event carried."""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from llm_locust.wire.ends import AnswerEnd, end_of, reason_of
from llm_locust.wire.payload import name_of
from llm_locust.wire.pieces import Pieces


class DeltaKind(IntEnum):
    """What a delta carried. The greater counts for its event."""

    NOTHING = 0
    REASONING = 1
    ANSWER = 2


@dataclass(slots=True)
class ChoiceDraft:
    """One choice's texts, in pieces."""

    text: Pieces = field(default_factory=Pieces)
    reasoning: Pieces = field(default_factory=Pieces)
    refusal: Pieces = field(default_factory=Pieces)
    finish_reason: str | None = None
    said: str = ""  # what the server says beside its finish reason
    named: bool = False  # by an event that was more than the next piece of text

    @property
    def seen(self) -> bool:
        return self.named or bool(self.text or self.reasoning)

    def add(self, *, text: str = "", reasoning: str = "", refusal: str = "") -> DeltaKind:
        self.named = True
        if text:
            self.text.append(text)
        if reasoning:
            self.reasoning.append(reasoning)
        if refusal:
            self.refusal.append(refusal)
        return (
            DeltaKind.ANSWER if text or refusal else DeltaKind.REASONING if reasoning else DeltaKind.NOTHING
        )

    def finish(self, reason: Any) -> bool:
        """Take a finish reason as sent; return whether it is one. No later one takes a failure back."""
        self.named = True
        found, said = reason_of(reason)
        if found is not None and end_of(self.finish_reason) is not AnswerEnd.FAILED:
            self.finish_reason, self.said = found, said
        return found is not None


@dataclass(slots=True)
class ToolDraft:
    """One tool call, its arguments in pieces."""

    id: str | None = None
    name: str | None = None
    arguments: Pieces = field(default_factory=Pieces)

    def add(self, arguments: str, id_: Any = None, name: Any = None) -> DeltaKind:
        """A call without arguments is an answer too: its name is one."""
        self.id = self.id or name_of(id_)
        named = self.name is None and (name := name_of(name)) is not None
        if named:
            self.name = name
        if arguments:
            self.arguments.append(arguments)
        return DeltaKind.ANSWER if arguments or named else DeltaKind.NOTHING
