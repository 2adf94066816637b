"""The row of an API: all that differs between it and others."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from llm_locust.wire.draft import Draft
from llm_locust.wire.payload import AskedResults
from llm_locust.wire.sse import SseEvent

#: A message in OpenAI's chat form, as prompts have it.
Message = Mapping[str, Any]

#: Fields of the chat form that bound an answer's length. A body carries one of them.
LIMIT_FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")

_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,39}")


def model_and_stream(model: str, stream: bool) -> dict[str, Any]:
    """The run's fields of a body that names the model and says whether to stream."""
    return {"model": model, "stream": stream}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dialect:
    """An API of inference servers: how it is asked and how its answers are read.

    Attributes:
        name: as records, tables and scenarios have it. Lower-case letters, digits, ``_``, ``.``, ``-``.
        path: below the API's base (``http://host/v1``). ``{model}`` stands for the model's name.
        whole_path: the path of answers that are not streamed; None where it is the same.
        body: a request's fields of its messages and further fields, both in OpenAI's chat form. Fields that
            chat does not have go out as they are. The bound of the answer's length is among the further
            fields, under ``limit_field``.
        run_fields: the fields of every body, of the model's name and whether to stream; what asks for usage
            at the end of a stream is one of them.
        read_events: reads the events of a stream into a draft.
        read_body: reads an answer that was not streamed into a draft.
        long_events: an event may repeat the whole answer, with log probabilities: it may be as long as an
            answer that is not streamed.
        text_only: ``body`` gets one message, whose content is the whole prompt as one text.
        limit_field: the name for the bound of the answer's length.
        line_limits: names for the bound that go out as a dataset line has them; others become
            ``limit_field``.
        default_limit: the bound where the workload has none, of an API that takes no request without one.
        merged_fields: objects of ``body`` that a user's ``--body`` adds to, where others are replaced.
        usual_finishes: finish reasons of a whole answer, in any spelling; see :mod:`llm_locust.wire.ends` for
            others. A dialect that is in no table may give those of chat, which are the default.
        headers: of every request; values may be templates, and are no secrets.
        key_header: takes the API key, beside the bearer token that a gateway may look for.
        template_tokens: that a chat template puts around one user message; those of ChatML.
        operation: ``gen_ai.operation.name`` of a span.
        provider: ``gen_ai.provider.name`` of a span: whose API it is. The server behind it is not known.
        asked: what a body of an API asks for that gives a result for each input and generates nothing; its
            answers are never streamed, nothing bounds their length, and its ``body`` gets a message for each
            input, whose content is a text. None: the API generates tokens.
        vllm_backend: its name in files of ``vllm bench serve``; None: ``name``.

    Raises:
        ValueError: a name that no table can have, or a path that does not start with ``/``.
    """

    name: str
    path: str
    body: Callable[[Sequence[Message], Mapping[str, Any]], dict[str, Any]]
    read_events: Callable[[Draft, Sequence[SseEvent]], None]
    read_body: Callable[[Draft, bytes], None]
    whole_path: str | None = None
    run_fields: Callable[[str, bool], dict[str, Any]] = model_and_stream
    long_events: bool = False
    text_only: bool = False
    limit_field: str = "max_tokens"
    line_limits: tuple[str, ...] = ()
    default_limit: int | None = None
    merged_fields: tuple[str, ...] = ()
    usual_finishes: tuple[str, ...] = (
        *("stop", "length", "tool_calls", "function_call", "eos", "eos_token"),
        *("stop_sequence", "end_turn", "tool_use", "complete", "completed"),  # of gateways to other APIs
        *("done", "finished", "end_of_text", "end_of_turn", "end_of_sequence", "stop_token", "stop_string"),
        *("eos_found", "stop_string_found"),
    )
    headers: Mapping[str, str] = field(default_factory=dict)
    key_header: str | None = None
    template_tokens: int = 8
    operation: str = "chat"
    provider: str = "openai"
    asked: Callable[[Mapping[str, Any]], AskedResults] | None = None
    vllm_backend: str | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name == "other":  # of requests that generate nothing
            raise ValueError(f"a dialect's name must be a short word such as 'chat', got {self.name!r}")
        for path in (self.path, self.whole_path):
            if path is not None and not path.startswith("/"):
                raise ValueError(f"dialect {self.name!r}: a path must start with '/', got {path!r}")

    @property
    def generates(self) -> bool:
        """Whether its answers are tokens."""
        return self.asked is None

    @property
    def limit_fields(self) -> tuple[str, ...]:
        """Every name for the bound of an answer's length: those of the chat form and its own."""
        return tuple(dict.fromkeys((*LIMIT_FIELDS, self.limit_field)))

    def path_to(self, model: str, *, stream: bool) -> str:
        """The path of requests to this model, below the API's base."""
        path = self.path if stream or self.whole_path is None else self.whole_path
        return path.replace("{model}", quote(model, safe=""))
