"""``k8s/monitoring``: the dashboard and the alert rules ask for what is served, in readable PromQL."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from live_cases import Run, observation, worker
from metrics_cases import failed, request
from prometheus_client import generate_latest

from llm_locust.live.prometheus import registry
from llm_locust.live.state import Observation

MONITORING = Path(__file__).parents[2] / "k8s" / "monitoring"
RULES, RULE_TESTS = MONITORING / "rules.yaml", MONITORING / "rules.test.yaml"
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool (apt: prometheus)"
)

#: What Grafana puts in for its variables.
VARIABLES = {"$__rate_interval": "1m", "$job": ".*", "$instance": ".*", "$model": ".*", "$name": ".*"}


def exposition() -> str:
    """All that the master can serve."""
    run = Run()
    run.ended([request(replica="r0"), failed()])
    run.report()
    seen = observation(2, worker("a", in_flight=1, cpu_percent=1.0, hub_lag_ms=1.0))
    run.store.observe(Observation(users=2, target=2, rate=5.0, workers=seen.workers))
    run.clock.tick(2)
    return generate_latest(registry(run.store)).decode()


def promtool(*arguments: str | Path, text: str | None = None) -> None:
    done = subprocess.run(
        ["promtool", *map(str, arguments)],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def panels() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def queries() -> list[str]:
    rules = [rule["expr"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    return [*rules, *(expr for _, expr in panels())]


def test_every_metric_that_is_asked_for_is_served() -> None:
    served = {re.split(r"[{ ]", line)[0] for line in exposition().splitlines() if not line.startswith("#")}
    asked = {name for query in queries() for name in re.findall(r"(?<![:\w])llm_locust_\w+", query)}
    assert len(asked) > 15
    assert asked <= served


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids)) > 10
    assert DASHBOARD["schemaVersion"] >= 36
    variables = [variable["name"] for variable in DASHBOARD["templating"]["list"]]
    assert variables == ["datasource", "job", "instance", "model", "name"]
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in DASHBOARD["panels"])


def test_panels_do_not_lie_on_each_other() -> None:
    places = set()
    for panel in DASHBOARD["panels"]:
        grid: dict[str, Any] = panel["gridPos"]
        for x in range(grid["x"], grid["x"] + grid["w"]):
            for y in range(grid["y"], grid["y"] + grid["h"]):
                assert (x, y) not in places, panel["title"]
                assert x < 24
                places.add((x, y))


@needs_promtool
def test_promtool_finds_nothing_wrong_with_the_metrics() -> None:
    promtool("check", "metrics", text=exposition())


@needs_promtool
def test_promtool_reads_the_rules() -> None:
    promtool("check", "rules", RULES)


@needs_promtool
def test_the_rules_alert_when_they_should_and_not_else() -> None:
    promtool("test", "rules", RULE_TESTS)


@needs_promtool
def test_promtool_reads_every_query_of_the_dashboard(tmp_path: Path) -> None:
    rules = []
    for number, (_, query) in enumerate(panels()):
        for name, value in VARIABLES.items():
            query = query.replace(name, value)
        rules.append({"record": f"panel:{number}", "expr": query})
    path = tmp_path / "panels.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", path)
