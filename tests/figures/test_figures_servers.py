"""Servers by their own metrics: roles, faults of prefill and decode, energy."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from metrics_cases import WINDOW, Row, batch, columns, manifest, plain, request, rows, series
from report_cases import manifest as report_manifest, records
from summaries import faked, summarise, typed

from llm_locust.figures.bottleneck import show as where_the_time_goes
from llm_locust.figures.cost import energy as energy_of, show_energy as show_energy
from llm_locust.figures.pools import show as pools
from llm_locust.figures.server_metrics import gateway as gateway_of, in_parts
from llm_locust.figures.servers import servers, show as show_servers
from llm_locust.figures.summary import Summary
from llm_locust.figures.text import MOST_ROWS, Section, Tone
from llm_locust.metrics.question import Question
from llm_locust.metrics.server_roles import ROLE_SAMPLE, roles_of
from llm_locust.report.contents import sections

REQUESTS = 50
PROMPT, ANSWER = 400, 20


def server_metrics(*given: Any) -> Any:
    return plain(servers(*given))


def gateway(histogram: dict[str, Any] | None, *given: Any) -> Any:
    return plain(gateway_of(faked(histogram), *given))


def counter(target: str, name: str, total: float) -> list[Row]:
    """One that grows evenly by this in the window."""
    return rows(target, name, [total * i / 10 for i in range(11)])


def server(target: str, counts: Mapping[str, float], states: Mapping[str, float] | None = None) -> list[Row]:
    usual = {"running": 1.0, "waiting": 0.1, **(states or {})}
    found = [row for name, total in counts.items() for row in counter(target, name, total)]
    found += [row for name, value in usual.items() for row in rows(target, name, [value] * 11)]
    return [*rows(target, "up", [1] * 11), *found]


def prefill(target: str, n: int = REQUESTS, **states: float) -> list[Row]:
    """A vLLM that computes prompts, and one token of each answer."""
    counts: dict[str, float] = {"prompt_tokens": n * PROMPT, "prompt_tokens_received": 0}
    counts |= {"prompt_tokens_computed": n * PROMPT}
    counts |= {"generation_tokens": n, "finished": n, "e2el_s_count": n, "e2el_s_sum": n * 0.03}
    return server(target, counts, states)


def decode(target: str, n: int = REQUESTS // 2, failed: int = 0, **states: float) -> list[Row]:
    """A vLLM whose prompts come by transfers of 25 ms and 50 MB, of which ``failed`` do not come."""
    done = n - failed
    counts: dict[str, float] = {"prompt_tokens": n * PROMPT, "prompt_tokens_received": done * (PROMPT - 1)}
    counts |= {"prompt_tokens_computed": n * PROMPT - done * (PROMPT - 1)}
    counts |= {"generation_tokens": n * ANSWER, "finished": n, "ttft_s_count": n, "ttft_s_sum": n * 0.05}
    counts |= {"kv_transfer_s_count": done, "kv_transfer_s_sum": done * 0.025, "kv_transfers_failed": failed}
    counts |= {"kv_transfer_bytes_sum": done * 50e6}
    return server(target, counts, states)


CLIENT = columns(*(request(0.1 * i, (0.1, 0.12)) for i in range(REQUESTS)))
HEALTHY = [*prefill("p:1"), *decode("d:1"), *decode("d:2")]


def role(target: str, name: str, source: str = "the options") -> list[Row]:
    return rows(target, ROLE_SAMPLE, [1] * 11, role=name, source=source)


def found(samples: list[Row]) -> dict[str, Any]:
    return plain(servers(series(samples), CLIENT, WINDOW))  # type: ignore[no-any-return]


def kinds(samples: list[Row]) -> dict[str, str]:
    return {each["kind"]: each["text"] for each in found(samples)["pools"]["findings"]}


def test_counts_show_roles_only_together() -> None:
    said = roles_of(series(HEALTHY))
    assert {target: (each.name, each.source) for target, each in said.items()} == {
        "p:1": ("prefill", "its counts"),
        "d:1": ("decode", "its counts"),
        "d:2": ("decode", "its counts"),
    }
    assert roles_of(series(prefill("p:1"))) == {}  # a run that asks for one token
    assert roles_of(series(decode("d:1"))) == {}  # a cache that other servers fill
    assert found(prefill("p:1"))["pools"] is None


@pytest.mark.parametrize("label", ["engine_type", "dynamo_component"])
def test_a_label_of_a_servers_own_samples_says_its_role(label: str) -> None:
    labelled = [
        (at, name, "running", f'{{"{label}": "prefill"}}', 1.0) for at, name in ((0.0, "a"), (9.0, "a"))
    ]
    samples = [*labelled, *rows("b", "running", [1] * 11)]
    said = roles_of(series(samples))
    assert {target: (each.name, each.source) for target, each in said.items()} == {"a": ("prefill", label)}


def test_a_page_of_several_engines_and_other_words_give_no_role() -> None:
    both = [
        *rows("a", "running", [1], engine_type="prefill"),
        *rows("a", "running", [1], engine_type="decode"),
    ]
    other = rows("b", "running", [1] * 11, engine_type="unified")
    assert roles_of(series([*both, *other, *role("c", "encode"), *role("d", "decode", "")])) == {}


def test_what_was_given_wins_and_a_doubt_is_told() -> None:
    samples = [*role("p:1", "decode"), *HEALTHY]
    assert roles_of(series(samples))["p:1"].name == "decode"
    assert kinds(samples)["doubt"] == "p:1 is taken as decode (the options), but its counts say prefill"


def test_a_healthy_deployment_has_figures_by_role_and_nothing_is_wrong_with_it() -> None:
    server = found(HEALTHY)
    first, second = server["pools"]["by_role"]
    assert (first["role"], first["servers"], first["silent"]) == ("prefill", 1, 0)
    assert (first["prompt_tokens_per_s"], first["generation_tokens_per_s"]) == (
        pytest.approx(REQUESTS * PROMPT / 10),
        pytest.approx(REQUESTS / 10),
    )
    assert (second["servers"], second["evenness"]) == (2, pytest.approx(1.0))
    assert second["generation_tokens_per_s"] == pytest.approx(REQUESTS * ANSWER / 10)
    assert second["figures"]["kv_transfer_ms"]["mean"] == pytest.approx(25)
    assert second["figures"]["running_mean"] == pytest.approx(2.0)  # of two servers
    assert second["kv_transfer_bytes_per_s"] == pytest.approx(50e6 / 0.025)
    assert server["pools"]["findings"] == []
    assert (server["kv_transfer_failures"], server["gateway"]) == (0.0, None)
    assert [target["role"] for target in server["targets"]] == ["decode", "decode", "prefill"]


def test_transfers_that_all_fail_are_counted_and_so_is_prefill_in_decode() -> None:
    """The tokens are right, and every request is ok: only the servers tell."""
    samples = [*prefill("p:1"), *decode("d:1", failed=25), *decode("d:2", failed=25)]
    said = kinds(samples)
    assert said["transfers_failed"].startswith("50 of 50 KV transfers failed")
    assert "computed 100 % of their prompt tokens" in said["prefill_in_decode"]
    assert found(samples)["kv_transfer_failures"] == 1.0


def test_prompts_that_never_went_to_a_prefill_server_are_noticed_without_a_failure() -> None:
    alone = {"prompt_tokens": 25 * PROMPT, "prompt_tokens_computed": 25 * PROMPT, "finished": 25}
    samples = [*role("p:1", "prefill"), *prefill("p:1", n=0), *role("d:1", "decode")]
    said = kinds([*samples, *server("d:1", alone | {"generation_tokens": 500, "kv_transfer_s_count": 0})])
    assert "no KV transfer was counted while decode servers finished 25 requests" in said["no_transfer"]
    assert "prefill_in_decode" in said


def test_an_idle_server_is_named_within_its_role_and_never_across_roles() -> None:
    said = found([*HEALTHY, *role("d:3", "decode"), *decode("d:3", n=0)])["pools"]["findings"]
    assert [(each["kind"], each["server"]) for each in said] == [("idle", "d:3")]
    assert said[0]["text"] == "d:3 (decode) had no generated tokens in the window, others of its role 1,000"


def test_shares_beyond_chance_are_uneven() -> None:
    said = kinds([*prefill("p:1", n=100), *decode("d:1", n=85), *decode("d:2", n=15)])
    assert "generated tokens of the decode servers are uneven" in said["uneven"]
    assert said["uneven"].endswith("d:1 has the most")


def test_servers_without_figures_are_told_and_nothing_is_shown_of_their_transfers() -> None:
    dead = [*role("d:2", "decode"), *rows("d:2", "up", [0] * 11)]
    samples = [*prefill("p:1"), *decode("d:1"), *dead]
    assert kinds(samples)["silent"].startswith("1 of 2 decode servers returned no metrics page")
    assert found(samples)["kv_transfer_failures"] is None
    assert kinds([*role("d:1", "decode"), *decode("d:1")])["missing_role"].startswith("no prefill server")
    assert "no role is known of x:1" in kinds([*HEALTHY, *server("x:1", {})])["no_role"]


def test_first_tokens_that_no_scraped_server_gave_are_noticed() -> None:
    said = kinds([*prefill("p:1"), *decode("d:1")])
    assert said["other_requests"] == (
        "decode servers saw 25 first tokens, the client 50: some are not scraped"
    )


def without(samples: list[Row], *names: str) -> list[Row]:
    return [row for row in samples if row[2] not in names]


def given_roles(*decodes: str) -> list[Row]:
    return [row for name in decodes for row in role(name, "decode")] + role("p:1", "prefill")


def sglang(target: str, engine_type: str, samples: list[Row]) -> list[Row]:
    return [*samples, *rows(target, "running", [0] * 11, engine_type=engine_type)]


def test_ranks_that_each_count_a_transfer_make_it_no_longer_and_no_more_requests() -> None:
    """Two requests of eight ranks in tensor parallel: 8 transfers each, at the same time."""
    counts = ("kv_transfer_s_count", "kv_transfer_s_sum")
    ranks = [*counter("d:1", counts[0], 8 * REQUESTS), *counter("d:1", counts[1], 8 * REQUESTS * 0.8)]
    full = [*without(decode("d:1", REQUESTS, waiting=20.0), *counts), *ranks]
    server = found([*prefill("p:1", waiting=5.0), *full])
    assert server["pools"]["ttft"]["transfer_ms"] == pytest.approx(800)
    (said,) = [each["text"] for each in server["pools"]["findings"] if each["kind"] == "bottleneck"]
    assert said.startswith("decode is the bottleneck: 16 requests wait there on average (servers: 1), 5 for")


def test_no_role_is_the_bottleneck_where_queues_are_not_known() -> None:
    """A request of SGLang is at both servers from its start, in queues of transfers."""
    sides = [prefill("p:1", waiting=8.0), decode("d:1", REQUESTS)]
    assert "bottleneck" in kinds([row for side in sides for row in side])
    labelled = [*sglang("p:1", "prefill", sides[0]), *sglang("d:1", "decode", sides[1])]
    assert "bottleneck" not in kinds(labelled)


def test_a_failure_that_both_roles_count_is_one() -> None:
    """SGLang counts successes at the prefill server only."""
    transfers = {"kv_transfer_s_count": 40.0, "kv_transfer_s_sum": 1.0}
    sides = [
        *sglang("p:1", "prefill", [*prefill("p:1"), *counter("p:1", "kv_transfers_failed", 10)]),
        *(row for name, total in transfers.items() for row in counter("p:1", name, total)),
        *sglang("d:1", "decode", without(decode("d:1", REQUESTS), *transfers, "kv_transfers_failed")),
    ]
    both = [*sides, *counter("d:1", "kv_transfers_failed", 10)]
    assert kinds(both)["transfers_failed"].startswith("10 of 50 KV transfers failed")
    assert found(both)["kv_transfer_failures"] == pytest.approx(0.2)
    summary = summarise(batch(request(0.1, (0.1, 0.12))), manifest(), Question(), server=series(both))
    section = pools(typed(summary))
    assert section is not None
    (told,) = [note.text for note in section.notes if "KV transfers ·" in note.text]
    assert told == "40 KV transfers · mean 25.0 ms · 10 failed"
    at_decode = [*without(sides, "kv_transfers_failed"), *counter("d:1", "kv_transfers_failed", 10)]
    assert found(at_decode)["kv_transfer_failures"] == pytest.approx(0.2)


def test_failures_of_an_unknown_number_of_transfers_are_told_and_are_no_share() -> None:
    """Such as of a server that has the time of the last transfer only."""
    one = [*prefill("p:1"), *decode("d:1", REQUESTS, failed=2)]
    samples = [*given_roles("d:1"), *without(one, "kv_transfer_s_count", "kv_transfer_s_sum")]
    assert found(samples)["kv_transfer_failures"] is None
    assert kinds(samples)["transfers_failed"].startswith("2 of an unknown number of KV transfers failed")
    assert found(samples)["pools"]["ttft"] is None  # a transfer takes longer than 0 ms


def test_a_missing_count_of_failures_is_none_only_where_it_begins_with_the_first_one() -> None:
    samples = [*given_roles("d:1"), *prefill("p:1"), *without(decode("d:1"), "kv_transfers_failed")]
    assert found(samples)["kv_transfer_failures"] is None
    assert found(sglang("d:1", "decode", samples))["kv_transfer_failures"] == 0.0
    half = [*given_roles("d:1", "d:2"), *samples, *decode("d:2")]
    assert found(half)["kv_transfer_failures"] is None


def test_a_silent_exporter_hides_no_transfer_unless_it_may_be_a_server() -> None:
    silent = rows("x:1", "up", [0] * 11)
    given = [*given_roles("d:1", "d:2"), *HEALTHY, *silent]
    assert found(given)["kv_transfer_failures"] == 0.0
    assert found([*HEALTHY, *silent])["kv_transfer_failures"] is None  # roles are only seen of who answers


def test_pages_without_known_metrics_are_silent() -> None:
    samples = [*given_roles("d:1", "d:2", "d:3"), *HEALTHY, *rows("d:3", "up", [1] * 11)]
    assert kinds(samples)["silent"] == (
        "1 of 3 decode servers returned pages without known metrics: nothing is known of them"
    )
    assert found(samples)["pools"]["by_role"][1]["silent"] == 1
    assert found(samples)["kv_transfer_failures"] is None
    assert "idle" not in kinds(samples)


def test_the_role_with_the_longer_queue_is_the_bottleneck() -> None:
    samples = [*prefill("p:1", waiting=8.0), *decode("d:1"), *decode("d:2")]
    assert kinds(samples)["bottleneck"].startswith("prefill is the bottleneck: 8 requests wait there")
    full = [*prefill("p:1"), *decode("d:1", waiting=6.0), *decode("d:2", waiting=6.0)]
    assert kinds(full)["bottleneck"].startswith("decode is the bottleneck")


def test_a_request_whose_cache_is_on_its_way_waits_for_no_server() -> None:
    """By Little's law 25 transfers of 4 s in 10 s are 10 of the waiting ones."""
    moving = [row for row in decode("d:1", waiting=10.0) if row[2] != "kv_transfer_s_sum"]
    samples = [*prefill("p:1"), *moving, *counter("d:1", "kv_transfer_s_sum", 25 * 4.0)]
    assert "bottleneck" not in kinds(samples)


