"""A stand-in for a cluster's API server, and runs in it."""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from threading import Thread
from typing import Any

import yaml
from aiohttp import web
from swarm_process import wait_until
from warm_process import WarmProcess

from llm_locust.k8s.hold import ENDED, FETCHED

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


def pod(component: str, state: Object, phase: str = "Running", **status: Any) -> Object:
    """A pod whose one container is in a state."""
    name = f"{{name}}-llm-locust-{component}-abcde"
    labels = {"app.kubernetes.io/component": component}
    one = {"name": component, "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "perf", "labels": labels},
        "spec": {"containers": [{"name": component, "image": "x"}]},
        "status": {"phase": phase, "containerStatuses": [one], **status},
    }


RUNNING: Object = {"running": {}}


def waiting(reason: str, message: str = "") -> Object:
    return {"waiting": {"reason": reason, "message": message}}


def ended(code: int, reason: str = "Error", seconds: int = 2) -> Object:
    times = {"startedAt": "2026-01-01T10:00:00Z", "finishedAt": f"2026-01-01T10:00:{seconds:02d}Z"}
    return {"terminated": {"exitCode": code, "reason": reason, **times}}


class FakeCluster:
    """The folder that the server reads, and kubectl's configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hold.mkdir(parents=True)
        (folder / "runs").mkdir()
        (folder / "log").write_text("")
        self.pods(pod("master", RUNNING), pod("worker", RUNNING))

    @property
    def hold(self) -> Path:
        return self.folder / "tmp" / "llm-locust-hold"

    @property
    def requests(self) -> list[str]:
        return (self.folder / "requests").read_text().splitlines()

    def pods(self, *pods: Object) -> None:
        _replace(self.folder / "pods.json", json.dumps(pods))

    def says(self, *lines: str) -> None:
        """Lines of the master's log."""
        with (self.folder / "log").open("a") as file:
            for line in lines:
                file.write(f"2026-01-01T10:00:00.{file.tell():09d}Z {line}\n")

    def ends(self, code: int) -> None:
        """The run in the pod ends; its process waits for its files to be fetched."""
        _replace(self.hold / ENDED, f"{code}\n")

    def name_of_the_run(self) -> str:
        """From the requests, once it is created."""
        found: list[str] = []

        def is_created() -> bool:
            if (self.folder / "requests").exists():
                found[:] = [line for line in self.requests if "labelSelector" in line]
            return bool(found)

        wait_until(is_created, "a look at the pods", 60)
        return found[0].partition("instance%3D")[2].partition("&")[0]

    def writes(self, name: str, **files: str) -> None:
        run = self.folder / "runs" / name
        run.mkdir()
        for file, text in files.items():
            (run / file).write_text(text)

    @property
    def was_fetched(self) -> bool:
        return (self.hold / FETCHED).exists()


def _replace(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}")
    part.write_text(text)
    part.rename(path)


@contextmanager
def fake_cluster(folder: Path) -> Iterator[FakeCluster]:
    cluster = FakeCluster(folder)
    with serving(folder) as port:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fake", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "me", "user": {}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me"}}],
            "current-context": "fake",
        }
        (folder / "kubeconfig").write_text(yaml.safe_dump(config))
        yield cluster


class Run:
    """``llm-locust k8s run`` in a process of its own."""

    def __init__(self, cluster: FakeCluster, folder: Path, *words: str) -> None:
        scenario = folder / "s.yaml"
        scenario.write_text("users: 5\nrun_time: 1m\nhost: http://llm:8000\n")
        command = ["k8s", "run", "--scenario", str(scenario), "--workers", "1", "-n", "perf", *words]
        home = {"KUBECONFIG": str(cluster.folder / "kubeconfig"), "HOME": str(cluster.folder)}
        self.out = folder / "out"
        with self.out.open("wb") as out:
            self._process = WarmProcess("llm_locust", command, folder, os.environ | home, out, {})

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        self._process.send_signal(number)

    def code(self) -> int:
        """Wait for its end."""
        return self._process.wait(120)

    @cached_property
    def said(self) -> str:
        """All of its stderr, once it has ended."""
        return self._process.stderr.read()

    def end(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.stderr.close()
