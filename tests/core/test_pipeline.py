"""The commit and the page of a job, as services say them in the environment."""

import pytest

from llm_locust.core.manifest import PipelineFacts, is_page, pipeline_of

SHA = "0123456789abcdef0123456789abcdef01234567"
PAGE = "https://ci.example/job/7"
GITHUB = {
    "GITHUB_SHA": SHA,
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "a/b",
    "GITHUB_RUN_ID": "42",
}


@pytest.mark.parametrize(
    ("environ", "commit", "url"),
    [
        (GITHUB, SHA, "https://github.com/a/b/actions/runs/42"),
        ({"CI_COMMIT_SHA": SHA, "CI_JOB_URL": PAGE}, SHA, PAGE),
        ({"BUILDKITE_COMMIT": SHA, "BUILDKITE_BUILD_URL": PAGE}, SHA, PAGE),
        ({"CIRCLE_SHA1": SHA, "CIRCLE_BUILD_URL": PAGE}, SHA, PAGE),
        ({"BUILD_SOURCEVERSION": SHA}, SHA, ""),
        ({"GIT_COMMIT": SHA, "BUILD_URL": PAGE}, SHA, PAGE),
        ({}, "", ""),
        ({"BUILDKITE_COMMIT": "HEAD", "GIT_COMMIT": SHA}, SHA, ""),  # before it is checked out
        ({"GIT_COMMIT": "0123456"}, "0123456", ""),
        ({"GIT_COMMIT": "012345"}, "", ""),
        ({"GIT_COMMIT": "0" * 64}, "0" * 64, ""),
        ({"GIT_COMMIT": "0" * 65}, "", ""),
        ({name: value for name, value in GITHUB.items() if name != "GITHUB_RUN_ID"}, SHA, ""),
        ({name: value for name, value in GITHUB.items() if name != "GITHUB_REPOSITORY"}, SHA, ""),
        ({**GITHUB, "GITHUB_SERVER_URL": "", "CI_JOB_URL": PAGE}, SHA, PAGE),
    ],
)
def test_a_run_belongs_to_what_the_service_says(environ: dict[str, str], commit: str, url: str) -> None:
    assert pipeline_of(environ) == PipelineFacts(commit=commit, url=url)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        (PAGE, True),
        ("http://ci.example:8080/job?of=7#top", True),
        ("https://x/" + "a" * 490, True),
        ("https://x/" + "a" * 491, False),
        ("", False),
        ("javascript:alert(1)", False),
        ("file:///etc/passwd", False),
        ("https:///job/7", False),
        ("https://user:word@ci.example/job/7", False),
        ("https://ci.example/job 7", False),
        ('https://ci.example/"><script>', False),
        ("https://ci.example/\n", False),
        ("https://[::1/", False),
    ],
)
def test_a_page_is_an_address_of_http_that_a_report_may_link_to(text: str, is_one: bool) -> None:
    assert is_page(text) is is_one