@pytest.mark.parametrize(
    ("prefill_ms", "transfer_ms", "parts"),
    [
        (20, 60, "the KV transfer 60.0 ms, prefill 20.0 ms, {rest} 20.0 ms"),
        (60, 10, "prefill 60.0 ms, {rest} 30.0 ms, the KV transfer 10.0 ms"),
        (20, 10, "{rest} 70.0 ms, prefill 20.0 ms, the KV transfer 10.0 ms"),
    ],
)
def test_a_run_that_is_mostly_the_same_ttft_for_all_begins_with_the_largest_part_that_its_servers_tell(
    prefill_ms: int, transfer_ms: int, parts: str
) -> None:
    sums = ("e2el_s_sum", "kv_transfer_s_sum")
    samples = [
        *without([*prefill("p:1"), *decode("d:1", REQUESTS)], *sums),
        *counter("p:1", sums[0], REQUESTS * prefill_ms / 1e3),
        *counter("d:1", sums[1], REQUESTS * transfer_ms / 1e3),
    ]
    made = batch(*(request(0.1 * i, (0.1, 0.12)) for i in range(REQUESTS)))
    section = where_the_time_goes(typed(summarise(made, manifest(), server=series(samples))))
    assert section is not None
    told = parts.format(rest="gateway, tokenizer and authentication")
    assert section.lines[1].text == f"to shorten it: of 100 ms of TTFT {told}: begin with the first"


