"""Make the pictures of README.md: the live page and the report of a run against the simulator.

It needs Chromium. The load is light, so that the client's verdict is ``ok`` on an idle machine.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, sync_playwright

IMAGES = Path(__file__).parent.parent / "docs" / "images"
CHROMIUM = Path("/usr/bin/chromium-headless-shell")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
SIZE = {"width": 1440, "height": 840}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")

RUN = ("llm-locust", "run", "--sim", "--slo", "ttft=500ms tpot=50ms", "--gate", "goodput>=95% p90_ttft<200ms")

#: Seconds of the run with the web UI, and of these before its picture.
LIVE_S, LIVE_AFTER_S = 75, 55


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        out = Path(folder) / "demo"
        subprocess.run([*RUN, "--for", "45s", "--out", str(out)], env=_environ(), check=True)
        for scheme in SCHEMES:
            _take(browser, (out / "report.html").as_uri(), f"report-{scheme}.png", scheme)
        with _live(Path(folder) / "live") as url:
            _wait(browser, LIVE_AFTER_S)
            for scheme in SCHEMES:
                _take(browser, f"{url}/llm/charts", f"live-{scheme}.png", scheme)
        browser.close()


def _environ() -> dict[str, str]:
    return os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@contextlib.contextmanager
def _live(out: Path) -> Iterator[str]:
    """The address of the web UI of a run that is under way."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [*RUN, "--ui", "--users", "6", "--workers", "1", "--for", f"{LIVE_S}s", "--out", str(out)]
    command += ["--", "--autostart", "--autoquit", "2", "--web-port", str(port)]
    with subprocess.Popen(
        command, env=_environ(), start_new_session=True, text=True, stderr=subprocess.PIPE
    ) as run:
        try:
            assert run.stderr is not None
            for line in run.stderr:
                if "writes to" in line:
                    break
            yield f"http://127.0.0.1:{port}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGTERM)
            run.communicate()


def _wait(browser: Browser, seconds: float) -> None:
    page = browser.new_page()
    page.wait_for_timeout(seconds * 1e3)
    page.close()


def _take(browser: Browser, url: str, name: str, scheme: Literal["light", "dark"]) -> None:
    context = browser.new_context(color_scheme=scheme, viewport=SIZE)
    page = context.new_page()
    page.goto(url)
    page.wait_for_timeout(4000)  # until charts are drawn
    page.screenshot(path=IMAGES / name)
    context.close()


if __name__ == "__main__":
    main()
