"""A stand-in for Kubernetes' API server, in a process of its own: pods of a file, to who has the token.

    python tests/support/api_server.py FOLDER CERT KEY

FOLDER/pods.json is the list of pods, FOLDER/token who may ask; both are read anew for each request. It says
its port on standard output, and ends with its standard input.
"""

import json
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit


class ApiServer(ThreadingHTTPServer):
    folder: Path


class Handler(BaseHTTPRequestHandler):
    server: ApiServer

    def do_GET(self) -> None:
        status, answer = self._answer()
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> tuple[int, Any]:
        folder = self.server.folder
        if self.headers["Authorization"] != f"Bearer {(folder / 'token').read_text()}":
            return 401, {"kind": "Status", "code": 401}
        parts = urlsplit(self.path)
        query = {key: value[0] for key, value in parse_qs(parts.query).items()}
        if "===" in query["labelSelector"]:
            return 400, {"kind": "Status", "code": 400}
        content = (folder / "pods.json").read_text()
        try:
            pods = json.loads(content)
        except ValueError:
            return 200, content.encode()
        namespace = parts.path.removeprefix("/api/v1/namespaces/").removesuffix("/pods")
        if namespace == "forbidden":
            return 403, {"kind": "Status", "code": 403}
        wanted = dict(term.split("=") for term in query["labelSelector"].split(","))
        found = [
            pod
            for pod in pods
            if pod["metadata"]["namespace"] == namespace
            and wanted.items() <= pod["metadata"].get("labels", {}).items()
        ]
        start = int(query.get("continue", 0))
        stop = start + int(query["limit"])
        metadata = {"continue": str(stop)} if stop < len(found) else {}
        return 200, {"kind": "PodList", "metadata": metadata, "items": found[start:stop]}


def main(folder: str, certificate: str, key: str) -> None:
    server = ApiServer(("127.0.0.1", 0), Handler)
    server.folder = Path(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