def histogram(target: str, name: str, at: dict[str, int], total_s: float) -> list[Row]:
    """A histogram that was empty at the window's start and is this at its end."""
    buckets = [row for le, n in at.items() for row in rows(target, f"{name}_bucket", [0, n], 10.0, le=le)]
    n = at["+Inf"]
    return [
        *buckets,
        *rows(target, f"{name}_sum", [0, total_s], 10.0),
        *rows(target, f"{name}_count", [0, n], 10.0),
    ]


def replica(target: str, running: float = 3.0) -> list[Row]:
    return [
        *rows(target, "up", [1] * 11),
        *rows(target, "running", [running] * 11),
        *rows(target, "kv_cache_usage", [0.1 * i for i in range(11)]),
        *rows(target, "prefix_cache_queries", [100 * i for i in range(11)]),
        *rows(target, "prefix_cache_hits", [25 * i for i in range(11)]),
        *histogram(target, "ttft_s", {"0.04": 0, "0.06": 50, "0.1": 98, "+Inf": 100}, 6.0),
    ]


def test_engines_of_one_target_run_together_also_at_their_most() -> None:
    engines = [rows("a", "running", [n] * 11, engine=engine) for engine, n in (("0", 5), ("1", 3))]
    (a,) = server_metrics(
        series([*rows("a", "up", [1] * 11), *engines[0], *engines[1]]), columns(request()), WINDOW
    )["targets"]
    assert (a["running_mean"], a["running_max"]) == (8.0, 8.0)


