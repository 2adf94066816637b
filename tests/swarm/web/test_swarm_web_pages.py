"""The web UI's own pages and endpoints in whole processes: what they tell, what they hold back."""

import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, HTTPRedirectHandler, OpenerDirector, Request, build_opener

import pytest
from swarm_process import Process, forked, free_port, in_parallel, locust, simulation, wait_until

from llm_locust.live.store import LiveStore
from llm_locust.options.settings import UsageError
from llm_locust.swarm.web.pages import asset
from llm_locust.swarm.web.wsgi import serve_metrics

HOSTILE = "</script><script>alert(1)</script>"

LOCUSTFILE = f"""
from locust import task

from llm_locust import ChatUser


class Chat(ChatUser):
    @task(3)
    def ask_one(self):
        self.chat()

    @task
    def ask_another(self):
        self.chat(name={HOSTILE!r})
"""

#: As in Locust's documentation of --web-login, with one user.
LOGIN = """
from flask import request
from flask_login import UserMixin, login_user
from locust import events


class Somebody(UserMixin):
    def get_id(self):
        return "somebody"


@events.init.add_listener
def on_init(environment, **_):
    if environment.web_ui is None:
        return
    app = environment.web_ui.app
    app.secret_key = "of the test"
    environment.web_ui.login_manager.user_loader(lambda _: Somebody())
    environment.web_ui.auth_args = {"username_password_callback": "/let-me-in"}

    @app.route("/let-me-in")
    def let_me_in():
        login_user(Somebody())
        return "in"
"""

#: Serves metrics on a free port, and writes summaries more often than an option lets one.
METRICS = """
import os
from pathlib import Path

import gevent
from locust import events

from llm_locust.swarm.live import store_of
from llm_locust.swarm.web.wsgi import (serve_metrics)
from llm_locust.swarm.web.reports import summarise_forever


@events.init.add_listener
def on_init(environment, **_):
    store = store_of(environment)
    serve_metrics(store, "127.0.0.1", int(os.environ["PORT"]))
    gevent.spawn(summarise_forever, 0.5, lambda: Path("run") if store.run.id else None)
"""

OURS = (
    *("/metrics", "/llm/charts", "/llm/series", "/llm/series.csv", "/llm/names.csv", "/llm/replicas.csv"),
    "/llm/stages.csv",
    *("/llm/reports", "/llm/reports/x/report.html", "/llm/reports/x/so-far/report.html"),
    "/llm/reports/x/against/y",
    *("/llm/assets/live.js", "/llm/assets/plotly.js"),
)

