"""Chromium on a page of another origin: what that page can do to a web UI that the same browser reaches."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from playwright.sync_api import Page, sync_playwright
from swarm_process import Process, free_port, locust, simulation, wait_until
from web_browser import ARGUMENTS, CHROMIUM

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"needs Chromium as {CHROMIUM}")

#: Every way that a script has to send a request: what it can read of the answer.
FETCHES = """
async (base) => {
  const found = {};
  const note = async (name, request) => {
    try {
      const answer = await request();
      found[name] = answer.type === "opaque" ? "opaque" : await answer.text();
    } catch (error) { found[name] = "refused"; }
  };
  const form = "user_count=3&spawn_rate=10&host=http%3A%2F%2F127.0.0.1%3A9&api_key_env=HOME";
  const plain = {"content-type": "application/x-www-form-urlencoded"};
  for (const mode of ["cors", "no-cors"]) {
    for (const path of ["/swarm", "/stop", "/stats/reset", "/user"])
      await note(`${mode} POST ${path}`,
        () => fetch(base + path, {method: "POST", mode, body: form, headers: plain, credentials: "omit"}));
    for (const path of ["/", "/metrics", "/logs", "/stats/requests", "/stats/requests/csv", "/exceptions",
                        "/llm/series", "/llm/names.csv", "/llm/charts", "/llm/reports"])
      await note(`${mode} GET ${path}`, () => fetch(base + path, {mode, credentials: "omit"}));
  }
  await note("preflight", () => fetch(base + "/user", {
    method: "POST", body: "{}", headers: {"content-type": "application/json", "x-own": "1"}}));
  await note("beacon", async () => new Response(String(navigator.sendBeacon(base + "/stop", form))));
  return found;
}
"""

#: A script, an image, a frame and a form of the other page, with the web UI as their address.
EMBEDDED = """
(base) => {
  window.loaded = [];
  const add = (tag, path) => {
    const element = document.createElement(tag);
    element.onload = () => window.loaded.push(tag);
    element[tag === "link" ? "href" : "src"] = base + path;
    if (tag === "link") element.rel = "stylesheet";
    document.body.append(element);
  };
  add("script", "/llm/assets/live.js");
  add("link", "/llm/assets/live.css");
  add("img", "/assets/graphs-light.png");
  const frame = document.createElement("iframe");
  frame.name = "frame";
  frame.src = base + "/";
  document.body.append(frame);
}
"""

SUBMITTED = """
(base) => {
  const form = document.createElement("form");
  form.method = "POST";
  form.action = base + "/swarm";
  for (const [name, value] of [["user_count", "3"], ["spawn_rate", "10"]]) {
    const input = document.createElement("input");
    input.name = name; input.value = value; form.append(input);
  }
  document.body.append(form);
  form.submit();
}
"""


class _Evil(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>evil</title><body>a page</body>")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def evil_page() -> Iterator[int]:
    """A page of another origin, on a port of its own."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Evil)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ask(url: str) -> Any:
    with urlopen(url, timeout=120) as answer:
        return json.loads(answer.read())


def answers(url: str) -> bool:
    try:
        return ask(f"{url}/stats/requests") is not None
    except (URLError, OSError):
        return False


@contextmanager
def browser() -> Iterator[Page]:
    rebinding = "--host-resolver-rules=MAP rebound.example 127.0.0.1"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=[*ARGUMENTS, rebinding])
        try:
            yield chromium.new_page()
        finally:
            chromium.close()


def untouched(url: str, folder: Path, process: Process) -> None:
    seen = ask(f"{url}/stats/requests")
    assert (seen["state"], seen["user_count"]) == ("ready", 0)
    assert not list((folder / "runs").glob("*/*"))
    assert "stop" not in "".join(process.lines).lower()


def test_a_page_of_another_origin_sets_nothing_and_reads_nothing(tmp_path: Path) -> None:
    port = free_port()
    with (
        simulation(tmp_path / "sim") as sim,
        locust(tmp_path, "--web-port", str(port), "-H", sim.url) as process,
        evil_page() as evil,
        browser() as page,
    ):
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: answers(url), "the web UI")
        for origin in ("127.0.0.1", "evil.localhost"):  # same-site and cross-site
            page.goto(f"http://{origin}:{evil}/")
            found = page.evaluate(FETCHES, url)
            assert {v for k, v in found.items() if k.startswith("cors ")} == {"refused"}, found
            assert set(found.values()) <= {"refused", "opaque", "true"}, found
            untouched(url, tmp_path, process)

            page.evaluate(EMBEDDED, url)
            page.wait_for_timeout(1000)
            assert page.evaluate("window.loaded") == []
            frame = page.frame("frame")
            assert frame is not None
            assert frame.url.startswith("chrome-error://")

            page.evaluate(SUBMITTED, url)
            page.wait_for_url(f"{url}/swarm")
            assert "another origin" in page.inner_text("body")
            untouched(url, tmp_path, process)

        page.goto(f"http://rebound.example:{port}/")
        assert "--web-name" in page.inner_text("body")
        found = page.evaluate(FETCHES, "")
        assert all("--web-name" in v or v in ("true", "opaque", "refused") for v in found.values()), found
        untouched(url, tmp_path, process)

        page.goto(f"{url}/llm/reports")  # and its own page may; that of Locust takes much longer to load
        form = "new URLSearchParams({user_count: 3, spawn_rate: 10})"
        page.evaluate(f"fetch('/swarm', {{method: 'POST', body: {form}}})")
        wait_until(lambda: ask(f"{url}/stats/requests")["state"] == "running", "the run")
