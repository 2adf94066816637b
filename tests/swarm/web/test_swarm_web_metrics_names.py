"""Host names under which ``--metrics-port`` answers."""

from typing import Any

import pytest

from llm_locust.swarm.web.metrics import metrics_application

#: What Prometheus calls a pod or a service.
SCRAPED = (
    *("10.1.2.3:9646", "[fd00::1]:9646", "llm-locust-metrics:9646", "llm-locust-metrics.load.svc:9646"),
    *("llm-locust-metrics.load.svc.cluster.local:9646", "localhost:9646"),
)

#: Names that somebody's page can have, which then became this server's address.
PUBLIC = ("evil.example", "evil.example:9646", "10.1.2.3.evil.example", "svc.example.com")


def code(listens: str, host: str, *names: str, path: str = "/metrics", **environ: str) -> str:
    """Status of a request to a server of metrics that listens on an address."""
    started: list[Any] = []
    asked = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "HTTP_HOST": host, **environ}
    application = metrics_application(lambda: b"figures", listens, names)
    body = b"".join(application(asked, lambda *given: started.append(given)))
    assert (body == b"figures") == started[0][0].startswith("200")
    return str(started[0][0][:3])


@pytest.mark.parametrize("names", [(), ("ui.example",)])
@pytest.mark.parametrize("listens", ["0.0.0.0", "::", "10.1.2.3"])
def test_beyond_loopback_prometheus_scrapes_addresses_and_services_and_names_of_public_dns_are_refused(
    listens: str, names: tuple[str, ...]
) -> None:
    assert {code(listens, host, *names) for host in SCRAPED} == {"200"}
    assert {code(listens, host, *names) for host in PUBLIC} == {"403"}


def test_a_name_given_by_web_name_is_answered_on_the_port_of_metrics_too() -> None:
    for listens in ("0.0.0.0", "127.0.0.1"):
        assert code(listens, "ui.example:9646", "ui.example") == "200"
        assert code(listens, "ui.example:9646") == "403"


def test_on_loopback_a_name_without_a_dot_is_refused() -> None:
    assert code("127.0.0.1", "llm-locust-metrics") == "403"
    assert code("127.0.0.1", "127.0.0.1:9646") == "200"


def test_a_link_on_another_page_opens_the_metrics_and_a_script_there_does_not_read_them() -> None:
    link = {"HTTP_SEC_FETCH_SITE": "cross-site", "HTTP_SEC_FETCH_MODE": "navigate"}
    assert code("0.0.0.0", "10.1.2.3", **link, HTTP_SEC_FETCH_DEST="document") == "200"
    assert code("0.0.0.0", "10.1.2.3", **link, HTTP_SEC_FETCH_DEST="iframe") == "403"
    assert code("0.0.0.0", "10.1.2.3", HTTP_SEC_FETCH_SITE="cross-site") == "403"
