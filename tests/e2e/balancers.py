"""Real balancers on loopback before simulated replicas, each set up as docs/balancers.md says."""

import http.client
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

import pytest

from e2e.servers import HOST, READY_WITHIN_S, Server, free_port, python, running

ROOT = Path(__file__).parents[2]
LITELLM_VENV_VARIABLE = "LLM_LOCUST_LITELLM_VENV"
LITELLM_KEY = "sk-of-this-test-alone"
WARM_UP = "warm-up"  # the id of the one request that is not the run's
INSTALLS_WITHIN_S = 240.0

NGINX_CONF = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream replicas {{
{servers}
        keepalive 64;
    }}
    server {{
        listen {host}:{port};
        location / {{
            proxy_pass http://replicas;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            add_header X-Upstream $upstream_addr always;
        }}
    }}
}}
"""

HAPROXY_CONF = """
global
    maxconn 1024
defaults
    mode http
    timeout connect 1s
    timeout client 60s
    timeout server 60s
    {no_delay}option http-no-delay
    option redispatch 1
listen balancer
    bind {host}:{port}
    balance roundrobin
    http-response set-header X-Upstream "%[srv_name]"
    default-server check inter 500ms fall 1
{servers}
"""

#: Connections are shared out, and what goes over them is not looked at.
HAPROXY_TCP_CONF = """
global
    maxconn 1024
defaults
    mode tcp
    timeout connect 1s
    timeout client 60s
    timeout server 60s
listen balancer
    bind {host}:{port}
    balance roundrobin
{servers}
"""

#: A replica that says nothing of itself: the simulator's own header is taken off.
HAPROXY_NAMELESS_CONF = """
listen nameless-{name}
    mode http
    option http-no-delay
    bind {host}:{port}
    http-response del-header X-Served-By
    server {name} {address}
"""

LITELLM_CONF = """
model_list:
{entries}
router_settings:
    routing_strategy: simple-shuffle
    num_retries: 0
    cooldown_time: 60
    allowed_fails: 0
litellm_settings:
    telemetry: false
general_settings:
    master_key: {key}
    forward_client_headers_to_llm_api: true
"""

LITELLM_ENTRY = """\
  - model_name: sim
    litellm_params: {{model: openai/sim, api_base: "{url}/v1", api_key: none}}
"""


@cache
def program(name: str) -> str:
    """The path of a balancer, installed by apt where the tests may do that; the test is skipped otherwise."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    if not shutil.which(name, path=path) and os.geteuid() == 0 and shutil.which("apt-get"):
        for words in (["update"], ["install", "-y", "--no-install-recommends", name]):
            subprocess.run(
                ["apt-get", *words],
                env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
                check=False,
                capture_output=True,
                timeout=INSTALLS_WITHIN_S,
            )
    found = shutil.which(name, path=path)
    if found is None:
        pytest.skip(f"no {name} on this machine, and apt-get did not install it: install the package {name}")
    return found


@contextmanager
def nginx(replicas: Sequence[Server], folder: Path) -> Iterator[Server]:
    """nginx in one process, so that one id ends it. It tries a replica that failed again every 2 s."""
    port = free_port()
    servers = "\n".join(f"        server {r.address} max_fails=1 fail_timeout=2s;" for r in replicas)
    conf = folder / "nginx.conf"
    conf.write_text(NGINX_CONF.format(folder=folder, host=HOST, port=port, servers=servers))
    command = [program("nginx"), "-p", str(folder), "-c", str(conf), "-e", "stderr"]
    with running(command, port, folder / "nginx.log") as server:
        yield server


@contextmanager
def haproxy(replicas: Sequence[Server], folder: Path, *, no_delay: bool = True) -> Iterator[Server]:
    """haproxy, which names the server that a request went to ``r0``, ``r1`` and so on."""
    text = HAPROXY_CONF.format(
        host=HOST, port=(port := free_port()), servers=_servers(replicas), no_delay="" if no_delay else "no "
    )
    with _haproxy(text, port, folder) as server:
        yield server


@contextmanager
def haproxy_tcp(replicas: Sequence[Server], folder: Path, *, named: bool) -> Iterator[Server]:
    """haproxy that shares out connections; ``named``: the replicas' own header reaches the client."""
    port, addresses, before = free_port(), [r.address for r in replicas], ""
    if not named:
        ports = [free_port() for _ in replicas]
        before = "".join(
            HAPROXY_NAMELESS_CONF.format(name=f"r{i}", host=HOST, port=ports[i], address=addresses[i])
            for i in range(len(replicas))
        )
        replicas = [Server(p, folder) for p in ports]
    text = HAPROXY_TCP_CONF.format(host=HOST, port=port, servers=_servers(replicas)) + before
    with _haproxy(text, port, folder) as server:
        yield server


@contextmanager
def _haproxy(text: str, port: int, folder: Path) -> Iterator[Server]:
    conf = folder / "haproxy.cfg"
    conf.write_text(text)
    with running([program("haproxy"), "-db", "-f", str(conf)], port, folder / "haproxy.log") as server:
        yield server


def _servers(replicas: Sequence[Server]) -> str:
    return "\n".join(f"    server r{i} {replica.address}" for i, replica in enumerate(replicas))


def _litellm_program() -> Path:
    """Missing is a failure: a skip would look like a pass."""
    program = ROOT / os.environ.get(LITELLM_VENV_VARIABLE, ".venv-litellm") / "bin/litellm"
    if not program.exists():
        pytest.fail(
            f"there is no {program}: run `make test-e2e`, which makes it, or let {LITELLM_VENV_VARIABLE} "
            "name an environment made from tests/e2e/litellm-requirements.txt"
        )
    return program


@contextmanager
def litellm(replicas: Sequence[Server], folder: Path) -> Iterator[Server]:
    """The LiteLLM proxy with an entry of one model name for each replica, its cold start behind it."""
    port = free_port()
    entries = "".join(LITELLM_ENTRY.format(url=replica.url) for replica in replicas)
    conf = folder / "litellm.yaml"
    conf.write_text(LITELLM_CONF.format(entries=entries, key=LITELLM_KEY))
    program = _litellm_program()
    command = [*python(program.parent.parent, program), "--config", str(conf)]
    command += ["--host", HOST, "--port", str(port)]
    offline = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONUNBUFFERED": "1"}
    log = folder / "litellm.log"
    with running(command, port, log, offline, health="/health/liveliness") as server:
        _warm_up(server)
        yield server


def _warm_up(server: Server) -> None:
    """The proxy imports much of itself at its first request."""
    body = {"model": "sim", "messages": [{"role": "user", "content": "one"}], "stream": True, "max_tokens": 1}
    headers = {"Authorization": f"Bearer {LITELLM_KEY}", "X-Request-Id": WARM_UP}
    headers["Content-Type"] = "application/json"
    with closing(http.client.HTTPConnection(HOST, server.port, timeout=READY_WITHIN_S)) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        response.read()
