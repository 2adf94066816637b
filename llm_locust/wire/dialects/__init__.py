"""APIs of inference servers, a module each with its requests and the readers of its answers; and the table of
those that can be named on the command line and in scenarios."""

from collections.abc import Mapping
from types import MappingProxyType

from llm_locust.wire.dialects.chat import CHAT, COMPLETIONS
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.dialects.messages import MESSAGES
from llm_locust.wire.dialects.responses import RESPONSES
from llm_locust.wire.dialects.results import EMBEDDINGS, RERANK

DIALECTS: Mapping[str, Dialect] = MappingProxyType(
    {dialect.name: dialect for dialect in (CHAT, COMPLETIONS, RESPONSES, MESSAGES, EMBEDDINGS, RERANK)}
)


#: Those whose answers are tokens.
GENERATING = tuple(name for name, dialect in DIALECTS.items() if dialect.generates)


def dialect_of(endpoint: object) -> Dialect:
    """A user class's ``endpoint``: a dialect of its own, or the name of one of :data:`DIALECTS`.

    Raises:
        ValueError: neither.
    """
    if isinstance(endpoint, Dialect):
        return endpoint
    if isinstance(endpoint, str) and endpoint in DIALECTS:
        return DIALECTS[endpoint]
    raise ValueError(f"no endpoint {endpoint!r}; there are {', '.join(DIALECTS)}")
