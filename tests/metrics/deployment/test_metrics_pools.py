"""Roles of servers, the figures of each role, and what is wrong with prefill and decode."""

from collections.abc import Mapping
from typing import Any

import pytest
from metrics_cases import batch, columns, manifest, request
from server_cases import WINDOW, Row, rows, series

from llm_locust.figures.bottleneck import show as where_the_time_goes
from llm_locust.figures.servers import ROLE_SAMPLE, roles_of, servers, show_pools as pools
from llm_locust.figures.summarise import summarise
from llm_locust.figures.summary import typed
from llm_locust.metrics.question import Question

REQUESTS = 50
PROMPT, ANSWER = 400, 20


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
    return servers(series(samples), CLIENT, WINDOW)


def kinds(samples: list[Row]) -> dict[str, str]:
    return {each.kind: each.text for each in found(samples)["pools"]["findings"]}


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
    assert [(each.kind, each.server) for each in said] == [("idle", "d:3")]
    assert said[0].text == "d:3 (decode) had no generated tokens in the window, others of its role 1,000"


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
    (said,) = [each.text for each in server["pools"]["findings"] if each.kind == "bottleneck"]
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


def test_a_server_whose_counter_has_not_begun_is_idle() -> None:
    said = found([*given_roles("d:1", "d:2", "d:3"), *HEALTHY, *server("d:3", {})])["pools"]["findings"]
    assert [(each.kind, each.server) for each in said] == [("idle", "d:3")]


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


def test_the_report_has_a_table_by_role_the_transfers_and_the_parts_of_the_ttft() -> None:
    made = batch(*(request(0.1 * i, (0.1, 0.12)) for i in range(REQUESTS)))
    question = Question(gates="kv_transfer_failures<1%")
    summary = summarise(made, manifest(), question, server=series(HEALTHY))
    section = pools(typed(summary))
    assert section is not None
    assert section.table is not None
    assert [row.cells[:4] for row in section.table.rows] == [
        ("prefill", "1", "2,000", "5.00"),
        ("decode", "2", "2,000", "100"),
    ]
    said = [note.text for note in section.notes]
    assert said[0] == "50 KV transfers · mean 25.0 ms · 50.0 MB each · 2,000 MB/s · 0 failed"
    assert said[1].startswith(
        "mean TTFT 100 ms = 30.0 at prefill servers, queue included, + 25.0 KV transfer + 45.0"
    )
    assert said[-1] == "roles by its counts (3 servers)"
    assert [gate["passed"] for gate in summary["gates"]] == [True]


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