def test_each_target_and_the_total_of_all_are_told() -> None:
    found = server_metrics(series([*replica("a"), *replica("b", 5.0)]), columns(request()), WINDOW)
    a, b = found["targets"]
    assert (a["name"], b["name"]) == ("a", "b")
    assert (a["running_mean"], found["total"]["running_mean"]) == (3.0, 8.0)
    assert (a["running_max"], found["total"]["running_max"]) == (3.0, 8.0)
    assert a["kv_cache_usage_mean"] == found["total"]["kv_cache_usage_mean"] == pytest.approx(0.45)
    assert a["kv_cache_usage_max"] == pytest.approx(0.9)
    assert found["total"]["prefix_cache_queries"] == pytest.approx(2000)
    assert found["total"]["prefix_cache_hit_ratio"] == pytest.approx(0.25)
    assert a["ttft_ms"] == {
        "n": pytest.approx(100),
        "n_error": 0.0,
        "mean": pytest.approx(60),
        "p50_bounds": [40, 60],
        "p99_bounds": [100, None],
    }
    assert a["tpot_ms"] is a["waiting_mean"] is a["preemptions"] is a["power_w_mean"] is None
    assert (a["scrapes"], a["failed"], a["covered"]) == (10, 0, pytest.approx(1.0))


def test_one_that_was_silent_for_half_the_window_counts_for_half_in_what_all_had() -> None:
    half = [*rows("a", "running", [10] * 10), *rows("b", "running", [10] * 5)]
    found = server_metrics(series(half), client(10, 0.5), WINDOW)
    assert [target["running_mean"] for target in found["targets"]] == [10, 10]  # of the pages that they gave
    assert found["total"]["running_mean"] == pytest.approx(15, abs=1.1)


