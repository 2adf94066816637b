"""The request body as bytes: a template made once, a prompt put in for each request.

Three sources name fields, the later one winning: this module's own, the dataset line's
(:attr:`Prompt.extra`), the user's ``--body``. ``model``, ``stream``, ``stream_options`` are the
run's: a line's are left out. A field that ``--body`` sets to null is not sent at all.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Never

import msgspec

from llm_locust.wire.chat_form import in_json
from llm_locust.wire.dialects.dialect import LIMIT_FIELDS, Dialect, Message
from llm_locust.wire.foreign_text import shown_before, shown_text
from llm_locust.wire.payload import AskedResults
from llm_locust.workload.prompts import Prompt, as_text, texts_of

_CONTENT_FIELDS = ("messages", "prompt", "input", "query", "documents")

#: Fields that a dataset line cannot set, in whichever API.
RUN_FIELDS = ("model", "stream", "stream_options")

#: Fields of a request that a dataset line may set: OpenAI's, Anthropic's, those of embeddings and rerank, of
#: vLLM, of SGLang and Dynamo, in this order. Every other key of a line is sent only if it is asked for.
_LINE_FIELDS = """
audio background echo frequency_penalty function_call functions include instructions logit_bias logprobs
max_completion_tokens max_output_tokens max_tokens max_tool_calls modalities n best_of parallel_tool_calls
prediction presence_penalty previous_response_id prompt_cache_key prompt_cache_retention reasoning
reasoning_effort response_format safety_identifier seed service_tier stop store suffix temperature text
tool_choice tools top_logprobs top_p truncation verbosity web_search_options
stop_sequences system thinking top_k
dimensions embedding_type encoding_format input_type max_tokens_per_doc return_documents top_n truncate
truncate_prompt_tokens
add_generation_prompt add_special_tokens allowed_token_ids bad_words cache_salt chat_template
chat_template_kwargs continue_final_message guided_choice guided_decoding_backend guided_grammar
guided_json guided_regex ignore_eos guided_whitespace_pattern include_reasoning include_stop_str_in_output
kv_transfer_params length_penalty logits_processors min_p min_tokens mm_processor_kwargs priority
prompt_logprobs repetition_penalty return_token_ids return_tokens_as_token_ids skip_special_tokens
spaces_between_special_tokens stop_token_ids structural_tag structured_outputs use_beam_search vllm_xargs
custom_logit_processor custom_params ebnf lora_path no_stop_trim nvext regex separate_reasoning
session_params stop_regex stream_reasoning
"""
LINE_FIELDS = frozenset(_LINE_FIELDS.split())

#: Fields of --body that would keep an answer from being one token.
_LONGER = ("ignore_eos", "min_tokens")

_EXAMPLE = """expected a JSON object such as {"temperature": 0}"""

#: The bytes of a body's fields.
encoded = msgspec.json.Encoder(enc_hook=in_json).encode


class BodyError(ValueError):
    """A text that is no set of body fields; says where in it, and what is expected."""


def parse_body(text: str) -> dict[str, Any]:
    """The body fields of a JSON object's text. A null value means: leave that field out.

    Raises:
        BodyError: not a JSON object, or it names a field that the workload fills.
    """
    try:
        fields = json.loads(text, parse_constant=_no_constant)
        encoded(fields)
    except json.JSONDecodeError as e:
        near = shown_before(text, e.pos)
        raise BodyError(f"body {shown_text(text)}: {e.msg} at character {e.pos + 1}{near}; {_EXAMPLE}") from e
    except (RecursionError, UnicodeEncodeError, ValueError) as e:
        raise BodyError(f"body {shown_text(text)}: {e}; {_EXAMPLE}") from e
    if not isinstance(fields, dict):
        raise BodyError(f"body {shown_text(text)} is {_KINDS[type(fields)]}; {_EXAMPLE}")
    for name in _CONTENT_FIELDS:
        if name in fields:
            raise BodyError(
                f"body {shown_text(text)}: {name!r} is what the workload fills; use a dataset for it"
            )
    check_choices(fields, f"body {shown_text(text)}")
    if not isinstance(fields.get("stream_options") or {}, dict):
        raise BodyError(f"body {shown_text(text)}: 'stream_options' is not an object")
    return fields


def check_choices(fields: Mapping[str, Any], where: str) -> None:
    """Refuse fields that ask for several answers in one.

    Raises:
        BodyError: one does; ``where`` says where they are from.
    """
    for name in ("n", "best_of"):
        value = fields.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 1:
            raise BodyError(
                f"{where}: {name!r} asks for {value} answers in one, whose tokens cannot be told apart in "
                "time; leave it out and send more requests"
            )


_KINDS = {
    list: "a list",
    str: "a text",
    int: "a number",
    float: "a number",
    bool: "a truth value",
    type(None): "null",
}


def _no_constant(name: str) -> Never:
    raise ValueError(f"{name} is not JSON")


def output_limit(fields: Mapping[str, Any], names: Iterable[str] = LIMIT_FIELDS) -> int | None:
    """The bound of the answer's length that body fields set under one of the names, if they do."""
    for name in names:
        value = fields.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


