"""A stand-in for a cluster's API server, which the real kubectl creates, watches, reads and removes a run by.

It keeps the objects that it is sent. Pods are those of FOLDER/pods.json, a list of ``kind: Pod`` objects that
is read anew for each request, once the run's Jobs are there; ``{name}`` in it stands for the run. A pod's log
is FOLDER/log; ``exec`` runs its command here, with folders of FOLDER for /tmp and /runs. FOLDER/events.json
are its events. Requests are lines of FOLDER/requests. While there is FOLDER/away, it answers none. A pod that
it is sent runs and is ready.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

from aiohttp import web

KINDS = {
    "/api/v1": ("namespaces", "pods", "services", "configmaps", "serviceaccounts", "events"),
    "/apis/batch/v1": ("jobs",),
    "/apis/policy/v1": ("poddisruptionbudgets",),
    "/apis/networking.k8s.io/v1": ("networkpolicies",),
    "/apis/apps/v1": ("deployments",),
}
NAMES = {
    "namespaces": "Namespace",
    "pods": "Pod",
    "services": "Service",
    "configmaps": "ConfigMap",
    "serviceaccounts": "ServiceAccount",
    "events": "Event",
    "jobs": "Job",
    "poddisruptionbudgets": "PodDisruptionBudget",
    "networkpolicies": "NetworkPolicy",
    "deployments": "Deployment",
}

Object = dict[str, Any]


class ApiServer:
    """Objects by their kind and name; one namespace is as good as another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects: dict[tuple[str, str], Object] = {}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        with (self.folder / "requests").open("a") as file:
            file.write(f"{request.method} {request.path_qs}\n")
        path = request.path.rstrip("/")
        if (self.folder / "away").exists():
            return _status(503, "the server is currently unable to handle the request")
        if path == "/version":
            return web.json_response({"major": "1", "minor": "33", "gitVersion": "v1.33.0"})
        if path == "/api":
            return web.json_response({"kind": "APIVersions", "versions": ["v1"]})
        if path == "/apis":
            return web.json_response(
                {"kind": "APIGroupList", "groups": [_group(p) for p in KINDS if "apis" in p]}
            )
        if path in KINDS:
            return web.json_response(_resources(path))
        if path.startswith("/openapi"):
            return web.json_response(_openapi(path))
        parts = path.split("/")
        if "namespaces" in parts and len(parts) > parts.index("namespaces") + 2:
            parts = parts[parts.index("namespaces") + 2 :]
        else:
            parts = parts[parts.index("namespaces") :] if "namespaces" in parts else parts[-1:]
        return await self._resource(request, parts)

    async def _resource(self, request: web.Request, parts: list[str]) -> web.StreamResponse:
        match request.method, parts:
            case "POST", [kind]:
                if (self.folder / "refuses").exists():
                    return _status(403, (self.folder / "refuses").read_text().strip())
                made = json.loads(await request.read())
                self.objects[kind, made["metadata"]["name"]] = made
                made["metadata"]["uid"] = f"uid-{len(self.objects)}"
                if kind == "pods":
                    ready = {"type": "Ready", "status": "True"}
                    made["status"] = {"phase": "Running", "conditions": [ready]}
                return web.json_response(made, status=201)
            case "GET", [kind]:
                its_name = request.query.get("fieldSelector", "").partition("metadata.name=")[2]
                items = [o for o in self._all(kind) if its_name in ("", o["metadata"]["name"])]
                return web.json_response({"kind": f"{NAMES[kind]}List", "apiVersion": "v1", "items": items})
            case "GET", ["pods", _, "log"]:
                return await self._log(request)
            case (("GET" | "POST"), ["pods", _, "exec"]):
                return await self._exec(request)
            case "GET", [kind, name]:
                found = [o for o in self._all(kind) if o["metadata"]["name"] == name]
                return web.json_response(found[0]) if found else _status(404, f"{kind} {name!r} not found")
            case "DELETE", [kind, name]:
                gone = self.objects.pop((kind, name), None)
                return web.json_response(gone) if gone else _status(404, f"{kind} {name!r} not found")
        return _status(405, f"{request.method} {request.path}")

    def _all(self, kind: str) -> list[Object]:
        made = [o for (its, _), o in self.objects.items() if its == kind]
        if kind == "events":
            file = self.folder / "events.json"
            return json.loads(file.read_text()) if file.exists() else []
        jobs = [name for its, name in self.objects if its == "jobs"]
        if kind == "pods" and jobs:
            text = (self.folder / "pods.json").read_text()
            made += json.loads(text.replace("{name}", jobs[0].partition("-llm-locust")[0]))
        return made

    async def _log(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        sent = 0
        while True:
            lines = (self.folder / "log").read_text().splitlines(keepends=True)
            for line in lines[sent:]:
                text = line if "timestamps" in request.query else line.partition(" ")[2]
                await response.write(text.encode())
            sent = len(lines)
            if "follow" not in request.query or (self.folder / "cut").exists():
                return response
            await asyncio.sleep(0.05)

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        """Channels 1 and 2 are the outputs, 3 is how it ended."""
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await socket.prepare(request)
        words = [word.replace("/tmp/", f"{self.folder}/tmp/") for word in request.query.getall("command")]
        words = [word.replace("/runs", f"{self.folder}/runs") for word in words]
        words = [word.replace("kill -INT 1", f"touch {self.folder}/interrupted") for word in words]
        process = await asyncio.create_subprocess_exec(*words, stdout=-1, stderr=-1, stdin=-3)
        out, err = await process.communicate()
        if (self.folder / "truncates").exists() and len(out) > 1024:
            out = out[:1024]
        for start in range(0, len(out), 32_768):
            await socket.send_bytes(b"\x01" + out[start : start + 32_768])
        if err:
            await socket.send_bytes(b"\x02" + err)
        code = process.returncode
        status: Object = {"kind": "Status", "metadata": {}, "status": "Success"}
        if code:
            cause = {"reason": "ExitCode", "message": str(code)}
            details = {"causes": [cause]}
            status |= {"status": "Failure", "reason": "NonZeroExitCode", "details": details}
            status["message"] = f"command terminated with exit code {code}"
        await socket.send_bytes(b"\x03" + json.dumps(status).encode())
        await socket.close()
        return socket


def _group(path: str) -> Object:
    _, _, name, version = path.split("/")
    one = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [one], "preferredVersion": one}


