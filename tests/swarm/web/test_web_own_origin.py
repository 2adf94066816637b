"""Who may ask the web UI and ``/metrics``, by origin and host name; the fields of its form."""

import socket
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from flask import Blueprint, Flask

from llm_locust.options.table import OPTIONS
from llm_locust.swarm.web import wsgi
from llm_locust.swarm.web.pages import GROUPS, LONGEST_HELP, OTHERS, grouped
from llm_locust.swarm.web.wsgi import LINKED, OwnOrigin, is_loopback, metrics_application, pages_for_links

# --- Who may ask the web UI and ``/metrics``: the headers that browsers send for pages of any origin


FOREIGN = "https://evil.example"

#: What Locust answers everybody.
CORS = [("Access-Control-Allow-Origin", "*"), ("access-control-allow-headers", "x"), ("Content-Type", "a/b")]


def answered(
    environ: dict[str, str],
    *names: str,
    check_names: bool = False,
    private_names: bool = False,
    is_page: Callable[[str], bool] = lambda _: False,
) -> tuple[str, dict[str, str], bytes]:
    """Status, headers and body of one request."""
    started: list[Any] = []

    def application(_: dict[str, Any], start: Any) -> Iterable[bytes]:
        start("200 OK", CORS)
        return [b"secret"]

    base = {"REQUEST_METHOD": "POST", "PATH_INFO": "/swarm", "HTTP_HOST": "127.0.0.1:8089"}
    guard = OwnOrigin(
        application, names, check_names=check_names, private_names=private_names, is_page=is_page
    )
    body = guard(base | environ, lambda *given: started.append(given))
    status, headers = started[0][:2]
    return status[:3], {k.lower(): v for k, v in headers}, b"".join(body)


def status(
    environ: dict[str, str],
    *names: str,
    check_names: bool = False,
    private_names: bool = False,
    is_page: Callable[[str], bool] = lambda _: False,
) -> int:
    code, headers, body = answered(
        environ, *names, check_names=check_names, private_names=private_names, is_page=is_page
    )
    assert (b"secret" in body) == (code == "200")
    assert not [name for name in headers if name.startswith("access-control-")]
    return int(code)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "GET", "OPTIONS"])
@pytest.mark.parametrize(
    "headers",
    [
        {"HTTP_ORIGIN": FOREIGN},
        {"HTTP_ORIGIN": "null"},
        {"HTTP_ORIGIN": "http://127.0.0.1:8090"},
        {"HTTP_ORIGIN": "http://127.0.0.1:8089.evil.example"},
        {"HTTP_ORIGIN": "http://evil@127.0.0.1:8089"},
        {"HTTP_ORIGIN": "http://["},
        {"HTTP_ORIGIN": ""},
        {"HTTP_SEC_FETCH_SITE": "cross-site"},
        {"HTTP_SEC_FETCH_SITE": "same-site"},
        {"HTTP_SEC_FETCH_SITE": "something new"},
        {"HTTP_SEC_FETCH_SITE": "cross-site", "HTTP_SEC_FETCH_MODE": "navigate"},
        {
            "HTTP_SEC_FETCH_SITE": "cross-site",
            "HTTP_SEC_FETCH_MODE": "navigate",
            "HTTP_SEC_FETCH_DEST": "iframe",
        },
        {"HTTP_SEC_FETCH_SITE": "cross-site", "HTTP_ORIGIN": "http://127.0.0.1:8089"},
    ],
)
def test_what_a_page_of_another_origin_sends_is_refused(method: str, headers: dict[str, str]) -> None:
    assert status({"REQUEST_METHOD": method, **headers}) == 403


@pytest.mark.parametrize(
    "headers",
    [
        {},  # a program such as curl
        {"HTTP_ORIGIN": "http://127.0.0.1:8089"},
        {"HTTP_SEC_FETCH_SITE": "same-origin", "HTTP_ORIGIN": "http://127.0.0.1:8089"},
        {"HTTP_SEC_FETCH_SITE": "same-origin", "HTTP_ORIGIN": "https://proxy.example"},
        {"HTTP_SEC_FETCH_SITE": "none"},
    ],
)
def test_its_own_pages_and_programs_are_let_through(headers: dict[str, str]) -> None:
    assert status(headers) == 200


#: What a browser says of a link on a page of another site that is followed.
LINK = {
    "HTTP_SEC_FETCH_SITE": "cross-site",
    "HTTP_SEC_FETCH_MODE": "navigate",
    "HTTP_SEC_FETCH_DEST": "document",
}