@dataclass(frozen=True, slots=True)
class BodyTemplate:
    """Everything of a body but its prompt. Make one with :func:`body_template`."""

    dialect: Dialect
    streamed: bool  # what the server is asked for, --body included
    limit_field: str | None  # None where --body says it, or forbids it
    limit_fields: tuple[str, ...]  # every name for it
    sent: Mapping[str, Any]  # the fixed fields
    replaced: frozenset[str]  # names that --body fills or leaves out
    own: frozenset[str]  # names that a dataset line cannot set

    def encode(self, prompt: Prompt) -> bytes:
        """The body that asks for ``prompt``; raises as :meth:`fields`."""
        return encoded(self.fields(prompt))

    def fields(self, prompt: Prompt) -> dict[str, Any]:
        """The fields of the body that asks for ``prompt``.

        Raises:
            PromptError: the endpoint takes text, and a message has a part that is not.
        """
        dialect, extra, asked = self.dialect, prompt.extra, prompt.asked_output_tokens
        fields = {name: value for name, value in extra.items() if name not in self.own}
        if not any(name in extra for name in dialect.line_limits):
            asked = asked or output_limit(extra, self.limit_fields) or dialect.default_limit
            fields = {name: value for name, value in fields.items() if name not in self.limit_fields}
            if self.limit_field and asked:
                fields[self.limit_field] = asked
        body = dialect.body(_messages(prompt, dialect), fields)
        merged = {name: body[name] for name in dialect.merged_fields if name in body and name in self.sent}
        for name in self.replaced.intersection(body):
            del body[name]
        body.update(self.sent)
        for name, value in merged.items():
            body[name] = {**value, **self.sent[name]}
        return body

    def asked(self, body: Mapping[str, Any]) -> AskedResults | None:
        """The results that a body asks for; None of an API that generates tokens."""
        return None if self.dialect.asked is None else self.dialect.asked(body)


def one_token(template: BodyTemplate, prompt: Prompt) -> bytes:
    """The body that asks for ``prompt`` and an answer of one token; raises as :meth:`BodyTemplate.fields`."""
    dialect = template.dialect
    asked = template.fields(replace(prompt, asked_output_tokens=1))
    fields = {name: value for name, value in asked.items() if name not in _LONGER}
    limits = [name for name in dialect.limit_fields if name in fields]
    if dialect.generates and not limits and template.limit_field is None:  # --body has left it out
        limits = [dialect.limit_field]
    return encoded(fields | dict.fromkeys(limits, 1))


def _messages(prompt: Prompt, dialect: Dialect) -> tuple[Message, ...]:
    if not dialect.generates:  # each message is one input
        return tuple({"role": "user", "content": text} for text in texts_of(prompt))
    if prompt.messages is not None and not dialect.text_only:
        return prompt.messages
    return ({"role": "user", "content": as_text(prompt)},)


def body_template(
    dialect: Dialect,
    model: str,
    *,
    stream: bool = True,
    ignore_eos: bool = False,
    extra_body: Mapping[str, Any] | None = None,
    limit_field: str | None = None,
) -> BodyTemplate:
    """The template of an endpoint's bodies.

    Args:
        model: the model's name.
        stream: ask for a stream, and for usage at its end where the API gives it only then.
        ignore_eos: ask the server (vLLM, SGLang) to go on to the bound of the answer's length.
        extra_body: the fields of :func:`parse_body`; objects of the run's own fields and the dialect's
            ``merged_fields`` are merged, others replace.
        limit_field: the name for the bound of the answer's length; by default the dialect's.

    Raises:
        BodyError: ``extra_body`` fills a field of the workload's, or leaves out one that the API needs.
    """
    extra = dict(extra_body or {})
    content = dialect.body(_messages(Prompt(text=""), dialect), {}).keys()
    _check_extra(dialect, extra, content)
    run = dialect.run_fields(model, stream)
    fixed = {**run, **({"ignore_eos": True} if ignore_eos and dialect.generates else {}), **extra}
    for name, value in run.items():
        if isinstance(value, dict) and isinstance(extra.get(name), dict):
            fixed[name] = {**value, **extra[name]}
    sent = {name: value for name, value in fixed.items() if value is not None}
    limits = dialect.limit_fields
    bounded = any(name in extra for name in limits)
    if dialect.default_limit and bounded and not sent.get(dialect.limit_field):
        raise BodyError(
            f"body: the {dialect.name} endpoint takes no request without {dialect.limit_field!r}; "
            "set that one"
        )
    own = {*fixed, *RUN_FIELDS, *content, *_CONTENT_FIELDS, *(limits if bounded else ())}
    return BodyTemplate(
        dialect=dialect,
        streamed=bool(sent.get("stream", False)) if "stream" in run else stream and dialect.generates,
        limit_field=None if bounded or not dialect.generates else limit_field or dialect.limit_field,
        limit_fields=limits,
        sent=sent,
        replaced=frozenset(extra),
        own=frozenset(own.difference(dialect.merged_fields)),
    )


def _check_extra(dialect: Dialect, extra: Mapping[str, Any], content: Collection[str]) -> None:
    for name in content:
        if name in extra:
            raise BodyError(f"body: {name!r} is what the workload fills; use a dataset for it")
    for name in dialect.merged_fields:
        if not isinstance(added := extra.get(name, {}), dict):
            raise BodyError(f"body: {name!r} is not an object")
        if dialect.limit_field in added:  # the record has the bound that the workload asks for
            raise BodyError(f"body: {dialect.limit_field!r} in {name!r}: use --output-tokens for it")
