"""The commit and the pipeline that a run belongs to, as the usual services say in the environment."""

from collections.abc import Mapping
from dataclasses import dataclass
from string import hexdigits
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta

_LONGEST_URL = 500

#: Variables of a commit, by service; of a page of the job, unless it is put together.
_COMMITS = (
    "GITHUB_SHA",
    "CI_COMMIT_SHA",  # GitLab
    "BUILDKITE_COMMIT",
    "CIRCLE_SHA1",
    "BUILD_SOURCEVERSION",  # Azure
    "GIT_COMMIT",  # Jenkins
)
_PAGES = ("CI_JOB_URL", "BUILDKITE_BUILD_URL", "CIRCLE_BUILD_URL", "BUILD_URL")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFacts:
    """``commit`` in hexadecimal digits, and the address of the job's page; empty if not known."""

    commit: Annotated[str, Meta(max_length=64, pattern="^[0-9a-fA-F]*$")] = ""
    url: Annotated[str, Meta(max_length=_LONGEST_URL)] = ""


def pipeline_of(environ: Mapping[str, str]) -> PipelineFacts:
    """The facts of a process's environment. What is no commit or no plain address is left out."""
    commit = next((environ[name] for name in _COMMITS if _is_commit(environ.get(name, ""))), "")
    page = next((environ[name] for name in _PAGES if is_page(environ.get(name, ""))), "")
    return PipelineFacts(commit=commit, url=_github(environ) or page)


def _github(environ: Mapping[str, str]) -> str:
    names = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")
    server, repository, run = (environ.get(name, "") for name in names)
    url = f"{server}/{repository}/actions/runs/{run}"
    return url if repository and run and is_page(url) else ""


def _is_commit(text: str) -> bool:
    return 7 <= len(text) <= 64 and set(text) <= set(hexdigits)


def is_page(text: str) -> bool:
    """Whether a text is the address of a page: of HTTP, without credentials, blanks and brackets."""
    if not 0 < len(text) <= _LONGEST_URL or not text.isprintable() or set(text) & set(' <>"\\`'):
        return False
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