def test_acceptance_is_by_the_counters_of_the_window() -> None:
    counters = {"spec_drafts": 100, "spec_draft_tokens": 300, "spec_accepted_tokens": 120}

    def of(target: str, times: int) -> list[Row]:
        return [
            row
            for name, a_second in counters.items()
            for row in rows(target, name, [50_000 + times * a_second * i for i in range(11)])
        ]

    found = server_metrics(series([*of("a", 1), *of("b", 3)]), columns(request()), WINDOW)
    for told in (*found["targets"], found["total"]):
        assert told["acceptance_length"] == pytest.approx(2.2)
        assert told["acceptance_rate"] == pytest.approx(0.4)
    assert found["total"]["spec_drafts"] == pytest.approx(4_000)


def test_acceptance_of_a_server_that_reports_only_means_is_their_mean() -> None:
    gauges = [*rows("a", "spec_accept_length", [2.0, 3.0]), *rows("a", "spec_accept_rate", [0.25, 0.75])]
    (told,) = server_metrics(series(gauges), columns(request()), WINDOW)["targets"]
    assert (told["acceptance_length"], told["acceptance_rate"], told["spec_drafts"]) == (2.5, 0.5, None)


def test_without_drafts_there_is_no_acceptance() -> None:
    silent = [row for name in ("spec_drafts", "spec_accepted_tokens") for row in rows("a", name, [7] * 11)]
    (told,) = server_metrics(series(silent), columns(request()), WINDOW)["targets"]
    assert (told["acceptance_length"], told["acceptance_rate"], told["spec_drafts"]) == (None, None, 0)


