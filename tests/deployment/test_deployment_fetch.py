"""One page within its time, whatever the other side does."""

import time

import pytest
from page_server import Behaviour, drip, endless, hang, page, serving

from llm_locust.deployment.discovery import Endpoint, FetchError, Page, fetch, scrape_targets_of


def get(port: int, timeout_s: float = 5.0) -> Page:
    (target,) = scrape_targets_of(Endpoint.parse(f"http://127.0.0.1:{port}/metrics"))
    return fetch(target, timeout_s)


def test_a_page_is_its_text() -> None:
    with serving(page("a 1\nb é\n")) as port:
        assert get(port).text == "a 1\nb é\n"


@pytest.mark.parametrize("behaviour", [hang, drip], ids=["hangs", "drips"])
def test_a_server_that_never_ends_costs_the_time_out_and_no_more(behaviour: Behaviour) -> None:
    with serving(behaviour) as port:
        began = time.monotonic()
        with pytest.raises(FetchError, match=r"no whole page within 0\.2 s"):
            get(port, 0.2)
        assert time.monotonic() - began < 2.0


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        (page("", "503 Service Unavailable"), "it answered 503"),
        (page("", "302 Found"), "it answered 302"),
        (page("a 1", length=99), "ended"),
        (endless, "over 8,388,608 bytes"),
        (lambda sock: sock.sendall(b"not HTTP at all\r\n\r\n"), "not HTTP"),
        (lambda sock: None, "closed"),
    ],
    ids=["busy", "moved", "cut", "endless", "no HTTP", "nothing"],
)
def test_what_is_no_whole_page_is_said(behaviour: Behaviour, why: str) -> None:
    with serving(behaviour) as port, pytest.raises(FetchError, match=why):
        get(port)


def test_a_port_that_nobody_listens_on_is_refused() -> None:
    with serving(hang) as port:
        pass
    with pytest.raises(FetchError, match="refused"):
        get(port)
