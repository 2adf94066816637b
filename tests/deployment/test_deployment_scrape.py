"""Many targets at once: one that hangs or sends garbage costs nothing but its own gap."""

import socket
import time
from collections import Counter
from collections.abc import Callable
from threading import Event
from typing import Any

import pytest
from page_server import Behaviour, drip, hang, page, serving

from llm_locust.deployment.discovery import Endpoint, scrape_targets_of
from llm_locust.deployment.samples import ServerSample
from llm_locust.deployment.scrape import ScrapePlan, Scraper, scrape

PAGE = page('vllm:num_requests_running{engine="1",a="0"} 3\nother 9\n')


def endpoint(port: int, host: str = "127.0.0.1", scheme: str = "http") -> Endpoint:
    return Endpoint.parse(f"{scheme}://{host}:{port}/metrics")


def one(behaviour: Behaviour, **more: Any) -> tuple[dict[str, float], str | None, list[ServerSample]]:
    with serving(behaviour) as port:
        plan = ScrapePlan(endpoints=[endpoint(port)], timeout_s=0.2, **more)
        samples, reason = scrape(scrape_targets_of(plan.endpoints[0])[0], plan)
    return {s.name: s.value for s in samples}, reason, samples


def test_a_page_gives_its_samples_and_that_the_target_is_up() -> None:
    values, reason, samples = one(PAGE, now_ns=iter([100, 200]).__next__)
    assert reason is None
    assert (values["running"], values["up"]) == (3.0, 1.0)
    assert 0 < values["scrape_s"] < 0.2
    assert {s.at_ns for s in samples} == {150}
    assert next(s.labels for s in samples if s.name == "running") == '{"a":"0","engine":"1"}'


@pytest.mark.parametrize(
    "behaviour",
    [hang, drip, page("<html>"), page("x", "500 no"), lambda sock: None],
    ids=["hangs", "drips", "garbage", "error", "closes"],
)
def test_without_a_page_the_target_is_down_and_the_reason_is_told(behaviour: Behaviour) -> None:
    values, reason, _ = one(behaviour)
    assert values == {"up": 0.0}
    assert reason


def collect(scraper: Scraper, enough: Callable[[list[ServerSample]], bool]) -> list[ServerSample]:
    found: list[ServerSample] = []
    ends = time.monotonic() + 5
    while not enough(found) and time.monotonic() < ends:
        found += scraper.take()
        Event().wait(0.01)
    return found


def test_those_that_hang_and_those_that_send_garbage_do_not_slow_down_the_others() -> None:
    lines: list[str] = []
    with serving(PAGE) as good, serving(hang) as hung, serving(page("{{{")) as bad, serving(drip) as slow:
        ports = {"good": good, "hung": hung, "bad": bad, "slow": slow}
        plan = ScrapePlan(
            endpoints=[endpoint(port) for port in ports.values()], interval_s=0.05, timeout_s=0.4
        )
        scraper = Scraper(plan, lines.append)
        scraper.start()
        name = {f"127.0.0.1:{port}": word for word, port in ports.items()}
        found = collect(scraper, lambda s: Counter(name[x.target] for x in s if x.name == "up")["hung"] >= 2)
        scraper.stop(within_s=2.0)
    ups: dict[str, list[float]] = {word: [] for word in ports}
    for each in found:
        if each.name == "up":
            ups[name[each.target]].append(each.value)
    assert set(ups["good"]) == {1.0}
    assert len(ups["good"]) > 4 * len(ups["hung"])
    assert set(ups["bad"]) == set(ups["slow"]) == set(ups["hung"]) == {0.0}
    # Each trouble is told once, not at every scrape.
    assert sum("no whole page" in line for line in lines) == 2
    assert sum("not Prometheus text" in line for line in lines) == 1


def test_each_target_is_scraped_a_last_time_when_asked_to_stop() -> None:
    with serving(PAGE) as port:
        scraper = Scraper(ScrapePlan(endpoints=[endpoint(port)], interval_s=30.0), print)
        scraper.start()
        assert collect(scraper, bool)
        scraper.stop(within_s=2.0)
        assert [s.value for s in scraper.take() if s.name == "up"] == [1.0]


def test_pages_of_one_port_are_told_apart_by_their_paths() -> None:
    with serving(PAGE) as port:
        paths = ("/metrics", "/gpu/metrics?module=a", "/r0/metrics")
        endpoints = [Endpoint.parse(f"http://127.0.0.1:{port}{path}") for path in paths]
        scraper = Scraper(ScrapePlan(endpoints=endpoints, interval_s=30.0), print)
        scraper.start()
        scraper.await_first(within_s=5.0)
        scraper.stop(within_s=5.0)
        found = {sample.target for sample in scraper.take()}
    name = f"127.0.0.1:{port}"
    assert found == {name, f"{name}/gpu/metrics", f"{name}/r0/metrics"}


def test_the_first_scrapes_are_awaited_but_not_for_ever() -> None:
    with serving(PAGE) as port, serving(hang) as hung:
        plan = ScrapePlan(endpoints=[endpoint(port), endpoint(hung)], interval_s=30.0, timeout_s=30.0)
        scraper = Scraper(plan, print)
        scraper.start()
        began = time.monotonic()
        scraper.await_first(within_s=0.3)
        assert 0.3 <= time.monotonic() - began < 5
        assert {sample.target for sample in scraper.take()} == {f"127.0.0.1:{port}"}
        scraper.stop(within_s=0.0)


def test_one_that_gave_no_page_is_not_waited_for_once_more() -> None:
    with serving(hang) as hung:
        scraper = Scraper(ScrapePlan(endpoints=[endpoint(hung)], interval_s=0.01, timeout_s=0.4), print)
        scraper.start()
        Event().wait(0.1)
        began = time.monotonic()
        scraper.stop(within_s=10.0)
        assert time.monotonic() - began < 0.7
        assert [s.value for s in scraper.take() if s.name == "up"] == [0.0]


def test_addresses_of_a_name_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = ["127.0.0.1"]

    def resolve(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        hosts = addresses if host == "service" else [host]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in hosts]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr("llm_locust.deployment.scrape.RESOLVE_S", 0.02)
    lines: list[str] = []
    with serving(PAGE) as port:
        plan = ScrapePlan(endpoints=[endpoint(port, "service", "dns+http")], interval_s=0.02)
        scraper = Scraper(plan, lines.append)
        scraper.start()
        collect(scraper, lambda s: any(x.name == "running" for x in s))
        addresses[:] = ["127.0.0.2"]
        found = collect(scraper, lambda s: any(x.target.startswith("127.0.0.2") for x in s))
        scraper.stop(within_s=2.0)
    assert any(x.target.startswith("127.0.0.2") for x in found)
    assert any("127.0.0.1" in line and "no longer an address of service" in line for line in lines)
