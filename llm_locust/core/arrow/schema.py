"""The columns of a batch of requests: names, types, and which may be null."""

import pyarrow as pa

SCHEMA_VERSION = 1

_TEXT = pa.dictionary(pa.int32(), pa.string())

#: One row per request, with the fields of :class:`~llm_locust.core.record.RequestRecord` (``class`` is
#: ``slo_class``) and ``worker``.
SCHEMA = pa.schema(
    [
        pa.field("request_id", pa.string(), nullable=False),
        pa.field("worker", _TEXT, nullable=False),
        pa.field("name", _TEXT, nullable=False),
        pa.field("class", _TEXT, nullable=False),
        pa.field("endpoint", _TEXT, nullable=False),
        pa.field("model", _TEXT, nullable=False),
        pa.field("streamed", pa.bool_(), nullable=False),
        pa.field("user", pa.int64()),
        pa.field("outcome", _TEXT, nullable=False),
        pa.field("status", pa.int16()),
        pa.field("error", _TEXT),
        pa.field("finish_reason", _TEXT),
        pa.field("scheduled_ns", pa.int64(), nullable=False),
        pa.field("started_ns", pa.int64(), nullable=False),
        pa.field("connected_ns", pa.int64()),
        pa.field("sent_ns", pa.int64()),
        pa.field("headers_ns", pa.int64()),
        pa.field("ended_ns", pa.int64(), nullable=False),
        pa.field("arrivals_ns", pa.list_(pa.field("item", pa.int64(), nullable=False)), nullable=False),
        pa.field("first_answer_ns", pa.int64()),
        pa.field("input_tokens", pa.int64()),
        pa.field("cached_tokens", pa.int64()),
        pa.field("output_tokens", pa.int64()),
        pa.field("reasoning_tokens", pa.int64()),
        pa.field("token_source", _TEXT, nullable=False),
        pa.field("asked_input_tokens", pa.int64()),
        pa.field("asked_output_tokens", pa.int64()),
        pa.field("output_chars", pa.int64()),
        pa.field("replica", _TEXT),
        pa.field("peer", _TEXT),
        pa.field("reused", pa.bool_(), nullable=False),
        pa.field("retries", pa.int16(), nullable=False),
        pa.field("kernel_stamps", pa.bool_(), nullable=False),
        pa.field("client_lag_ns", pa.int64()),
        pa.field("clock_step_ns", pa.int64()),
        pa.field("rtt_ns", pa.int64()),
        pa.field("reads", pa.int32(), nullable=False),
        pa.field("coalesced_reads", pa.int32(), nullable=False),
        pa.field("bytes_received", pa.int64(), nullable=False),
        pa.field("session", pa.string()),
        pa.field("turn", pa.int32()),
        pa.field("blocked_ns", pa.int64()),
        pa.field("abandoned", pa.bool_()),
        pa.field("rejected_by", _TEXT),
        pa.field("correct", pa.bool_()),
        pa.field("prompt_id", _TEXT),
        pa.field("answer_hash", pa.int64()),
        *(pa.field(n, pa.int64()) for n in ("first_chunk_ns", "finish_ns", "last_chunk_ns", "hidden_tokens")),
        pa.field("stage", pa.int32()),
        pa.field("arm", _TEXT),
        pa.field("local_port", pa.int32()),
        pa.field("inputs", pa.int64()),
        *(pa.field(name, _TEXT) for name in ("session_header", "answered_model")),
        *(pa.field(name, pa.int64()) for name in ("images", "pixels", "opening_tokens", "came_tokens")),
        *(pa.field(name, _TEXT) for name in ("count_fault", "unread", "doubt")),
        pa.field("end_lag_ns", pa.int64()),
        pa.field("left_open", pa.bool_()),
    ],
    metadata={b"llm_locust.schema": str(SCHEMA_VERSION).encode()},
)

#: Columns that the first files of this schema did not have.
ADDED = frozenset(SCHEMA.names[SCHEMA.names.index("session") :])
