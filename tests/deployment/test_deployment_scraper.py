"""Servers scraped at once, by a process of its own; ready replicas and profilers."""

import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from page_server import Behaviour, drip, endless, hang, page, serving

from llm_locust.deployment import scraper
from llm_locust.deployment.discovery import Endpoint, FetchError, Page, fetch, scrape_targets_of
from llm_locust.deployment.replicas import (
    Answered,
    Clock,
    NotReadyError,
    ProfileError,
    ProfilerCall,
    ProfileSpan,
    call_all,
    count_replicas,
    failures_line,
    look,
    profile_calls,
    reset_prefix_caches,
    wait_until_ready,
)
from llm_locust.deployment.scraper import ScrapePlan, Scraper, scrape
from llm_locust.deployment.server_metrics import ServerSample, read_samples

# --- The scraper's process against a simulated deployment


SIM = [sys.executable, "-m", "llm_locust.sim", "--port", "0", "--replicas", "2", "--replica-ports", "0"]
FAST = ["--ttft-base", "0ms", "--step-base", "1ms", "--step-per-seq", "0ms", "--prefill-per-token", "0ms"]
SCRAPER = [sys.executable, "-m", "llm_locust.deployment.scraper"]


@contextmanager
def process(*words: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as made:
        try:
            yield made
        finally:
            made.kill()


@contextmanager
def deployment() -> Iterator[list[str]]:
    """The base URLs of the gateway and of its two replicas, without /v1."""
    with process(*SIM, *FAST) as sim:
        assert sim.stdout is not None
        lines = [sim.stdout.readline() for _ in range(3)]
        yield [line.split(" on ")[1].split()[0].removesuffix("/v1") for line in lines]


def ask(url: str, tokens: int) -> str:
    """One request for so many tokens; gives the replica that served it."""
    body = {"model": "sim", "prompt": "one two three", "max_tokens": tokens, "ignore_eos": True}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), method="POST")
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=120) as response:
        response.read()
        return str(response.headers["X-Served-By"])


def latest(out: Path) -> dict[tuple[str, str], float]:
    """The last value by target and name, labels left out."""
    return {
        (row["target"], row["name"]): row["value"]
        for table in read_samples(out)
        for row in table.to_pylist()
        if not row["name"].endswith("_bucket")
    }


def until(found: "subprocess.Popen[str]", out: Path, key: tuple[str, str], value: float) -> None:
    ends = time.monotonic() + 60
    while latest(out).get(key) != value:
        assert found.poll() is None, found.communicate()
        assert time.monotonic() < ends, latest(out)
        Event().wait(0.05)


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_counters_in_the_file_are_the_simulators_own_totals(tmp_path: Path, ending: signal.Signals) -> None:
    out = tmp_path / "server_metrics.parquet"
    with deployment() as (gateway, *replicas), serving(hang) as hung, serving(page("<html>")) as bad:
        metrics = [f"{url}/metrics" for url in replicas]
        others = [f"{gateway}/gpu/metrics", *(f"http://127.0.0.1:{port}/metrics" for port in (hung, bad))]
        urls = [word for url in (*metrics, *others) for word in ("--url", url)]
        with process(*SCRAPER, *urls, "--out", str(out), "--interval", "0.2", "--timeout", "0.3") as found:
            tokens: dict[str, int] = defaultdict(int)
            for count in (3, 5, 7, 11, 13):
                tokens[ask(gateway, count)] += count
            names = [url.removeprefix("http://") for url in replicas]
            if ending is signal.SIGKILL:  # nothing more can be asked of it then
                for i, name in enumerate(names):
                    until(found, out, (name, "generation_tokens"), tokens[f"replica-{i}"])
                until(found, out, (f"127.0.0.1:{hung}", "up"), 0.0)
            else:
                until(found, out, (names[0], "up"), 1.0)
            found.send_signal(ending)
            _, said = found.communicate(timeout=120)
        assert out.exists() == (ending is signal.SIGTERM)
        assert found.returncode == (0 if ending is signal.SIGTERM else -signal.SIGKILL)
    values = latest(out)
    assert [values[name, "generation_tokens"] for name in names] == [tokens["replica-0"], tokens["replica-1"]]
    assert [values[name, "ttft_s_count"] for name in names] == [3, 2]
    assert [values[name, "up"] for name in names] == [1.0, 1.0]
    assert values[gateway.removeprefix("http://"), "energy_j"] > 0
    assert values[f"127.0.0.1:{bad}", "up"] == values[f"127.0.0.1:{hung}", "up"] == 0.0
    assert "not Prometheus text" in said
    assert "no whole page" in said


