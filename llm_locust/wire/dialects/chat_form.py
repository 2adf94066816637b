"""Values out of OpenAI's chat form, in which prompts are, for bodies of other APIs.

Nothing here raises: what is in no form that an API knows goes out as it is, for the server to refuse.
"""

from collections.abc import Mapping
from typing import Any


def object_in(value: Any) -> Mapping[str, Any]:
    """The value where it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def objects_in(value: Any) -> list[Mapping[str, Any]]:
    """The objects among a list's items; none where it is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def function_in(value: Any) -> Mapping[str, Any]:
    """The ``function`` of a tool, of a tool call or of a choice of a tool."""
    return object_in(object_in(value).get("function"))


def text_in(content: Any) -> str:
    """The text of a message's content, its parts joined."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = (part.get("text") for part in objects_in(content))
    return "".join(text for text in texts if isinstance(text, str))