def client(n: int, ttft_s: float, rtt_ms: float = 2.0) -> Any:
    return columns(
        *(request(i * 0.05, (ttft_s, ttft_s + 0.01), rtt_ns=round(rtt_ms * 1e6)) for i in range(n))
    )


def test_what_the_gateway_adds_is_the_clients_ttft_without_the_servers_and_the_round_trip() -> None:
    found = gateway({"n": 100.0, "n_error": 0.0, "mean": 60.0}, client(100, 0.075), WINDOW)
    assert found == {
        "client_ttft_ms": pytest.approx(75),
        "server_ttft_ms": 60.0,
        "rtt_ms": pytest.approx(2),
        "gateway_ms": pytest.approx(13),
        "client_n": 100,
        "server_n": 100.0,
        "same_requests": True,
    }


def test_a_server_that_saw_more_requests_is_used_by_others() -> None:
    found = gateway({"n": 150.0, "n_error": 40.0, "mean": 60.0}, client(100, 0.075), WINDOW)
    assert found is not None
    assert found["same_requests"] is False
    bursts = gateway({"n": 150.0, "n_error": 46.0, "mean": 60.0}, client(100, 0.075), WINDOW)
    assert bursts is not None
    assert bursts["same_requests"] is True


def test_without_one_of_both_there_is_no_difference() -> None:
    assert gateway(None, client(9, 0.1), WINDOW) is None
    assert gateway({"n": 0.0, "n_error": 0.0, "mean": None}, client(9, 0.1), WINDOW) is None
    assert gateway({"n": 9.0, "n_error": 0.0, "mean": 1.0}, columns(request(arrivals=())), WINDOW) is None


def test_a_state_over_time_adds_up_over_replicas_or_is_their_mean() -> None:
    found = series([*rows("a", "running", [2] * 11), *rows("b", "running", [3] * 5),
                    *rows("a", "gpu_utilisation", [0.5] * 11, UUID="g1"),
                    *rows("b", "gpu_utilisation", [1.0] * 11, UUID="g2"),
                    *rows("c", "gpu_utilisation", [1.0] * 11, UUID="g2")])  # fmt: skip
    running, used = in_parts(found, "running"), in_parts(found, "gpu_utilisation")
    # The second one said nothing after 4 s: it is held for two seconds, then not known.
    assert [running[int(24 * s)] for s in (0, 0.5, 4, 5.5, 6.5)] == [5, 5, 5, 5, 2]
    assert used[0] == pytest.approx(0.75)  # a GPU that two exporters tell of is one
    assert np.isnan(in_parts(found, "waiting")).all()


def test_a_summary_has_them_unless_only_some_requests_are_looked_at() -> None:
    made, power = batch(request(1.0)), rows("gpu", "power_w", [300] * 11)
    scraped = series(power)
    whole = summarise(made, manifest(10.0), server=scraped)
    assert whole["server"]["total"]["gpus"] == whole["energy"]["gpus"] == 1
    assert whole["energy"]["power_w"] == pytest.approx(300)
    some = summarise(made, manifest(10.0), server=scraped, rows_of_run=9)
    assert some["server"] == some["energy"] == {}
    assert summarise(made, manifest(10.0))["server"] == {}


def energy(*given: Any, **more: Any) -> Any:
    series, figures = given
    found = energy_of(series, faked(figures["throughput"]), faked(figures["goodput"]))
    return {} if found is None else {"missing": found} if isinstance(found, str) else plain(found)


FIGURES: dict[str, Any] = {
    "throughput": {"output_tokens_per_s": 1000.0, "total_tokens_per_s": 3000.0, "requests_per_s": 5.0},
    "goodput": {"requests_per_s": 4.0, "output_tokens_per_s": 800.0},
}


def gpu(uuid: str, watts: float = 500.0, target: str = "dcgm") -> list[Row]:
    return rows(target, "energy_j", [1e6 + watts * i for i in range(11)], UUID=uuid)


