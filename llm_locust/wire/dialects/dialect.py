"""The row of an API, all that differs between it and others, and how its answers are read."""

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from llm_locust.wire.draft import Decided, Draft, Reply
from llm_locust.wire.ends import said_in
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
        *("eos_found", "stop_string_found", "stop_word", "stop_str", "stopped", "end", "finish", "normal"),
        *("tool_call", "pause_turn", "success"),
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


# --- What an endpoint answered: events or a body in, a :class:`Reply` out
#
# Nothing that a server can send raises: what is not as the API promises is in ``Reply.invalid``,
# what the server calls an error in ``Reply.error``, and the tokens that came are kept in any case.


#: The texts of so many bytes of a stream are joined at a time, in about 1 ms.
FOLD_BYTES = 256 << 10


class ReplyReader:
    """Reads one streamed answer, in as many slices as wished."""

    __slots__ = ("_dialect", "_draft", "_fold_at", "_read")

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._draft = Draft()
        self._fold_at = FOLD_BYTES
        self._read = dialect.read_events

    def feed(self, events: Sequence[SseEvent], errors: Sequence[SseEvent] = ()) -> None:
        """The next events, and the errors that came between them. Never raises for what they hold.

        An error that is an event too is read as that first: the API's own words go before. None counts after
        the end of the answer: there only usage is looked for, if none came before.
        """
        if errors:
            self._feed_between(events, errors)
            return
        draft = self._draft
        if events and draft.decided_end is None:
            try:
                self._read(draft, events)
            except Decided:
                pass
            except Exception as e:  # of a dialect of the user's own
                _note_failure(draft, self._dialect, e)
            self._note_end(events[-1].end)
        if draft.decided_end is not None:
            draft.find_late_usage([event for event in events if event.end > draft.decided_end])

    def read_alike(self, data: bytes, begin: int, start: int, most: int) -> tuple[int, int]:
        """Read the first whole events from ``begin`` on that are like the last one but for their text.

        That decodes none of them.

        Args:
            start: the offset of the first one's start in the stream.
            most: no more events.

        Returns:
            How many there are, and their bytes.
        """
        draft, template = self._draft, self._draft.template
        if (
            template is None
            or template.reader is not self._read
            or draft.scattered
            or draft.decided_end is not None
        ):
            return 0, 0
        texts, ends = template.read(data, begin, most)
        if not texts:
            return 0, 0
        template.texts.append(b"".join(texts).decode())
        moved = start - begin
        draft.token_ends.extend([end + moved for end in ends] if moved else ends)
        self._note_end(ends[-1] + moved)
        return len(texts), ends[-1] - begin

    def _note_end(self, end: int) -> None:
        self._draft.last_event_end = end
        if end >= self._fold_at:
            self._fold_at = end + FOLD_BYTES
            self._draft.fold()

    def _feed_between(self, events: Sequence[SseEvent], errors: Sequence[SseEvent]) -> None:
        for error in errors:
            before = sum(event.end <= error.end for event in events)
            self.feed(events[:before])
            events = events[before:]
            if self._draft.decided_end is None or error.end <= self._draft.decided_end:
                self._draft.fail(said_in(error.data))
        self.feed(events)

    @property
    def token_ends(self) -> "array[int]":
        """The offset at which each token event so far was complete. Not to be changed."""
        return self._draft.token_ends

    @property
    def last_event_end(self) -> int:
        """The offset at which the last event of any kind was complete; 0 before the first."""
        return self._draft.last_event_end

    @property
    def done(self) -> bool:
        """The events so far make a whole answer."""
        return self._draft.done

    @property
    def decided_end(self) -> int | None:
        """The offset at which the answer was whole, and its end said: no later event is read. None before."""
        return self._draft.decided_end

    @property
    def ended(self) -> bool:
        """Nothing that follows is looked at."""
        return self._draft.decided_end is not None and not self._draft.seeks_usage

    @property
    def closed(self) -> bool:
        """The server has said that it is the end."""
        return self._draft.closed

    @property
    def failed(self) -> bool:
        """An event so far was an error."""
        return self._draft.error is not None

    def finish(self) -> Reply:
        """The answer as far as it came."""
        return self._draft.finish(self._dialect.usual_finishes)


def read_body(dialect: Dialect, body: bytes) -> Reply:
    """An answer that was not streamed. The whole body is one token event if it carries any text."""
    draft = Draft()
    try:
        dialect.read_body(draft, body)
    except Exception as e:  # of a dialect of the user's own
        _note_failure(draft, dialect, e)
    return draft.finish(dialect.usual_finishes, streamed=False)


def _note_failure(draft: Draft, dialect: Dialect, error: Exception) -> None:
    draft.closed = False
    draft.reject(f"the reader of dialect {dialect.name!r} raised {error!r:.300}")