#: A run that is not there, and stages of a run that has none.
ABSENT = {path for path in OURS if "/reports/x/" in path or path.endswith("stages.csv")}


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class _Stay(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Tell where one is sent, and do not go there."""


@dataclass(frozen=True, slots=True)
class Ui:
    url: str
    process: Process
    opener: OpenerDirector = field(default_factory=lambda: build_opener(_Stay, HTTPCookieProcessor()))

    def get(self, path: str, form: Mapping[str, str] | None = None, **headers: str) -> Answer:
        data = None if form is None else urlencode(form).encode()
        try:
            with self.opener.open(Request(self.url + path, data, headers), timeout=120) as answer:
                return Answer(answer.status, dict(answer.headers), answer.read().decode())
        except HTTPError as e:
            with e:
                return Answer(e.code, dict(e.headers), e.read().decode())

    def wait_ready(self, workers: int = 0) -> None:
        def ready() -> bool:
            try:
                answer = self.get("/worker-count")
            except (URLError, OSError):
                return False
            return answer.code == 302 or (answer.code == 200 and answer.json["worker_count"] >= workers)

        wait_until(ready, "the web UI")

    def wait_now(self, condition: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """Poll until what is told of now is so."""
        told: dict[str, Any] = {}

        def met() -> bool:
            told.update(self.get("/llm/series?span=run").json["now"])
            return condition(told)

        wait_until(met, what)
        return told


@dataclass(slots=True)
class Seen:
    """What came of one process."""

    stderr: str = ""
    answers: dict[str, Answer] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)
    run: Path = Path()


def _start(folder: Path, *options: str, base: str = "", extra: str = "", workers: int = 0) -> Any:
    (folder / "locustfile.py").write_text(LOCUSTFILE + extra)
    port = str(free_port())
    web = ["--web-host", "127.0.0.1", "--web-port", port, *(forked(workers) if workers else ())]
    usual = ["--out", "run", "--slo", "ttft=300ms", "--output-tokens", "8"]
    return locust(
        folder, *web, *usual, *options, locustfile=folder / "locustfile.py"
    ), f"http://127.0.0.1:{port}{base}"


def _a_run(folder: Path) -> Seen:
    """Two workers: look before, during and after a run; reset in between."""
    seen = Seen()
    with simulation(folder / "sim", "--faults", "http_500=10%") as sim:
        command, url = _start(folder, "-H", sim.url, workers=2)
        with command as process:
            ui = Ui(url, process)
            ui.wait_ready(2)
            seen.answers["before"] = ui.get("/llm/series?span=run")
            seen.answers["no runs"] = ui.get("/llm/reports")
            assert ui.get("/swarm", {"user_count": "6", "spawn_rate": "100"}).json["success"]
            first = ui.wait_now(
                lambda now: now["whole"]["requests"] >= 40 and now["whole"]["failures"] > 0,
                "40 requests in the live numbers, and a failure",
            )
            wait_until(lambda: len(ui.get("/llm/series").json["at_s"]) >= 2, "points of the series")
            _during(ui, seen)
            seen.told |= {"run": first["run"], "sent before": len(sim.entries())}
            assert ui.get("/stats/reset", {}).code == 200
            ui.wait_now(lambda now: now["whole"]["requests"] < first["whole"]["requests"], "the reset")
            ui.wait_now(lambda now: now["whole"]["requests"] >= 10, "requests after the reset")
            assert ui.get("/stop", {}).json["success"]
            report = f"/llm/reports/{first['run']}/report.html"
            wait_until(lambda: ui.get(report).code == 200, "the report")
            seen.answers["report"] = ui.get(report)
            seen.answers["runs"] = ui.get("/llm/reports")
            seen.answers["base"] = ui.get(f"/llm/reports?base={first['run']}")
            seen.answers["against itself"] = ui.get(f"/llm/reports/{first['run']}/against/{first['run']}")
            seen.answers["stopped"] = ui.get("/llm/series?span=run")
            for name in ("manifest.json", "requests.parquet", "..%2Flocustfile.py", "%2e%2e/locustfile.py"):
                seen.answers[name] = ui.get(f"/llm/reports/{first['run']}/{name}")
            seen.told["sent"] = len(sim.entries())
            seen.stderr, seen.run = process.stderr, folder / "run"
            seen.told["stdout"] = process.stdout
    return seen


def _during(ui: Ui, seen: Seen) -> None:
    get = ui.get
    seen.answers |= {
        "page": get("/"),
        "stats": get("/stats/requests"),
        "metrics": get("/metrics"),
        "charts": get("/llm/charts"),
        "names.csv": get("/llm/names.csv"),
        "replicas.csv": get("/llm/replicas.csv"),
        "series.csv": get("/llm/series.csv?span=5m"),
        "unknown span": get("/llm/series?span=%3Cscript%3E"),
        "no such asset": get("/llm/assets/..%2Fpages.py"),
        "no such run": get("/llm/reports/nobody/report.html"),
        "script": get("/llm/assets/live.js"),
        "full": get("/llm/series?span=5m"),
    }
    token = seen.answers["full"].json["token"]
    seen.answers["next"] = get(f"/llm/series?span=5m&after={token}")
    since = time.perf_counter()
    get("/llm/series?span=5m")
    seen.told["answer_s"] = time.perf_counter() - since


def _login(folder: Path) -> Seen:
    """Below a path, and with a login: nobody starts a run, so there is no server."""
    seen, base = Seen(), "/load"
    options = ("-H", "http://127.0.0.1:9", "--web-login", "--web-base-path", base)
    command, url = _start(folder, *options, base=base, extra=LOGIN)
    with command as process:
        ui = Ui(url, process)
        ui.wait_ready()
        seen.answers = {f"out {path}": ui.get(path) for path in OURS}
        assert replace(ui, url=url.removesuffix(base)).get("/let-me-in").text == "in"
        seen.answers |= {f"in {path}": ui.get(path) for path in ("/", *OURS)}
        seen.stderr = process.stderr
    return seen


def _headless(folder: Path) -> Seen:
    """Without a web UI, the metrics on a port of their own."""
    seen, port = Seen(), free_port()
    (folder / "locustfile.py").write_text(LOCUSTFILE + METRICS)
    options = ["--headless", "-u", "4", "-r", "100", "--out", "run", "--output-tokens", "8"]
    with simulation(folder / "sim") as sim:
        environ = {"PORT": str(port)}
        with locust(
            folder, *options, "-H", sim.url, locustfile=folder / "locustfile.py", environ=environ
        ) as process:
            ui = Ui(f"http://127.0.0.1:{port}", process)

            def counted() -> bool:
                try:
                    return "llm_locust_ttft_seconds_bucket" in ui.get("/metrics").text
                except (URLError, OSError):
                    return False

            wait_until(counted, "a histogram at /metrics")
            so_far = folder / "run" / "so-far" / "summary.json"
            process.wait_for("rolling summary written into run/so-far")
            seen.told = json.loads(so_far.read_text())
            seen.answers = {path: ui.get(path) for path in ("/metrics", "/", "/llm/charts")}
            seen.answers["posted"] = ui.get("/metrics", {})
            seen.stderr = process.stderr
    return seen


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    kinds = {"run": _a_run, "login": _login, "headless": _headless}
    return in_parallel(tmp_path_factory.mktemp("pages"), kinds)


def _table(answer: Answer, key: str) -> list[dict[str, Any]]:
    tables = {table["key"]: table["data"] for table in answer.json["extended_stats"]}
    rows: list[dict[str, Any]] = tables[key]
    return rows


def _template_args(page: str) -> dict[str, Any]:
    found = re.search(r"window\.templateArgs = (.*)", page)
    assert found is not None
    args: dict[str, Any] = json.loads(found[1])
    return args


def test_locusts_page_has_our_tabs_tables_and_downloads(seen: dict[str, Seen]) -> None:
    page = seen["run"].answers["page"].text
    args = _template_args(page)
    assert [tab["title"] for tab in args["extended_tabs"]] == ["LLM", "Replicas", "Live charts", "Reports"]
    assert [table["key"] for table in args["extended_tables"]] == ["llm", "llm-replicas"]
    assert [row["href"].partition("?")[0] for row in args["extended_csv_files"]] == [
        "./llm/names.csv", "./llm/replicas.csv", "./llm/series.csv", "./llm/charts", "./llm/reports",
    ]  # fmt: skip
    assert page.count("./llm/assets/tabs.js") == 1


def test_locusts_numbers_have_a_row_for_each_name_whole_and_recent(seen: dict[str, Seen]) -> None:
    answer = seen["run"].answers["stats"]
    rows = _table(answer, "llm")
    structure = _template_args(seen["run"].answers["page"].text)["extended_tables"][0]["structure"]
    assert all({column["key"] for column in structure} <= set(row) for row in rows)
    assert {row["request"] for row in rows} == {"chat", HOSTILE, "Total"}
    total = rows[-2]
    assert total["requests"] >= 40
    assert total["ttft_p50"] > 5
    assert total["output_tokens"] > 0
    assert 0 < total["goodput"] < 100
    assert len(_table(answer, "llm-replicas")) >= 2  # the simulation names its replicas
    assert answer.json["stats"]


def test_a_series_is_told_in_full_once_and_then_in_pieces(seen: dict[str, Seen]) -> None:
    full, following = (seen["run"].answers[name] for name in ("full", "next"))
    assert full.json["full"]
    assert not following.json["full"]
    assert len(full.json["at_s"]) > len(following.json["at_s"])
    assert set(full.json["columns"]) >= {"ttft_p99_ms", "users", "goodput", "http_error_per_s"}
    assert len(following.text) < 10_000
    assert seen["run"].told["answer_s"] < 2


def test_before_the_first_run_there_is_nothing_and_no_error(seen: dict[str, Seen]) -> None:
    told = seen["run"].answers["before"].json
    assert (told["at_s"], told["now"]["run"], told["now"]["running"]) == ([], "", False)
    assert "no run yet" in seen["run"].answers["no runs"].text


def test_what_is_not_there_is_said_in_a_line(seen: dict[str, Seen]) -> None:
    answers = seen["run"].answers
    assert answers["unknown span"].code == 400
    assert "5m, 1h, run" in answers["unknown span"].text
    assert answers["no such asset"].code == 404
    for name in ("no such run", "manifest.json", "requests.parquet"):
        assert answers[name].code == 404, name
        assert answers[name].headers["Content-Type"].startswith("text/plain")


@pytest.mark.parametrize("name", ["..%2Flocustfile.py", "%2e%2e/locustfile.py"])
def test_a_path_leads_out_of_no_run(seen: dict[str, Seen], name: str) -> None:
    answer = seen["run"].answers[name]
    assert answer.code == 404
    assert "ChatUser" not in answer.text


def test_names_are_text_in_every_answer(seen: dict[str, Seen]) -> None:
    answers = seen["run"].answers
    for name in ("page", "charts", "runs"):
        assert HOSTILE not in answers[name].text
    for name in ("stats", "full"):
        assert answers[name].headers["Content-Type"].startswith("application/json")
    assert answers["unknown span"].headers["Content-Type"].startswith("text/plain")


def test_a_page_of_ours_runs_and_loads_its_own_files_only(seen: dict[str, Seen]) -> None:
    answer = seen["run"].answers["charts"]
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'; script-src 'self';" in policy
    assert "connect-src 'self'" in policy
    addresses = re.findall(r'(?:src|href)="([^"]+)"', answer.text)
    assert addresses
    assert all(address.startswith((".", "../")) for address in addresses)
    assert "immutable" in seen["run"].answers["script"].headers["Cache-Control"]


def test_files_with_the_figures_can_be_downloaded(seen: dict[str, Seen]) -> None:
    for name in ("names.csv", "replicas.csv", "series.csv"):
        answer = seen["run"].answers[name]
        assert answer.headers["Content-Type"].startswith("text/csv")
        assert "attachment" in answer.headers["Content-Disposition"]
        assert len(answer.text.splitlines()) > 2


def test_a_reset_makes_workers_count_anew(seen: dict[str, Seen]) -> None:
    told, stopped = seen["run"].told, seen["run"].answers["stopped"].json
    assert any(mark["kind"] == "reset" for mark in stopped["marks"])
    # What the workers had counted before and not reported yet is in no number.
    assert 10 <= stopped["now"]["whole"]["requests"] <= told["sent"] - told["sent before"] + 12
    assert stopped["now"]["missed"] == 0
    check = json.loads((seen["run"].run / "summary.json").read_text())["live_check"]
    assert (check["within"], check["latency_ms"]) == (None, {})
    assert "were reset" in check["reason"]


def test_the_report_of_a_run_is_handed_out_when_it_is_there(seen: dict[str, Seen]) -> None:
    answer = seen["run"].answers["report"]
    assert answer.headers["Content-Type"].startswith("text/html")
    assert answer.text == (seen["run"].run / "report.html").read_text()
    runs = seen["run"].answers["runs"].text
    # It is loaded again only as long as something is to come.
    assert ['http-equiv="refresh"' in seen["run"].answers[when].text for when in ("no runs", "runs")] == [
        True,
        False,
    ]
    assert f"./reports/{seen['run'].told['run']}/report.html" in runs
    assert f"./reports?base={seen['run'].told['run']}" in runs
    assert re.search(r"<b>(PASS|FAIL)</b> .*\n *<td>[\d.]+ %</td><td>[\d,.]+ ms</td>", runs)
    chosen = seen["run"].answers["base"].text
    assert f"compared with {seen['run'].told['run']}?" in chosen
    assert seen["run"].answers["against itself"].code == 404
    assert not seen["run"].answers["stopped"].json["now"]["running"]


def test_metrics_are_served_on_the_port_of_the_web_ui(seen: dict[str, Seen]) -> None:
    answer = seen["run"].answers["metrics"]
    assert answer.headers["Content-Type"].startswith("text/plain; version=")
    assert "llm_locust_workers 2.0" in answer.text
    assert 'le="+Inf"' in answer.text


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
@pytest.mark.parametrize(("kind", "name"), [("run", "metrics"), ("headless", "/metrics")])
def test_promtool_finds_nothing_wrong_with_a_scrape(seen: dict[str, Seen], kind: str, name: str) -> None:
    text = seen[kind].answers[name].text
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_a_web_ui_metrics_have_a_port_of_their_own_and_nothing_else(seen: dict[str, Seen]) -> None:
    answers = seen["headless"].answers
    assert "llm_locust_ttft_seconds_bucket" in answers["/metrics"].text
    assert [answers[path].code for path in ("/", "/llm/charts", "posted")] == [404, 404, 405]


def test_a_rolling_summary_is_written_while_the_run_goes_on(seen: dict[str, Seen]) -> None:
    told = seen["headless"].told
    assert told["run"]["so_far"]
    assert told["requests"]["ok"] > 0
    assert told["completeness"]["complete"]


@pytest.mark.parametrize("path", OURS)
def test_with_a_login_every_page_asks_for_it_and_is_below_the_path(seen: dict[str, Seen], path: str) -> None:
    outside, inside = (seen["login"].answers[f"{side} {path}"] for side in ("out", "in"))
    assert outside.code == 302
    assert "/load/login" in outside.headers["Location"]
    assert "llm_locust" not in outside.text
    assert inside.code == (404 if path in ABSENT else 200)


def test_locusts_page_is_below_the_path_too(seen: dict[str, Seen]) -> None:
    assert seen["login"].answers["in /"].code == 200


def test_nothing_went_wrong_without_a_word(seen: dict[str, Seen]) -> None:
    for kind, each in seen.items():
        assert "Traceback" not in each.stderr, kind


def test_a_port_that_is_taken_is_said_in_a_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"--metrics-port: 127.0.0.1:{port} cannot be listened on"):
            serve_metrics(LiveStore(lambda: 0.0), "127.0.0.1", port)
    with pytest.raises(UsageError, match="65536 is not a port"):
        serve_metrics(LiveStore(lambda: 0.0), "127.0.0.1", 65536)


def test_no_chart_has_a_button_that_hands_its_data_to_another_host() -> None:
    script = asset("live.js")
    assert script is not None
    assert b"showSendToCloud: false" in script.plain


def test_an_asset_is_one_content_for_one_address() -> None:
    first = asset("live.js")
    assert first is not None
    assert first is asset("live.js")
    assert b"fetch(" in first.plain
    assert asset("pages.py") is None
