"""Addresses as people write them: what is the API's base, and what is added to each request's path."""

import pytest

from llm_locust.client.http.target import Target, TargetError, endpoint_at_end


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://h:8000", "/v1"),
        ("http://h:8000/v1", "/v1"),
        ("http://h:8000/v1/", "/v1"),
        ("http://h:8000/v1/chat/completions", "/v1"),
        ("http://h:8000/v1/completions/", "/v1"),
        ("http://h:8000/v1/models", "/v1"),
        ("http://h/api/v2beta/responses", "/api/v2beta"),
        ("http://h/proxy/chat/completions", "/proxy"),
        ("http://h/proxy", "/proxy/v1"),
        (
            "https://r.example.net/openai/deployments/d/chat/completions?api-version=2024-10-21",
            "/openai/deployments/d",
        ),
        ("https://r.example.net/openai/deployments/d?api-version=2024-10-21", "/openai/deployments/d"),
        ("https://r.example.net/openai/v1?api-version=preview", "/openai/v1"),
    ],
)
def test_the_path_of_an_endpoint_is_left_out_of_the_base(url: str, base: str) -> None:
    assert Target.parse(url).base == base


def test_an_api_version_is_in_the_path_of_every_request() -> None:
    target = Target.parse("https://r.example.net/openai/deployments/d?api-version=2024-10-21")
    assert target.path("/models") == "/openai/deployments/d/models?api-version=2024-10-21"
    assert target.path("/m:stream?alt=sse") == "/openai/deployments/d/m:stream?alt=sse&api-version=2024-10-21"
    assert target.with_base("/v1").path("/models") == "/v1/models?api-version=2024-10-21"
    assert "?" not in target.url
    assert Target.parse("http://h:1").path("/models") == "/v1/models"


@pytest.mark.parametrize(
    "query", ["api-version=1&api-key=sk-hush", "key=sk-hush", "api-version=", "api-version=a%20b", "", "x"]
)
def test_any_other_query_is_refused_and_not_shown(query: str) -> None:
    with pytest.raises(TargetError, match=r"only \?api-version=DATE may be there") as raised:
        Target.parse(f"http://h/v1?{query}")
    assert "hush" not in str(raised.value)


def test_only_the_end_of_a_path_is_an_endpoint() -> None:
    assert endpoint_at_end("http://h/v1/chat/completions?api-version=1") == "/chat/completions"
    assert endpoint_at_end("http://h/chat/completions/v1") == ""
    assert endpoint_at_end("http://h:8000") == ""
