"""Roles that are given with URLs, and those that pods have."""

import json

import pytest

from llm_locust.deployment.discovery import Endpoint, ScrapeTarget, metrics_urls, scrape_targets_of
from llm_locust.deployment.scrape import ScrapePlan, scrape
from llm_locust.figures.servers import ROLE_SAMPLE, role_now

P, D = "http://10.0.0.7:8000", "http://10.0.0.8:8000"


def test_a_metrics_url_has_the_role_of_the_replica_at_its_host_and_port() -> None:
    given = [f"{P}/metrics", f"{D}/metrics", "http://10.0.0.8:9400/metrics", "nonsense:x"]
    assert metrics_urls(given, [f"prefill={P}", f"decode={D}/v1", "http://10.0.0.9:8000"]) == (
        f"prefill={P}/metrics",
        f"decode={D}/metrics",
        "http://10.0.0.8:9400/metrics",
        "nonsense:x",
    )
    name = ["dns+http://decode:8000/metrics"]
    assert metrics_urls(name, ["decode=dns+http://decode:8000"]) == ("decode=dns+http://decode:8000/metrics",)


@pytest.mark.parametrize(
    ("given", "replicas", "says"),
    [
        ([f"{D}/metrics"], [f"prefill={P}"], "10.0.0.7:8000 is a prefill server, and what it does is in"),
        ([f"decode={P}/metrics"], [f"prefill={P}"], "10.0.0.7:8000 has two roles, prefill and decode"),
        ([f"decode={P}/metrics", f"prefill={P}/metrics"], [], "has two roles, decode and prefill"),
    ],
)
def test_a_role_without_metrics_and_two_of_one_server_are_refused(
    given: list[str], replicas: list[str], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        metrics_urls(given, replicas)


def test_the_role_of_a_url_goes_to_each_of_its_targets_and_into_their_samples_also_without_a_page() -> None:
    (target,) = scrape_targets_of(Endpoint.parse("prefill=http://127.0.0.1:1/metrics"))
    assert (target.name, target.role) == ("127.0.0.1:1", "prefill")
    samples, reason = scrape(target, ScrapePlan(endpoints=[], timeout_s=1.0))
    (said,) = (sample for sample in samples if sample.name == ROLE_SAMPLE)
    assert reason is not None
    assert json.loads(said.labels) == {"role": "prefill", "source": "the options"}
    assert role_now((sample.name, sample.labels) for sample in samples) == "prefill"
    assert Endpoint.parse("k8s:llm-d.ai/role=decode:8000").role is None
    assert Endpoint.parse("decode=k8s:app=vllm:8000").role == "decode"


def test_without_a_role_there_is_no_sample_of_one() -> None:
    target = ScrapeTarget("127.0.0.1:1", "http", "127.0.0.1", "127.0.0.1", 1, "/metrics")
    samples, _ = scrape(target, ScrapePlan(endpoints=[], timeout_s=1.0))
    assert ROLE_SAMPLE not in {sample.name for sample in samples}
