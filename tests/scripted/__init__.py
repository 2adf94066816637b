"""A scripted HTTP/1.1 server of known bytes, times and faults, for tests of HTTP clients.

A request carries its own script, so one server serves any number of tests, in any order::

    with scripted_server() as server:
        script = stream_script(ttft_ms=50, gap_ms=20, tokens=10)
        my_client.post(server.url + "/v1/chat/completions", headers=script_header(script))
        (served,) = server.wait_ended(1)
        assert served.write_ns  # when each write of the script truly was made
"""

from scripted.process import ScriptedServer, refusing_port, scripted_server, silent_port
from scripted.script import (
    RefuseBy,
    Script,
    ServedConnection,
    ServedRequest,
    SlowRead,
    Step,
    TlsFiles,
    Write,
    chat_chunk,
    chunk,
    json_response,
    last_chunk,
    make_tls_files,
    response_head,
    script_header,
    sse,
    stream_script,
    usage_counts,
    write,
)

__all__ = [
    "RefuseBy",
    "Script",
    "ScriptedServer",
    "ServedConnection",
    "ServedRequest",
    "SlowRead",
    "Step",
    "TlsFiles",
    "Write",
    "chat_chunk",
    "chunk",
    "json_response",
    "last_chunk",
    "make_tls_files",
    "refusing_port",
    "response_head",
    "script_header",
    "scripted_server",
    "silent_port",
    "sse",
    "stream_script",
    "usage_counts",
    "write",
]
