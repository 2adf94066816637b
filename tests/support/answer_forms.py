"""One answer in the form of each API that generates: its tokens, and the events that end it."""

from dataclasses import dataclass
from typing import Any

from judged_answers import sse

from llm_locust.wire.dialects.chat import CHAT, COMPLETIONS
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.dialects.messages import MESSAGES
from llm_locust.wire.dialects.responses import RESPONSES

DONE = sse("[DONE]")


@dataclass(frozen=True)
class Form:
    """How an API streams. ``good`` is a finish reason of a whole answer."""

    dialect: Dialect
    good: str

    @property
    def name(self) -> str:
        return self.dialect.name

    def text(self, text: str = " w") -> bytes:
        match self.name:
            case "chat":
                return sse({"model": "m", "choices": [{"index": 0, "delta": {"content": text}}]})
            case "completions":
                return sse({"model": "m", "choices": [{"index": 0, "text": text, "finish_reason": None}]})
            case "messages":
                delta = {"type": "text_delta", "text": text}
                event = {"type": "content_block_delta", "index": 0, "delta": delta}
                return sse(event, "content_block_delta")
        event = {"type": "response.output_text.delta", "item_id": "i", "delta": text}
        return sse(event, "response.output_text.delta")

    def finish(self, reason: Any, usage: int | None = None) -> bytes:
        """The event with the finish reason, and perhaps the number of output tokens."""
        counts = {} if usage is None else {"usage": {"input_tokens": 9, "output_tokens": usage}}
        match self.name:
            case "chat" | "completions":
                choice = {"index": 0, "delta": {}, "text": "", "finish_reason": reason}
                return sse({"choices": [choice], **counts})
            case "messages":
                event = {"type": "message_delta", "delta": {"stop_reason": reason}, **counts}
                return sse(event, "message_delta")
        if reason == "completed":
            return sse({"type": "response.completed", "response": {"status": "completed", **counts}})
        response = {"status": "incomplete", "incomplete_details": {"reason": reason}, **counts}
        return sse({"type": "response.incomplete", "response": response}, "response.incomplete")

    @property
    def end(self) -> bytes:
        """What says that nothing follows."""
        match self.name:
            case "messages":
                return sse({"type": "message_stop"}, "message_stop")
            case "responses":
                return b""  # its last event says both
        return DONE

    def whole(self, tokens: int = 3, reason: Any = None, usage: int | None = None, text: str = " w") -> bytes:
        return self.text(text) * tokens + self.finish(reason or self.good, usage) + self.end


CHAT_FORM, COMPLETIONS_FORM = Form(CHAT, "stop"), Form(COMPLETIONS, "stop")
MESSAGES_FORM, RESPONSES_FORM = Form(MESSAGES, "end_turn"), Form(RESPONSES, "completed")
FORMS = (CHAT_FORM, COMPLETIONS_FORM, MESSAGES_FORM, RESPONSES_FORM)
