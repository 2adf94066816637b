"""A real Prometheus scrapes a run: its quantiles are those of the records, and the rules are evaluated."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import numpy as np
import pytest
from swarm_process import Process, Result, free_port, locust, simulation, wait_until

from llm_locust.metrics.catalogue import TO_FIRST_TOKEN_S

RULES = Path(__file__).parents[3] / "k8s" / "monitoring" / "rules.yaml"

LOCUSTFILE = """
import os

from locust import events, task

from llm_locust import ChatUser
from llm_locust.swarm.live import store_of
from llm_locust.swarm.web.wsgi import (serve_metrics)


class Chat(ChatUser):
    @task
    def ask_one(self):
        self.chat()


@events.init.add_listener
def on_init(environment, **_):
    serve_metrics(store_of(environment), "127.0.0.1", int(os.environ["PORT"]))
"""

CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs: [{{job_name: locust, static_configs: [{{targets: ["127.0.0.1:{port}"]}}]}}]
"""

pytestmark = pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus")


@dataclass(frozen=True, slots=True)
class Server:
    url: str

    def api(self, path: str, **query: str) -> Any:
        with urlopen(f"{self.url}/api/v1/{path}?{urlencode(query)}", timeout=120) as answer:
            return json.loads(answer.read())["data"]

    def value(self, query: str) -> float:
        """Of a query with one series; NaN while there is none, or no server."""
        try:
            result = self.api("query", query=query)["result"]
        except (URLError, OSError):
            return float("nan")
        return float(result[0]["value"][1]) if result else float("nan")


@contextmanager
def prometheus(folder: Path, scraped: int) -> Iterator[Server]:
    port = free_port()
    (folder / "prometheus.yml").write_text(CONFIG.format(rules=RULES, port=scraped))
    command = [
        "prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    process = Process(command, folder, stdout="prometheus.out")
    try:
        yield Server(f"http://127.0.0.1:{port}")
        process.signal(SIGTERM)
        process.exit_code()
    finally:
        process.end()


@dataclass(frozen=True, slots=True)
class Scraped:
    p95_s: float
    counted: float
    rules: list[dict[str, Any]]
    late: bool  # the client called itself invalid on the way, as it may on a busy machine
    result: Result


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Scraped:
    folder, port = tmp_path_factory.mktemp("scrape"), free_port()
    (folder / "locustfile.py").write_text(LOCUSTFILE)
    options = ["--headless", "-u", "8", "-r", "100", "--out", "run", "--output-tokens", "uniform:4,12"]
    options += ["--slo", "ttft=500ms"]
    with (
        simulation(folder / "sim", "--ttft-base", "40ms") as sim,
        locust(
            folder, *options, "-H", sim.url,
            locustfile=folder / "locustfile.py", environ={"PORT": str(port)},
        ) as process,
        prometheus(folder, port) as server,
    ):  # fmt: skip
        count = "sum(llm_locust_ttft_seconds_count)"
        wait_until(lambda: server.value(count) >= 300, "300 requests at Prometheus")
        wait_until(
            lambda: server.value("instance:llm_locust_ttft_seconds:p99_rate5m") > 0, "a rule's own series"
        )
        p95_s = server.value("histogram_quantile(0.95, sum by (le) (llm_locust_ttft_seconds_bucket))")
        counted = server.value(count)
        rules = [rule for group in server.api("rules")["groups"] for rule in group["rules"]]
        late = server.value('max_over_time(llm_locust_client_verdict{verdict="invalid"}[5m])') == 1
        process.signal(SIGTERM)
        process.exit_code()
        return Scraped(p95_s, counted, rules, late, Result.read(folder / "run"))


def test_the_p95_of_promql_is_within_a_bucket_of_that_of_the_records(scraped: Scraped) -> None:
    requests = scraped.result.requests
    ttft_s = np.array([row[0] for row in requests.table.column("arrivals_ns").to_pylist() if row]) * 1e-9
    assert 300 <= scraped.counted <= len(ttft_s)
    told, true = np.searchsorted(TO_FIRST_TOKEN_S, [scraped.p95_s, float(np.percentile(ttft_s, 95))])
    assert abs(told - true) <= 1


#: Alert on a load in which no request ends.
STOPPED = "LlmLocustLoadStopped"


def test_every_rule_is_evaluated_and_none_alerts_without_a_reason(scraped: Scraped) -> None:
    assert len(scraped.rules) == 10
    assert {rule["health"] for rule in scraped.rules} == {"ok"}
    alerting = [rule for rule in scraped.rules if rule["type"] == "alerting"]
    assert alerting
    active = {rule["name"] for rule in alerting if rule["state"] != "inactive"}
    if not any(rule["name"] == STOPPED and rule["state"] == "firing" for rule in alerting):
        active.discard(STOPPED)  # pending for 5 min from scrapes before the first request's end
    assert active <= ({"LlmLocustClientInvalid"} if scraped.late else set())
