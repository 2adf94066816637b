"""Chromium on pages of the web UI."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Page
from swarm_process import PATIENCE_S

#: Without what only a window needs, it takes a fifth less CPU time.
CHROMIUM = Path("/usr/bin/chromium-headless-shell")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]


def texts(page: Page) -> list[str]:
    """All texts in the charts, without the blanks that plotly sets between lines."""
    found: list[str] = page.evaluate(
        "[...document.querySelectorAll('.main-svg text')].map((t) => t.textContent)"
    )
    return found


def markup(page: Page) -> list[Any]:
    """What only markup in a text can have made: links, and bold or slanted texts."""
    found: list[Any] = page.evaluate(
        '[...document.querySelectorAll(\'.main-svg a, .main-svg tspan[style*="weight"], '
        '.main-svg tspan[style*="italic"]\')].map((e) => e.outerHTML)'
    )
    return found


@dataclass
class Watch:
    """A browser's tab, and what it did that no page may do."""

    page: Page
    url: str
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE_S * 1e3)
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: self.wrong.append(f"dialog: {dialog.message}"))
        self.page.on("request", self._on_request)

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"{message.type}: {message.text}")

    def _on_request(self, request: Any) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and parts.netloc != urlsplit(self.url).netloc:
            self.wrong.append(f"left the machine: {request.url}")

    def show_few_charts(self) -> None:
        """A small window: the page draws those charts again and again that are near it."""
        self.page.set_viewport_size({"width": 600, "height": 300})

    def tab(self, name: str) -> None:
        self.page.get_by_role("tab", name=name, exact=True).click()

    def wait_js(self, condition: str) -> None:
        # Not wait_for_function: the pages' policy forbids what it does.
        deadline = time.monotonic() + PATIENCE_S
        while not self.page.evaluate(condition):
            assert time.monotonic() < deadline, f"does not become true: {condition}"
            self.page.wait_for_timeout(100)