def _resources(path: str) -> Object:
    resources = [
        {
            "name": kind,
            "singularName": "",
            "namespaced": kind != "namespaces",
            "kind": NAMES[kind],
            "verbs": ["create", "delete", "get", "list", "patch", "watch"],
        }
        for kind in KINDS[path]
    ]
    version = path.removeprefix("/api/").removeprefix("/apis/")
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}


def _openapi(path: str) -> Object:
    """That fields are validated by the server, which kubectl asks before it creates anything."""
    if path == "/openapi/v3":
        return {"paths": {p.strip("/"): {"serverRelativeURL": f"/openapi/v3{p}"} for p in KINDS}}
    place = path.removeprefix("/openapi/v3")
    group = "" if place == "/api/v1" else place.split("/")[2]
    parameters = [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}]
    paths = {}
    for kind in KINDS.get(place, ()):
        gvk = {"group": group, "version": "v1", "kind": NAMES[kind]}
        patch = {"parameters": parameters, "x-kubernetes-group-version-kind": gvk, "responses": {}}
        paths[f"{place}/namespaces/{{namespace}}/{kind}/{{name}}"] = {"patch": patch}
    return {"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1.33.0"}, "paths": paths}


def _status(code: int, message: str) -> web.Response:
    reason = {403: "Forbidden", 404: "NotFound"}.get(code, "")
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason}
    return web.json_response({**status, "code": code}, status=code)


@contextmanager
def serving(folder: Path) -> Iterator[int]:
    """The server in a thread while it lasts; gives its port."""
    begun: Future[tuple[int, Callable[[], object]]] = Future()

    async def serve() -> None:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_route("*", "/{any:.*}", ApiServer(folder).answer)
        runner = web.AppRunner(app, shutdown_timeout=0.01)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ended = asyncio.Event()
        end = partial(asyncio.get_running_loop().call_soon_threadsafe, ended.set)
        begun.set_result((runner.addresses[0][1], end))
        await ended.wait()
        await runner.cleanup()

    thread = Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    port, end = begun.result(30)
    try:
        yield port
    finally:
        end()
        thread.join()