def test_it_ends_when_its_parent_is_gone_and_samples_stand_on_the_runs_time(tmp_path: Path) -> None:
    """And it imports no pandas, which would hold up its first samples and take memory from the load."""
    code = f"import sys; from {scraper.__name__} import main; main(); assert 'pandas' not in sys.modules"
    out = tmp_path / "server_metrics.parquet"
    with serving(page("tgi_queue_size 3\n")) as port:
        words = ["--url", f"http://127.0.0.1:{port}", "--out", str(out), "--parent", str(os.getpid() + 1)]
        before = time.monotonic_ns()
        words += ["--monotonic-ahead-ns", "5000000000"]
        subprocess.run([sys.executable, "-c", code, *words], timeout=120, check=True)
        after = time.monotonic_ns()
    assert latest(out)[f"127.0.0.1:{port}", "waiting"] == 3.0
    at_ns = [row["at_ns"] - 5_000_000_000 for table in read_samples(out) for row in table.to_pylist()]
    assert at_ns
    assert all(before < at < after for at in at_ns)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--url", "ftp://x"], "is not one such as"),
        (["--url", "http://x", "--map", "nonsense"], "write theirs=ours"),
        (["--url", "http://x", "--interval", "0"], "write 0.1 to 60 seconds"),
        (["--url", "http://x", "--timeout", "nan"], "write seconds above 0"),
        (["--url", "http://x", "--api-key-env", "NO_SUCH_VARIABLE"], "is not set"),
    ],
)
def test_options_that_cannot_work_are_said_in_one_line(
    words: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scraper.main([*words, "--out", str(tmp_path / "x.parquet")]) == 2
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1


def test_the_words_of_the_command_are_checked_before_there_is_a_process(tmp_path: Path) -> None:
    made = scraper.words(["http://a:1"], tmp_path, mappings=["x=waiting"], parent=7, monotonic_ahead_ns=-5)
    assert made[-3:] == ["--map=x=waiting", "--parent=7", "--monotonic-ahead-ns=-5"]
    with pytest.raises(ValueError, match="is not one such as"):
        scraper.words(["ftp://a"], tmp_path)
    with pytest.raises(ValueError, match="write seconds above 0"):
        scraper.words(["http://a:1"], tmp_path, timeout_s=-1)
    assert "--url=--tell" in scraper.words(["--tell"], tmp_path), "no URL is an option of the command's own"


def test_who_started_it_is_told_what_servers_say_now_and_keeps_the_samples_as_they_are(
    tmp_path: Path,
) -> None:
    out = tmp_path / "server_metrics.parquet"
    with serving(page("tgi_queue_size 3\n")) as port, serving(hang) as hung:
        urls = [f"--url=http://127.0.0.1:{each}" for each in (port, hung)]
        words = [*urls, "--out", str(out), "--tell", "--interval", "0.1", "--timeout", "0.1"]
        with process(*SCRAPER, *words) as found:
            assert found.stdout is not None
            lines = (scraper.read_servers(line.encode()) for line in found.stdout)
            told = next(servers for servers in lines if len(servers) == 2)
            found.send_signal(signal.SIGTERM)
            found.communicate(timeout=120)
    assert {server.name: (server.up, server.waiting) for server in told} == {
        f"127.0.0.1:{port}": (True, 3.0),
        f"127.0.0.1:{hung}": (False, None),
    }
    assert found.returncode == 0
    assert not out.exists()
    assert latest(out)[f"127.0.0.1:{port}", "waiting"] == 3.0


def test_nobody_who_reads_does_not_hold_it_up(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    while True:  # until the pipe is full
        try:
            os.write(write, b"x" * 4096)
        except BlockingIOError:
            break
    out = tmp_path / "server_metrics.parquet"
    with serving(page("tgi_queue_size 3\n")) as port:
        words = ["--url", f"http://127.0.0.1:{port}", "--out", str(out), "--tell", "--interval", "0.1"]
        with subprocess.Popen([*SCRAPER, *words], stdout=write, stderr=subprocess.PIPE, text=True) as found:
            until(found, out, (f"127.0.0.1:{port}", "waiting"), 3.0)
            found.send_signal(signal.SIGTERM)
            assert found.wait(120) == 0
    os.close(read)
    os.close(write)


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    words = ["--url", "http://127.0.0.1:9", "--out", str(tmp_path / "no" / "x.parquet")]
    done = subprocess.run([*SCRAPER, *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "cannot be written: No such file" in done.stderr
    assert "Traceback" not in done.stderr


# --- Many targets at once: one that hangs or sends garbage costs nothing but its own gap


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
    # A page of the good one may be late too, where this machine is busy.
    assert ups["good"].count(1.0) > 2 * len(ups["hung"])
    assert set(ups["bad"]) == set(ups["slow"]) == set(ups["hung"]) == {0.0}
    # Each trouble is told once, not at every scrape.
    for word, why in {"hung": "no whole page", "slow": "no whole page", "bad": "not Prometheus text"}.items():
        (line,) = [line for line in lines if line.startswith(f"127.0.0.1:{ports[word]}: ")]
        assert why in line


@pytest.mark.parametrize(("text", "told"), [("other 9\n", 1), ("", 1), ("vllm:num_requests_running 3\n", 0)])
def test_a_page_without_a_known_metric_is_told_at_the_end(text: str, told: int) -> None:
    lines: list[str] = []
    with serving(page(text)) as port:
        scraper = Scraper(ScrapePlan(endpoints=[endpoint(port)], interval_s=30.0), lines.append)
        scraper.start()
        assert collect(scraper, bool)
        scraper.stop(within_s=5.0)
    assert len([line for line in lines if "no metric that is known" in line]) == told


def test_each_target_is_scraped_a_last_time_when_asked_to_stop() -> None:
    with serving(PAGE) as port:
        scraper = Scraper(ScrapePlan(endpoints=[endpoint(port)], interval_s=30.0), lambda line: None)
        scraper.start()
        assert collect(scraper, bool)
        scraper.stop(within_s=2.0)
        assert [s.value for s in scraper.take() if s.name == "up"] == [1.0]


def test_pages_of_one_port_are_told_apart_by_their_paths() -> None:
    with serving(PAGE) as port:
        paths = ("/metrics", "/gpu/metrics?module=a", "/r0/metrics")
        endpoints = [Endpoint.parse(f"http://127.0.0.1:{port}{path}") for path in paths]
        scraper = Scraper(ScrapePlan(endpoints=endpoints, interval_s=30.0), lambda line: None)
        scraper.start()
        scraper.await_first(within_s=5.0)
        scraper.stop(within_s=5.0)
        found = {sample.target for sample in scraper.take()}
    name = f"127.0.0.1:{port}"
    assert found == {name, f"{name}/gpu/metrics", f"{name}/r0/metrics"}


def test_the_first_scrapes_are_awaited_but_not_for_ever() -> None:
    with serving(PAGE) as port, serving(hang) as hung:
        plan = ScrapePlan(endpoints=[endpoint(port), endpoint(hung)], interval_s=30.0, timeout_s=30.0)
        scraper = Scraper(plan, lambda line: None)
        scraper.start()
        began = time.monotonic()
        scraper.await_first(within_s=0.3)
        assert 0.3 <= time.monotonic() - began < 5
        assert {sample.target for sample in scraper.take()} == {f"127.0.0.1:{port}"}
        scraper.stop(within_s=0.0)


def test_one_that_gave_no_page_is_not_waited_for_once_more() -> None:
    with serving(hang) as hung:
        scraper = Scraper(
            ScrapePlan(endpoints=[endpoint(hung)], interval_s=0.01, timeout_s=0.4), lambda line: None
        )
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
    monkeypatch.setattr("llm_locust.deployment.scraper.RESOLVE_S", 0.02)
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


# --- One page within its time, whatever the other side does


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


# --- A run does not begin with 5 of 8 replicas


TARGETS = [f"http://10.0.0.{i}:8000" for i in range(1, 9)]


@dataclass
class FakeTime:
    """Goes on when somebody sleeps or asks."""

    now: float = 0.0
    slept: list[float] = field(default_factory=list)

    def clock(self) -> Clock:
        return Clock(lambda: self.now, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def up_from(times: dict[str, float], time: FakeTime) -> Callable[[str], str | None]:
    return lambda target: None if time.now >= times.get(target, 0.0) else "Connection refused"


def test_five_of_eight_do_not_start_the_run_and_the_line_names_the_three() -> None:
    time = FakeTime()
    check = up_from(dict.fromkeys(TARGETS[5:], 1e9), time)
    with pytest.raises(NotReadyError) as raised:
        wait_until_ready(TARGETS, check, within_s=30, clock=time.clock())
    line = str(raised.value)
    assert line.startswith("5 of 8 replicas are ready after 30 s; missing: ")
    assert [target for target in TARGETS if target in line] == TARGETS[5:]
    assert "Connection refused" in line
    assert "\n" not in line


def test_when_they_come_up_the_run_starts() -> None:
    time = FakeTime()
    lines: list[str] = []
    check = up_from({TARGETS[6]: 3.5, TARGETS[7]: 7.5}, time)
    ready = wait_until_ready(TARGETS, check, within_s=30, clock=time.clock(), tell=lines.append)
    assert (ready.names, ready.seconds) == (tuple(TARGETS), 8.0)
    # Those that are ready are not asked again; a line only when somebody has come.
    assert ready.asked == 8 + 4 * 2 + 4 * 1
    assert [line.split(" replicas")[0] for line in lines] == ["6 of 8", "7 of 8"]


def test_all_targets_are_looked_at_together() -> None:
    seen: list[Sequence[str]] = []

    def together(check: Callable[[str], str | None], targets: Sequence[str]) -> Iterable[str | None]:
        seen.append(targets)
        with ThreadPoolExecutor() as pool:
            return list(pool.map(check, targets))

    assert wait_until_ready(TARGETS, lambda _: None, within_s=1, together=together).asked == 8
    assert seen == [TARGETS]


@pytest.mark.parametrize(
    ("status", "completed", "why"),
    [
        (200, None, None),
        (404, None, None),  # there is no such path: the request tells
        (503, None, "/health answered 503"),
        (200, "http_error 500", "http_error 500"),
    ],
)
def test_a_target_is_ready_when_it_is_healthy_and_has_given_a_token(
    status: int, completed: str | None, why: str | None
) -> None:
    assert look(lambda _: status, lambda _: completed)("t") == why


def test_a_target_that_cannot_be_reached_is_not_ready() -> None:
    def refuse(target: str) -> int:
        raise ConnectionRefusedError(111, "Connection refused")

    assert look(refuse, lambda _: None)("t") == "Connection refused"


def test_replicas_behind_a_balancer_are_counted_by_their_names() -> None:
    source, time = random.Random(1), FakeTime()
    ready = count_replicas(4, lambda: source.choice("abcd"), within_s=60, clock=time.clock())
    assert ready.names == ("a", "b", "c", "d")
    assert ready.asked < 40
    assert time.slept == []


def test_a_replica_that_comes_late_is_waited_for() -> None:
    time, turns = FakeTime(), itertools.count()
    lines: list[str] = []

    def ask() -> str:
        return "abc"[next(turns) % (3 if time.now >= 5 else 2)]

    ready = count_replicas(3, ask, within_s=60, clock=time.clock(), tell=lines.append)
    assert ready.names == ("a", "b", "c")
    assert 5 <= ready.seconds <= 10
    assert lines[-1] == "3 of 3 replicas have answered: c is new"


def test_missing_ones_are_said_with_those_that_answered() -> None:
    time, turns = FakeTime(), itertools.count()
    with pytest.raises(NotReadyError) as raised:
        count_replicas(8, lambda: f"r{next(turns) % 5}", within_s=10, clock=time.clock())
    assert str(raised.value).startswith("5 of 8 replicas answered ")
    assert "r0, r1, r2, r3, r4; 3 are missing" in str(raised.value)


def test_answers_that_name_nobody_are_said_at_once() -> None:
    time = FakeTime()
    with pytest.raises(NotReadyError, match=r"name the header that does by --replica-header"):
        count_replicas(8, lambda: None, within_s=600, clock=time.clock())
    assert time.now == 0.0


def test_a_balancer_that_refuses_is_asked_until_the_time_is_over() -> None:
    time = FakeTime()

    def refuse() -> str:
        raise ConnectionRefusedError(111, "Connection refused")

    with pytest.raises(NotReadyError, match=r"0 of 2 .* the last request failed: Connection refused"):
        count_replicas(2, refuse, within_s=10, clock=time.clock())
    assert time.now == pytest.approx(10)


# --- Calls to every replica at marked moments


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("30s@120s", ProfileSpan(30, 120)),
        (" 1.5m @ 0s ", ProfileSpan(90, 0)),
        ("500ms@2min", ProfileSpan(0.5, 120)),
        ("1h@1h", ProfileSpan(3600, 3600)),
    ],
)
def test_a_span_is_a_duration_and_its_start(text: str, span: ProfileSpan) -> None:
    assert ProfileSpan.parse(text) == span


@pytest.mark.parametrize("text", ["", "30s", "@120s", "30@120", "-1s@2s", "0s@5s", "30s@120s x", "1e3s@2s"])
def test_another_form_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ProfileError, match="as 30s@120s"):
        ProfileSpan.parse(text)


def test_the_profiler_starts_and_stops_at_its_times_and_with_the_run() -> None:
    span = ProfileSpan.parse("30s@120s")
    assert profile_calls(span) == [ProfilerCall(120, "/start_profile"), ProfilerCall(150, "/stop_profile")]
    assert profile_calls(span, run_s=140)[1] == ProfilerCall(140, "/stop_profile")
    with pytest.raises(ProfileError, match="the run is over after 100 s"):
        profile_calls(span, run_s=100)


def test_every_replica_is_called_beside_its_api_though_one_refuses() -> None:
    called: list[str] = []

    def post(url: str) -> int:
        called.append(url)
        if "b:" in url:
            raise ConnectionRefusedError(111, "Connection refused")
        return 200

    answers = call_all(["http://a:1/v1", "http://b:1", "http://c:1/v1/"], "/start_profile", post)
    assert called == [f"http://{name}:1/start_profile" for name in "abc"]
    assert answers[1] == Answered("http://b:1", "/start_profile", None, "Connection refused")
    assert [answer.ok for answer in answers] == [True, False, True]
    line = failures_line("profile", answers)
    assert line == "profile: 1 of 3 replicas did not: http://b:1 (Connection refused)"
    assert failures_line("profile", answers[:1]) is None


def test_a_cache_is_emptied_by_the_path_that_the_server_has() -> None:
    def post(url: str) -> int:
        return 200 if ("vllm" in url) == url.endswith("/reset_prefix_cache") else 404

    answers = reset_prefix_caches(["http://vllm:1", "http://sglang:1"], post)
    assert [(a.path, a.ok) for a in answers] == [("/reset_prefix_cache", True), ("/flush_cache", True)]


def test_a_server_that_does_not_offer_it_is_told_how_it_would() -> None:
    line = failures_line("profile", call_all(["http://a:1"], "/start_profile", lambda _: 404))
    assert line is not None
    assert "(404)" in line
    assert "VLLM_SERVER_DEV_MODE" in line
