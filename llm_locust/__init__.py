"""llm-locust: a distributed load-testing harness for LLM inference, built on Locust.

In a locustfile, ``import llm_locust`` (or any import from it) adds the options and the recording
to Locust. Elsewhere, a notebook for instance, importing the package loads neither Locust nor
gevent, so that nothing is monkey-patched.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llm_locust.client.recording import Answer
    from llm_locust.core.record import Outcome, RequestRecord, TokenSource
    from llm_locust.metrics.limits import Slo
    from llm_locust.report.run_data import RunData
    from llm_locust.swarm.process.patches import events
    from llm_locust.swarm.users.openai_user import OpenAIUser
    from llm_locust.swarm.users.users import (
        AgentUser,
        ChatUser,
        CompletionUser,
        ConversationUser,
        MessagesUser,
        OpenLoopUser,
        ResponsesUser,
        ScenarioUser,
    )
    from llm_locust.wire.dialects.dialect import Dialect
    from llm_locust.workload.answers import Validator
    from llm_locust.workload.prompts import Prompt

__all__ = [
    "AgentUser",
    "Answer",
    "ChatUser",
    "CompletionUser",
    "ConversationUser",
    "Dialect",
    "MessagesUser",
    "OpenAIUser",
    "OpenLoopUser",
    "Outcome",
    "Prompt",
    "RequestRecord",
    "ResponsesUser",
    "RunData",
    "ScenarioUser",
    "Slo",
    "TokenSource",
    "Validator",
    "events",
]

_HOMES = {
    "AgentUser": "llm_locust.swarm.users.users",
    "Answer": "llm_locust.client.recording",
    "ChatUser": "llm_locust.swarm.users.users",
    "CompletionUser": "llm_locust.swarm.users.users",
    "ConversationUser": "llm_locust.swarm.users.users",
    "Dialect": "llm_locust.wire.dialects.dialect",
    "MessagesUser": "llm_locust.swarm.users.users",
    "OpenAIUser": "llm_locust.swarm.users.openai_user",
    "OpenLoopUser": "llm_locust.swarm.users.users",
    "Outcome": "llm_locust.core.record",
    "Prompt": "llm_locust.workload.prompts",
    "RequestRecord": "llm_locust.core.record",
    "ResponsesUser": "llm_locust.swarm.users.users",
    "RunData": "llm_locust.report.run_data",
    "ScenarioUser": "llm_locust.swarm.users.users",
    "Slo": "llm_locust.metrics.limits",
    "TokenSource": "llm_locust.core.record",
    "Validator": "llm_locust.workload.answers",
    "events": "llm_locust.swarm.process.patches",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Elsewhere than in a locustfile Locust may be used as a library, and has not got the options yet.
    if _HOMES[name].startswith("llm_locust.swarm."):
        import_module("llm_locust.swarm.plugin")
    return getattr(import_module(_HOMES[name]), name)


# Locust imports its locustfiles from a running Locust: there the options are wanted at once.
if "locust.main" in sys.modules:
    import_module("llm_locust.swarm.plugin")