def pages(base: str = "", *linked: str) -> Callable[[str], bool]:
    """The pages of a web UI, below a base path, that a link of another site may open."""
    app = Flask(__name__)
    app.register_blueprint(Blueprint("locust", __name__, url_prefix=base or None))
    app.config[LINKED] = linked
    return pages_for_links(app)


@pytest.mark.parametrize("base", ["", "/load"])
@pytest.mark.parametrize(
    "path",
    [
        *("/", "/login", "/stats/report", "/llm/charts", "/llm/reports"),
        *("/llm/reports/run-1/report.html", "/llm/reports/run-1/so-far/report.html"),
    ],
)
def test_a_link_on_another_page_opens_a_page_that_only_reads_and_a_form_there_posts_nothing(
    path: str, base: str
) -> None:
    page = LINK | {"PATH_INFO": base + path}
    assert status({"REQUEST_METHOD": "GET", **page}, is_page=pages(base)) == 200
    assert status({"REQUEST_METHOD": "POST", **page}, is_page=pages(base)) == 403
    frame = {"REQUEST_METHOD": "GET", **page, "HTTP_SEC_FETCH_DEST": "iframe"}
    assert status(frame, is_page=pages(base)) == 403


@pytest.mark.parametrize("base", ["", "/load"])
@pytest.mark.parametrize(
    "path",
    [
        *("/stop", "/stats/reset", "/swarm", "/user", "/logs", "/of-a-locustfile", "//", "/login/stop"),
        *("/llm/reports/stop", "/llm/series", "/stats/report/reset", "/llm/reports/a/b/c", "/other/"),
    ],
)
def test_a_link_on_another_page_opens_nothing_else(path: str, base: str) -> None:
    """Locust 2.43 to 2.46 has ``/stop`` and ``/stats/reset`` by GET: a link stopped the run."""
    link = LINK | {"REQUEST_METHOD": "GET", "PATH_INFO": base + path}
    assert status(link, is_page=pages(base)) == 403
    assert status(link | {"HTTP_SEC_FETCH_SITE": "same-origin"}, is_page=pages(base)) == 200


def test_a_page_of_a_locustfile_is_opened_by_a_link_if_the_locustfile_says_so() -> None:
    """Such as that to which an identity provider sends the browser back."""
    link = LINK | {"REQUEST_METHOD": "GET", "PATH_INFO": "/login/callback"}
    assert status(link, is_page=pages()) == 403
    assert status(link, is_page=pages("", "/login/callback")) == 200


BROWSER = {"REQUEST_METHOD": "GET", "HTTP_USER_AGENT": "Mozilla/5.0 (X11; Linux x86_64)"}


