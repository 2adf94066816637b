"""Calls to every replica at marked moments."""

import pytest

from llm_locust.deployment.profiler import (
    Answered,
    ProfileError,
    ProfilerCall,
    ProfileSpan,
    call_all,
    failures_line,
    profile_calls,
    reset_prefix_caches,
)


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
