"""Which script a request is answered by."""

import functools
from collections.abc import Mapping

import msgspec

from scripted.http1 import Message
from scripted.script import SCRIPT_HEADER, Step, decode_script, json_response, write

_cached_script = functools.lru_cache(maxsize=256)(decode_script)


def script_of(message: Message, routes: Mapping[str, list[Step]]) -> list[Step]:
    """The script of a request: from its header, its JSON body, or the routes (path, else ``*``)."""
    header = message.header(SCRIPT_HEADER)
    try:
        if header is not None:
            return _cached_script(header)
        if (inside := _script_in(bytes(message.body))) is not None:
            return inside
    except ValueError as e:
        return _complaint(f"the script of this request is not one: {e}")
    path = message.path.partition("?")[0]
    found = routes.get(path, routes.get("*"))
    if found is None:
        return _complaint(f"no script came with this request, and there is no route for {path}")
    return found


def _script_in(body: bytes) -> list[Step] | None:
    if b'"script"' not in body:
        return None
    content = msgspec.json.decode(body)
    if not isinstance(content, dict) or "script" not in content:
        return None
    return msgspec.convert(content["script"], list[Step])


def _complaint(text: str) -> list[Step]:
    return [write(0, json_response({"error": {"message": text, "type": "scripted_server"}}, 500))]