@pytest.mark.parametrize("path", ["/stop", "/stats/reset", "/load/stop"])
def test_a_browser_that_names_no_site_stops_a_run_by_get_from_its_own_page_only(path: str) -> None:
    """Without TLS, and beyond loopback, a browser sends neither header with a GET."""
    get = BROWSER | {"PATH_INFO": path, "HTTP_HOST": "10.1.2.3:8089"}
    assert status(get) == 403
    assert status(get | {"HTTP_REFERER": "http://evil.example/"}) == 403
    assert status(get | {"HTTP_REFERER": "http://10.1.2.3:8089/"}) == 200
    assert status(get | {"HTTP_USER_AGENT": "curl/8.5"}) == 200
    assert status(get | {"PATH_INFO": "/stats/requests"}) == 200


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *[
            (host, 200)
            for host in ("localhost:8089", "127.0.0.1:8089", "[::1]:8089", "10.1.2.3", "LOCALHOST")
        ],
        *[(host, 200) for host in ("ui.example:8089", "UI.example.", "ui.localhost", "")],
        *[
            (host, 403)
            for host in ("evil.example:8089", "127.0.0.1.evil.example", "localhost.evil.example", "1")
        ],
    ],
)
def test_a_name_that_became_this_address_is_refused(host: str, expected: int) -> None:
    rebound = {"HTTP_HOST": host, "HTTP_SEC_FETCH_SITE": "same-origin", "HTTP_ORIGIN": f"http://{host}"}
    assert status(rebound, "ui.example", check_names=True) == expected
    assert status(rebound | {"REQUEST_METHOD": "GET"}, "ui.example", check_names=True) == expected
    assert status(rebound) == 200  # where names are not looked at


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *[(host, 200) for host in ("10.1.2.3:8089", "[fd00::1]:8089", "localhost:8089", "ui.localhost", "")],
        *[(host, 200) for host in ("llm-locust-web:8089", "web.load.svc", "web.load.svc.cluster.local:80")],
        *[
            (host, 200)
            for host in ("bench.local", "bench.corp.internal", "box.home.arpa", "Bench-1.Corp.Example")
        ],
        *[
            (host, 403)
            for host in ("evil.example:8089", "bench-1.evil.example", "local.evil.example", "svc.com")
        ],
        *[(host, 403) for host in ("2130706433", "0x7f000001", "1", "web.dev", "a b", "evil.example.")],
    ],
)
def test_beyond_loopback_names_of_public_dns_are_refused(
    host: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of evil.example, whose name became this server's address, started load and read the results."""
    monkeypatch.setattr(wsgi, "_names_of_machine", lambda: frozenset({"bench-1.corp.example"}))
    for environ in ({"HTTP_ORIGIN": f"http://{host.lower()}"}, {"REQUEST_METHOD": "GET"}):
        rebound = {"HTTP_HOST": host, **environ}
        if not (host == "" and "HTTP_ORIGIN" in environ):
            assert status(rebound, check_names=True, private_names=True) == expected


def test_the_page_about_the_web_ui_names_a_clusters_names_that_are_answered() -> None:
    page = (Path(__file__).parents[3] / "docs" / "web-ui.md").read_text()
    service = "llm-locust-web"
    full = [service, f"{service}.NAMESPACE.svc", f"{service}.NAMESPACE.svc.cluster.local"]
    assert all(f"`{name}`" in page for name in full)
    for name in full:
        assert status({"HTTP_HOST": name.lower()}, check_names=True, private_names=True) == 200
    assert f"`{service}.NAMESPACE` is refused" in page
    assert status({"HTTP_HOST": f"{service}.namespace"}, check_names=True, private_names=True) == 403


def test_a_refused_name_is_said_in_the_log_and_in_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    _, _, body = answered({"HTTP_HOST": "ui.example\x1b[31m"}, check_names=True, private_names=True)
    assert b"give it, or an ingress's, by --web-name NAME" in body
    (line,) = caplog.messages
    assert "'ui.example?[31m'" in line
    assert "--web-name" in line


def test_this_machine_has_a_name() -> None:
    assert socket.gethostname().lower() in wsgi._names_of_machine()


def test_a_proxy_that_writes_another_host_is_known_by_its_name() -> None:
    through = {"HTTP_ORIGIN": "https://ui.example"}
    assert status(through) == 403
    assert status(through, "ui.example") == 200


def test_no_answer_can_be_framed_sniffed_or_read_by_another_origin() -> None:
    for environ in ({}, {"HTTP_ORIGIN": FOREIGN}):
        _, headers, _ = answered(environ)
        assert headers["x-frame-options"] == "SAMEORIGIN"
        assert headers["content-security-policy"] == "frame-ancestors 'self'"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"


def test_a_policy_of_the_answers_own_stands() -> None:
    def application(_: dict[str, Any], start: Any) -> Iterable[bytes]:
        start("200 OK", [("content-security-policy", "default-src 'none'")])
        return []

    started: list[Any] = []
    OwnOrigin(application, check_names=False)({"REQUEST_METHOD": "GET"}, lambda *given: started.append(given))
    policies = [v for k, v in started[0][1] if k.lower() == "content-security-policy"]
    assert policies == ["default-src 'none'"]


def test_loopback_is_known_in_every_spelling() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost")))
    assert not any(map(is_loopback, ("", "*", "0.0.0.0", "::", "10.0.0.1", "localhost.evil.example")))


# --- Host names under which ``--metrics-port`` answers


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


# --- The fields of the web UI's form: each option in one group, with a text for a person


OURS = {row.name: str(row.argument["help"]) for row in OPTIONS if row.ui}


def test_each_option_of_the_form_is_in_one_group() -> None:
    found = Counter(name for names in GROUPS.values() for name in names)
    assert found == Counter(OURS.keys())


def test_no_field_of_a_locustfile_is_lost_and_an_empty_group_is_not_shown() -> None:
    groups = grouped({"slo": "limits", "mine": "of mine"})
    assert [(group.title, [field.name for field in group.fields]) for group in groups] == [
        ("Limits", ["slo"]),
        (OTHERS, ["mine"]),
    ]


def test_texts_are_for_a_person_and_short_and_nothing_of_them_is_lost() -> None:
    fields = [field for group in grouped(OURS) for field in group.fields]
    assert len(fields) == len(OURS)
    for field in fields:
        assert "%%" not in field.help + field.more, field.name
        assert (field.more or field.help).replace("%", "%%") == OURS[field.name]
        assert len(field.help) <= LONGEST_HELP + 60, field.name
