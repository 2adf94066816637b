"""Gauges and counters of servers in the parts of a window, and at the last scrape."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from metrics_cases import WINDOW, ns, rows, series, tables

from llm_locust.metrics.server_series import (
    FIGURES,
    MOST_SERVERS,
    PARTS,
    Newest,
    SeriesKey,
    ServerNow,
    is_counter,
    joined,
    read_server_series,
    spread,
)
from llm_locust.metrics.window import Window


def test_a_counter_is_its_increase_in_the_window_cut_at_its_edges() -> None:
    found = series(rows("t", "generation_tokens", [100 + 10 * i for i in range(20)], first_s=-4.5))
    (one,) = found.named("generation_tokens").values()
    assert one.total == pytest.approx(100)  # 10 a second, for 10 seconds
    assert one.amounts == pytest.approx(np.full(PARTS, 100 / PARTS))
    assert one.covered_s == pytest.approx(10)
    assert one.uncertain == 20  # of the seconds around both edges


def test_a_counter_that_falls_has_begun_anew() -> None:
    (one,) = series(rows("t", "finished", [50, 60, 5, 15])).by_key.values()
    assert one.total == pytest.approx(10 + 5 + 10)
    assert one.covered_s == pytest.approx(3)


def test_a_state_is_the_mean_of_its_samples_and_its_most() -> None:
    (one,) = series(rows("t", "running", [1, 2, 3, 99], first_s=7.0)).by_key.values()
    assert one.mean == pytest.approx(2)  # the last one is at the window's end, outside
    assert one.most == 3
    assert np.isnan(one.means[0])
    assert [one.means[round(s * PARTS / 10)] for s in (7, 7.5, 8.2, 9.9)] == [1, 1, 2, 3]


@pytest.mark.parametrize("parts", [5, 10, 40])
def test_a_state_ends_with_its_samples_however_wide_the_parts_are(parts: int) -> None:
    silent = [*rows("t", "running", [9, 9, 9, 9]), *rows("t", "running", [9, 9], first_s=8.0)]
    (one,) = read_server_series(tables(silent), WINDOW, parts).by_key.values()
    middles_s = (np.arange(parts) + 0.5) * 10 / parts
    assert np.isnan(one.means[(middles_s > 6.5) & (middles_s < 8)]).all()
    assert (one.means[(middles_s < 4) | (middles_s > 8)] == 9).all()


def test_a_counter_that_was_scraped_through_a_gap_keeps_its_increase() -> None:
    before, after = rows("t", "finished", [0, 10]), rows("t", "finished", [90, 100], first_s=8.0)
    (one,) = series([*before, *after]).by_key.values()
    assert one.total == pytest.approx(100)


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_gap_of_the_window_is_in_no_figure(size: int) -> None:
    window = Window(ns(0.0), ns(10.0), "", gaps=((ns(4.0), ns(7.0)),))
    samples = [
        *rows("t", "finished", [10 * i for i in range(13)], first_s=-1.5),
        *rows("t", "running", [1, 1, 1, 1, 50, 50, 50, 2, 2, 2], first_s=0.5),
    ]
    found = series(samples, window, size)
    (count,), (state,) = (found.named(name).values() for name in ("finished", "running"))
    assert count.total == pytest.approx(70)  # 10 a second, in 4 s and 3 s
    assert count.covered_s == pytest.approx(7)
    assert found.seconds == pytest.approx(7)
    assert state.mean == pytest.approx(10 / 7)
    assert state.most == 2


def test_what_grew_between_two_parts_of_a_run_is_in_no_figure() -> None:
    window = Window(ns(0.0), ns(10.0), "", gaps=((ns(4.0), ns(7.0)),))
    first = rows("t", "finished", [100, 110, 120, 130, 140])
    second = rows("t", "finished", [1000, 1010, 1020, 1030], first_s=7.0)
    whole = joined([read_server_series(tables(part), window) for part in (first, second)])
    (one,) = whole.by_key.values()
    assert one.total == pytest.approx(40 + 30)
    assert one.covered_s == pytest.approx(7)
    assert {(0.0, 4.0), (7.0, 10.0)} <= set(one.watched_s)
    assert not any(first_s < 7 and last_s > 4 for first_s, last_s in one.watched_s)


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 50)), min_size=2, max_size=40),
    st.integers(1, 7),
)
def test_however_samples_are_cut_into_parts_the_result_is_the_same(
    values: list[tuple[str, float]], size: int
) -> None:
    samples = [
        (i / 2 - 3, target, name, "{}", value)
        for i, (target, value) in enumerate(values)
        for name in ("finished", "running")
    ]
    whole, cut = series(samples), series(samples, size=size)
    assert whole.by_key.keys() == cut.by_key.keys()
    for key, one in whole.by_key.items():
        other = cut.by_key[key]
        assert other.amounts == pytest.approx(one.amounts, abs=1e-9)
        assert (other.counts == one.counts).all()
        assert other.covered_s == pytest.approx(one.covered_s)
        assert other.most == one.most


def test_an_empty_window_and_no_samples_have_no_series() -> None:
    assert read_server_series([], WINDOW).by_key == {}
    assert series(rows("t", "running", [1.0]), Window(ns(0), ns(0), "")).by_key == {}


def test_series_are_told_apart_by_target_name_and_labels() -> None:
    found = series(
        [
            *rows("a", "running", [1], engine="0"),
            *rows("a", "running", [2], engine="1"),
            *rows("b", "running", [4]),
        ]
    )
    assert found.targets == ["a", "b"]
    assert [each.mean for each in found.named("running", "a").values()] == [1, 2]
    assert len(found.named("running")) == 3
    assert SeriesKey("a", "x", '{"UUID": "g"}').label("gpu", "UUID") == "g"
    assert SeriesKey("a", "x", "{}").label("gpu") is None


def test_what_counts_up_is_known_by_its_name() -> None:
    assert is_counter("energy_j")
    assert is_counter("ttft_s_bucket")
    assert not is_counter("power_w")


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_counter_that_earlier_pages_did_not_have_began_at_0(size: int) -> None:
    pages = rows("t", "up", [1] * 10)
    late = rows("t", "kv_transfers_failed", [50, 50, 60], first_s=5.0, bootstrap="a")
    (one,) = series([*pages, *late], size=size).named("kv_transfers_failed").values()
    assert one.total == pytest.approx(60)
    assert one.amounts[: round(PARTS * 0.4)].sum() == 0  # after the last page without it


@pytest.mark.parametrize("earlier", ["none", "failed", "another target's"])
def test_a_counter_on_the_first_page_may_have_begun_anywhere(earlier: str) -> None:
    ups = {"none": ("t", []), "failed": ("t", [0, 0]), "another target's": ("u", [1, 1])}
    target, values = ups[earlier]
    pages = [*rows(target, "up", values), *rows("t", "up", [1] * 3, first_s=5.0)]
    (one,) = series([*pages, *rows("t", "finished", [50, 55, 60], first_s=5.0)]).named("finished").values()
    assert one.total == pytest.approx(10)


def test_a_gpu_that_an_exporter_shows_late_has_not_used_all_its_energy_since() -> None:
    samples = [*rows("t", "up", [1] * 10), *rows("t", "energy_j", [1e9, 1e9 + 5], first_s=5.0, gpu="1")]
    (one,) = series(samples).named("energy_j").values()
    assert one.total == pytest.approx(5)


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