def test_joules_are_those_of_the_counters_over_the_window() -> None:
    found = energy(series([*gpu("g1", 500.0), *gpu("g2", 300.0)]), FIGURES)
    assert (found["gpus"], found["by_counter"]) == (2, 2)
    assert found["power_w"] == pytest.approx(800)
    assert found["joules"] == pytest.approx(8000)
    assert found["joules_per_output_token"] == pytest.approx(0.8)
    assert found["joules_per_token"] == pytest.approx(8 / 30)
    assert found["joules_per_good_request"] == pytest.approx(200)
    assert found["per_watt"]["output_tokens_per_s"] == pytest.approx(1000 / 800)
    assert found["per_watt"]["goodput_requests_per_s"] == pytest.approx(4 / 800)
    assert found["per_gpu"]["goodput_output_tokens_per_s"] == pytest.approx(400)


def test_without_a_counter_it_is_power_by_time() -> None:
    found = energy(series(rows("dcgm", "power_w", [200, 400] * 5 + [300], UUID="g1")), FIGURES)
    assert (found["gpus"], found["by_counter"]) == (1, 0)
    assert found["joules"] == pytest.approx(3000)


def test_a_gpu_of_two_exporters_and_of_two_metrics_counts_once() -> None:
    power = rows("triton", "power_w", [999] * 11, gpu_uuid="g1")
    found = energy(series([*gpu("g1"), *gpu("g1", target="other"), *power]), FIGURES)
    assert (found["gpus"], found["power_w"]) == (1, pytest.approx(500))


def test_a_gpu_that_was_watched_for_half_of_the_window_gives_no_figure() -> None:
    half = rows("dcgm", "energy_j", [0, 500, 1000, 1500, 2000], UUID="g2")
    found = energy(series([*gpu("g1"), *half]), FIGURES)
    assert found == {"missing": "observed for less than 90 % of the window: g2"}


def test_power_stands_in_where_the_counter_was_watched_too_little() -> None:
    half = rows("dcgm", "energy_j", [0, 500, 1000], UUID="g1")
    found = energy(series([*half, *rows("dcgm", "power_w", [100] * 11, UUID="g1")]), FIGURES)
    assert (found["power_w"], found["by_counter"]) == (pytest.approx(100), 0)


def test_what_is_not_known_is_none_and_without_a_gpu_there_is_nothing() -> None:
    none = {"throughput": dict.fromkeys(FIGURES["throughput"]), "goodput": dict.fromkeys(FIGURES["goodput"])}
    found = energy(series(gpu("g1")), none)
    assert found["joules"] == pytest.approx(5000)
    assert found["joules_per_output_token"] is found["per_watt"]["requests_per_s"] is None
    assert energy(series(rows("t", "running", [1.0] * 11)), FIGURES) == {}


ALL = range(11)


def watched_replica(target: str) -> list[Any]:
    return [
        *rows(target, "up", [1, 1, 0, *[1] * 8]),
        *rows(target, "running", [3 for _ in ALL]),
        *rows(target, "ttft_s_sum", [0.3 * i for i in ALL]),
        *rows(target, "ttft_s_count", [5 * i for i in ALL]),
    ]


def summary(*samples: Any) -> dict[str, Any]:
    made = records()
    return summarise(batch(*made), report_manifest(len(made)), server=series(samples))


def told(*samples: Any) -> Summary:
    return typed(summary(*samples))


def texts(section: Section | None) -> list[str]:
    assert section is not None
    return [line.text for line in (*section.lines, *section.notes)]


def test_servers_stand_in_a_table_without_what_none_of_them_tells() -> None:
    found = show_servers(told(*watched_replica("a:8000"), *watched_replica("b:8000")))
    assert found is not None
    assert found.table is not None
    assert [f"{c.over} {c.head}".strip() for c in found.table.columns] == [
        "Server", "running mean", "running max", "TTFT ms", "no page",
    ]  # fmt: skip
    assert [row.cells for row in found.table.rows] == [
        ("a:8000", "3.00", "3.00", "60.0", "1 of 10"),
        ("b:8000", "3.00", "3.00", "60.0", "1 of 10"),
        ("all", "6.00", "6.00", "60.0", "2 of 20"),
    ]


