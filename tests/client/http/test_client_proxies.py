"""A load goes to its target directly: where curl would use a proxy, it is refused."""

import pytest

from llm_locust.client.http.target import Target, TargetError, proxy_variable, refuse_proxy

PROXY = "http://proxy.example.org:3128"
BOTH = {"http_proxy": PROXY, "HTTPS_PROXY": PROXY}


@pytest.mark.parametrize(
    ("url", "environ", "variable"),
    [
        ("http://llm:8000", {}, None),
        ("http://llm:8000", {"http_proxy": PROXY}, "http_proxy"),
        ("http://llm:8000", {"http_proxy": " "}, None),
        ("http://llm:8000", {"HTTP_PROXY": PROXY}, None),  # a request's header Proxy, with CGI
        ("http://llm:8000", {"https_proxy": PROXY}, None),
        ("https://llm", {"http_proxy": PROXY}, None),
        ("https://llm", {"https_proxy": PROXY}, "https_proxy"),
        ("https://llm", {"HTTPS_PROXY": PROXY}, "HTTPS_PROXY"),
        ("http://llm:8000", {"ALL_PROXY": PROXY}, "ALL_PROXY"),
        ("https://llm", {"all_proxy": PROXY}, "all_proxy"),
        *((f"http://{host}:8000", BOTH, None) for host in ("127.0.0.1", "127.8.0.1", "localhost", "[::1]")),
    ],
)
def test_the_variable_is_that_by_which_curl_would_find_a_proxy(
    url: str, environ: dict[str, str], variable: str | None
) -> None:
    assert proxy_variable(Target.parse(url), environ) == variable


@pytest.mark.parametrize(
    ("url", "excepted", "is_direct"),
    [
        ("https://llm.example.org", "*", True),
        ("https://llm.example.org", "llm.example.org", True),
        ("https://llm.example.org", "LLM.Example.org.", True),
        ("https://llm.example.org", "example.org", True),
        ("https://llm.example.org", ".example.org", True),
        ("https://llm.example.org", "a.b, example.org", True),
        ("https://llm.example.org", "a.b example.org", True),
        ("https://llm.example.org", "m.example.org", False),
        ("https://llm.example.org", "xample.org", False),
        ("https://llm.example.org", "", False),
        ("https://llm.example.org", "llm.example.org:443", True),
        ("https://llm.example.org", "llm.example.org:8443", False),
        ("https://10.1.2.3", "10.1.2.3", True),
        ("https://10.1.2.3", "10.0.0.0/8", True),
        ("https://10.1.2.3", "10.1.2.0/30", True),
        ("https://10.1.2.3", "192.168.0.0/16", False),
        ("https://[fd00::7]", "fd00::/8", True),
        ("https://[fd00::7]", "[fd00::7]", True),
    ],
)
@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
def test_no_proxy_says_what_is_reached_directly(url: str, excepted: str, is_direct: bool, name: str) -> None:
    target, environ = Target.parse(url), {**BOTH, name: excepted}
    assert (proxy_variable(target, environ) is None) == is_direct
    if is_direct:
        refuse_proxy(target, environ)
    else:
        with pytest.raises(TargetError, match=rf"^HTTPS_PROXY is set, .*NO_PROXY={target.host}") as raised:
            refuse_proxy(target, environ)
        assert "proxy.example.org" not in str(raised.value), "it may have a password"
