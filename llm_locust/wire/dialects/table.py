"""The APIs that can be asked: one row each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from llm_locust.wire.dialects.chat import read_chat, read_chat_body, read_completions, read_completions_body
from llm_locust.wire.dialects.messages import read_messages, read_messages_body
from llm_locust.wire.dialects.responses import read_responses, read_responses_body
from llm_locust.wire.draft import Draft
from llm_locust.wire.sse import SseEvent


class Endpoint(StrEnum):
    """Names of the APIs, as records, options and scenarios have them."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What differs between APIs.

    Attributes:
        path: below the API's base (``http://host/v1``).
        read_events: reads the events of a stream into a draft.
        read_body: reads an answer that was not streamed into a draft.
        limit_field: of a request's body, the bound of the answer's length.
        template_tokens: that a chat template puts around one user message; those of ChatML.
        operation: ``gen_ai.operation.name`` of a span.
        provider: ``gen_ai.provider.name`` of a span: whose API it is. What stands behind it is not known.
    """

    path: str
    read_events: Callable[[Draft, Sequence[SseEvent]], None]
    read_body: Callable[[Draft, bytes], None]
    limit_field: str = "max_tokens"
    template_tokens: int = 8
    operation: str = "chat"
    provider: str = "openai"


DIALECTS: Mapping[str, Dialect] = MappingProxyType(
    {
        Endpoint.CHAT: Dialect(path="/chat/completions", read_events=read_chat, read_body=read_chat_body),
        Endpoint.COMPLETIONS: Dialect(
            path="/completions",
            read_events=read_completions,
            read_body=read_completions_body,
            template_tokens=0,
            operation="text_completion",
        ),
        Endpoint.RESPONSES: Dialect(
            path="/responses",
            read_events=read_responses,
            read_body=read_responses_body,
            limit_field="max_output_tokens",
        ),
        Endpoint.MESSAGES: Dialect(
            path="/messages",
            read_events=read_messages,
            read_body=read_messages_body,
            provider="anthropic",
        ),
    }
)
