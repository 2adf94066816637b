"""Recorded workloads: times, lengths and common prefixes of requests.

============ ======================================================================================
``azure``    Azure LLM inference, CSV: ``TIMESTAMP,ContextTokens,GeneratedTokens``
``mooncake`` JSON lines: ``timestamp`` in ms, ``input_length``, ``output_length``, ``hash_ids`` of 512 tokens
``bailian``  the same with ``chat_id``, ``parent_chat_id`` or ``turn``: in s, ``hash_ids`` of 16 tokens
``burstgpt`` CSV: ``Timestamp`` in s, ``Request tokens``, ``Response tokens``; ``Session ID`` if there
``sessions`` JSON lines of this project's own, :mod:`llm_locust.workload.traces.formats`
============ ======================================================================================

Files, also gzip-compressed ones, are read on demand, and are never held in memory as a whole.
"""

from llm_locust.workload.traces.reading import TraceEntry, TraceError
from llm_locust.workload.traces.trace import FORMATS, Trace, TraceAsked, TraceFacts, open_trace

__all__ = [
    "FORMATS",
    "Trace",
    "TraceAsked",
    "TraceEntry",
    "TraceError",
    "TraceFacts",
    "open_trace",
]
