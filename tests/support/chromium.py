"""Chromium, and what it shows in the charts of a report."""

from pathlib import Path
from typing import Any

from playwright.sync_api import Page

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
