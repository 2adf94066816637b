"""Hooks of the site's build: pages outside ``docs/`` become pages of the site.

README.md is the site's first page. A link to any other file of the repository takes that file into the site,
so that no link leads to another host. Pages that ``make site`` generates take the place of their templates.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent

#: Pages of the site that are not in ``docs/``: their path in the site -> in the repository.
PAGES = {"index.md": "README.md"} | {
    name: name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "llms.txt")
}

#: What ``make site`` has made of the package.
GENERATED = ROOT / "build" / "reference"

_LINK = re.compile(r"(\]\(|^\[[^\]]+\]: |src=\"|srcset=\")(?!https?:|mailto:|#)([^)\s\"#]+)", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages outside ``docs/``, and every file that a page links to."""
    for made in GENERATED.iterdir():
        if template := files.get_file_from_path(made.name):
            files.remove(template)
        files.append(File.generated(config, made.name, content=made.read_bytes()))
    for inside, outside in PAGES.items():
        files.append(File.generated(config, inside, content=_linked(ROOT / outside, inside)))
    for path in sorted({path for page in [*PAGES.values(), *_pages()] for path in _files(ROOT / page)}):
        inside = _inside(path)
        if inside not in files.src_uris:
            files.append(File.generated(config, inside, content=(ROOT / path).read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Rewrite a page's links to files outside ``docs/``."""
    if page.file.src_uri in PAGES:
        return markdown
    return _rewritten(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)


def _pages() -> list[str]:
    return [str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")]


def _linked(outside: Path, inside: str) -> str:
    return _rewritten(outside.read_text(encoding="utf-8"), outside.name, inside)


def _rewritten(text: str, outside: str, inside: str) -> str:
    """``text`` of the repository's file ``outside`` with the links that it has as ``inside`` of the site."""

    def link(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(outside), found[2]))
        return found[1] + posixpath.relpath(_inside(path), posixpath.dirname(inside) or ".")

    return _LINK.sub(link, text)


def _inside(path: str) -> str:
    """Where a file of the repository is in the site."""
    for inside, outside in PAGES.items():
        if path == outside:
            return inside
    return path.removeprefix("docs/")


def _files(page: Path) -> set[str]:
    """Files of the repository that a page links to, but for pages."""
    folder = posixpath.dirname(page.relative_to(ROOT).as_posix())
    named = {
        posixpath.normpath(posixpath.join(folder, found[2])) for found in _LINK.finditer(page.read_text())
    }
    return {path for path in named if (ROOT / path).is_file() and not path.endswith(".md")}