def test_transfers_of_kv_caches_are_told_by_the_server_that_counts_them() -> None:
    transfers = [
        *rows("decode:8000", "kv_transfer_s_sum", [0.04 * i for i in ALL]),
        *rows("decode:8000", "kv_transfer_s_count", [5 * i for i in ALL]),
        *rows("decode:8000", "kv_transfer_bytes_sum", [10 * 2**20 * i for i in ALL]),
        *rows("decode:8000", "kv_transfers_failed", ALL),
    ]
    found = show_servers(told(*watched_replica("prefill:8000"), *watched_replica("decode:8000"), *transfers))
    assert found is not None
    assert found.table is not None
    heads = [f"{c.over} {c.head}".strip() for c in found.table.columns]
    place = heads.index("KV transfer ms")
    assert heads[place : place + 3] == ["KV transfer ms", "KV transfer MiB", "KV transfer failed"]
    cells = {row.cells[0]: row.cells[place : place + 3] for row in found.table.rows}
    assert cells == {
        "prefill:8000": ("", "", ""),
        "decode:8000": ("8.00", "2.00", "10"),
        "all": ("8.00", "2.00", "10"),
    }


def test_the_gateways_part_of_a_first_token_is_a_line_with_what_it_is_made_of() -> None:
    said = texts(show_servers(told(*watched_replica("a:8000"), *watched_replica("b:8000"))))
    assert said[0].startswith("gateway and balancer: 37.0 ms of a mean TTFT (client 97.0 − servers 60.0")
    assert "2 of 20 scrapes of 2 servers returned no metrics page" in said


def test_a_server_that_never_answers_is_counted_on_its_own_and_covers_nothing() -> None:
    found = show_servers(told(*watched_replica("a:8000"), *rows("dead", "up", [0, 0, 0])))
    assert found is not None
    assert found.table is not None
    assert found.table.rows[1].cells == ("dead", "", "", "", "3 of 3")
    assert "4 of 13 scrapes of 2 servers returned no metrics page" in texts(found)
    assert not any("scraped over only" in text for text in texts(found))


def test_counts_that_are_all_0_need_no_column() -> None:
    found = show_servers(told(*rows("a", "up", [1] * 11), *rows("a", "preemptions", [0] * 11)))
    assert found is not None
    assert found.table is not None
    assert [column.head for column in found.table.columns] == ["Server"]


def test_why_the_scraping_ended_early_is_said_with_and_without_samples() -> None:
    made = records()
    for samples in (watched_replica("a:8000"), []):
        broken = replace(series(samples), failure="the scraper was ended by signal 9 (SIGKILL)")
        found = show_servers(typed(summarise(batch(*made), report_manifest(len(made)), server=broken)))
        assert "the scraper was ended by signal 9 (SIGKILL)" in texts(found)


def test_a_server_that_saw_other_requests_is_warned_of() -> None:
    found = show_servers(told(*watched_replica("a:8000")))
    assert found is not None
    warned = [note.text for note in found.notes if note.tone is Tone.WARN]
    assert any("the servers saw 50 first tokens, the client 95" in text for text in warned)


def test_only_so_many_servers_are_told() -> None:
    found = show_servers(told(*(row for i in range(MOST_ROWS + 2) for row in rows(f"t{i}", "up", [1] * 11))))
    assert found is not None
    assert found.table is not None
    assert len(found.table.rows) == MOST_ROWS + 1
    assert "2 more in summary.json" in texts(found)


def test_energy_is_told_by_token_by_request_by_watt_and_by_gpu() -> None:
    said = texts(show_energy(told(*rows("dcgm", "energy_j", [100 * i for i in ALL], UUID="g"))))
    assert said[0] == "1 GPU: 100 W, 1,000 J in the window, by their energy counters"
    assert "J per output token" in said[1]
    assert "J per good request" in said[1]
    assert "output tokens/s per watt" in said[2]


def test_power_that_was_not_watched_long_enough_gives_a_reason_instead_of_figures() -> None:
    (line,) = texts(show_energy(told(*rows("dcgm", "power_w", [100, 100], UUID="g"))))
    assert line == "no figures: observed for less than 90 % of the window: g"


def test_without_servers_there_is_neither_section() -> None:
    made = summary()
    assert show_servers(typed(made)) is show_energy(typed(made)) is None
    assert not {"Servers", "Energy"} & {section.title for section in sections(typed(made))}
    both = {part.title for part in sections(told(*watched_replica("a"), *rows("g", "power_w", [1.0] * 11)))}
    assert both >= {"Servers", "Energy"}
