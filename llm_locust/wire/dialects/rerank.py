"""Rerank in the form of Cohere and Jina, as vLLM serves it: the relevance of documents to a query."""

from collections.abc import Mapping
from typing import Any

import msgspec

from llm_locust.wire.dialects.result_lists import (
    UNSET,
    ResultList,
    finite,
    indexes,
    positive,
    results_dialect,
)
from llm_locust.wire.results import AskedResults, Results
from llm_locust.wire.whole import Sent


class _Scored(msgspec.Struct, gc=False):
    index: Sent = UNSET
    relevance_score: Sent = UNSET


class _Ranking(ResultList, gc=False):
    results: list[_Scored] | msgspec.UnsetType = UNSET


def _scores(sent: _Ranking) -> Results | None:
    if isinstance(sent.results, msgspec.UnsetType):
        return None
    for result in sent.results:
        finite(result.relevance_score, "a relevance_score")
    return Results(len(sent.results), indexes([result.index for result in sent.results], "result"))


def _body(texts: list[str], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The first text is the query, the others are the documents."""
    query, *documents = texts
    return {"query": query, "documents": documents, **fields}


def _asked(body: Mapping[str, Any]) -> AskedResults:
    documents = body.get("documents")
    inputs = len(documents) if isinstance(documents, list) else 0
    top_n = positive(body, "top_n")
    return AskedResults(inputs, inputs if top_n is None else min(top_n, inputs))


RERANK = results_dialect(
    _Ranking,
    _scores,
    _body,
    _asked,
    name="rerank",
    path="/rerank",
    template_tokens=4,  # marks before the query, between it and a document, and at the end
    operation="rerank",
    vllm_backend="vllm-rerank",
)
