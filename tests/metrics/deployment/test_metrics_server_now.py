"""What each server says now: the last scrape, and what came since the one before it."""

import pytest

from llm_locust.metrics.server_series import FIGURES, MOST_SERVERS, Newest, ServerNow, spread

S = 1_000_000_000


def now(*scrapes: tuple[int, list[tuple[str, float]]], target: str = "a:8000") -> ServerNow:
    newest = Newest()
    for at_s, values in scrapes:
        newest.add(target, at_s * S, values)
    (server,) = newest.servers()
    return server


def test_states_of_engines_add_up_and_shares_are_their_mean() -> None:
    values = [("running", 3.0), ("running", 4.0), ("kv_cache_usage", 0.2), ("kv_cache_usage", 0.4)]
    told = now((1, [*values, ("power_w", 100.0), ("power_w", 150.0), ("gpu_utilisation", 1.0), ("up", 1.0)]))
    assert (told.running, told.power_w) == (7.0, 250.0)
    assert told.kv_cache_usage == pytest.approx(0.3)
    assert (told.gpu_utilisation, told.waiting) == (1.0, None)


def test_rates_and_means_are_of_the_time_between_two_scrapes() -> None:
    def page(tokens: float, ttft_s: float, first: float, hits: float) -> list[tuple[str, float]]:
        counters = [("generation_tokens", tokens), ("ttft_s_sum", ttft_s), ("ttft_s_count", first)]
        return [*counters, ("prefix_cache_hits", hits), ("prefix_cache_queries", 4 * hits), ("up", 1.0)]

    first = now((10, page(1000, 5.0, 50, 8)))
    assert (first.generation_tokens_per_s, first.ttft_ms, first.prefix_hits) == (None, None, None)
    told = now((1, page(0, 0.0, 0, 0)), (10, page(1000, 5.0, 50, 8)), (12, page(1400, 6.0, 60, 12)))
    assert told.generation_tokens_per_s == pytest.approx(200)
    assert told.ttft_ms == pytest.approx(100)
    assert told.prefix_hits == pytest.approx(0.25)


def test_a_server_that_began_anew_counts_from_0() -> None:
    told = now(
        (1, [("generation_tokens", 900.0), ("up", 1.0)]), (2, [("generation_tokens", 30.0), ("up", 1.0)])
    )
    assert told.generation_tokens_per_s == pytest.approx(30)


def test_without_a_first_token_there_is_no_mean() -> None:
    page = [("ttft_s_sum", 5.0), ("ttft_s_count", 50.0), ("up", 1.0)]
    assert now((1, page), (2, page)).ttft_ms is None


def test_a_share_that_the_server_tells_itself_is_taken_where_there_are_no_counts() -> None:
    assert now((1, [("prefix_cache_hit_rate", 0.7), ("up", 1.0)])).prefix_hits == 0.7


def test_the_acceptance_length_is_of_the_time_between_two_scrapes() -> None:
    def page(drafts: float, accepted: float) -> list[tuple[str, float]]:
        return [("spec_drafts", drafts), ("spec_accepted_tokens", accepted), ("up", 1.0)]

    assert now((1, page(100, 500)), (2, page(110, 512))).acceptance_length == pytest.approx(2.2)
    assert now((1, page(100, 500)), (2, page(100, 500))).acceptance_length is None
    assert now((1, [("spec_accept_length", 2.5), ("up", 1.0)])).acceptance_length == 2.5


def test_of_a_server_without_a_page_nothing_is_known() -> None:
    told = now((1, [("running", 3.0), ("up", 1.0)]), (2, [("up", 0.0)]))
    assert told == ServerNow(name="a:8000", up=False)
    assert all(getattr(told, name) is None for name in FIGURES)


def test_servers_are_bounded_and_in_the_order_of_their_names() -> None:
    newest = Newest()
    for i in reversed(range(MOST_SERVERS + 9)):
        newest.add(f"s{i:04d}", 1, [("up", 1.0)])
    names = [server.name for server in newest.servers()]
    assert len(names) == MOST_SERVERS
    assert names == sorted(names)


def test_of_many_values_the_extremes_and_the_middle_are_told() -> None:
    assert spread([3.0, None, 1.0, 8.0]) == {"highest": 8.0, "median": 3.0, "lowest": 1.0}
    assert spread([None]) == {"highest": None, "median": None, "lowest": None}
